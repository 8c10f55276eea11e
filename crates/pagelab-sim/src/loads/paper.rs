//! The tests of Gorman and Whitcroft 2006 (section 7), in their order and on one boot.
//!
//! Steps and waits are those of the authors' scripts (VMRegress: bench-kbuild.sh, bench-aim9.sh,
//! bench-hugepagecapability.sh, bench-stresshighalloc.sh, bench-hotremovecapability.sh).

use super::base_system::{BOOT_SECONDS, BaseSystem};
use super::build::ParallelBuilds;
use super::load_context::{LoadContext, LoadResult, TICKS_PER_SECOND, to_millionths};
use super::process::Process;
use super::quiesced::{TICKS_BETWEEN_ATTEMPTS, add_huge_page_figures};
use crate::machine::{AllocRequest, Effort, PageUse};
use crate::types::Frame;

/// Seconds that builds run before the pool is grown, and before the attempts begin.
const WARM_UP_SECONDS: u64 = 60;
/// Repetitions of each operation of AIM9.
const AIM9_RUNS: u64 = 50;
/// Seconds between the passes under load and the end of the builds.
const COOL_DOWN_SECONDS: u64 = 30;

/// Extracts and builds one kernel.
pub(super) fn run_kbuild(context: &mut LoadContext<'_>) -> LoadResult {
    let build = build_seconds(context);
    context.set_duration_seconds(BOOT_SECONDS + ParallelBuilds::startup_seconds(context) + build);
    let mut system = BaseSystem::boot(context)?;
    run_single_build(context, &mut system)?;
    add_totals(context)
}

/// The pool of huge pages is grown during builds, at rest, and after a file as large as memory.
pub(super) fn run_hugetlb_capability(context: &mut LoadContext<'_>) -> LoadResult {
    context.set_duration_seconds(BOOT_SECONDS + capability_seconds(context));
    let mut system = BaseSystem::boot(context)?;
    test_hugetlb_pool(context, &mut system)?;
    add_totals(context)
}

/// A module requests each huge page that the machine could have.
pub(super) fn run_highalloc(context: &mut LoadContext<'_>) -> LoadResult {
    context.set_duration_seconds(BOOT_SECONDS + highalloc_seconds(context));
    let mut system = BaseSystem::boot(context)?;
    test_highalloc(context, &mut system)?;
    add_totals(context)
}

pub(super) fn run_all(context: &mut LoadContext<'_>) -> LoadResult {
    let builds = ParallelBuilds::startup_seconds(context) + build_seconds(context);
    context.set_duration_seconds(
        BOOT_SECONDS + builds + 2 + capability_seconds(context) + highalloc_seconds(context),
    );
    let mut system = BaseSystem::boot(context)?;
    run_single_build(context, &mut system)?;
    run_aim9(context)?;
    test_hugetlb_pool(context, &mut system)?;
    test_highalloc(context, &mut system)?;
    test_hot_remove(context)?;
    add_totals(context)
}

/// Approximate duration of a build in seconds: the ticks of each compilation, one at a time.
fn build_seconds(context: &LoadContext<'_>) -> u64 {
    context.parameter("units") * 45 / TICKS_PER_SECOND
}

fn capability_seconds(context: &LoadContext<'_>) -> u64 {
    ParallelBuilds::startup_seconds(context) + WARM_UP_SECONDS + BaseSystem::large_file_seconds(context)
}

fn highalloc_seconds(context: &LoadContext<'_>) -> u64 {
    ParallelBuilds::startup_seconds(context)
        + WARM_UP_SECONDS
        + COOL_DOWN_SECONDS
        + 3 * u64::from(context.model.max_huge_pages) * TICKS_BETWEEN_ATTEMPTS / TICKS_PER_SECOND
}

/// Figures at the end of a load.
fn add_totals(context: &mut LoadContext<'_>) -> LoadResult {
    context.begin_phase("in all")?;
    let stats = context.machine.stats().clone();
    for (name, value, unit) in [
        ("allocations", stats.allocations_served.iter().sum(), "blocks"),
        ("fallbacks", stats.fallbacks, "blocks"),
        ("direct reclaim", stats.direct_reclaims, "times"),
        ("scanned", stats.pages_scanned, "pages"),
        ("reclaimed", stats.pages_reclaimed, "pages"),
        ("swapped", stats.pages_swapped, "pages"),
        ("read again", stats.refaults, "pages"),
        ("written", stats.pages_written, "pages"),
        ("waits for the disk", stats.congestion_waits, "times"),
        ("failed allocations", context.failed_pages, "pages"),
    ] {
        context.add_figure(name, value, 1, unit);
    }
    if context.model.tuning.watermark_boost_factor > 0 {
        context.add_figure("marks raised", stats.watermark_boosts, 1, "times");
    }
    if context.machine.memory().zones().any(|(_, zone)| zone.zone().region_boundary().is_some()) {
        context.add_figure("emptied beside the border", stats.region_expansions, 1, "times");
        context.add_figure("not emptied beside the border", stats.region_expansions_failed, 1, "times");
        context.add_figure("left for the border", stats.region_migrated_pages, 1, "pages");
        context.add_figure("given back by the border", stats.region_pageblocks_returned, 1, "pageblocks");
    }
    Ok(())
}

