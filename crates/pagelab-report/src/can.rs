//! Whether so many huge pages can be had: the answer, what each step brings, what is in the way, and
//! beside it what really came.

use pagelab_metrics::can::{Bounds, Forecast, How, Step};
use pagelab_model::{Absence, Bytes, PageClass, Snapshot};

use crate::compact::slab_caches;
use crate::findings::class_words;
use crate::quantity::duration;
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// What really came at one step, for the table beside the forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// After which step.
    pub step: Step,
    /// What came, or why nothing was asked.
    pub came: Result<Came, Absence>,
}

/// The numbers of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// How many were asked for: fewer than wanted where the reserve would have been hurt.
    pub asked: u64,
    /// How many came, read back.
    pub got: u64,
    /// Of those, by MADV_COLLAPSE; `None` where that is not the way.
    pub by_collapse: Option<u64>,
    /// Nanoseconds of each request that was timed alone.
    pub latency_ns: Vec<u64>,
    /// How it was read back.
    pub read_back_by: String,
    /// Why asking ended, in words.
    pub stopped: String,
}

impl Came {
    /// What was predicted for as many as were asked for.
    pub fn predicted(&self, bounds: Bounds) -> u64 {
        bounds.expected.min(self.asked)
    }

    /// A latency that so many of a thousand are not above.
    fn latency(&self, permille: usize) -> Option<u64> {
        let mut sorted = self.latency_ns.clone();
        sorted.sort_unstable();
        sorted.get((sorted.len().checked_sub(1)?) * permille / 1000).copied()
    }
}

/// The title of a step.
pub fn step_words(step: Step) -> &'static str {
    match step {
        Step::Nothing => "now",
        Step::Compaction => "after compaction",
        Step::Cache => "after dropping cache",
    }
}

/// The report. `step`: what may be done for the answer.
pub fn render(snapshot: &Snapshot, forecast: &Forecast, got: &[Got], step: Step, style: Style) -> String {
    let mut page = Page::new(style);
    page.hanging_bold("", &headline(snapshot, forecast, step));
    steps(&mut page, snapshot, forecast);
    owner(&mut page, snapshot, forecast);
    if forecast.zones.len() > 1 && forecast.unseen.is_none() {
        page.gap();
        zones(&mut page, forecast);
    }
    if !got.is_empty() {
        page.gap();
        really(&mut page, forecast, got);
    }
    for note in &forecast.notes {
        page.hanging_dim("  ", note);
    }
    for problem in &snapshot.problems {
        page.hanging_dim("  ", &problem.message);
    }
    page.finish()
}

/// The answer in one sentence.
pub fn headline(snapshot: &Snapshot, forecast: &Forecast, step: Step) -> String {
    let ask = forecast.ask;
    let size = bytes(snapshot.machine.page_size.block(ask.order));
    let s = if ask.count == 1 { "" } else { "s" };
    let what = match ask.how {
        How::Thp => format!("huge page{s} ({size})"),
        How::Hugetlb => format!("hugetlb page{s} ({size})"),
        How::Contig => format!("contiguous run{s} of {size} for the kernel"),
    };
    let wanted = count(ask.count.into());
    let first = Step::ALL.into_iter().find(|&s| forecast.is_yes(s) == Some(true));
    match forecast.is_yes(step) {
        None => {
            let least = count(forecast.after(step).low.into());
            format!("at least {least} of {wanted} {what}; more is not known")
        }
        Some(false) => format!("no — {} of {wanted} {what}", shown(forecast.after(step))),
        Some(true) => {
            let when = first.map_or("now", step_words);
            let sure = forecast.after(first.unwrap_or(step)).low >= ask.count;
            format!("yes — {wanted} {what} {when}{}", if sure { "" } else { ", probably" })
        }
    }
}

/// A number with what it may be off by; with both ends where these lie unevenly.
fn shown(bounds: Bounds) -> String {
    let (below, above) = (bounds.expected - bounds.low, bounds.high - bounds.expected);
    let number = count(bounds.expected.into());
    match (below.min(above), below.max(above)) {
        (_, 0) => number,
        (less, more) if more <= less.saturating_mul(2) => format!("{number} ± {}", count(more.into())),
        _ => format!("{number} ({} to {})", count(bounds.low.into()), count(bounds.high.into())),
    }
}

fn steps(page: &mut Page, snapshot: &Snapshot, forecast: &Forecast) {
    let mut rows = Vec::new();
    let mut before = Bounds::default();
    for step in Step::ALL {
        let bounds = forecast.after(step);
        if step != Step::Nothing && forecast.unseen.is_some() {
            break;
        }
        let gained = bounds.expected.saturating_sub(before.expected);
        let sign = if step == Step::Nothing { "" } else { "+" };
        let why = match step {
            Step::Nothing => "free and contiguous",
            Step::Compaction if gained == 0 => "moving pages gains nothing",
            Step::Compaction => "movable pages are in the way",
            Step::Cache if gained == 0 => "dropping the page cache gains nothing",
            Step::Cache => "page cache is in the way",
        };
        let range = match bounds.low == bounds.high {
            true => String::new(),
            false => format!(" ({} to {} in sum)", count(bounds.low.into()), count(bounds.high.into())),
        };
        let number = format!("{sign}{}", count(gained.into()));
        rows.push(vec![step_words(step).to_owned(), number, format!("{why}{range}")]);
        before = bounds;
    }
    rows.extend(remaining(snapshot, forecast));
    // A long list of classes goes over into lines of its own.
    let lead = |row: &[String]| format!("  {:<22}{:>9}   ", row[0], row[1]);
    for row in &rows {
        page.hanging(&lead(row), &row[2]);
    }
    if let Some(unseen) = &forecast.unseen {
        let way_out = unseen.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        page.hanging(
            "  ",
            &format!("after compaction: not known: {}: {}{way_out}", unseen.source, unseen.reason()),
        );
    }
}

