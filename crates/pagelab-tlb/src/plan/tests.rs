//! Rankings of made profiles: a stream through a small TLB, with and without huge pages, is the truth.

use std::collections::HashMap;

use pagelab_model::machine::{Tlb, TlbHolds, TlbLevel, TlbSource};
use pagelab_model::profile::{Begun, Cells, Effort, ProfileSource, Reuse, Unseen, WalkCost};
use pagelab_model::{Bytes, PageSize};

use super::predict::{Native, gain, interval, shares, speedup, walk_share};
use super::*;

const PAGE: u64 = 4 << 10;
const HUGE: u64 = 512 * PAGE;
const LINE: u64 = 8 * PAGE;
const REGIONS: u64 = 64;
const ENTRIES: usize = 128;
const READS: u64 = 200_000;

fn price() -> WalkCost {
    WalkCost { points: vec![(4, 10_000), (8, 30_000), (12, 140_000)], origin: "made".to_owned() }
}

/// One TLB with the ages of its entries; the oldest of eight entries of a set goes.
struct Machine {
    sets: Vec<Vec<u64>>,
    walks: u64,
    lines: HashMap<u64, u64>,
    ps: f64,
}

impl Machine {
    fn new() -> Machine {
        Machine { sets: vec![Vec::new(); ENTRIES / 8], walks: 0, lines: HashMap::new(), ps: 0.0 }
    }

    /// The distance of the walk, if it was one. An entry is (page's number, whether it is huge).
    fn touch(&mut self, number: u64, is_huge: bool) -> Option<Option<u64>> {
        let entry = number * 2 + u64::from(is_huge);
        let set = &mut self.sets[(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % (ENTRIES / 8)];
        let found = set.iter().position(|known| *known == entry);
        found.map(|at| set.remove(at));
        set.push(entry);
        if found.is_some() {
            return None;
        }
        if set.len() > 8 {
            set.remove(0);
        }
        let before = self.lines.insert(entry / 16 * 2 + u64::from(is_huge), self.walks);
        let distance = before.map(|before| self.walks - before - 1);
        self.walks += 1;
        let log2 = distance.map_or(f64::INFINITY, |distance| (distance.max(1) as f64).log2());
        self.ps += cost::walk_ps(&price(), log2);
        Some(distance)
    }
}

/// Region k is read in proportion to `share(k)`; regions are scattered, pages in them are by chance.
fn stream(share: impl Fn(u64) -> f64) -> impl Iterator<Item = u64> {
    let mut sums: Vec<f64> = Vec::new();
    for region in 0..REGIONS {
        sums.push(sums.last().unwrap_or(&0.0) + share(region));
    }
    let mut random = SplitMix64::new(11);
    (0..READS).map(move |_| {
        let drawn = random.draw() as f64 / u64::MAX as f64 * sums[sums.len() - 1];
        let region = sums.partition_point(|sum| *sum < drawn) as u64;
        (region * 37 % REGIONS) * HUGE + random.below(512) * PAGE
    })
}

fn mapping(start: u64) -> MappingProfile {
    MappingProfile {
        key: MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(REGIONS * HUGE), nth: 0 },
        start,
        bytes: Bytes(REGIONS * HUGE),
        grain: Bytes(PAGE),
        cells: Cells::default(),
        reuse: Reuse::default(),
        unseen: Vec::new(),
    }
}

