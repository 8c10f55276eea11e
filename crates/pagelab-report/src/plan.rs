//! `pagelab plan`: what n huge pages bring, on a terminal.

use pagelab_model::profile::{ProfileSource, WalkCost};
use pagelab_model::{Bytes, Profile};
use pagelab_tlb::plan::predict::{self, Interval, Native};
use pagelab_tlb::plan::{Ranking, Shape};

use crate::misses;
use crate::quantity::duration;
use crate::style::{Style, bytes, count, percent, three_digits};
use crate::text::{Column, Page};

/// Columns of a bar.
const BAR: usize = 24;

/// A ranking with what was chosen of it.
#[derive(Clone, Copy, Debug)]
pub struct PlanReport<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// Its ranking.
    pub ranking: &'a Ranking,
    /// The size of a planned page.
    pub page: Bytes,
    /// How many pages are planned.
    pub chosen: usize,
    /// By what regions are ranked: `cost`, `misses`, `accesses`, `random`.
    pub by: &'a str,
    /// How long the program runs, if it was told.
    pub native: Option<Native>,
}

impl PlanReport<'_> {
    /// Time over time with the first `n` regions, if it can be predicted.
    pub fn speedup(&self, n: usize) -> Option<f64> {
        predict::speedup(self.ranking, n, self.native?)
    }

    /// Between which ratios the truth is expected.
    pub fn interval(&self, n: usize) -> Option<Interval> {
        predict::interval(self.ranking, n, self.native?)
    }

    /// A cost in its unit: `2.1 s`, `1 200 misses`.
    fn amount(&self, cost: f64) -> String {
        amount(cost, self.ranking.timed)
    }
}

/// A cost: picoseconds as a time, or misses.
pub(crate) fn amount(cost: f64, timed: bool) -> String {
    if timed { duration((cost / 1000.0) as u64) } else { format!("{} misses", count(cost.round() as u128)) }
}

/// The name of a source in sentences.
pub fn source(source: ProfileSource) -> &'static str {
    match source {
        ProfileSource::Exact => "exact",
        ProfileSource::Accessed => "accessed bits",
        ProfileSource::Pmu => "hardware samples",
        ProfileSource::PerfData => "perf data",
    }
}

/// The report.
pub fn render(report: &PlanReport<'_>, style: Style) -> String {
    let mut page = Page::new(style);
    head(&mut page, report);
    page.gap();
    curve(&mut page, report);
    page.gap();
    page.hanging("", &shape(report));
    page.hanging_bold("", &verdict(report));
    for note in notes(report) {
        page.hanging_dim("  ", &note);
    }
    page.finish()
}

fn head(page: &mut Page, report: &PlanReport<'_>) {
    let (profile, ranking) = (report.profile, report.ranking);
    let command = profile.command.join(" ");
    let what = if command.is_empty() { "a profile".to_owned() } else { crate::run::clipped(&command, 60) };
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let regions = format!(
        "{} touched regions of {} that can be planned",
        count(ranking.regions.len() as u128),
        bytes(report.page)
    );
    page.facts("", &[page.style().bold(&what), source(profile.source).to_owned(), regions], "   ");
    let text = if ranking.timed {
        let walks: f64 = ranking.total / (misses as f64).max(1.0) / 1000.0;
        format!(
            "page walks cost {} by the model, for {}, {} ns each; huge pages can save {}",
            report.amount(ranking.total),
            misses::all(profile),
            three_digits(walks),
            report.amount(ranking.attainable()),
        )
    } else {
        format!("{}; huge pages can save {}", misses::all(profile), report.amount(ranking.attainable()))
    };
    page.hanging("", &text);
}