/// What becomes of all other blocks, so that the rows add up to the whole.
fn remaining(snapshot: &Snapshot, forecast: &Forecast) -> Vec<Vec<String>> {
    let row = |title: &str, number: u64, why: String| vec![title.to_owned(), count(number.into()), why];
    let mut rows = Vec::new();
    // Other sizes than a pageblock's are not what these rows count.
    let is_blocks = forecast.unseen.is_none() && forecast.ask.order == snapshot.pageblock_order;
    let size = bytes(snapshot.machine.page_size.block(snapshot.pageblock_order));
    let shares = forecast.shares();
    let by = forecast.spoiled();
    let by = by.iter().map(|&(class, blocks)| format!("{} {}", class_words(class), count(blocks.into())));
    let by = format!("blocks of {size} spoiled: {}", by.collect::<Vec<_>>().join(", "));
    let all_spoiled: u64 = forecast.spoiled().iter().map(|(_, blocks)| blocks).sum();
    let spoiled = if is_blocks { shares.spoiled } else { all_spoiled };
    if spoiled > 0 {
        rows.push(row("never", spoiled, by));
    }
    if shares.in_use > 0 {
        rows.push(row("in use", shares.in_use, format!("blocks of {size} that are huge pages already")));
    }
    if is_blocks {
        let kept: u64 = forecast.zones.iter().map(|zone| zone.kept_by_watermark).sum();
        let kept = kept.min(shares.rest);
        if kept > 0 {
            let why = "whole, and kept by the kernel's watermarks and lowmem reserve".to_owned();
            rows.push(row("kept", kept, why));
        }
        if shares.rest > kept {
            let why = "memory in use, packed together; and blocks of which it is not known".to_owned();
            rows.push(row("filled", shares.rest - kept, why));
        }
        rows.push(row("all blocks", shares.all, "the sum of the rows".to_owned()));
    }
    rows
}

/// Who is to blame most.
fn owner(page: &mut Page, snapshot: &Snapshot, forecast: &Forecast) {
    let spoiled = forecast.spoiled();
    let blocks: u64 = spoiled.iter().map(|(_, blocks)| blocks).sum();
    let Some(&(class, most)) = spoiled.first() else { return };
    let share = percent(most as f64 / blocks.max(1) as f64);
    let named = match (class, slab_caches(snapshot)) {
        (PageClass::Slab, Some(caches)) => format!("; the largest slab caches: {caches}"),
        _ => String::new(),
    };
    page.hanging(
        "",
        &format!("most of the spoiled blocks are spoiled by {} ({share}){named}", class_words(class)),
    );
}

fn zones(page: &mut Page, forecast: &Forecast) {
    let of = |number: u64| count(number.into());
    let row = |zone: &pagelab_metrics::can::ZoneForecast| {
        let spoiled: u64 = zone.spoiled.iter().map(|(_, blocks)| blocks).sum();
        vec![
            format!("{} {}", zone.key.node.0, zone.key.zone),
            of(zone.blocks),
            of(zone.steps.now.expected),
            of(zone.steps.after_compaction.expected),
            of(zone.steps.after_dropping_cache.expected),
            of(spoiled),
            of(zone.kept_by_watermark),
        ]
    };
    let rows: Vec<Vec<String>> = forecast.zones.iter().map(row).collect();
    let columns = [
        Column::left("zone"),
        Column::right("blocks"),
        Column::right("now"),
        Column::right("compacted"),
        Column::right("cache dropped"),
        Column::right("spoiled"),
        Column::right("kept"),
    ];
    page.table(2, &columns, &rows);
}

fn really(page: &mut Page, forecast: &Forecast, got: &[Got]) {
    let mut rows = Vec::new();
    let mut words = Vec::new();
    for Got { step, came } in got {
        let title = step_words(*step).to_owned();
        match came {
            Ok(came) => {
                let predicted = came.predicted(forecast.after(*step));
                let error = i128::from(predicted) - i128::from(came.got);
                let time = |permille| came.latency(permille).map_or("–".to_owned(), duration);
                let collapsed = came.by_collapse.map_or("–".to_owned(), |n| count(n.into()));
                rows.push(vec![
                    title.clone(),
                    count(came.asked.into()),
                    count(predicted.into()),
                    count(came.got.into()),
                    format!("{error:+}"),
                    format!("{:.0}", forecast.allowed_error(came.got)),
                    collapsed,
                    time(500),
                    time(990),
                ]);
                words.push(format!("{title}: {}", came.stopped));
            }
            Err(absence) => page.hanging("  ", &format!("{title}: not asked: {}", absence.reason())),
        }
    }
    let columns = [
        Column::left("really asked"),
        Column::right("asked"),
        Column::right("predicted"),
        Column::right("got"),
        Column::right("error"),
        Column::right("allowed ±"),
        Column::right("collapsed"),
        Column::right("median"),
        Column::right("99 %"),
    ];
    if !page.table_if_it_fits(2, &columns, &rows) {
        // How many came by collapse and how long the slowest took stand in the JSON.
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| [&row[..6], &row[7..8]].concat()).collect();
        let columns: Vec<Column> = columns
            .into_iter()
            .enumerate()
            .filter(|(at, _)| *at < 6 || *at == 7)
            .map(|(_, column)| column)
            .collect();
        page.table(2, &columns, &rows);
    }
    page.hanging_dim("  ", &words.join(" · "));
}

/// How a size is shown.
pub fn size_words(size: Bytes) -> String {
    bytes(size)
}