fn run_single_build(context: &mut LoadContext<'_>, system: &mut BaseSystem) -> LoadResult {
    context.begin_phase("kbuild")?;
    let allocations_before = context.machine.stats().allocations_served.iter().sum::<u64>();
    let mut tree = super::build::SourceTree::default();
    while !context.write_tree(&mut tree, None, &system.archive)? {
        context.advance_tick()?;
    }
    let mut build = context.begin_build(tree)?;
    while context.machine.is_io_blocked() || !context.run_build(&mut build, &system.programs)? {
        context.advance_tick()?;
        context.sweep_tree(&mut build.tree, 60)?;
    }
    let units = u64::from(build.compilations);
    // The tree stays on the disk, and cached while there is memory.
    let tree = context.kill_build(build)?;
    system.boot_files.extend(tree.files);
    let allocations = context.machine.stats().allocations_served.iter().sum::<u64>() - allocations_before;
    context.add_figure("compilations", units, 1, "times");
    context.add_figure("allocations a compilation", allocations, units.max(1), "blocks");
    context.add_memory_figures()
}

/// The requests of AIM9's operations. Time is not simulated: there are no operations per second.
fn run_aim9(context: &mut LoadContext<'_>) -> LoadResult {
    context.begin_phase("aim9")?;
    let measure = |context: &mut LoadContext<'_>,
                   name: &str,
                   operation: &mut dyn FnMut(&mut LoadContext<'_>) -> LoadResult| {
        let before = context.machine.stats().allocations_served.iter().sum::<u64>();
        for _ in 0..AIM9_RUNS {
            context.pick_random_cpu();
            operation(context)?;
            context.advance_tick()?;
        }
        let allocations = context.machine.stats().allocations_served.iter().sum::<u64>() - before;
        context.add_figure(&format!("{name}: allocations each"), allocations, AIM9_RUNS, "blocks");
        LoadResult::Ok(())
    };
    // brk by 1 MiB, touched and freed; brk without access requests page tables at most.
    for (name, pages) in [("page_test", 256), ("brk_test", 1)] {
        measure(context, name, &mut |context| {
            let mut process = Process::default();
            context.grow_process(&mut process, pages)?;
            Ok(context.end_process(process)?)
        })?;
    }
    for (name, pages) in [("fork_test", 40), ("exec_test", 130)] {
        measure(context, name, &mut |context| {
            let mut process = context.start_process(25)?;
            context.grow_process(&mut process, pages)?;
            Ok(context.end_process(process)?)
        })?;
    }
    measure(context, "creat_clo", &mut |context| {
        let file = context.create_file(0, true)?;
        Ok(context.delete_file(file)?)
    })
}

/// Grows the pool from zero until an attempt fails, and releases it (`set_max_huge_pages`).
fn fill_hugetlb_pool(context: &mut LoadContext<'_>) -> LoadResult {
    let mut pages = Vec::new();
    let request = AllocRequest {
        order: context.model.huge_order,
        effort: Effort::NoRetry,
        ..AllocRequest::for_base_page(PageUse::Hugetlb)
    };
    while let Some(held) = context.machine.allocate_block(&request)? {
        pages.push(held);
    }
    context.add_unusable_figure();
    add_huge_page_figures(context, &pages, context.model.max_huge_pages)?;
    Ok(context.free_blocks(pages)?)
}

fn test_hugetlb_pool(context: &mut LoadContext<'_>, system: &mut BaseSystem) -> LoadResult {
    context.begin_phase("hugetlb during compile")?;
    let mut builds = ParallelBuilds::start_all(context, system)?;
    builds.run_seconds(context, system, WARM_UP_SECONDS)?;
    fill_hugetlb_pool(context)?;
    context.add_figure("compilations", builds.compilations(), 1, "times");
    context.begin_phase("hugetlb at rest before dd")?;
    builds.end_all(context)?;
    fill_hugetlb_pool(context)?;
    context.begin_phase("hugetlb at rest after dd")?;
    system.write_and_read_large_file(context)?;
    fill_hugetlb_pool(context)
}

