//! The explanation of keys and words, over everything else.

use ratatui_core::layout::Rect;

use super::pen::{Paint, Pen};
use crate::watch::view::{Feed, View};

const LIVE: [(&str, &str); 3] = [
    ("space", "pause: the screen stands still, samples are still taken"),
    ("+ -", "longer or shorter time between samples"),
    ("q Esc", "quit; `pagelab record` keeps what it sees in a file"),
];
const REPLAY: [(&str, &str); 5] = [
    ("space", "play or stop; at the end, play from the start"),
    ("left right", "one reading back or on"),
    ("PgUp PgDn", "a jump; Home and End go to the first and the last reading"),
    ("+ -", "faster or slower"),
    ("q Esc", "quit"),
];
const BOTH: [(&str, &str); 4] = [
    ("Tab up down", "choose the zone whose orders and charts are shown"),
    ("r", "growth per second of the last interval, or in all since the start"),
    ("z Z", "more or fewer samples in one mark of a curve (1 to 64)"),
    ("j k", "scroll the orders, where they do not all fit"),
];
const WORDS: [(&str, &str); 10] = [
    ("F_u(j)", "unusable free space: share of free memory in blocks below order j"),
    ("programs", "AnonPages + Shmem; cache is Buffers + Cached without Shmem"),
    ("pressure", "share of the last 10 s in which some or all tasks waited (PSI)"),
    ("THP", "thp_fault_alloc, _fallback; thp_collapse_alloc…; thp_split_…"),
    ("compact", "compact_stall, _success, _fail, _migrate_scanned, _free_scanned"),
    ("moved", "pgmigrate_success, pgmigrate_fail, in pages; compact_daemon_wake"),
    ("reclaim", "pgscan_ and pgsteal_kswapd and _direct, in pages; allocstall"),
    ("swap", "pswpin, pswpout, in pages"),
    ("extfrag", "kmem:mm_page_alloc_extfrag: pages taken of another migratetype"),
    ("–", "not there, not readable, or a counter that went back: never 0"),
];

/// Draws it, cut at the bottom where the screen is too small.
pub fn draw(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let keys: &[(&str, &str)] = match view.feed {
        Feed::Live { .. } => &LIVE,
        Feed::Replay { .. } => &REPLAY,
    };
    let mut lines = vec![("keys".to_owned(), String::new())];
    let entry = |(name, what): &(&str, &str)| (format!("  {name}"), (*what).to_owned());
    lines.extend(keys.iter().chain(&BOTH).map(entry));
    lines.push(("words".to_owned(), String::new()));
    lines.extend(WORDS.iter().map(entry));
    if let Some(why) = &view.extfrag_absent {
        let way_out = why.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        lines.push(("  not seen".to_owned(), format!("extfrag: {}{way_out}", why.reason())));
    }
    let rows = usize::from(area.height - 1);
    for (row, (name, what)) in lines.iter().take(rows).enumerate() {
        let y = row as u16;
        pen.left(1, y, area.width - 1, name, Paint::Bold);
        if area.width > 15 {
            pen.left(15, y, area.width - 15, what, Paint::Plain);
        }
    }
    pen.left(1, area.bottom() - 1, area.width - 1, "? or Esc: back", Paint::Dim);
}
