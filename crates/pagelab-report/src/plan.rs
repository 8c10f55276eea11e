//! `pagelab plan`: the gain of n huge pages, on a terminal.

use pagelab_model::profile::{OwnAdvice, ProfileSource, WalkCostCurve};
use pagelab_model::{Bytes, TlbProfile};
use pagelab_tlb::plan::knee::{Knee, KneeAbsence};
use pagelab_tlb::plan::predict::{self, NativeTime, SpeedupInterval};
use pagelab_tlb::plan::{CurveShape, MOST_OF_GAIN, Ranking};

use crate::miss_counts;
use crate::quantity_format::format_duration;
use crate::style::{
    TextStyle, format_bytes, format_count, format_percent, format_plural, format_three_digits,
};
use crate::text_report::{RowTable, TextReport};

/// Width of a bar in characters.
const BAR_COLUMNS: usize = 24;

/// Ranking with the chosen regions.
#[derive(Clone, Copy, Debug)]
pub struct PlanReport<'a> {
    /// Profile.
    pub profile: &'a TlbProfile,
    /// Ranking of the regions.
    pub ranking: &'a Ranking,
    /// Size of a planned page.
    pub page_size: Bytes,
    /// Number of pages planned.
    pub chosen: usize,
    /// The options that set this number: `--share 0.9`.
    pub plan_arguments: &'a str,
    /// Criterion of the ranking: `cost`, `misses`, `accesses`, `random`.
    pub chosen_by: &'a str,
    /// Run time of the program, if given.
    pub native_result: Option<NativeTime>,
}

impl PlanReport<'_> {
    /// Returns the predicted speed-up with the first `count` regions, if it can be predicted.
    pub fn predicted_speedup(&self, count: usize) -> Option<f64> {
        predict::predict_speedup(self.ranking, count, self.native_result?)
    }

    /// Between which ratios the truth is expected.
    pub fn predicted_interval(&self, count: usize) -> Option<SpeedupInterval> {
        predict::predict_interval(self.ranking, count, self.native_result?)
    }

    /// Whether costs, savings and predictions are from a lower bound of the misses.
    pub fn is_lower_bound(&self) -> bool {
        self.profile.lower_bound_reason().is_some()
    }

    /// The end of the interval that still holds if there are more misses than the profile has.
    fn predicted_least(&self, count: usize) -> Option<f64> {
        Some(self.predicted_interval(count)?.low)
    }

    /// Formats a cost in its unit: `2.1 s`, `1 200 misses`. From a lower bound it is one.
    fn format_cost(&self, cost: f64) -> String {
        format_cost_value(cost * self.profile.lower_bound_factor(), self.ranking.is_timed)
    }

    /// A word before costs: they are at least that.
    fn least_word(&self) -> &'static str {
        if self.is_lower_bound() { "at least " } else { "" }
    }
}

/// Formats a cost: picoseconds as a time, or misses.
pub(crate) fn format_cost_value(cost: f64, is_time: bool) -> String {
    if is_time {
        format_duration((cost / 1000.0) as u64)
    } else {
        format!("{} misses", format_count(cost.round() as u128))
    }
}

/// Name of a source in sentences.
pub fn source_name(source: ProfileSource) -> &'static str {
    match source {
        ProfileSource::Exact => "exact",
        ProfileSource::Accessed => "accessed bits",
        ProfileSource::Pmu => "hardware samples",
        ProfileSource::PerfData => "perf data",
    }
}

/// Renders the report.
pub fn render(report: &PlanReport<'_>, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_header(&mut output, report);
    output.add_gap();
    write_curve(&mut output, report);
    output.add_gap();
    output.add_text(&curve_shape_text(report));
    output.add_bold_text(&plan_verdict(report));
    for note in list_notes(report) {
        output.add_dim_indented(&note);
    }
    output.into_text()
}