fn test_highalloc(context: &mut LoadContext<'_>, system: &mut BaseSystem) -> LoadResult {
    context.begin_phase("builds and updatedb")?;
    let mut builds = ParallelBuilds::start_all(context, system)?;
    builds.start_updatedb(context)?;
    builds.run_seconds(context, system, WARM_UP_SECONDS)?;
    attempt_huge_pages(context, system, &mut builds, "highalloc under load, pass 1")?;
    attempt_huge_pages(context, system, &mut builds, "highalloc under load, pass 2")?;
    builds.run_seconds(context, system, COOL_DOWN_SECONDS)?;
    context.add_figure("compilations", builds.compilations(), 1, "times");
    builds.end_all(context)?;
    attempt_huge_pages(context, system, &mut builds, "highalloc at rest")?;
    context.add_memory_figures()
}

/// One attempt for each huge page that the machine could have; allocated pages are held until the last
/// attempt.
fn attempt_huge_pages(
    context: &mut LoadContext<'_>,
    system: &mut BaseSystem,
    builds: &mut ParallelBuilds,
    phase: &str,
) -> LoadResult {
    context.begin_phase(phase)?;
    let (order, possible) = (context.model.huge_order, context.model.max_huge_pages);
    let request = AllocRequest { order, ..AllocRequest::for_base_page(PageUse::Hugetlb) };
    let mut pages = Vec::new();
    let (mut unusable_points, mut failure_points) = (Vec::new(), Vec::new());
    for attempt in 0..u64::from(possible) {
        let before = unusable_free_index_with(context, pages.len() as u64);
        unusable_points.push((attempt, to_millionths(before.0, before.1)));
        match context.machine.allocate_block(&request)? {
            Some(held) => pages.push(held),
            None => failure_points.push((attempt, fragmentation_index(context))),
        }
        for _ in 0..TICKS_BETWEEN_ATTEMPTS {
            builds.run_tick(context, system)?;
        }
    }
    add_huge_page_figures(context, &pages, possible)?;
    let (value, per) = unusable_free_index_with(context, pages.len() as u64);
    context.add_figure(&format!("F_u({order}) at the end"), value, per.max(1), "share");
    let mean = failure_points.iter().map(|point| point.1).sum::<i64>() / (failure_points.len() as i64).max(1);
    context.add_figure(&format!("F_i({order}) of failures"), mean.max(0) as u64, 1_000_000, "share");
    context.free_blocks(pages)?;
    context.add_order_series("F_u", "attempts", unusable_points);
    context.add_order_series("F_i", "attempts", failure_points);
    Ok(())
}

/// F_u of the huge pages' order, with the pages that the test holds counted as free and whole: only then does
/// it fall while they are allocated, as in the paper's Figures 5 and 6.
fn unusable_free_index_with(context: &LoadContext<'_>, held: u64) -> (u64, u64) {
    let (value, free) = context.machine.unusable_free_frames(context.model.huge_order);
    (value, free + (held << context.model.huge_order))
}

/// F_i of the huge pages' order, in millionths.
fn fragmentation_index(context: &LoadContext<'_>) -> i64 {
    let (mut free, mut blocks) = (0u64, 0u64);
    for (_, zone) in context.machine.memory().zones() {
        free += u64::from(zone.zone().free_frames());
        blocks += zone.zone().free_blocks().iter().map(|&count| u64::from(count)).sum::<u64>();
    }
    if blocks == 0 { 0 } else { 1_000_000 - to_millionths(free, blocks << context.model.huge_order) }
}

/// Memory sections that could be taken offline if movable pages were migrated.
fn test_hot_remove(context: &mut LoadContext<'_>) -> LoadResult {
    context.begin_phase("hot remove")?;
    let (mut sections, mut without_kernel, mut without_caches) = (0, 0, 0);
    let size = context.model.section_frames;
    let order = size.ilog2() as u8;
    let geometries: Vec<_> = context.machine.memory().zones().map(|(config, _)| config.geometry).collect();
    for geometry in geometries {
        for first in Frame::range(geometry.first_frame.align_up(order)..geometry.end()).step_by(size as usize)
        {
            let used = |frame| context.machine.use_of_frame(frame).map(|(class, _)| class);
            let frames = Frame::range(first..geometry.end().min(first + size));
            let has_kernel =
                frames.clone().any(|frame| matches!(used(frame), Some(PageUse::Kernel | PageUse::PageTable)));
            let has_caches = frames.clone().any(|frame| used(frame) == Some(PageUse::Slab));
            sections += 1;
            without_kernel += u64::from(!has_kernel);
            without_caches += u64::from(!has_kernel && !has_caches);
        }
    }
    context.add_figure("sections without unmovable pages", without_kernel, sections.max(1), "share");
    context.add_figure("and without caches", without_caches, sections.max(1), "share");
    Ok(())
}
