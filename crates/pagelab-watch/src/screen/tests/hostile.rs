//! Malformed recordings, and all paths through one.

use pagelab_model::PageSize;
use pagelab_model::run::{ColumnValues, Run};

use super::{LOOK, S, run};
use crate::Source;
use crate::keys::{Key, KeyResponse};
use crate::player::Player;
use crate::replay::Recording;
use crate::screen::{TerminalCapabilities, render, to_text};
use crate::view::FeedState;

#[test]
fn every_fallback_is_counted_once() {
    let mut run = run();
    let mut counts = run.series[3].clone();
    counts.name = "tracepoints".to_owned();
    let column = |(name, per_reading): (&str, i64)| {
        let mut column = counts.columns[0].clone();
        column.header.name = name.to_owned();
        column.values = ColumnValues::Varying((0..90).map(|row| Some(row * per_reading)).collect());
        column
    };
    let columns = [("extfrag.movable_into_unmovable", 35), ("extfrag.other", 5), ("extfrag.polluting", 7000)];
    counts.columns = columns.into_iter().chain([("vmscan.kswapd_wake", 900)]).map(column).collect();
    run.series.push(counts);
    let (_, view) = Player::open(Recording::from_run(&run).unwrap());
    // Forty in five seconds.
    assert!(to_text(&render(&view, 80, 24, LOOK)).contains("extfrag events                      8\n"));
}

#[test]
fn whatever_way_a_moment_is_come_to_it_is_the_same() {
    let mut run = run();
    run.series.truncate(1);
    run.series[0].at_ns = (0..4300).map(|row| row * S).collect();
    run.series[0].columns.truncate(2);
    for column in &mut run.series[0].columns {
        column.values = ColumnValues::Varying((0..4300).map(Some).collect());
    }
    let (mut player, mut view) = Player::open(Recording::from_run(&run).unwrap());
    let mut random = Random(7);
    let keys = [Key::Left, Key::Right, Key::PageUp, Key::PageDown, Key::PageUp, Key::Home, Key::End];
    for _ in 0..60 {
        player.handle_key(random.choose(&keys), 0, &mut view);
        let FeedState::Replay { position: at, .. } = view.feed else { unreachable!() };
        assert_eq!(view.history.kept_count(), (at + 1).min(4000));
        for back in 0..view.history.kept_count() {
            assert_eq!(view.history.nth_latest(back).unwrap().at_ns, (at - back) as u64 * S);
        }
        assert_eq!((view.history.total_pushed(), view.first_sample.as_ref().unwrap().at_ns), (at + 1, 0));
    }
}

/// A generator of numbers that needs no dependency (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn next_below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn choose<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.next_below(choice.len())]
    }
}

const ABSURD: [Option<i64>; 8] =
    [None, Some(i64::MIN), Some(i64::MAX), Some(-1), Some(0), Some(1), Some(1 << 62), Some(12_345)];
const NAMES: [&str; 13] = [
    "",
    "0/Normal/0",
    "0/Normal/63",
    "0/Normal/64",
    "4294967295/\u{202e}\u{1b}[2J/0",
    "0//0",
    "memory.full.avg10",
    "MemTotal",
    "SwapTotal",
    "thp_split",
    "名前/名前/0",
    "allocstall",
    "extfrag.other",
];

/// Makes one change that no recorder would make.
fn mutate(run: &mut Run, random: &mut Random) {
    let at = random.next_below(run.series.len());
    let absurd: Vec<Option<i64>> = (0..random.next_below(200)).map(|_| random.choose(&ABSURD)).collect();
    let Some(series) = run.series.get_mut(at) else { return };
    let column = random.next_below(series.columns.len());
    match random.next_below(10) {
        0 => series.columns.clear(),
        1 => series.at_ns.truncate(random.next_below(3)),
        2 => series.at_ns.iter_mut().for_each(|at_ns| *at_ns = random.next() >> random.next_below(64)),
        3 => {
            series.at_ns.sort_unstable();
            series.at_ns.dedup();
        }
        4 => {
            run.series.swap_remove(at);
        }
        5 => {
            let mut again = series.clone();
            again.columns.truncate(column);
            run.series.push(again);
        }
        _ => {
            let Some(column) = series.columns.get_mut(column) else { return };
            match random.next_below(4) {
                0 => column.header.name = random.choose(&NAMES).to_owned(),
                1 => column.values = ColumnValues::Constant(random.choose(&ABSURD)),
                2 => column.header.unit = random.choose(&["bytes", "count", "furlong"]).into(),
                _ => column.values = ColumnValues::Varying(absurd),
            }
        }
    }
}

#[test]
fn recordings_that_nobody_would_write_never_panic() {
    const KEYS: [Key; 16] = [
        Key::Char(' '),
        Key::Char('+'),
        Key::Char('-'),
        Key::Char('r'),
        Key::Char('z'),
        Key::Char('Z'),
        Key::Char('j'),
        Key::Char('k'),
        Key::Tab,
        Key::BackTab,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
    ];
    let base = run();
    let mut shown = 0;
    for seed in 0..50 {
        let mut random = Random(seed);
        let mut run = base.clone();
        run.manifest.machine.page_size = random.choose(&[PageSize::DEFAULT, PageSize::new(1 << 16).unwrap()]);
        if random.next_below(4) == 0 {
            run.manifest.started.realtime_ns = u64::MAX;
            run.manifest.machine.host_name = Some("\u{1b}]0;x\u{7}\n名前".to_owned());
            run.events[0].at_ns = u64::MAX;
        }
        (0..1 + random.next_below(30)).for_each(|_| mutate(&mut run, &mut random));
        let Some(recording) = Recording::from_run(&run) else { continue };
        let (mut player, mut view) = Player::open(recording);
        let mut now_ns = 0u64;
        for _ in 0..12 {
            let key = random.choose(&KEYS);
            if view.handle_key(key) == KeyResponse::Ignored {
                player.handle_key(key, now_ns, &mut view);
            }
            now_ns = now_ns.saturating_add(random.next() >> random.next_below(64));
            player.advance(now_ns, &mut view);
            let _ = player.due_ns(now_ns);
            let (width, height) =
                random.choose(&[(80, 24), (1, 1), (0, 0), (20, 5), (33, 9), (121, 41), (200, 60)]);
            let capabilities = TerminalCapabilities { has_unicode: random.next_below(2) == 0, ..LOOK };
            let found = to_text(&render(&view, width, height, capabilities));
            assert!(!found.chars().any(|sign| sign.is_control() && sign != '\n'), "seed {seed}\n{found}");
            shown += 1;
        }
    }
    assert!(shown > 300, "most of them can be shown: {shown}");
}