fn write_header(output: &mut TextReport, report: &PlanReport<'_>) {
    let (profile, ranking) = (report.profile, report.ranking);
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let regions = format!(
        "{} touched regions of {} eligible for a plan",
        format_count(ranking.regions.len() as u128),
        format_bytes(report.page_size)
    );
    output.add_fact_line(&[
        output.style().paint_bold(&crate::profile::command_text(profile)),
        source_name(profile.source).to_owned(),
        regions,
    ]);
    let walks: f64 = ranking.total / (misses as f64).max(1.0) / 1000.0;
    let least = report.least_word();
    let text = if ranking.is_timed && report.is_lower_bound() {
        format!(
            "{}; modelled cost of page walks: at least {}, {} ns each; huge pages can save at least {}",
            miss_counts::format_misses(profile),
            report.format_cost(ranking.total),
            format_three_digits(walks),
            report.format_cost(ranking.attainable_saving()),
        )
    } else if ranking.is_timed {
        format!(
            "modelled cost of page walks: {} for {}, {} ns each; huge pages can save {}",
            report.format_cost(ranking.total),
            miss_counts::format_misses(profile),
            format_three_digits(walks),
            report.format_cost(ranking.attainable_saving()),
        )
    } else {
        format!(
            "{}; huge pages can save {least}{}",
            miss_counts::format_misses(profile),
            report.format_cost(ranking.attainable_saving())
        )
    };
    output.add_text(&text);
}

/// Returns the counts with a line in the table: doublings, the knee, the number for most of the gain, the
/// chosen number, all.
pub fn curve_counts(report: &PlanReport<'_>) -> Vec<usize> {
    let total_gain = report.ranking.regions.len();
    let mut counts: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&n| n < total_gain).collect();
    counts.extend([report.chosen, report.ranking.most_of_gain(), total_gain]);
    counts.extend(report.ranking.knee.map(|knee| knee.pages));
    counts.retain(|&n| n > 0);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn write_curve(output: &mut TextReport, report: &PlanReport<'_>) {
    let style = output.style();
    let is_predicted = report.predicted_speedup(report.ranking.regions.len()).is_some();
    let is_bound = report.is_lower_bound();
    let share = |count: usize| report.ranking.saving_share(count).unwrap_or(0.0);
    RowTable::<usize>::new()
        .left("", |&count| if count == report.chosen { "→" } else { "" }.to_owned())
        .right("huge pages", |&count| format_count(count as u128))
        .right("memory", |&count| format_bytes(Bytes(report.page_size.0.saturating_mul(count as u64))))
        .left("share of the gain", |&count| share_bar(style, share(count)))
        .right("", |&count| format_percent(share(count)))
        .right(if is_bound { "saved, at least" } else { "saved" }, |&count| {
            report.format_cost(report.ranking.saving_at(count))
        })
        .right_if(is_predicted, if is_bound { "predicted, at least" } else { "predicted" }, |&count| {
            let ratio = match is_bound {
                true => report.predicted_least(count),
                false => report.predicted_speedup(count),
            };
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}×"))
        })
        .add_to(output, 1, curve_counts(report));
}

fn share_bar(style: TextStyle, share: f64) -> String {
    let filled = (share.clamp(0.0, 1.0) * BAR_COLUMNS as f64).round() as usize;
    let (full, empty) = if style.unicode { ("█", "·") } else { ("#", ".") };
    full.repeat(filled) + &empty.repeat(BAR_COLUMNS - filled)
}

/// Formats the two numbers of a curve: where its slope breaks, and how many pages most of the gain needs.
fn curve_numbers_text(report: &PlanReport<'_>) -> String {
    let ranking = report.ranking;
    let share = |n: usize| format_percent(ranking.saving_share(n).unwrap_or(0.0));
    let most = ranking.most_of_gain();
    let most_text = format!(
        "{:.0} % of the gain needs {} ({})",
        MOST_OF_GAIN * 100.0,
        format_count(most as u128),
        share(most)
    );
    match ranking.knee {
        Ok(knee) => {
            format!("the knee is at {}: {} of the gain; {most_text}", format_knee(knee), share(knee.pages))
        }
        Err(absence) => format!("{}; {most_text}", knee_absence_text(absence)),
    }
}

/// Formats a knee with its range: `16 huge pages (15 to 17)`.
pub fn format_knee(knee: Knee) -> String {
    let pages = format_plural(knee.pages, "huge page");
    if knee.low == knee.high {
        return pages;
    }
    format!("{pages} ({} to {})", format_count(knee.low as u128), format_count(knee.high as u128))
}

/// Returns why a curve has no knee.
pub fn knee_absence_text(absence: KneeAbsence) -> &'static str {
    match absence {
        KneeAbsence::TooFewRegions => "no knee: there are too few regions",
        KneeAbsence::NoKnee => "no knee: the slope of the curve does not break",
        KneeAbsence::TooFewSamples => {
            "the knee is unknown: there are too few samples to tell hot regions from others"
        }
    }
}

