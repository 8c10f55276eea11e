//! Names, rows and sentences shared by the screens.

use pagelab_model::free_areas::ZoneKey;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{self, format_count, format_plural};
use pagelab_report::utc::format_utc;
use ratatui_core::layout::Rect;

use super::canvas::{ABSENT, Canvas, Paint, format_short};
use crate::sample::Counter;
use crate::view::{FeedState, RateKind, View};

/// Group of this row and the rows below, label of at most 16 columns, and one or two counters.
pub type RateRow = (&'static str, &'static str, &'static [Counter]);

pub const RATE_ROWS: [RateRow; 14] = [
    ("THP", "alloc, fallback", &[Counter::ThpFaults, Counter::ThpFallbacks]),
    ("", "collapse, failed", &[Counter::Collapses, Counter::CollapseFailures]),
    ("", "split page, PMD", &[Counter::SplitPages, Counter::SplitPmds]),
    ("compact", "stalls", &[Counter::CompactStalls]),
    ("", "success, failed", &[Counter::CompactSuccess, Counter::CompactFail]),
    ("", "scan migr., free", &[Counter::ScannedMigrate, Counter::ScannedFree]),
    ("", "moved, failed", &[Counter::Migrated, Counter::MigrateFailures]),
    ("", "kcompactd wakes", &[Counter::KcompactdWakes]),
    ("kswapd", "scan, steal", &[Counter::KswapdScanned, Counter::KswapdStolen]),
    ("direct", "scan, steal", &[Counter::DirectScanned, Counter::DirectStolen]),
    ("", "allocstall", &[Counter::AllocStalls]),
    ("swap", "in, out", &[Counter::SwapIn, Counter::SwapOut]),
    ("extfrag", "events", &[Counter::Extfrag]),
    ("OOM", "kills", &[Counter::OomKills]),
];

/// Formats the numbers of a row: `12.3k / 0`.
pub fn format_rates(view: &View, counters: &[Counter]) -> String {
    if counters == [Counter::Extfrag] && view.extfrag_absent.is_some() {
        return "no data".to_owned();
    }
    let numbers: Vec<String> = counters.iter().map(|&counter| format_short(view.rate(counter))).collect();
    numbers.join(" / ")
}

/// Describes the rates.
pub fn rate_kind_label(view: &View) -> &'static str {
    match (view.rates, &view.feed) {
        (RateKind::PerSecond, _) => "per second",
        (RateKind::SinceStart, FeedState::Live { .. }) => "since the start",
        (RateKind::SinceStart, FeedState::Replay { .. }) => "since its start",
    }
}

/// Formats a zone for display.
pub fn zone_label(key: &ZoneKey) -> String {
    format!("{} {}", key.node.0, key.zone)
}

/// Returns the size of a huge page: `2 MiB`.
pub fn format_pmd_size(view: &View) -> String {
    style::format_bytes(view.about.page_size.block_bytes(view.about.pmd_order))
}

