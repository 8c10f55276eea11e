//! Tests of rankings of synthetic profiles against a stream through a small TLB, with and without huge pages.

use pagelab_model::machine::{Tlb, TlbContent, TlbLevel, TlbSource};
use pagelab_model::profile::{
    CellCounts, ImageStart, MappingProfile, ProfileSource, ProfilingCost, ReuseHistograms, UnseenRange,
    WalkCostCurve,
};
use pagelab_model::{Bytes, PageSize};

use super::predict::{
    NativeTime, compute_gain_shares, compute_walk_cost_ratio, predict_gain, predict_interval, predict_speedup,
};
use super::*;

const PAGE: u64 = 4 << 10;
const HUGE: u64 = 512 * PAGE;
const LINE: u64 = 8 * PAGE;
const REGIONS: u64 = 64;
const ENTRIES: usize = 128;
const READS: u64 = 200_000;

fn cost_curve() -> WalkCostCurve {
    WalkCostCurve { points: vec![(4, 10_000), (8, 30_000), (12, 140_000)], origin: "made".to_owned() }
}

/// One TLB with the ages of its entries; the oldest of eight entries of a set goes.
struct SimulatedTlb {
    sets: Vec<Vec<u64>>,
    walks: u64,
    lines: HashMap<u64, u64>,
    ps: f64,
}

impl SimulatedTlb {
    fn new() -> SimulatedTlb {
        SimulatedTlb { sets: vec![Vec::new(); ENTRIES / 8], walks: 0, lines: HashMap::new(), ps: 0.0 }
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
        self.ps += cost::walk_cost_ps(&cost_curve(), log2);
        Some(distance)
    }
}

/// Region k is read in proportion to `share(k)`; regions are scattered, pages in them are random.
fn access_stream(share: impl Fn(u64) -> f64) -> impl Iterator<Item = u64> {
    let mut sums: Vec<f64> = Vec::new();
    for region in 0..REGIONS {
        sums.push(sums.last().unwrap_or(&0.0) + share(region));
    }
    let mut random = SplitMix64::new(11);
    (0..READS).map(move |_| {
        let random_sum = random.next_u64() as f64 / u64::MAX as f64 * sums[sums.len() - 1];
        let region = sums.partition_point(|sum| *sum < random_sum) as u64;
        (region * 37 % REGIONS) * HUGE + random.next_below(512) * PAGE
    })
}

fn mapping(start: u64) -> MappingProfile {
    MappingProfile {
        key: MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(REGIONS * HUGE), nth: 0 },
        start,
        bytes: Bytes(REGIONS * HUGE),
        grain: Bytes(PAGE),
        cells: CellCounts::default(),
        reuse: ReuseHistograms::default(),
        unseen: Vec::new(),
    }
}

fn profile(mapping: MappingProfile, misses: u64) -> TlbProfile {
    let level = TlbLevel {
        level: 2,
        holds: TlbContent::Unified,
        page_sizes: vec![Bytes(PAGE), Bytes(HUGE)],
        entries: ENTRIES as u32,
        ways: Some(8),
    };
    let image = ImageProfile {
        pid: 1,
        parent: None,
        begun: ImageStart::Launched,
        program: Program { path: "/p".to_owned(), ..Program::default() },
        arguments: Vec::new(),
        accesses: Some(READS),
        instructions: None,
        misses,
        mappings: vec![mapping],
        advice: None,
    };
    TlbProfile {
        source: ProfileSource::Exact,
        command: vec!["p".to_owned()],
        page_size: PageSize::DEFAULT,
        huge: Bytes(HUGE),
        tlb: Some(Tlb { source: TlbSource::UserSupplied, levels: vec![level] }),
        walk_cost: Some(cost_curve()),
        images: vec![image],
        wall_ns: 1,
        effort: ProfilingCost::default(),
        lost: 0,
        notes: Vec::new(),
        what_ifs: Vec::new(),
        exit: None,
    }
}

/// What an exact source would write of a stream over base pages.
fn exact_profile(share: impl Fn(u64) -> f64) -> TlbProfile {
    let mut machine = SimulatedTlb::new();
    let mut pages = vec![(0u64, 0u64); (REGIONS * 512) as usize];
    let mut lines: BTreeMap<u64, BTreeMap<u32, u64>> = BTreeMap::new();
    for address in access_stream(share) {
        let page = &mut pages[(address / PAGE) as usize];
        page.1 += 1;
        if let Some(distance) = machine.touch(address / PAGE, false) {
            page.0 += 1;
            let bucket =
                distance.map_or(ReuseHistograms::FIRST_WALK_BUCKET, |distance| distance.max(1).ilog2());
            *lines.entry(address / LINE).or_default().entry(bucket).or_default() += 1;
        }
    }
    let mut mapping_profile = mapping(0x7f00_0000_0000);
    let touched = (0u64..).zip(&pages).filter(|(_, page)| page.1 > 0);
    for (at, page) in touched {
        mapping_profile.cells.at.push(at);
        mapping_profile.cells.misses.push(page.0);
        mapping_profile.cells.accesses.push(page.1);
    }
    let counts = lines.values().map(|of| of.iter().map(|(&bucket, &count)| (bucket, count)).collect());
    mapping_profile.reuse =
        ReuseHistograms { line: Bytes(LINE), at: lines.keys().copied().collect(), counts: counts.collect() };
    profile(mapping_profile, machine.walks)
}