fn curve_shape_text(report: &PlanReport<'_>) -> String {
    let ranking = report.ranking;
    let total_gain = ranking.regions.len();
    let share = |n: usize| format_percent(ranking.saving_share(n).unwrap_or(0.0));
    match ranking.shape {
        CurveShape::NoGain => "the model predicts no gain from huge pages".to_owned(),
        CurveShape::Knee | CurveShape::Gradual => curve_numbers_text(report),
        CurveShape::Flat => format!(
            "the curve is flat: misses are evenly distributed; {} of {} regions account for {} of the gain; \
             {}",
            format_count(total_gain.div_ceil(8) as u128),
            format_count(total_gain as u128),
            share(total_gain.div_ceil(8)),
            curve_numbers_text(report)
        ),
        CurveShape::AllNeeded => {
            format!(
                "nearly all of the {total_gain} touched regions are needed: no smaller set brings most of \
                 the gain; {}",
                curve_numbers_text(report)
            )
        }
    }
}

fn plan_verdict(report: &PlanReport<'_>) -> String {
    let (ranking, chosen) = (report.ranking, report.chosen);
    let memory = format_bytes(Bytes(report.page_size.0.saturating_mul(chosen as u64)));
    let arguments = report.plan_arguments;
    let mut text = format!("takes {}, {memory}, by {arguments}", format_plural(chosen, "huge page"));
    if let Some(share) = ranking.saving_share(chosen) {
        let total_gain = format_count(ranking.regions.len() as u128);
        text += &format!(": {} of the gain of all {total_gain}", format_percent(share));
    }
    match (
        report.predicted_speedup(chosen),
        report.native_result.and_then(|native| predict::predict_full_speedup(ranking, native)),
    ) {
        (Some(_), Some(all)) if report.is_lower_bound() => {
            let least = report.predicted_least(chosen).unwrap_or(1.0);
            text + &format!(
                "; predicted at least {least:.2}×, from a lower bound of the misses (all: {all:.2}×)"
            )
        }
        (Some(likely), Some(all)) => {
            let within = report.predicted_interval(chosen);
            let within =
                within.map(|of| format!("between {:.2}× and {:.2}×; ", of.low, of.high)).unwrap_or_default();
            text + &format!("; predicted {likely:.2}× ({within}all: {all:.2}×)")
        }
        _ => text,
    }
}

/// Writes the limits of the prediction.
pub fn list_notes(report: &PlanReport<'_>) -> Vec<String> {
    let (profile, ranking) = (report.profile, report.ranking);
    let mut notes = Vec::new();
    match &profile.walk_cost {
        Some(walk_cost) if ranking.is_timed => {
            notes.push(format!("cost of a page walk: {}", walk_cost.origin));
        }
        _ => notes.push(
            "the cost of a page walk is unknown, so all misses count equally; hint: measure it with `pagelab \
             plan --calibrate`"
                .to_owned(),
        ),
    }
    let has_distances = profile.images.iter().flat_map(|image| &image.mappings).any(|of| of.reuse.line.0 > 0);
    if ranking.is_timed && !has_distances {
        notes.push(
            "this source provides no reuse distances; they are estimated from rates (all walks / walks of a \
             line)"
                .to_owned(),
        );
    }
    match report.native_result {
        None => notes.push(
            "times are for dependent loads; independent loads overlap and cost less. To predict a speed-up, \
             use --pair TIME,TIME: the times without and with all huge pages"
                .to_owned(),
        ),
        Some(NativeTime::Base(_)) => notes.push(
            "predicted from walk costs alone: walks of independent loads overlap and cost a tenth; the \
             interval covers both. To scale it to the program, use --pair"
                .to_owned(),
        ),
        Some(native @ NativeTime::Pair { .. }) => {
            notes.extend(predict::compute_walk_cost_ratio(ranking, native).map(|part| {
                format!(
                    "according to --pair, a walk costs this program {} of the cost with dependent loads",
                    format_percent(part)
                )
            }));
            if matches!(native, NativeTime::Pair { kernel_ns: None, .. }) {
                notes.push(
                    "--pair includes page faults, which depend on the amount of memory; hint: separate them \
                     with --kernel TIME,TIME, the system time of both"
                        .to_owned(),
                );
            }
        }
    }
    if let Some(of) = profile.effort.stretches {
        let error = match of.error_permille {
            Some(error) => format!("± {}", format_percent(f64::from(error) / 1000.0)),
            None => "unknown".to_owned(),
        };
        notes.push(format!(
            "costs and times are scaled from {} of the accesses; scaling error: {error}",
            format_percent(of.counted_share())
        ));
    }
    notes.extend(refusal_text(profile));
    notes.extend(chosen_size_text(report));
    if report.chosen_by != "cost" {
        notes.push(format!("ranked by {}, as a control", report.chosen_by));
    }
    notes.extend(list_side_notes(report));
    notes
}

