//! Answer to whether a number of huge pages can be allocated: the gain of each step, the obstacles, and the
//! result of the real allocation.

use pagelab_metrics::forecast::{
    AllocationMethod, Forecast, ForecastBounds, ReclaimStep, UpperBound, ZoneForecast,
};
use pagelab_model::order_statistics::quantile;
use pagelab_model::{Absence, PageClass, Snapshot};

use crate::compact::slab_caches_text;
use crate::findings::class_text;
use crate::quantity_format::format_duration;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Result of a real allocation at one step, for the table beside the forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// Step before the allocation.
    pub step: ReclaimStep,
    /// Numbers, or the reason why nothing was requested.
    pub outcome: Result<AllocatedPages, Absence>,
}

/// Numbers of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedPages {
    /// Requested pages: fewer than on the command line where the reserve would be violated.
    pub requested: u64,
    /// Pages allocated, read back.
    pub allocated: u64,
    /// Of those, by MADV_COLLAPSE; `None` if another method was used.
    pub collapsed: Option<u64>,
    /// Nanoseconds of each request that was timed alone.
    pub latency_ns: Vec<u64>,
    /// Method of the read-back.
    pub verified_by: String,
    /// Reason why the requests ended, in words.
    pub stop_reason: String,
}

impl AllocatedPages {
    /// Returns the prediction for the number of pages requested.
    pub fn predicted_pages(&self, bounds: ForecastBounds) -> u64 {
        bounds.expected.min(self.requested)
    }

    /// Returns how many of the `wanted` pages were allocated, and why the others were not.
    fn describe_end(&self, wanted: u64) -> String {
        let [allocated, total] = [self.allocated, wanted].map(|count| format_count(count.into()));
        match self.allocated >= wanted {
            true => format!("all {total} pages were allocated"),
            false => format!("{allocated} of {total} pages were allocated: {}", self.stop_reason),
        }
    }

    /// Returns a quantile of the latency, in thousandths.
    fn latency_quantile(&self, permille: u32) -> Option<u64> {
        let mut sorted = self.latency_ns.clone();
        sorted.sort_unstable();
        quantile(&sorted, permille)
    }
}

/// Title of a step.
pub fn step_title(step: ReclaimStep) -> &'static str {
    match step {
        ReclaimStep::Nothing => "now",
        ReclaimStep::Compaction => "after compaction",
        ReclaimStep::DropCache => "after dropping cache",
    }
}

/// Renders the report. `step`: the last step allowed for the answer.
pub fn render(
    snapshot: &Snapshot,
    forecast: &Forecast,
    results: &[StepResult],
    step: ReclaimStep,
    style: TextStyle,
) -> String {
    let mut output = TextReport::new(style);
    output.add_bold_text(&format_headline(snapshot, forecast, step));
    write_steps(&mut output, snapshot, forecast);
    write_main_polluter(&mut output, snapshot, forecast);
    if let Some(text) = format_high_end(forecast, step) {
        output.add_text(&text);
    }
    if forecast.zone_forecasts.len() > 1 && forecast.census_absence.is_none() {
        output.add_gap();
        write_zones(&mut output, forecast);
    }
    if !results.is_empty() {
        output.add_gap();
        write_results(&mut output, forecast, results);
    }
    for note in &forecast.notes {
        output.add_dim_indented(note);
    }
    for problem in &snapshot.problems {
        output.add_dim_indented(&problem.message);
    }
    output.into_text()
}

/// Returns the answer in one sentence.
pub fn format_headline(snapshot: &Snapshot, forecast: &Forecast, step: ReclaimStep) -> String {
    let request = forecast.request;
    let size = format_bytes(snapshot.machine.page_size.block_bytes(request.order));
    let s = if request.count == 1 { "" } else { "s" };
    let what = match request.method {
        AllocationMethod::Thp => format!("huge page{s} ({size})"),
        AllocationMethod::Hugetlb => format!("hugetlb page{s} ({size})"),
        AllocationMethod::Contig => format!("contiguous block{s} of {size} for the kernel"),
    };
    let wanted = format_count(request.count.into());
    let first = ReclaimStep::ALL.into_iter().find(|&s| forecast.is_met_after(s) == Some(true));
    match forecast.is_met_after(step) {
        None => {
            let least = format_count(forecast.bounds_after(step).low.into());
            format!("at least {least} of {wanted} {what}; the rest is unknown")
        }
        Some(false) => format!("no — {} of {wanted} {what}", format_bounds(forecast.bounds_after(step))),
        Some(true) => {
            let when = first.map_or("now", step_title);
            let sure = forecast.bounds_after(first.unwrap_or(step)).low >= request.count;
            format!("yes — {wanted} {what} {when}{}", if sure { "" } else { ", probably" })
        }
    }
}