/// Picoseconds of walks with these regions on huge pages.
fn simulate_cost(share: impl Fn(u64) -> f64, huge: &[u64]) -> f64 {
    let mut machine = SimulatedTlb::new();
    for address in access_stream(share) {
        let is_huge = huge.contains(&(address / HUGE * HUGE));
        machine.touch(address / if is_huge { HUGE } else { PAGE }, is_huge);
    }
    machine.ps
}

fn rank_options(by: RankBy) -> RankOptions {
    RankOptions { page: Bytes(HUGE), by, include_files: false }
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
        let profile = exact_profile(share);
        let ranking = rank_regions(&profile, rank_options(RankBy::Cost));
        let base = simulate_cost(share, &[]);
        assert!((ranking.total / base - 1.0).abs() < 0.1, "{name}: {} for {base}", ranking.total);
        for n in [8, 32] {
            let saved = base - simulate_cost(share, &offsets(&ranking, n));
            let modelled = ranking.saving_at(n);
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
        let profile = exact_profile(share);
        let base = simulate_cost(share, &[]);
        let saved = |by| {
            base - simulate_cost(
                share,
                &offsets(&rank_regions(&profile, rank_options(by)), REGIONS as usize / 4),
            )
        };
        let best = [RankBy::Misses, RankBy::Accesses].map(saved).into_iter().fold(0.0, f64::max);
        assert!(saved(RankBy::Cost) >= 0.9 * best, "{name}: {} of {best}", saved(RankBy::Cost));
        assert!(best > 0.0);
    }
    check("zipf 1.0", zipf(1.0));
    check("zipf 1.5", zipf(1.5));
    check("hot", hot);
}

#[test]
fn shapes_are_told_apart() {
    let shape = |profile: &TlbProfile| rank_regions(profile, rank_options(RankBy::Cost)).shape;
    assert_eq!(shape(&exact_profile(|_| 1.0)), CurveShape::Flat);
    assert_eq!(shape(&exact_profile(zipf(1.5))), CurveShape::Gradual);
    assert_eq!(shape(&exact_profile(hot)), CurveShape::Knee);
    // Regions without misses save nothing.
    let mut idle = mapping(0);
    idle.cells = CellCounts { at: vec![0, 1], misses: vec![0, 0], ..CellCounts::default() };
    assert_eq!(shape(&profile(idle, 0)), CurveShape::NoGain);
}

/// 6 regions are hot, whatever ranks them; as a random order has no knee.
#[test]
fn the_knee_is_where_the_hot_regions_end() {
    let profile = exact_profile(hot);
    for by in [RankBy::Cost, RankBy::Misses, RankBy::Accesses] {
        let ranking = rank_regions(&profile, rank_options(by));
        assert_eq!(ranking.knee, Ok(Knee { pages: 6, low: 6, high: 6 }), "{by:?}");
        assert!(ranking.most_of_gain() >= 6);
    }
    assert_eq!(rank_regions(&profile, rank_options(RankBy::Random(1))).knee, Err(KneeAbsence::NoKnee));
    for power in [0.0, 0.7, 1.0, 1.5] {
        let ranking = rank_regions(&exact_profile(zipf(power)), rank_options(RankBy::Cost));
        assert_eq!(ranking.knee, Err(KneeAbsence::NoKnee), "{power}");
    }
}

#[test]
fn sizes_choose_what_they_say() {
    let ranking = rank_regions(&exact_profile(zipf(1.0)), rank_options(RankBy::Cost));
    let page = Bytes(HUGE);
    assert_eq!(ranking.region_count(PlanSize::Pages(1000), page), REGIONS as usize);
    assert_eq!(ranking.region_count(PlanSize::Budget(Bytes(5 * HUGE + 1)), page), 5);
    let n = ranking.region_count(PlanSize::Share(0.8), page);
    assert!(ranking.saving_share(n).unwrap() >= 0.8 - 1e-6 && ranking.saving_share(n - 1).unwrap() < 0.8);
    assert_eq!(ranking.region_count(PlanSize::Share(1.0), page).max(60), REGIONS as usize);
}