/// Returns that the program refuses huge pages, so that the plan alone has no effect there.
fn refusal_text(profile: &TlbProfile) -> Option<String> {
    let advice = profile.own_advice().filter(OwnAdvice::is_refusal)?;
    Some(format!("{}; hint: use `pagelab apply --override`", describe_refusal(&advice)))
}

/// Describes a program's own advice against huge pages.
pub fn describe_refusal(advice: &OwnAdvice) -> String {
    if advice.refused.0 == 0 {
        return "the program disables huge pages for itself (PR_SET_THP_DISABLE)".to_owned();
    }
    let bytes = format_bytes(advice.refused);
    let more = if advice.disables_thp { " and PR_SET_THP_DISABLE" } else { "" };
    format!("the program refuses huge pages for {bytes} (MADV_NOHUGEPAGE{more})")
}

/// Returns why a plan does not end at the knee.
fn chosen_size_text(report: &PlanReport<'_>) -> Option<String> {
    let (ranking, chosen) = (report.ranking, report.chosen);
    let knee = ranking.knee.ok()?.pages;
    let difference = ranking.saving_share(chosen)? - ranking.saving_share(knee)?;
    let part = format_percent(difference.abs());
    match chosen.cmp(&knee) {
        std::cmp::Ordering::Greater => Some(format!(
            "the plan does not end at the knee: the regions after it that it takes have {part} of the gain; \
             hint: plan the hot regions alone with -n {knee}"
        )),
        std::cmp::Ordering::Less => {
            Some(format!("the plan ends before the knee: the other hot regions have {part} of the gain"))
        }
        std::cmp::Ordering::Equal => Some("the plan ends at the knee".to_owned()),
    }
}

/// Writes the additional savings, and the cost that no plan removes.
fn list_side_notes(report: &PlanReport<'_>) -> Vec<String> {
    let (profile, ranking) = (report.profile, report.ranking);
    let mut notes = Vec::new();
    let faults = ranking.saved_faults(report.chosen, profile.page_size.bytes());
    if let Some(faults) = faults.filter(|faults| *faults > 0) {
        let besides =
            if matches!(report.native_result, Some(NativeTime::Pair { .. })) { "too" } else { "in addition" };
        let faults = format_count(faults.into());
        notes.push(format!("{faults} first-touch page faults are saved {besides}"));
    }
    for (cost, what) in [
        (ranking.uncovered.mapping_ends, "at ends of mappings, where no aligned huge page fits"),
        (ranking.uncovered.files, "in files and stacks, which are planned only with --files"),
        (ranking.uncovered.merged.cost, "in small adjacent mappings, which `all` covers and a plan cannot"),
    ] {
        if cost > 0.0 {
            notes.push(format!("{} of the cost is {what}", format_percent(cost / ranking.total.max(cost))));
        }
    }
    let unseen = ranking.mappings.iter().map(|mapping| mapping.unseen.len()).sum::<usize>();
    if unseen > 0 {
        let text = "ranges were not visible to the source, so their cost is unknown; see `pagelab profile \
                    show`";
        notes.push(format!("{} {text}", format_count(unseen as u128)));
    }
    notes
}

/// Renders the page walk costs.
pub fn render_walk_cost(walk_cost: &WalkCostCurve, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_text(
        "cost of a page walk, by the number of walks of other page-table lines since its line was last used",
    );
    let largest = walk_cost.points.iter().map(|(_, ps)| *ps).max().unwrap_or(0).max(1);
    RowTable::<&(u32, u64)>::new()
        .right("walks", |(log2, _)| format_count(1u128.checked_shl(*log2).unwrap_or(u128::MAX)))
        .left("", |(_, ps)| share_bar(style, *ps as f64 / largest as f64))
        .right("cost", |(_, ps)| format_duration(ps / 1000))
        .add_to(&mut output, 1, &walk_cost.points);
    output.add_dim_text(&walk_cost.origin);
    output.into_text()
}

#[cfg(test)]
mod tests;