/// The counts that are worth a line: doublings, the knee, what was chosen, all.
pub fn counts(report: &PlanReport<'_>) -> Vec<usize> {
    let all = report.ranking.regions.len();
    let mut counts: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&n| n < all).collect();
    counts.extend([report.chosen, all]);
    if let Shape::Knee(knee) = report.ranking.shape {
        counts.push(knee);
    }
    counts.retain(|&n| n > 0);
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn curve(page: &mut Page, report: &PlanReport<'_>) {
    let style = page.style();
    let is_predicted = report.speedup(report.ranking.regions.len()).is_some();
    let mut rows = Vec::new();
    for n in counts(report) {
        let share = report.ranking.share(n).unwrap_or(0.0);
        let mut row = vec![
            if n == report.chosen { "→".to_owned() } else { String::new() },
            count(n as u128),
            bytes(Bytes(report.page.0.saturating_mul(n as u64))),
            bar(style, share),
            percent(share),
            report.amount(report.ranking.saved(n)),
        ];
        if is_predicted {
            row.push(report.speedup(n).map_or(String::new(), |ratio| format!("{ratio:.2}×")));
        }
        rows.push(row);
    }
    let mut columns = vec![
        Column::left(""),
        Column::right("huge pages"),
        Column::right("memory"),
        Column::left("share of the gain"),
        Column::right(""),
        Column::right("saved"),
    ];
    if is_predicted {
        columns.push(Column::right("predicted"));
    }
    page.table(1, &columns, &rows);
}

fn bar(style: Style, share: f64) -> String {
    let filled = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let (full, empty) = if style.unicode { ("█", "·") } else { ("#", ".") };
    full.repeat(filled) + &empty.repeat(BAR - filled)
}

fn shape(report: &PlanReport<'_>) -> String {
    let ranking = report.ranking;
    let all = ranking.regions.len();
    let part = |n: usize| percent(n as f64 / all.max(1) as f64);
    let share = |n: usize| percent(ranking.share(n).unwrap_or(0.0));
    match ranking.shape {
        Shape::Nothing => "huge pages save nothing here by the model".to_owned(),
        Shape::Knee(knee) => format!(
            "the knee is at {}: {} of the gain with {} of the regions",
            count(knee as u128),
            share(knee),
            part(knee)
        ),
        Shape::Flat => format!(
            "the curve is flat: misses are spread evenly, so few huge pages bring little; {} of {} have {} \
             of the gain",
            count(all.div_ceil(8) as u128),
            count(all as u128),
            share(all.div_ceil(8))
        ),
        Shape::AllNeeded => {
            format!(
                "nearly all touched regions are needed: no smaller number has most of the gain of all {all}"
            )
        }
    }
}

fn verdict(report: &PlanReport<'_>) -> String {
    let (ranking, chosen) = (report.ranking, report.chosen);
    let pages = if chosen == 1 { "huge page" } else { "huge pages" };
    let memory = bytes(Bytes(report.page.0.saturating_mul(chosen as u64)));
    let mut text = format!("{} {pages}, {memory}", count(chosen as u128));
    if let Some(share) = ranking.share(chosen) {
        let all = count(ranking.regions.len() as u128);
        text += &format!(": {} of what all {all} bring", percent(share));
    }
    match (report.speedup(chosen), report.native.and_then(|native| predict::all(ranking, native))) {
        (Some(likely), Some(all)) => {
            let within = report.interval(chosen);
            let within =
                within.map(|of| format!("between {:.2}× and {:.2}×; ", of.low, of.high)).unwrap_or_default();
            text + &format!("; predicted {likely:.2}× ({within}all: {all:.2}×)")
        }
        _ => text,
    }
}