#[test]
fn the_pair_of_times_scales_the_shares() {
    let ranking = rank_regions(&exact_profile(zipf(1.0)), rank_options(RankBy::Cost));
    let native = NativeTime::Pair { base_ns: 2000, huge_ns: 1000, kernel_ns: None };
    let all = ranking.regions.len();
    assert!((predict_speedup(&ranking, all, native).unwrap() - 2.0).abs() < 1e-9);
    let half = ranking.region_count(PlanSize::Share(0.5), Bytes(HUGE));
    let found = predict_speedup(&ranking, half, native).unwrap();
    assert!((1.33..1.4).contains(&found), "{found}");
    assert_eq!(predict_gain(&ranking, all, native).unwrap().all_speedup_permille, 2000);
    // Walks cannot cost more than the time.
    assert_eq!(predict_speedup(&ranking, all, NativeTime::Base(1)), None);
    // A program that huge pages slow down.
    let slower = NativeTime::Pair { base_ns: 1000, huge_ns: 1250, kernel_ns: None };
    assert!((predict_speedup(&ranking, all, slower).unwrap() - 0.8).abs() < 1e-9);
}

/// Few hot regions have most of the walks, and few of the page faults: kernel time is saved in proportion to
/// memory.
#[test]
fn what_is_saved_in_the_kernel_goes_by_memory() {
    let ranking = rank_regions(&exact_profile(hot), rank_options(RankBy::Cost));
    let pair = |kernel_ns| NativeTime::Pair { base_ns: 2_000_000, huge_ns: 1_000_000, kernel_ns };
    let n = 4;
    let of_walks = predict_speedup(&ranking, n, pair(Some((500_000, 500_000)))).unwrap();
    let of_faults = predict_speedup(&ranking, n, pair(Some((1_500_000, 500_000)))).unwrap();
    let memory = compute_gain_shares(&ranking, n).unwrap().touched_memory;
    assert!((of_faults - 1.0 / (1.0 - memory / 2.0)).abs() < 1e-6, "{of_faults}");
    assert!(of_walks > of_faults, "{of_walks} {of_faults}");
    let unknown = predict_interval(&ranking, n, pair(None)).unwrap();
    assert!(unknown.low <= of_faults && of_walks <= unknown.high, "{unknown:?}");
    assert_eq!(
        compute_walk_cost_ratio(&ranking, pair(Some((1_500_000, 500_000)))),
        None,
        "no time is that of walks"
    );
}