/// Formats free memory from a number of pages.
pub fn format_pages(view: &View, pages: u128) -> String {
    let bytes = pages.saturating_mul(u128::from(view.about.page_size.bytes()));
    style::format_bytes(pagelab_model::Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// Formats a count, grouped while it is small.
pub fn format_short_count(number: u128) -> String {
    if number < 1_000_000 { format_count(number) } else { format_short(Some(number as f64)) }
}

/// Formats hundredths of a percent: `0.25 %`.
pub fn format_percent(centipercent: Option<u32>) -> String {
    centipercent.map_or_else(
        || format!("{ABSENT} %"),
        |share| if share > 10_000 { ABSENT.to_owned() } else { format!("{:.2} %", f64::from(share) / 100.0) },
    )
}

pub fn time_of_day(view: &View) -> String {
    let at_ns = view.current_sample().map_or(0, |now| now.at_ns);
    format_utc(view.about.started.realtime_ns.saturating_add(at_ns))
}

/// Describes the state of the view, and whether it needs attention.
pub fn activity(view: &View) -> (String, Paint) {
    match &view.feed {
        FeedState::Live { paused: true, .. } => ("PAUSED".to_owned(), Paint::Alert),
        FeedState::Live { every_ns, .. } => {
            (format!("live, every {}", format_duration(*every_ns)), Paint::Plain)
        }
        FeedState::Replay { playing: true, speed, .. } => (format!("replay, {speed}×"), Paint::Plain),
        FeedState::Replay { speed, .. } => (format!("replay, stopped ({speed}×)"), Paint::Plain),
    }
}

/// Describes the position in the feed.
pub fn position_text(view: &View) -> String {
    match &view.feed {
        FeedState::Live { missed, .. } => {
            let samples = view.history.total_pushed();
            let missed = if *missed > 0 {
                format!(", {} missed", format_count((*missed).into()))
            } else {
                String::new()
            };
            format!("{}{missed}", format_plural(samples, "sample"))
        }
        FeedState::Replay { position: at, count: all, .. } => {
            let at_ns = view.current_sample().map_or(0, |now| now.at_ns);
            let (at, all) = (format_count(*at as u128 + 1), format_count(*all as u128));
            format!("reading {at} of {all}, at {}", format_duration(at_ns))
        }
    }
}

/// Returns the latest remark: a problem, an event, or the cost of the view itself.
pub fn latest_remark(view: &View) -> (String, Paint) {
    if let Some(notice) = &view.last_failure {
        return (notice.clone(), Paint::Alert);
    }
    match &view.feed {
        FeedState::Replay { remark, .. } => (remark.clone(), Paint::Alert),
        FeedState::Live { .. } => {
            let share =
                view.own_share().map_or_else(|| ABSENT.to_owned(), |share| format!("{:.2}", 100.0 * share));
            (format!("pagelab uses {share} % of a CPU"), Paint::Dim)
        }
    }
}

/// Returns the keys, the most useful first.
pub fn key_hints(view: &View) -> Vec<(&'static str, &'static str)> {
    match &view.feed {
        FeedState::Live { paused, .. } => vec![
            ("q", "quit"),
            ("?", "help"),
            ("space", if *paused { "continue" } else { "pause" }),
            ("Tab", "zone"),
            ("+/-", "interval"),
            ("r", "rates"),
            ("z/Z", "zoom"),
            ("j/k", "orders"),
        ],
        FeedState::Replay { playing, .. } => vec![
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

const LIVE_KEYS: [(&str, &str); 3] = [
    ("space", "pause: freeze the screen; sampling continues"),
    ("+ -", "longer or shorter sampling interval"),
    ("q Esc", "quit; to save samples to a file, use `pagelab record`"),
];
const REPLAY_KEYS: [(&str, &str); 5] = [
    ("space", "play or stop; at the end, play from the start"),
    ("left right", "previous or next reading"),
    ("PgUp PgDn", "jump back or ahead; Home, End: first and last reading"),
    ("+ -", "faster or slower"),
    ("q Esc", "quit"),
];
const COMMON_KEYS: [(&str, &str); 4] = [
    ("Tab up down", "select the zone for orders and charts"),
    ("r", "rate over the last interval, or total since the start"),
    ("z Z", "more or fewer samples per point of a curve (1 to 64)"),
    ("j k", "scroll the orders if they do not all fit"),
];
const TERMS: [(&str, &str); 10] = [
    ("F_u(j)", "unusable free space: share of free memory in blocks below order j"),
    ("programs", "AnonPages + Shmem; cache is Buffers + Cached without Shmem"),
    ("pressure", "share of the last 10 s in which some or all tasks stalled (PSI)"),
    ("THP", "thp_fault_alloc, _fallback; thp_collapse_alloc…; thp_split_…"),
    ("compact", "compact_stall, _success, _fail, _migrate_scanned, _free_scanned"),
    ("moved", "pgmigrate_success, pgmigrate_fail, in pages; compact_daemon_wake"),
    ("reclaim", "pgscan_ and pgsteal_kswapd and _direct, in pages; allocstall"),
    ("swap", "pswpin, pswpout, in pages"),
    ("extfrag", "kmem:mm_page_alloc_extfrag: fallbacks to another migratetype"),
    ("–", "absent, unreadable, or a counter that decreased; never 0"),
];

/// Draws the help, cut off at the bottom of a small screen.
pub fn draw_help(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let keys: &[(&str, &str)] = match view.feed {
        FeedState::Live { .. } => &LIVE_KEYS,
        FeedState::Replay { .. } => &REPLAY_KEYS,
    };
    let mut lines = vec![("keys".to_owned(), String::new())];
    let entry = |(name, what): &(&str, &str)| (format!("  {name}"), (*what).to_owned());
    lines.extend(keys.iter().chain(&COMMON_KEYS).map(entry));
    lines.push(("words".to_owned(), String::new()));
    lines.extend(TERMS.iter().map(entry));
    if let Some(why) = &view.extfrag_absent {
        lines.push(("  not seen".to_owned(), format!("extfrag: {}", why.reason_and_hint())));
    }
    let rows = usize::from(area.height - 1);
    for (row, (name, what)) in lines.iter().take(rows).enumerate() {
        let y = row as u16;
        pen.write_left(1, y, area.width - 1, name, Paint::Bold);
        if area.width > 15 {
            pen.write_left(15, y, area.width - 15, what, Paint::Plain);
        }
    }
    pen.write_left(1, area.bottom() - 1, area.width - 1, "? or Esc: back", Paint::Dim);
}