/// What limits what was said.
pub fn notes(report: &PlanReport<'_>) -> Vec<String> {
    let (profile, ranking) = (report.profile, report.ranking);
    let mut notes = Vec::new();
    match &profile.walk_cost {
        Some(price) if ranking.timed => notes.push(format!("price of a walk: {}", price.origin)),
        _ => notes.push(
            "what a page walk costs is not known, so misses count alike; `pagelab plan --calibrate` \
             measures it"
                .to_owned(),
        ),
    }
    let has_distances = profile.images.iter().flat_map(|image| &image.mappings).any(|of| of.reuse.line.0 > 0);
    if ranking.timed && !has_distances {
        notes.push(
            "this source gives no reuse distances; they are estimated from rates (all walks / those of \
             a line)"
                .to_owned(),
        );
    }
    match report.native {
        None => notes.push(
            "the times are of dependent loads; independent ones overlap and cost less. --pair TIME,TIME, \
             without and with all huge pages, gives a speed-up"
                .to_owned(),
        ),
        Some(Native::Base(_)) => notes.push(
            "from the price of walks alone: independent loads overlap, and their walks cost a tenth of it; \
             the interval is from there to the whole. --pair scales to the program"
                .to_owned(),
        ),
        Some(native @ Native::Pair { .. }) => {
            notes.extend(predict::walk_share(ranking, native).map(|part| {
                format!(
                    "by the pair, a walk costs this program {} of what it costs dependent reads",
                    percent(part)
                )
            }));
            if matches!(native, Native::Pair { kernel_ns: None, .. }) {
                notes.push(
                    "page faults are in the pair too, and go by memory: --kernel TIME,TIME, the CPU time in \
                     the kernel of both, tells them from walks"
                        .to_owned(),
                );
            }
        }
    }
    if let Some(of) = profile.effort.stretches {
        let error = match of.error_permille {
            Some(error) => format!("± {}", percent(f64::from(error) / 1000.0)),
            None => "it is not known how far".to_owned(),
        };
        notes.push(format!(
            "costs and times are scaled from {} of the accesses; off by that alone: {error}",
            percent(of.share())
        ));
    }
    if report.by != "cost" {
        notes.push(format!("ranked by {}, as a control", report.by));
    }
    notes.extend(beside(report));
    notes
}

/// What is saved besides, and what no plan reaches.
fn beside(report: &PlanReport<'_>) -> Vec<String> {
    let (profile, ranking) = (report.profile, report.ranking);
    let mut notes = Vec::new();
    let faults = ranking.faults_saved(report.chosen, profile.page_size.bytes());
    if let Some(faults) = faults.filter(|faults| *faults > 0) {
        let besides = if matches!(report.native, Some(Native::Pair { .. })) { "too" } else { "besides" };
        notes.push(format!("{} page faults of first touches are saved {besides}", count(u128::from(faults))));
    }
    for (cost, what) in [
        (ranking.beyond.ends, "at ends of mappings, where no whole huge page fits"),
        (ranking.beyond.files, "in files and stacks, which only --files plans"),
    ] {
        if cost > 0.0 {
            notes.push(format!("{} of the cost lies {what}", percent(cost / ranking.total.max(cost))));
        }
    }
    if ranking.beyond.joined.cost > 0.0 {
        notes.push(format!(
            "{} of the cost lies in small mappings side by side: all memory on huge pages has them, and no \
             plan names them",
            percent(ranking.beyond.joined.cost / ranking.total.max(ranking.beyond.joined.cost))
        ));
    }
    let unseen = ranking.mappings.iter().map(|mapping| mapping.unseen.len()).sum::<usize>();
    if unseen > 0 {
        let text = "places were not visible to the source; what they cost is unknown: `pagelab profile show`";
        notes.push(format!("{} {text}", count(unseen as u128)));
    }
    notes
}

/// The price of walks, for a person.
pub fn price(price: &WalkCost, style: Style) -> String {
    let mut page = Page::new(style);
    page.hanging("", "a page walk, by how many walks of other page-table lines lie before it");
    let largest = price.points.iter().map(|(_, ps)| *ps).max().unwrap_or(0).max(1);
    let row = |&(log2, ps): &(u32, u64)| {
        let distance = 1u128.checked_shl(log2).unwrap_or(u128::MAX);
        vec![count(distance), bar(style, ps as f64 / largest as f64), duration(ps / 1000)]
    };
    let rows: Vec<Vec<String>> = price.points.iter().map(row).collect();
    page.table(1, &[Column::right("walks"), Column::left(""), Column::right("cost")], &rows);
    page.hanging_dim("", &price.origin);
    page.finish()
}
