//! Names, rows and sentences that the screens share.

use pagelab_model::free_areas::ZoneKey;
use pagelab_report::quantity::duration;
use pagelab_report::style::{self, count};
use pagelab_report::utc::utc;

use super::pen::{ABSENT, Paint, short};
use crate::watch::counter::Counter;
use crate::watch::view::{Feed, RateKind, View};

/// A row of the table of rates.
pub struct RateRow {
    /// What the rows below belong to as well.
    pub group: &'static str,
    /// What is counted, at most 16 columns.
    pub label: &'static str,
    /// One or two counters.
    pub counters: &'static [Counter],
}

const fn row(group: &'static str, label: &'static str, counters: &'static [Counter]) -> RateRow {
    RateRow { group, label, counters }
}

/// The table of rates.
pub const RATES: [RateRow; 14] = [
    row("THP", "given, refused", &[Counter::ThpFaults, Counter::ThpFallbacks]),
    row("", "collapse, failed", &[Counter::Collapses, Counter::CollapseFailures]),
    row("", "split page, PMD", &[Counter::SplitPages, Counter::SplitPmds]),
    row("compact", "stalls", &[Counter::CompactStalls]),
    row("", "success, failed", &[Counter::CompactSuccess, Counter::CompactFail]),
    row("", "scan from, to", &[Counter::ScannedMigrate, Counter::ScannedFree]),
    row("", "moved, failed", &[Counter::Migrated, Counter::MigrateFailures]),
    row("", "kcompactd wakes", &[Counter::KcompactdWakes]),
    row("reclaim", "by kswapd, got", &[Counter::KswapdScanned, Counter::KswapdStolen]),
    row("", "directly, got", &[Counter::DirectScanned, Counter::DirectStolen]),
    row("", "stalls", &[Counter::AllocStalls]),
    row("swap", "in, out", &[Counter::SwapIn, Counter::SwapOut]),
    row("extfrag", "events", &[Counter::Extfrag]),
    row("OOM", "kills", &[Counter::OomKills]),
];

/// The numbers of a row: `12.3k / 0`.
pub fn rates(view: &View, row: &RateRow) -> String {
    if row.counters == [Counter::Extfrag] && view.extfrag_absent.is_some() {
        return "not seen".to_owned();
    }
    let numbers: Vec<String> = row.counters.iter().map(|&counter| short(view.rate(counter))).collect();
    numbers.join(" / ")
}

/// What the rates are.
pub fn rate_kind(view: &View) -> &'static str {
    match (view.rates, &view.feed) {
        (RateKind::PerSecond, _) => "per second",
        (RateKind::SinceStart, Feed::Live { .. }) => "since the start",
        (RateKind::SinceStart, Feed::Replay { .. }) => "since its start",
    }
}

/// A zone as a person names it.
pub fn zone(key: &ZoneKey) -> String {
    format!("{} {}", key.node.0, key.zone)
}

/// The size of a huge page: `2 MiB`.
pub fn block(view: &View) -> String {
    style::bytes(view.about.page_size.block(view.about.pmd_order))
}

/// Free memory of a number of pages.
pub fn pages(view: &View, pages: u128) -> String {
    let bytes = pages.saturating_mul(u128::from(view.about.page_size.bytes()));
    style::bytes(pagelab_model::Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// A count, grouped while it is small enough for that.
pub fn whole(number: u128) -> String {
    if number < 1_000_000 { count(number) } else { short(Some(number as f64)) }
}

/// Hundredths of a percent: `0.25 %`.
pub fn percent(centipercent: Option<u32>) -> String {
    centipercent.map_or_else(
        || format!("{ABSENT} %"),
        |share| if share > 10_000 { ABSENT.to_owned() } else { format!("{:.2} %", f64::from(share) / 100.0) },
    )
}

/// The time of day of the moment that is shown.
pub fn time(view: &View) -> String {
    let at_ns = view.now().map_or(0, |now| now.at_ns);
    utc(view.about.started.realtime_ns.saturating_add(at_ns))
}

/// What the view is doing, and whether that wants to be noticed.
pub fn doing(view: &View) -> (String, Paint) {
    match &view.feed {
        Feed::Live { paused: true, .. } => ("PAUSED".to_owned(), Paint::Alert),
        Feed::Live { every_ns, .. } => (format!("live, every {}", duration(*every_ns)), Paint::Plain),
        Feed::Replay { playing: true, speed, .. } => (format!("replay, {speed}×"), Paint::Plain),
        Feed::Replay { speed, .. } => (format!("replay, stopped ({speed}×)"), Paint::Plain),
    }
}

/// Where in the feed this is.
pub fn place(view: &View) -> String {
    match &view.feed {
        Feed::Live { missed, .. } => {
            let samples = view.history.pushed();
            let missed =
                if *missed > 0 { format!(", {} missed", count((*missed).into())) } else { String::new() };
            format!("{} {}{missed}", count(samples as u128), if samples == 1 { "sample" } else { "samples" })
        }
        Feed::Replay { at, count: all, .. } => {
            let at_ns = view.now().map_or(0, |now| now.at_ns);
            let (at, all) = (count(*at as u128 + 1), count(*all as u128));
            format!("reading {at} of {all}, at {}", duration(at_ns))
        }
    }
}

/// The latest remark: something went wrong, something happened, or what the view itself costs.
pub fn remark(view: &View) -> (String, Paint) {
    if let Some(notice) = &view.notice {
        return (notice.clone(), Paint::Alert);
    }
    match &view.feed {
        Feed::Replay { remark, .. } => (remark.clone(), Paint::Alert),
        Feed::Live { .. } => {
            let share =
                view.own_share().map_or_else(|| ABSENT.to_owned(), |share| format!("{:.2}", 100.0 * share));
            (format!("pagelab itself: {share} % of a CPU"), Paint::Dim)
        }
    }
}

/// The keys, the most useful first.
pub fn keys(view: &View) -> Vec<(&'static str, &'static str)> {
    match &view.feed {
        Feed::Live { paused, .. } => vec![
            ("q", "quit"),
            ("?", "help"),
            ("space", if *paused { "go on" } else { "pause" }),
            ("Tab", "zone"),
            ("+/-", "interval"),
            ("r", "rates"),
            ("z/Z", "zoom"),
            ("j/k", "orders"),
        ],
        Feed::Replay { playing, .. } => vec![
            ("q", "quit"),
            ("?", "help"),
            ("space", if *playing { "stop" } else { "play" }),
            ("arrows", "step"),
            ("PgUp/Dn", "jump"),
            ("+/-", "speed"),
            ("Tab", "zone"),
            ("r", "rates"),
            ("z", "zoom"),
            ("j/k", "orders"),
        ],
    }
}
