//! Recordings that nobody would write, and all ways through one.

use pagelab_model::PageSize;
use pagelab_model::run::{Run, Values};

use super::{LOOK, S, run};
use crate::watch::keys::Key;
use crate::watch::player::Player;
use crate::watch::replay::Recording;
use crate::watch::screen::{Look, render, text};
use crate::watch::view::{Asked, Feed};

#[test]
fn every_fallback_is_counted_once() {
    let mut run = run();
    let mut counts = run.series[3].clone();
    counts.name = "tracepoints".to_owned();
    let column = |(name, per_reading): (&str, i64)| {
        let mut column = counts.columns[0].clone();
        column.head.name = name.to_owned();
        column.values = Values::Varying((0..90).map(|row| Some(row * per_reading)).collect());
        column
    };
    let columns = [("extfrag.movable_into_unmovable", 35), ("extfrag.other", 5), ("extfrag.spoiling", 7000)];
    counts.columns = columns.into_iter().chain([("vmscan.kswapd_wake", 900)]).map(column).collect();
    run.series.push(counts);
    let (_, view) = Player::open(Recording::of(&run).unwrap());
    // Forty in five seconds.
    assert!(text(&render(&view, 80, 24, LOOK)).contains("extfrag events                      8\n"));
}

#[test]
fn whatever_way_a_moment_is_come_to_it_is_the_same() {
    let mut run = run();
    run.series.truncate(1);
    run.series[0].at_ns = (0..4300).map(|row| row * S).collect();
    run.series[0].columns.truncate(2);
    for column in &mut run.series[0].columns {
        column.values = Values::Varying((0..4300).map(Some).collect());
    }
    let (mut player, mut view) = Player::open(Recording::of(&run).unwrap());
    let mut random = Random(7);
    let keys = [Key::Left, Key::Right, Key::PageUp, Key::PageDown, Key::PageUp, Key::Home, Key::End];
    for _ in 0..60 {
        player.press(random.of(&keys), 0, &mut view);
        let Feed::Replay { at, .. } = view.feed else { unreachable!() };
        assert_eq!(view.history.len(), (at + 1).min(4000));
        for back in 0..view.history.len() {
            assert_eq!(view.history.back(back).unwrap().at_ns, (at - back) as u64 * S);
        }
        assert_eq!((view.history.pushed(), view.first.as_ref().unwrap().at_ns), (at + 1, 0));
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

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len())]
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

/// One change that no recorder would make.
fn mutate(run: &mut Run, random: &mut Random) {
    let at = random.below(run.series.len());
    let absurd: Vec<Option<i64>> = (0..random.below(200)).map(|_| random.of(&ABSURD)).collect();
    let Some(series) = run.series.get_mut(at) else { return };
    let column = random.below(series.columns.len());
    match random.below(10) {
        0 => series.columns.clear(),
        1 => series.at_ns.truncate(random.below(3)),
        2 => series.at_ns.iter_mut().for_each(|at_ns| *at_ns = random.next() >> random.below(64)),
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
            match random.below(4) {
                0 => column.head.name = random.of(&NAMES).to_owned(),
                1 => column.values = Values::Constant(random.of(&ABSURD)),
                2 => column.head.unit = random.of(&["bytes", "count", "furlong"]).into(),
                _ => column.values = Values::Varying(absurd),
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
        run.manifest.machine.page_size = random.of(&[PageSize::USUAL, PageSize::new(1 << 16).unwrap()]);
        if random.below(4) == 0 {
            run.manifest.started.realtime_ns = u64::MAX;
            run.manifest.machine.host_name = Some("\u{1b}]0;x\u{7}\n名前".to_owned());
            run.events[0].at_ns = u64::MAX;
        }
        (0..1 + random.below(30)).for_each(|_| mutate(&mut run, &mut random));
        let Some(recording) = Recording::of(&run) else { continue };
        let (mut player, mut view) = Player::open(recording);
        let mut now_ns = 0u64;
        for _ in 0..12 {
            let key = random.of(&KEYS);
            if view.press(key) == Asked::Elsewhere {
                player.press(key, now_ns, &mut view);
            }
            now_ns = now_ns.saturating_add(random.next() >> random.below(64));
            player.advance(now_ns, &mut view);
            let _ = player.due_ns(now_ns);
            let (width, height) =
                random.of(&[(80, 24), (1, 1), (0, 0), (20, 5), (33, 9), (121, 41), (200, 60)]);
            let look = Look { unicode: random.below(2) == 0, ..LOOK };
            let found = text(&render(&view, width, height, look));
            assert!(!found.chars().any(|sign| sign.is_control() && sign != '\n'), "seed {seed}\n{found}");
            shown += 1;
        }
    }
    assert!(shown > 300, "most of them can be shown: {shown}");
}