fn profile(mapping: MappingProfile, misses: u64) -> Profile {
    let level = TlbLevel {
        level: 2,
        holds: TlbHolds::Unified,
        page_sizes: vec![Bytes(PAGE), Bytes(HUGE)],
        entries: ENTRIES as u32,
        ways: Some(8),
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: Begun::Launched,
        program: Program { path: "/p".to_owned(), ..Program::default() },
        arguments: Vec::new(),
        accesses: Some(READS),
        instructions: None,
        misses,
        mappings: vec![mapping],
    };
    Profile {
        source: ProfileSource::Exact,
        command: vec!["p".to_owned()],
        page_size: PageSize::USUAL,
        huge: Bytes(HUGE),
        tlb: Some(Tlb { source: TlbSource::Given, levels: vec![level] }),
        walk_cost: Some(price()),
        images: vec![image],
        wall_ns: 1,
        effort: Effort::default(),
        lost: 0,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

/// What an exact source would write of a stream over base pages.
fn watched(share: impl Fn(u64) -> f64) -> Profile {
    let mut machine = Machine::new();
    let mut pages = vec![(0u64, 0u64); (REGIONS * 512) as usize];
    let mut lines: BTreeMap<u64, BTreeMap<u32, u64>> = BTreeMap::new();
    for address in stream(share) {
        let page = &mut pages[(address / PAGE) as usize];
        page.1 += 1;
        if let Some(distance) = machine.touch(address / PAGE, false) {
            page.0 += 1;
            let bucket = distance.map_or(Reuse::FIRST, |distance| distance.max(1).ilog2());
            *lines.entry(address / LINE).or_default().entry(bucket).or_default() += 1;
        }
    }
    let mut of = mapping(0x7f00_0000_0000);
    let touched = (0u64..).zip(&pages).filter(|(_, page)| page.1 > 0);
    for (at, page) in touched {
        of.cells.at.push(at);
        of.cells.misses.push(page.0);
        of.cells.accesses.push(page.1);
    }
    let counts = lines.values().map(|of| of.iter().map(|(&bucket, &count)| (bucket, count)).collect());
    of.reuse = Reuse { line: Bytes(LINE), at: lines.keys().copied().collect(), counts: counts.collect() };
    profile(of, machine.walks)
}

/// Picoseconds of walks with these regions on huge pages.
fn truth(share: impl Fn(u64) -> f64, huge: &[u64]) -> f64 {
    let mut machine = Machine::new();
    for address in stream(share) {
        let is_huge = huge.contains(&(address / HUGE * HUGE));
        machine.touch(address / if is_huge { HUGE } else { PAGE }, is_huge);
    }
    machine.ps
}

fn ask(by: By) -> Ask {
    Ask { page: Bytes(HUGE), by, files: false }
}

fn offsets(ranking: &Ranking, n: usize) -> Vec<u64> {
    ranking.regions.iter().take(n).map(|region| region.offset).collect()
}

fn zipf(power: f64) -> impl Fn(u64) -> f64 + Copy {
    move |rank| 1.0 / (rank as f64 + 1.0).powf(power)
}

fn hot(rank: u64) -> f64 {
    if rank < 6 { 0.9 / 6.0 } else { 0.1 / (REGIONS - 6) as f64 }
}

#[test]
fn the_curve_is_what_a_second_run_shows() {
    fn check(name: &str, share: impl Fn(u64) -> f64 + Copy) {
        let profile = watched(share);
        let ranking = rank(&profile, ask(By::Cost));
        let base = truth(share, &[]);
        assert!((ranking.total / base - 1.0).abs() < 0.1, "{name}: {} for {base}", ranking.total);
        for n in [8, 32] {
            let saved = base - truth(share, &offsets(&ranking, n));
            let modelled = ranking.saved(n);
            let error = (modelled - saved).abs() / base;
            assert!(error < 0.15, "{name}, {n} huge pages: {modelled} for {saved}");
        }
    }
    check("uniform", |_| 1.0);
    check("zipf 1.0", zipf(1.0));
    check("hot", hot);
}

/// By truth, not by the model: a quarter of the pages by cost is nearly as good as by any other order.
#[test]
fn ranking_by_cost_is_as_good_as_any() {
    fn check(name: &str, share: impl Fn(u64) -> f64 + Copy) {
        let profile = watched(share);
        let base = truth(share, &[]);
        let saved = |by| base - truth(share, &offsets(&rank(&profile, ask(by)), REGIONS as usize / 4));
        let best = [By::Misses, By::Accesses].map(saved).into_iter().fold(0.0, f64::max);
        assert!(saved(By::Cost) >= 0.9 * best, "{name}: {} of {best}", saved(By::Cost));
        assert!(best > 0.0);
    }
    check("zipf 1.0", zipf(1.0));
    check("zipf 1.5", zipf(1.5));
    check("hot", hot);
}

#[test]
fn shapes_are_told_apart() {
    let shape = |profile: &Profile| rank(profile, ask(By::Cost)).shape;
    assert_eq!(shape(&watched(|_| 1.0)), Shape::Flat);
    let knee = shape(&watched(zipf(1.5)));
    assert!(matches!(knee, Shape::Knee(2..=32)), "{knee:?}");
    // What is never missed in saves nothing.
    let mut idle = mapping(0);
    idle.cells = Cells { at: vec![0, 1], misses: vec![0, 0], ..Cells::default() };
    assert_eq!(shape(&profile(idle, 0)), Shape::Nothing);
}

#[test]
fn sizes_choose_what_they_say() {
    let ranking = rank(&watched(zipf(1.0)), ask(By::Cost));
    let page = Bytes(HUGE);
    assert_eq!(ranking.count(Size::Pages(1000), page), REGIONS as usize);
    assert_eq!(ranking.count(Size::Budget(Bytes(5 * HUGE + 1)), page), 5);
    let n = ranking.count(Size::Share(0.8), page);
    assert!(ranking.share(n).unwrap() >= 0.8 - 1e-6 && ranking.share(n - 1).unwrap() < 0.8);
    assert_eq!(ranking.count(Size::Share(1.0), page).max(60), REGIONS as usize);
}

#[test]
fn the_pair_of_times_scales_the_shares() {
    let ranking = rank(&watched(zipf(1.0)), ask(By::Cost));
    let native = Native::Pair { base_ns: 2000, huge_ns: 1000, kernel_ns: None };
    let all = ranking.regions.len();
    assert!((speedup(&ranking, all, native).unwrap() - 2.0).abs() < 1e-9);
    let half = ranking.count(Size::Share(0.5), Bytes(HUGE));
    let found = speedup(&ranking, half, native).unwrap();
    assert!((1.33..1.4).contains(&found), "{found}");
    assert_eq!(gain(&ranking, all, native).unwrap().all_speedup_permille, 2000);
    // Walks cannot cost more than the time.
    assert_eq!(speedup(&ranking, all, Native::Base(1)), None);
    // A program that huge pages slow down is told so.
    let slower = Native::Pair { base_ns: 1000, huge_ns: 1250, kernel_ns: None };
    assert!((speedup(&ranking, all, slower).unwrap() - 0.8).abs() < 1e-9);
}

/// Few hot regions have most of the walks, and few of the page faults: what is saved in the kernel goes by
/// memory.
#[test]
fn what_is_saved_in_the_kernel_goes_by_memory() {
    let ranking = rank(&watched(hot), ask(By::Cost));
    let pair = |kernel_ns| Native::Pair { base_ns: 2_000_000, huge_ns: 1_000_000, kernel_ns };
    let n = 4;
    let of_walks = speedup(&ranking, n, pair(Some((500_000, 500_000)))).unwrap();
    let of_faults = speedup(&ranking, n, pair(Some((1_500_000, 500_000)))).unwrap();
    let memory = shares(&ranking, n).unwrap().touched;
    assert!((of_faults - 1.0 / (1.0 - memory / 2.0)).abs() < 1e-6, "{of_faults}");
    assert!(of_walks > of_faults, "{of_walks} {of_faults}");
    let unknown = interval(&ranking, n, pair(None)).unwrap();
    assert!(unknown.low <= of_faults && of_walks <= unknown.high, "{unknown:?}");
    assert_eq!(walk_share(&ranking, pair(Some((1_500_000, 500_000)))), None, "no time is that of walks");
}

/// By truth, not by the model: the time with a part of the huge pages lies in the interval that is said,
/// whether a walk costs all of its price or a tenth of it; and the pair of times tells which.
#[test]
fn the_interval_holds_for_walks_that_wait_and_for_walks_that_overlap() {
    fn check(name: &str, share: impl Fn(u64) -> f64 + Copy) {
        let ranking = rank(&watched(share), ask(By::Cost));
        let every: Vec<u64> = (0..REGIONS).map(|region| region * HUGE).collect();
        let (base, all) = (truth(share, &[]), truth(share, &every));
        for overlap in [1.0, 0.1] {
            let ns = |walks: f64| ((2.0 * base + walks * overlap) / 1000.0) as u64;
            let pair = Native::Pair { base_ns: ns(base), huge_ns: ns(all), kernel_ns: Some((7, 7)) };
            let learned = walk_share(&ranking, pair).unwrap();
            assert!((learned / overlap - 1.0).abs() < 0.25, "{name}: {learned} for {overlap}");
            for n in [4, 8, 16, 32] {
                let measured = ns(base) as f64 / ns(truth(share, &offsets(&ranking, n))) as f64;
                for native in [pair, Native::Base(ns(base))] {
                    let found = interval(&ranking, n, native).unwrap();
                    assert!(found.low <= speedup(&ranking, n, native).unwrap() * (1.0 + 1e-9));
                    assert!(found.high >= speedup(&ranking, n, native).unwrap() * (1.0 - 1e-9));
                    // What is beyond the model of lost entries, to the gain of all.
                    let slack = 0.05 * (ns(base) as f64 / ns(all) as f64 - 1.0);
                    let is_in = found.low - slack <= measured && measured <= found.high + slack;
                    assert!(is_in, "{name} {overlap}, {n} pages, {native:?}: {measured} in {found:?}");
                }
            }
        }
    }
    check("zipf 1.0", zipf(1.0));
    check("zipf 1.5", zipf(1.5));
    check("hot", hot);
    let ranking = rank(&watched(hot), ask(By::Cost));
    assert_eq!(walk_share(&ranking, Native::Base(1_000_000)), None, "nothing tells it");
    let slower = Native::Pair { base_ns: 5, huge_ns: 6, kernel_ns: None };
    assert_eq!(walk_share(&ranking, slower), None, "huge pages cost time");
}

/// Arenas of half a huge page side by side, as an allocator maps them: no plan names a huge page of two, and
/// all memory on huge pages has it.
#[test]
fn what_neighbours_fill_together_is_in_all_and_in_no_plan() {
    let large = mapping(64 * HUGE);
    let mut made = profile(large, 0);
    let half = |nth: u32, start: u64| {
        let mut of = mapping(start);
        of.key.bytes = Bytes(HUGE / 2);
        (of.key.nth, of.bytes) = (nth, Bytes(HUGE / 2));
        of.cells = Cells { at: vec![0, 1], misses: vec![30, 20], ..Cells::default() };
        of
    };
    made.images[0].mappings[0].cells = Cells { at: vec![0, 600], misses: vec![50, 50], ..Cells::default() };
    let first = 256 * HUGE;
    // Two that fill one, and one with a gap beside it.
    for (nth, at) in [(0, 0), (1, HUGE / 2), (2, HUGE), (3, 7 * HUGE)] {
        made.images[0].mappings.push(half(nth, first + at));
    }
    let ranking = rank(&made, ask(By::Cost));
    assert_eq!((ranking.regions.len(), ranking.beyond.joined.misses), (2, 100.0));
    assert!(ranking.beyond.ends > ranking.beyond.joined.cost && ranking.beyond.joined.cost > 0.0);
    let found = shares(&ranking, 2).unwrap();
    assert!((found.walks - 0.5).abs() < 1e-9, "{found:?}");
    assert!((0.3..0.7).contains(&found.cost), "{found:?}");
    let pair = Native::Pair { base_ns: 2000, huge_ns: 1000, kernel_ns: None };
    assert!(speedup(&ranking, 2, pair).unwrap() < 1.6, "{found:?}");
    assert_eq!(gain(&ranking, 2, pair).unwrap().all_speedup_permille, 2000);
}

#[test]
fn ends_of_mappings_files_and_hidden_parts_are_told() {
    let mut of = mapping(HUGE / 2);
    // The mapping begins in the middle of a huge page and has room for one whole one.
    of.bytes = Bytes(2 * HUGE);
    of.cells = Cells { at: vec![0, 300, 600], misses: vec![5, 7, 0], ..Cells::default() };
    of.unseen = vec![Unseen { offset: 0, bytes: Bytes(PAGE), why: UnseenWhy::ZeroPage }];
    let mut made = profile(of.clone(), 12);
    made.walk_cost = None;
    let ranking = rank(&made, ask(By::Cost));
    assert!(!ranking.timed);
    assert_eq!((offsets(&ranking, 9), ranking.beyond.ends), (vec![HUGE / 2], 5.0));
    assert_eq!(ranking.mappings[0].unseen.len(), 1);
    of.key.kind = MappingKind::File("/f".to_owned());
    made.images[0].mappings = vec![of];
    assert_eq!(rank(&made, ask(By::Cost)).beyond.files, 12.0);
    assert_eq!(rank(&made, Ask { files: true, ..ask(By::Cost) }).regions.len(), 1);
}

#[test]
fn a_plan_holds_what_another_grid_needs() {
    let profile = watched(hot);
    let ranking = rank(&profile, ask(By::Cost));
    let made = plan(&profile, &ranking, 6, Bytes(HUGE), None);
    let planned = &made.programs[0].mappings[0];
    assert_eq!(planned.regions.iter().map(|of| of.offset).collect::<Vec<_>>(), offsets(&ranking, 6));
    let same = grid::placed(planned, 0x5500_0000_0000, REGIONS * HUGE);
    assert_eq!(same, planned.regions);
    // Half a huge page further, every planned region lies in two, and six of these are chosen.
    let shifted = grid::placed(planned, 0x5500_0000_0000 + HUGE / 2, REGIONS * HUGE);
    assert_eq!(shifted.len(), 6);
    assert!(shifted.iter().all(|of| (of.offset + HUGE / 2).is_multiple_of(HUGE)));
    let near = |of: u64| planned.regions.iter().any(|planned| planned.offset.abs_diff(of) < HUGE);
    assert!(shifted.iter().all(|of| near(of.offset)), "{shifted:?}");
}

/// Forks and threads of one program: a mapping of equal key is planned once, with the cost of all.
#[test]
fn processes_of_one_program_are_one() {
    let mut profile = watched(hot);
    let alone = rank(&profile, ask(By::Cost));
    let mut child = profile.images[0].clone();
    child.pid = 2;
    child.mappings[0].start += 7 * HUGE;
    profile.images.push(child);
    let both = rank(&profile, ask(By::Cost));
    assert_eq!((both.mappings.len(), both.regions.len()), (1, alone.regions.len()));
    assert!((both.total / alone.total - 2.0).abs() < 1e-6);
}