/// Formats a number with both ends of its interval. It is not symmetric: upper bounds limit its high end.
fn format_bounds(bounds: ForecastBounds) -> String {
    let [low, number, high] = [bounds.low, bounds.expected, bounds.high].map(|end| format_count(end.into()));
    if bounds.low == bounds.high { number } else { format!("{number} ({low} to {high})") }
}

fn write_steps(output: &mut TextReport, snapshot: &Snapshot, forecast: &Forecast) {
    let mut previous_total = ForecastBounds::default();
    for step in ReclaimStep::ALL {
        let bounds = forecast.bounds_after(step);
        if step != ReclaimStep::Nothing && forecast.census_absence.is_some() {
            break;
        }
        let step_gain = bounds.expected.saturating_sub(previous_total.expected);
        let sign = if step == ReclaimStep::Nothing { "" } else { "+" };
        let why = match step {
            ReclaimStep::Nothing => "free and contiguous",
            ReclaimStep::Compaction if step_gain == 0 => "compaction gains nothing",
            ReclaimStep::Compaction => "occupied by movable pages",
            ReclaimStep::DropCache if step_gain == 0 => "dropping the page cache frees no more",
            ReclaimStep::DropCache => "occupied by page cache",
        };
        let range = match [bounds.low, bounds.high].map(|end| format_count(end.into())) {
            [low, high] if low == high => String::new(),
            [low, high] => format!(" ({low} to {high} in total)"),
        };
        let number = format!("{sign}{}", format_count(step_gain.into()));
        write_step(output, step_title(step), &number, &format!("{why}{range}"));
        previous_total = bounds;
    }
    write_other_blocks(output, snapshot, forecast);
    if let Some(unseen) = &forecast.census_absence {
        output.add_indented(&format!("after compaction: unknown ({unseen})"));
    }
}

/// Writes a row; a long list of classes continues on further lines.
fn write_step(output: &mut TextReport, title: &str, number: &str, why: &str) {
    output.add_paragraph(&format!("  {title:<22}{number:>9}   "), why);
}

/// Writes the state of all other blocks, so that the rows add up to the total.
fn write_other_blocks(output: &mut TextReport, snapshot: &Snapshot, forecast: &Forecast) {
    let mut row = |title: &str, number: u64, why: &str| {
        write_step(output, title, &format_count(number.into()), why);
    };
    // These rows count pageblocks, not other sizes.
    let is_blocks = forecast.census_absence.is_none() && forecast.request.order == snapshot.pageblock_order;
    let size = format_bytes(snapshot.machine.page_size.block_bytes(snapshot.pageblock_order));
    let shares = forecast.block_outcomes();
    let by_class = forecast.polluted_by_class();
    let all_polluted: u64 = by_class.iter().map(|(_, blocks)| blocks).sum();
    let polluted = if is_blocks { shares.polluted } else { all_polluted };
    if polluted > 0 {
        let amount = |&(class, blocks): &(PageClass, u64)| {
            format!("{} {}", class_text(class), format_count(blocks.into()))
        };
        let amounts = by_class.iter().map(amount).collect::<Vec<_>>().join(", ");
        row("never", polluted, &format!("polluted {size} blocks: {amounts}"));
    }
    if shares.in_use > 0 {
        row("in use", shares.in_use, &format!("{size} blocks already in use as huge pages"));
    }
    if is_blocks {
        let kept_pages: u64 = forecast.zone_forecasts.iter().map(|zone| zone.held_by_watermark).sum();
        let kept_pages = kept_pages.min(shares.unobtainable);
        if kept_pages > 0 {
            row("kept", kept_pages, "free, but held back by watermarks and lowmem_reserve");
        }
        if shares.unobtainable > kept_pages {
            let filled = shares.unobtainable - kept_pages;
            row("filled", filled, "still in use after compaction, or unknown");
        }
        row("all blocks", shares.all, "sum of the rows above");
    }
}

/// Names the classes that pollute most blocks.
fn write_main_polluter(output: &mut TextReport, snapshot: &Snapshot, forecast: &Forecast) {
    let polluted = forecast.polluted_by_class();
    let blocks: u64 = polluted.iter().map(|(_, blocks)| blocks).sum();
    let Some(&(class, most)) = polluted.first() else { return };
    let share = format_percent(most as f64 / blocks.max(1) as f64);
    let named = match (class, slab_caches_text(snapshot)) {
        (PageClass::Slab, Some(caches)) => format!("; largest slab caches: {caches}"),
        _ => String::new(),
    };
    output.add_text(&format!("main polluter: {} ({share} of polluted blocks){named}", class_text(class)));
}

