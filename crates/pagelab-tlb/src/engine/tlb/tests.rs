//! The model against a naive twin, access by access, and against closed forms.

use super::super::geometry::{ArrayShape, Geometry, SIZES};
use super::super::pass::FIRST;
use super::*;

/// A number below `below`; the state is a seed.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn array(sets: u32, ways: u32, holds: u8) -> ArrayShape {
    ArrayShape { sets, ways, holds, loads: true, stores: true }
}

fn geometry(levels: Vec<Vec<ArrayShape>>) -> Geometry {
    // Base pages of 4 KiB, with 64 KiB and 2 MiB.
    Geometry { shifts: vec![12, 16, 21], levels, walk_caches: [(1, 4), (1, 2), (1, 1)] }
}

/// Every second huge page is huge in pass 1; all are in pass 2.
fn code(pass: usize, page: u64) -> u8 {
    match pass {
        1 if (page >> 9).is_multiple_of(2) => 2,
        2 => 2,
        _ => 0,
    }
}

/// (pass, access, page, bucket) of each walk, and accesses and writes by page.
#[derive(Default)]
struct Seen {
    walks: Vec<(usize, u64, u8, u32)>,
    touched: std::collections::BTreeMap<u64, (u64, bool)>,
    /// (walks, accesses at its end) of each stretch.
    stretches: Vec<(u64, u64)>,
}

impl Account for Seen {
    fn code(&mut self, pass: usize, page: u64) -> u8 {
        code(pass, page)
    }

    fn touched(&mut self, page: u64, accesses: u64, written: bool) {
        let entry = self.touched.entry(page).or_default();
        *entry = (entry.0 + accesses, entry.1 | written);
    }

    fn walked(&mut self, pass: usize, page: u64, walk: &Walk) {
        self.walks.push((pass, page, walk.code, walk.bucket));
    }

    fn stretched(&mut self, walks: u64, accesses: u64) {
        self.stretches.push((walks, accesses));
    }
}

/// A page by its number and the code of its size, and its last use.
type Held = ((u64, u8), u64);

/// The twin: of each TLB a list of (number, last use), all searched each time.
struct Twin {
    geometry: Geometry,
    held: Vec<Vec<Vec<Held>>>,
    lines: std::collections::HashMap<(u64, u8), u64>,
    walks: u64,
    /// A bug that must be found: entries keep the time of their coming.
    forgets_uses: bool,
}

impl Twin {
    fn new(geometry: &Geometry, forgets_uses: bool) -> Twin {
        let held = geometry.levels.iter().map(|level| vec![Vec::new(); level.len()]).collect();
        Twin { geometry: geometry.clone(), held, lines: Default::default(), walks: 0, forgets_uses }
    }

    fn access(&mut self, page: u64, store: bool, code: u8, now: u64) -> Option<u32> {
        let delta = self.geometry.shifts[code as usize] - 12;
        let it = (page >> delta, code);
        let mut missed = Vec::new();
        let mut hit = false;
        for level in 0..self.held.len() {
            let found = self.held[level].iter_mut().zip(&self.geometry.levels[level]).any(|(held, shape)| {
                let takes = if store { shape.stores } else { shape.loads };
                let entry = held.iter_mut().find(|(known, _)| takes && *known == it);
                let forgets = self.forgets_uses;
                entry.map(|entry| entry.1 = if forgets { entry.1 } else { now }).is_some()
            });
            if found {
                hit = true;
                break;
            }
            missed.push(level);
        }
        missed.into_iter().for_each(|level| self.put(level, it, store, now));
        if hit {
            return None;
        }
        self.walks += 1;
        let depth = u8::from(code == 2);
        let line = (if depth == 1 { page >> 9 } else { page }) >> 3;
        let last = self.lines.insert((line, depth), self.walks);
        Some(last.map_or(FIRST, |last| (self.walks - last).ilog2()))
    }

    fn put(&mut self, level: usize, it: (u64, u8), store: bool, now: u64) {
        let shapes = &self.geometry.levels[level];
        let fits = |shape: &ArrayShape| {
            (if store { shape.stores } else { shape.loads }) && shape.holds & (1 << it.1) != 0
        };
        let set = |shape: &ArrayShape, number: u64| number % u64::from(shape.sets);
        // A free way comes first, of the first TLB that has one; else the oldest entry of all sets.
        let mut best: Option<(u64, usize, Option<usize>)> = None;
        for (which, shape) in shapes.iter().enumerate().filter(|(_, shape)| fits(shape)) {
            let here = |(known, _): &Held| set(shape, known.0) == set(shape, it.0);
            let held: Vec<usize> =
                (0..self.held[level][which].len()).filter(|&at| here(&self.held[level][which][at])).collect();
            let of = if held.len() < shape.ways as usize {
                (0, which, None)
            } else {
                let oldest = held.into_iter().min_by_key(|&at| self.held[level][which][at].1).unwrap();
                (self.held[level][which][oldest].1, which, Some(oldest))
            };
            if best.is_none_or(|best| of.0 < best.0) {
                best = Some(of);
            }
        }
        if let Some((_, which, oldest)) = best {
            if let Some(oldest) = oldest {
                self.held[level][which].swap_remove(oldest);
            }
            self.held[level][which].push((it, now));
        }
    }