/// By measurement, not by the model: the time with a part of the huge pages is in the predicted interval,
/// whether a walk costs all of its measured cost or a tenth of it; the pair of times decides.
#[test]
fn the_interval_holds_for_walks_that_wait_and_for_walks_that_overlap() {
    fn check(name: &str, share: impl Fn(u64) -> f64 + Copy) {
        let ranking = rank_regions(&exact_profile(share), rank_options(RankBy::Cost));
        let every: Vec<u64> = (0..REGIONS).map(|region| region * HUGE).collect();
        let (base, all) = (simulate_cost(share, &[]), simulate_cost(share, &every));
        for overlap in [1.0, 0.1] {
            let ns = |walks: f64| ((2.0 * base + walks * overlap) / 1000.0) as u64;
            let pair = NativeTime::Pair { base_ns: ns(base), huge_ns: ns(all), kernel_ns: Some((7, 7)) };
            let learned = compute_walk_cost_ratio(&ranking, pair).unwrap();
            assert!((learned / overlap - 1.0).abs() < 0.25, "{name}: {learned} for {overlap}");
            for n in [4, 8, 16, 32] {
                let measured = ns(base) as f64 / ns(simulate_cost(share, &offsets(&ranking, n))) as f64;
                for native in [pair, NativeTime::Base(ns(base))] {
                    let found = predict_interval(&ranking, n, native).unwrap();
                    assert!(found.low <= predict_speedup(&ranking, n, native).unwrap() * (1.0 + 1e-9));
                    assert!(found.high >= predict_speedup(&ranking, n, native).unwrap() * (1.0 - 1e-9));
                    // Tolerance beyond the model of lost entries, as a share of the total gain.
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
    let ranking = rank_regions(&exact_profile(hot), rank_options(RankBy::Cost));
    assert_eq!(compute_walk_cost_ratio(&ranking, NativeTime::Base(1_000_000)), None, "unknown");
    let slower = NativeTime::Pair { base_ns: 5, huge_ns: 6, kernel_ns: None };
    assert_eq!(compute_walk_cost_ratio(&ranking, slower), None, "huge pages cost time");
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
        of.cells = CellCounts { at: vec![0, 1], misses: vec![30, 20], ..CellCounts::default() };
        of
    };
    made.images[0].mappings[0].cells =
        CellCounts { at: vec![0, 600], misses: vec![50, 50], ..CellCounts::default() };
    let first = 256 * HUGE;
    // Two that fill one, and one with a gap beside it.
    for (nth, at) in [(0, 0), (1, HUGE / 2), (2, HUGE), (3, 7 * HUGE)] {
        made.images[0].mappings.push(half(nth, first + at));
    }
    let ranking = rank_regions(&made, rank_options(RankBy::Cost));
    assert_eq!((ranking.regions.len(), ranking.uncovered.merged.misses), (2, 100.0));
    assert!(
        ranking.uncovered.mapping_ends > ranking.uncovered.merged.cost && ranking.uncovered.merged.cost > 0.0
    );
    let found = compute_gain_shares(&ranking, 2).unwrap();
    assert!((found.walk_count - 0.5).abs() < 1e-9, "{found:?}");
    assert!((0.3..0.7).contains(&found.cost), "{found:?}");
    let pair = NativeTime::Pair { base_ns: 2000, huge_ns: 1000, kernel_ns: None };
    assert!(predict_speedup(&ranking, 2, pair).unwrap() < 1.6, "{found:?}");
    assert_eq!(predict_gain(&ranking, 2, pair).unwrap().all_speedup_permille, 2000);
}

#[test]
fn ends_of_mappings_files_and_hidden_parts_are_told() {
    let mut of = mapping(HUGE / 2);
    // The mapping begins in the middle of a huge page and has room for one whole one.
    of.bytes = Bytes(2 * HUGE);
    of.cells = CellCounts { at: vec![0, 300, 600], misses: vec![5, 7, 0], ..CellCounts::default() };
    of.unseen = vec![UnseenRange { offset: 0, bytes: Bytes(PAGE), why: UnseenReason::ZeroPage }];
    let mut made = profile(of.clone(), 12);
    made.walk_cost = None;
    let ranking = rank_regions(&made, rank_options(RankBy::Cost));
    assert!(!ranking.is_timed);
    assert_eq!((offsets(&ranking, 9), ranking.uncovered.mapping_ends), (vec![HUGE / 2], 5.0));
    assert_eq!(ranking.mappings[0].unseen.len(), 1);
    of.key.kind = MappingKind::File("/f".to_owned());
    made.images[0].mappings = vec![of];
    assert_eq!(rank_regions(&made, rank_options(RankBy::Cost)).uncovered.files, 12.0);
    assert_eq!(
        rank_regions(&made, RankOptions { include_files: true, ..rank_options(RankBy::Cost) }).regions.len(),
        1
    );
}

#[test]
fn a_plan_holds_what_another_grid_needs() {
    let profile = exact_profile(hot);
    let ranking = rank_regions(&profile, rank_options(RankBy::Cost));
    let made = build_plan(&profile, &ranking, 6, Bytes(HUGE), None);
    let planned = &made.programs[0].mappings[0];
    assert_eq!(planned.regions.iter().map(|of| of.offset).collect::<Vec<_>>(), offsets(&ranking, 6));
    // Each region's cells have its cost, rounded down in each; half a huge page further there are cells too.
    let cells_at =
        |start: u64| planned.cells.iter().filter(move |cell| (start..start + HUGE).contains(&cell.0));
    for region in &planned.regions {
        let cost: u64 = cells_at(region.offset).map(|cell| cell.2).sum();
        assert!(region.cost_ns.unwrap().abs_diff(cost) <= CELLS_PER_PAGE, "{region:?} {cost}");
        assert!(cells_at(region.offset + HUGE / 2).count() as u64 >= CELLS_PER_PAGE / 2, "{region:?}");
    }
    let near = |at: u64| planned.regions.iter().any(|region| region.offset.abs_diff(at) <= 2 * HUGE);
    assert!(planned.cells.iter().all(|&(at, bytes, _)| bytes == HUGE / CELLS_PER_PAGE && near(at)));
}

/// Forks and threads of one program: a mapping of equal key is planned once, with the cost of all.
#[test]
fn processes_of_one_program_are_one() {
    let mut profile = exact_profile(hot);
    let alone = rank_regions(&profile, rank_options(RankBy::Cost));
    let mut child = profile.images[0].clone();
    child.pid = 2;
    child.mappings[0].start += 7 * HUGE;
    profile.images.push(child);
    let both = rank_regions(&profile, rank_options(RankBy::Cost));
    assert_eq!((both.mappings.len(), both.regions.len()), (1, alone.regions.len()));
    assert!((both.total / alone.total - 2.0).abs() < 1e-6);
}