/// Returns which bound is the high end after the last step, or `None` if the number is exact or unknown.
fn format_high_end(forecast: &Forecast, step: ReclaimStep) -> Option<String> {
    let bounds = forecast.bounds_after(step);
    let (bound, _) = forecast.upper_bounds_after(step)?.smallest();
    if bounds.high <= bounds.expected {
        return None;
    }
    let blocks: u64 = forecast.zone_forecasts.iter().map(|zone| zone.blocks).sum();
    let reason = match bound {
        UpperBound::Scanners if step == ReclaimStep::Nothing => {
            "free blocks, with a margin for changes until the last request".to_owned()
        }
        UpperBound::Scanners => {
            "blocks that compaction can empty, with a margin for changes until the last request".to_owned()
        }
        UpperBound::Zones => "sum of the upper bounds of the zones".to_owned(),
        UpperBound::CleanBlocks => format!(
            "{} pageblocks, of which {} remain polluted",
            format_count(blocks.into()),
            format_count(blocks.saturating_sub(bounds.high).into()),
        ),
        UpperBound::Memory => "limited by the free memory at that step".to_owned(),
    };
    let high = format_count(bounds.high.into());
    Some(format!("upper bound {} {high}: {reason}", step_title(step)))
}

fn write_zones(output: &mut TextReport, forecast: &Forecast) {
    let format_number = |number: u64| format_count(number.into());
    RowTable::<&ZoneForecast>::new()
        .left("zone", |zone| format!("{} {}", zone.key.node.0, zone.key.zone))
        .right("blocks", |zone| format_number(zone.blocks))
        .right("now", |zone| format_number(zone.bounds.now.expected))
        .right("compacted", |zone| format_number(zone.bounds.after_compaction.expected))
        .right("cache dropped", |zone| format_number(zone.bounds.after_dropping_cache.expected))
        .right("polluted", |zone| format_number(zone.polluted.iter().map(|(_, blocks)| blocks).sum()))
        .right("kept", |zone| format_number(zone.held_by_watermark))
        .add_to(output, 2, &forecast.zone_forecasts);
}

fn write_results(output: &mut TextReport, forecast: &Forecast, results: &[StepResult]) {
    for StepResult { step, outcome } in results {
        if let Err(absence) = outcome {
            let title = step_title(*step);
            output.add_indented(&format!("{title}: not measured: {}", absence.reason()));
        }
    }
    let measured = results.iter().filter_map(|of| Some((of.step, of.outcome.as_ref().ok()?)));
    let predicted =
        |(step, of): &(ReclaimStep, &AllocatedPages)| of.predicted_pages(forecast.bounds_after(*step));
    let time =
        |of: &AllocatedPages, permille| of.latency_quantile(permille).map_or("–".to_owned(), format_duration);
    RowTable::<(ReclaimStep, &AllocatedPages)>::new()
        .left("step", |(step, _)| step_title(*step).to_owned())
        .right("requested", |(_, of)| format_count(of.requested.into()))
        .right("predicted", |row| format_count(predicted(row).into()))
        .right("allocated", |(_, of)| format_count(of.allocated.into()))
        .right("error", |row| format!("{:+}", i128::from(predicted(row)) - i128::from(row.1.allocated)))
        .right("allowed ±", |(_, of)| format!("{:.0}", forecast.error_scale(of.allocated)))
        .right("collapsed", |(_, of)| of.collapsed.map_or("–".to_owned(), |n| format_count(n.into())))
        .right("median", |(_, of)| time(of, 500))
        .right("p99", |(_, of)| time(of, 990))
        // JSON has the number by collapse and the slowest request.
        .add_narrowed_to(
            output,
            2,
            measured.clone(),
            &[&[0, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 1, 2, 3, 4, 5, 7]],
        );
    let wanted = forecast.request.count;
    let cells: Vec<String> =
        measured.map(|(step, of)| format!("{}: {}", step_title(step), of.describe_end(wanted))).collect();
    output.add_dim_indented(&cells.join(" · "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_step_says_how_many_of_how_many_were_allocated() {
        let pages = |allocated, stop_reason: &str| AllocatedPages {
            requested: 4000,
            allocated,
            collapsed: None,
            latency_ns: Vec::new(),
            verified_by: String::new(),
            stop_reason: stop_reason.to_owned(),
        };
        assert_eq!(pages(4000, "").describe_end(4000), "all 4\u{202f}000 pages were allocated");
        assert_eq!(
            pages(3993, "7 requests got base pages").describe_end(4000),
            "3\u{202f}993 of 4\u{202f}000 pages were allocated: 7 requests got base pages"
        );
    }
}