    fn forget(&mut self, from: u64, to: u64) {
        let shifts = self.geometry.shifts.clone();
        for held in self.held.iter_mut().flatten() {
            held.retain(|((number, code), _)| {
                let delta = shifts[*code as usize] - 12;
                let first = number << delta;
                first >= to || first + (1 << delta) <= from
            });
        }
    }
}

/// Walks of the model and of the twin over the same accesses.
fn both(geometry: &Geometry, seed: u64, forgets_uses: bool) -> (Seen, Seen) {
    const PASSES: usize = 3;
    const ACCESSES: u64 = 8000;
    let mut model = Tlb::new(geometry, PASSES, None);
    let mut twins: Vec<Twin> = (0..PASSES).map(|_| Twin::new(geometry, forgets_uses)).collect();
    let (mut seen, mut wanted) = (Seen::default(), Seen::default());
    let mut state = seed;
    for now in 1..=ACCESSES {
        let page = match draw(&mut state, 4) {
            0 => draw(&mut state, 6),
            1 => draw(&mut state, 40) * 16,
            2 => draw(&mut state, 24) << 9,
            _ => draw(&mut state, 6000),
        };
        let store = draw(&mut state, 3) == 0;
        model.access(page, store, &mut seen);
        wanted.touched(page, 1, store);
        for (pass, twin) in twins.iter_mut().enumerate() {
            if let Some(bucket) = twin.access(page, store, code(pass, page), now) {
                wanted.walks.push((pass, page, code(pass, page), bucket));
            }
        }
        if draw(&mut state, 2000) == 0 {
            let from = draw(&mut state, 6000);
            let to = from + 1 + draw(&mut state, 700);
            model.forget(from, to, &mut seen);
            twins.iter_mut().for_each(|twin| twin.forget(from, to));
        }
        if draw(&mut state, 500) == 0 {
            model.passes.iter().for_each(Pass::validate);
        }
    }
    model.flush(&mut seen);
    assert_eq!(model.accesses(), ACCESSES);
    (seen, wanted)
}

fn shapes() -> Vec<Geometry> {
    let stores = ArrayShape { sets: 1, ways: 6, holds: 0b111, loads: false, stores: true };
    let loads = |sets, ways, holds| ArrayShape { sets, ways, holds, loads: true, stores: false };
    vec![
        // Separate sizes at the first level, shared at the second.
        geometry(vec![vec![array(4, 4, 1), array(2, 4, 4)], vec![array(16, 8, 0b101)]]),
        // As Golden Cove: stores apart, two second levels that share base pages.
        geometry(vec![
            vec![loads(4, 3, 1), loads(2, 2, 4), stores],
            vec![array(8, 4, 0b101), array(8, 4, 1)],
        ]),
        // Fully associative, and no power of two.
        geometry(vec![vec![array(1, 24, 0b101)], vec![array(12, 8, 1), array(6, 4, 4)]]),
        // Huge pages have no second level; and no first level at all.
        geometry(vec![vec![array(2, 2, 1), array(1, 2, 4)], vec![array(32, 2, 1)]]),
        geometry(vec![vec![array(8, 4, 1)], vec![array(8, 4, 0b101)]]),
        geometry(vec![vec![array(1, 1, 0b101)]]),
        // As Zen 4: wide sets, of a number of ways that clans do not divide, and two wide sets of one TLB.
        geometry(vec![vec![array(1, 21, 1), array(1, 20, 4)], vec![array(24, 8, 1), array(8, 6, 4)]]),
        geometry(vec![vec![array(2, 18, 0b101)], vec![array(1, 96, 1), array(2, 40, 0b101)]]),
    ]
}

#[test]
fn every_walk_and_every_page_is_that_of_the_twin() {
    for (number, geometry) in shapes().iter().enumerate() {
        for seed in 1..3 {
            let (seen, wanted) = both(geometry, seed, false);
            assert_eq!(seen.touched, wanted.touched, "shape {number}, seed {seed}");
            let first = seen.walks.iter().zip(&wanted.walks).position(|(a, b)| a != b);
            assert_eq!(first, None, "shape {number}, seed {seed}");
            assert_eq!(seen.walks.len(), wanted.walks.len(), "shape {number}, seed {seed}");
        }
    }
}

