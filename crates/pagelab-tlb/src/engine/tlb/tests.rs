//! Tests of the model against a naive twin, access by access, and against closed forms.

use super::super::geometry::{ArrayShape, Geometry, PAGE_SIZES};
use super::super::tlb_pass::FIRST_WALK;
use super::*;

/// A random number below `below`; the state is a seed.
fn random_below(state: &mut u64, below: u64) -> u64 {
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
fn page_size_code(pass: usize, page: u64) -> u8 {
    match pass {
        1 if (page >> 9).is_multiple_of(2) => 2,
        2 => 2,
        _ => 0,
    }
}

/// (pass, page, code, bucket) of each walk, and accesses and writes by page.
#[derive(Default)]
struct RecordedAccesses {
    walks: Vec<(usize, u64, u8, u32)>,
    accesses: std::collections::BTreeMap<u64, (u64, bool)>,
    /// (walks, accesses at its end) of each window.
    windows: Vec<(u64, u64)>,
}

impl AccessSink for RecordedAccesses {
    fn page_size_code(&mut self, pass: usize, page: u64) -> u8 {
        page_size_code(pass, page)
    }

    fn record_accesses(&mut self, page: u64, accesses: u64, written: bool) {
        let entry = self.accesses.entry(page).or_default();
        *entry = (entry.0 + accesses, entry.1 | written);
    }

    fn record_walk(&mut self, pass: usize, page: u64, walk: &PageWalk) {
        self.walks.push((pass, page, walk.code, walk.bucket));
    }

    fn record_window(&mut self, walks: u64, accesses: u64) {
        self.windows.push((walks, accesses));
    }
}

/// A page by its number and the code of its size.
type NaivePage = (u64, u8);
/// A page and its last use.
type NaiveEntry = (NaivePage, u64);

/// The twin: of each TLB a list of its entries, all searched each time.
struct NaiveTlbs {
    geometry: Geometry,
    tlbs: Vec<Vec<Vec<NaiveEntry>>>,
    last_walks: std::collections::HashMap<(u64, u8), u64>,
    walks: u64,
    /// A bug that must be found: entries keep the time of their insertion.
    forgets_uses: bool,
}

impl NaiveTlbs {
    fn new(geometry: &Geometry, forgets_uses: bool) -> NaiveTlbs {
        let tlbs = geometry.levels.iter().map(|level| vec![Vec::new(); level.len()]).collect();
        NaiveTlbs { geometry: geometry.clone(), tlbs, last_walks: Default::default(), walks: 0, forgets_uses }
    }

    fn access(&mut self, page: u64, store: bool, code: u8, now: u64) -> Option<u32> {
        let delta = self.geometry.shifts[code as usize] - 12;
        let entry_page = (page >> delta, code);
        let mut missed = Vec::new();
        let mut hit = false;
        for level in 0..self.tlbs.len() {
            let found = self.tlbs[level].iter_mut().zip(&self.geometry.levels[level]).any(|(tlb, shape)| {
                let is_served = if store { shape.stores } else { shape.loads };
                let entry = tlb.iter_mut().find(|(known, _)| is_served && *known == entry_page);
                let forgets = self.forgets_uses;
                entry.map(|entry| entry.1 = if forgets { entry.1 } else { now }).is_some()
            });
            if found {
                hit = true;
                break;
            }
            missed.push(level);
        }
        missed.into_iter().for_each(|level| self.insert(level, entry_page, store, now));
        if hit {
            return None;
        }
        self.walks += 1;
        let depth = u8::from(code == 2);
        let line = (if depth == 1 { page >> 9 } else { page }) >> 3;
        let last = self.last_walks.insert((line, depth), self.walks);
        Some(last.map_or(FIRST_WALK, |last| (self.walks - last).ilog2()))
    }

    fn insert(&mut self, level: usize, page: NaivePage, store: bool, now: u64) {
        let shapes = &self.geometry.levels[level];
        let fits = |shape: &ArrayShape| {
            (if store { shape.stores } else { shape.loads }) && shape.holds & (1 << page.1) != 0
        };
        let set = |shape: &ArrayShape, number: u64| number % u64::from(shape.sets);
        // A free way comes first, of the first TLB that has one; else the oldest entry of all sets.
        let mut best: Option<(u64, usize, Option<usize>)> = None;
        for (which, shape) in shapes.iter().enumerate().filter(|(_, shape)| fits(shape)) {
            let tlb = &self.tlbs[level][which];
            let is_in_set = |(known, _): &NaiveEntry| set(shape, known.0) == set(shape, page.0);
            let ways: Vec<usize> = (0..tlb.len()).filter(|&at| is_in_set(&tlb[at])).collect();
            let candidate = if ways.len() < shape.ways as usize {
                (0, which, None)
            } else {
                let oldest = ways.into_iter().min_by_key(|&at| tlb[at].1).unwrap();
                (tlb[oldest].1, which, Some(oldest))
            };
            if best.is_none_or(|best| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        if let Some((_, which, oldest)) = best {
            if let Some(oldest) = oldest {
                self.tlbs[level][which].swap_remove(oldest);
            }
            self.tlbs[level][which].push((page, now));
        }
    }

    fn invalidate(&mut self, from: u64, to: u64) {
        let shifts = self.geometry.shifts.clone();
        for tlb in self.tlbs.iter_mut().flatten() {
            tlb.retain(|((number, code), _)| {
                let delta = shifts[*code as usize] - 12;
                let first = number << delta;
                first >= to || first + (1 << delta) <= from
            });
        }
    }
}

/// The records of the model and of the twin over the same accesses.
fn run_model_and_twin(
    geometry: &Geometry,
    seed: u64,
    forgets_uses: bool,
) -> (RecordedAccesses, RecordedAccesses) {
    const PASSES: usize = 3;
    const ACCESSES: u64 = 8000;
    let mut model = Tlb::new(geometry, PASSES, None);
    let mut twins: Vec<NaiveTlbs> = (0..PASSES).map(|_| NaiveTlbs::new(geometry, forgets_uses)).collect();
    let (mut recorded, mut expected) = (RecordedAccesses::default(), RecordedAccesses::default());
    let mut state = seed;
    for now in 1..=ACCESSES {
        let page = match random_below(&mut state, 4) {
            0 => random_below(&mut state, 6),
            1 => random_below(&mut state, 40) * 16,
            2 => random_below(&mut state, 24) << 9,
            _ => random_below(&mut state, 6000),
        };
        let store = random_below(&mut state, 3) == 0;
        model.access(page, store, &mut recorded);
        expected.record_accesses(page, 1, store);
        for (pass, twin) in twins.iter_mut().enumerate() {
            let code = page_size_code(pass, page);
            if let Some(bucket) = twin.access(page, store, code, now) {
                expected.walks.push((pass, page, code, bucket));
            }
        }
        if random_below(&mut state, 2000) == 0 {
            let from = random_below(&mut state, 6000);
            let to = from + 1 + random_below(&mut state, 700);
            model.invalidate(from, to, &mut recorded);
            twins.iter_mut().for_each(|twin| twin.invalidate(from, to));
        }
        if random_below(&mut state, 500) == 0 {
            model.passes.iter().for_each(TlbPass::validate);
        }
    }
    model.flush(&mut recorded);
    assert_eq!(model.accesses(), ACCESSES);
    (recorded, expected)
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
        // As Zen 4: wide sets, whose ways are no multiple of a group, and two wide sets of one TLB.
        geometry(vec![vec![array(1, 21, 1), array(1, 20, 4)], vec![array(24, 8, 1), array(8, 6, 4)]]),
        geometry(vec![vec![array(2, 18, 0b101)], vec![array(1, 96, 1), array(2, 40, 0b101)]]),
    ]
}

#[test]
fn every_walk_and_every_page_is_that_of_the_twin() {
    for (number, geometry) in shapes().iter().enumerate() {
        for seed in 1..3 {
            let (recorded, expected) = run_model_and_twin(geometry, seed, false);
            assert_eq!(recorded.accesses, expected.accesses, "shape {number}, seed {seed}");
            let first = recorded.walks.iter().zip(&expected.walks).position(|(a, b)| a != b);
            assert_eq!(first, None, "shape {number}, seed {seed}");
            assert_eq!(recorded.walks.len(), expected.walks.len(), "shape {number}, seed {seed}");
        }
    }
}

#[test]
fn a_twin_that_forgets_uses_is_found_out() {
    let (recorded, expected) = run_model_and_twin(&shapes()[0], 1, true);
    assert_ne!(recorded.walks, expected.walks);
}

/// Uniform accesses to N pages miss with 1 − entries/N.
#[test]
fn uniform_accesses_miss_in_proportion_to_missing_entries() {
    const ACCESSES: u64 = 100_000;
    let shape = geometry(vec![vec![array(16, 6, 1)], vec![array(128, 16, 1)]]);
    for pages in [4096u64, 8192, 65_536] {
        let (mut model, mut recorded, mut state) =
            (Tlb::new(&shape, 1, None), RecordedAccesses::default(), 9);
        (0..pages).for_each(|page| model.access(page, true, &mut recorded));
        let cold = recorded.walks.len() as u64;
        assert_eq!(cold, pages, "each page once");
        (0..ACCESSES).for_each(|_| model.access(random_below(&mut state, pages), false, &mut recorded));
        let ratio = (recorded.walks.len() as u64 - cold) as f64 / ACCESSES as f64;
        let expected = 1.0 - 2048.0 / pages as f64;
        assert!((ratio - expected).abs() < 0.008, "{pages} pages: {ratio}, not {expected}");
    }
}

#[test]
fn what_fits_misses_once_and_a_line_is_walked_eight_times() {
    let shape = geometry(vec![vec![array(16, 4, 1)], vec![array(64, 8, 1)]]);
    let (mut model, mut recorded) = (Tlb::new(&shape, 1, None), RecordedAccesses::default());
    for _ in 0..5 {
        (0..512).for_each(|page| model.access(page, false, &mut recorded));
    }
    assert_eq!(recorded.walks.len() as u64, 512);
    let firsts = recorded.walks.iter().filter(|walk| walk.3 == FIRST_WALK).count();
    assert_eq!((firsts, recorded.walks.iter().filter(|walk| walk.3 == 0).count()), (64, 448));
}

#[test]
fn windows_count_what_they_leave_out() {
    let shape = shapes().remove(0);
    let window = SamplingWindow { sampled: 1000, period: 4000 };
    let (mut model, mut recorded, mut state) =
        (Tlb::new(&shape, 2, Some(window)), RecordedAccesses::default(), 3);
    for _ in 0..400_000 {
        model.access(random_below(&mut state, 3000), false, &mut recorded);
    }
    model.flush(&mut recorded);
    let counted: u64 = recorded.accesses.values().map(|(accesses, _)| accesses).sum();
    assert_eq!(counted + model.skipped(), 400_000);
    // Of later windows an eighth brings the TLBs up to date.
    assert!((83_000..=92_000).contains(&counted), "{counted}");
    assert_eq!(PAGE_SIZES, 5);
    let walks: u64 = recorded.walks.iter().filter(|walk| walk.0 == 0).count() as u64;
    let windows = recorded.windows.clone();
    assert_eq!(windows.len(), 100);
    assert_eq!(windows.iter().map(|(walks, _)| walks).sum::<u64>(), walks, "each walk is of a window");
    assert!(windows.is_sorted_by_key(|(_, accesses)| *accesses));
}

/// A page that is walked once in each window: the distance has the estimated walks of skipped accesses.
#[test]
fn reuse_distances_include_skipped_accesses() {
    let shape = geometry(vec![vec![array(1, 1, 1)]]);
    let window = SamplingWindow { sampled: 8, period: 1008 };
    let (mut model, mut recorded) = (Tlb::new(&shape, 1, Some(window)), RecordedAccesses::default());
    // Each access walks another line, and a window those of the one before.
    (0..10_080u64).for_each(|at| model.access(at % 1008 * 8, false, &mut recorded));
    let far: Vec<u32> =
        recorded.walks.iter().map(|walk| walk.3).filter(|bucket| *bucket != FIRST_WALK).collect();
    assert!(far.len() > 20 && far.iter().all(|bucket| (9..=10).contains(bucket)), "{far:?}");
}

#[test]
fn accesses_without_a_call_are_skipped_ones() {
    let shape = shapes().remove(0);
    let window = SamplingWindow { sampled: 1000, period: 4000 };
    let (mut model, mut recorded, mut state) =
        (Tlb::new(&shape, 1, Some(window)), RecordedAccesses::default(), 3);
    let mut calls = 0;
    while model.accesses() < 400_000 {
        if model.is_skipping() {
            model.skip_accesses(3000);
        }
        model.access(random_below(&mut state, 3000), false, &mut recorded);
        calls += 1;
    }
    model.flush(&mut recorded);
    let counted: u64 = recorded.accesses.values().map(|(accesses, _)| accesses).sum();
    assert_eq!(counted + model.skipped(), model.accesses());
    assert!((95_000..=106_000).contains(&calls), "{calls}");
    assert!((83_000..=92_000).contains(&counted), "{counted}");
}