#[test]
fn a_twin_that_forgets_uses_is_found_out() {
    let (seen, wanted) = both(&shapes()[0], 1, true);
    assert_ne!(seen.walks, wanted.walks);
}

/// Uniform accesses to N pages miss with 1 − entries/N.
#[test]
fn uniform_accesses_miss_as_often_as_entries_are_lacking() {
    const ACCESSES: u64 = 100_000;
    let shape = geometry(vec![vec![array(16, 6, 1)], vec![array(128, 16, 1)]]);
    for pages in [4096u64, 8192, 65_536] {
        let (mut model, mut seen, mut state) = (Tlb::new(&shape, 1, None), Seen::default(), 9);
        (0..pages).for_each(|page| model.access(page, true, &mut seen));
        let cold = model.walks(0);
        assert_eq!(cold, pages, "each page once");
        (0..ACCESSES).for_each(|_| model.access(draw(&mut state, pages), false, &mut seen));
        let ratio = (model.walks(0) - cold) as f64 / ACCESSES as f64;
        let wanted = 1.0 - 2048.0 / pages as f64;
        assert!((ratio - wanted).abs() < 0.008, "{pages} pages: {ratio}, not {wanted}");
    }
}

#[test]
fn what_fits_misses_once_and_a_line_is_walked_eight_times() {
    let shape = geometry(vec![vec![array(16, 4, 1)], vec![array(64, 8, 1)]]);
    let (mut model, mut seen) = (Tlb::new(&shape, 1, None), Seen::default());
    for _ in 0..5 {
        (0..512).for_each(|page| model.access(page, false, &mut seen));
    }
    assert_eq!(model.walks(0), 512);
    let firsts = seen.walks.iter().filter(|walk| walk.3 == FIRST).count();
    assert_eq!((firsts, seen.walks.iter().filter(|walk| walk.3 == 0).count()), (64, 448));
}

#[test]
fn windows_count_what_they_leave_out() {
    let shape = shapes().remove(0);
    let window = Window { watched: 1000, period: 4000 };
    let (mut model, mut seen, mut state) = (Tlb::new(&shape, 2, Some(window)), Seen::default(), 3);
    for _ in 0..400_000 {
        model.access(draw(&mut state, 3000), false, &mut seen);
    }
    model.flush(&mut seen);
    let watched: u64 = seen.touched.values().map(|(accesses, _)| accesses).sum();
    assert_eq!(watched + model.skipped(), 400_000);
    // Of later stretches an eighth brings the TLBs up to date.
    assert!((83_000..=92_000).contains(&watched), "{watched}");
    assert_eq!(SIZES, 5);
    let walked: u64 = seen.walks.iter().filter(|walk| walk.0 == 0).count() as u64;
    let stretches = seen.stretches.clone();
    assert_eq!(stretches.len(), 100);
    assert_eq!(stretches.iter().map(|(walks, _)| walks).sum::<u64>(), walked, "each walk is of a stretch");
    assert!(stretches.is_sorted_by_key(|(_, accesses)| *accesses));
}

/// A page that is walked once in each stretch: what was walked meanwhile counts, though nobody looked.
#[test]
fn reuse_goes_on_while_nothing_is_looked_at() {
    let shape = geometry(vec![vec![array(1, 1, 1)]]);
    let window = Window { watched: 8, period: 1008 };
    let (mut model, mut seen) = (Tlb::new(&shape, 1, Some(window)), Seen::default());
    // Each access walks another line, and a stretch those of the one before.
    (0..10_080u64).for_each(|at| model.access(at % 1008 * 8, false, &mut seen));
    let far: Vec<u32> = seen.walks.iter().map(|walk| walk.3).filter(|bucket| *bucket != FIRST).collect();
    assert!(far.len() > 20 && far.iter().all(|bucket| (9..=10).contains(bucket)), "{far:?}");
}

/// Accesses that are not told count as those that are told and not looked at.
#[test]
fn what_was_not_told_while_it_rests_is_skipped() {
    let shape = shapes().remove(0);
    let window = Window { watched: 1000, period: 4000 };
    let (mut model, mut seen, mut state) = (Tlb::new(&shape, 1, Some(window)), Seen::default(), 3);
    let mut told = 0;
    while model.accesses() < 400_000 {
        if model.is_resting() {
            model.rested(3000);
        }
        model.access(draw(&mut state, 3000), false, &mut seen);
        told += 1;
    }
    model.flush(&mut seen);
    let watched: u64 = seen.touched.values().map(|(accesses, _)| accesses).sum();
    assert_eq!(watched + model.skipped(), model.accesses());
    assert!((95_000..=106_000).contains(&told), "{told}");
    assert!((83_000..=92_000).contains(&watched), "{watched}");
}
