//! Figures during a load and after its programs have exited: an attempt to allocate each possible huge page.

use super::base_system::{BOOT_SECONDS, BaseSystem};
use super::load_context::{LoadContext, LoadResult, TICKS_PER_SECOND, to_millionths};
use crate::machine::{AllocRequest, BlockHandle, PageUse};
use crate::types::{AllocationType, Frame, ZoneGeometry};

/// Ticks between two attempts: a tenth of a second, the interval of the paper's test module.
pub(super) const TICKS_BETWEEN_ATTEMPTS: u64 = 10;
/// Maximum number of points of a curve.
const MAX_POINTS: u64 = 120;
/// Maximum of frames read per curve: a machine above 16 GiB has fewer points.
const MAX_FRAMES_EXAMINED: u64 = 1 << 29;

/// F_u and polluted pageblocks over the time of a load.
#[derive(Debug)]
pub(super) struct FragmentationSeries {
    interval_seconds: u64,
    unusable_points: Vec<(u64, i64)>,
    polluted_points: Vec<(u64, i64)>,
}

impl FragmentationSeries {
    /// Curves of a load with an expected duration in seconds.
    pub(super) fn for_duration(context: &LoadContext<'_>, seconds: u64) -> FragmentationSeries {
        let points = (MAX_FRAMES_EXAMINED / context.model.frames.max(1)).clamp(2, MAX_POINTS);
        FragmentationSeries {
            interval_seconds: seconds.div_ceil(points).max(1),
            unusable_points: Vec::new(),
            polluted_points: Vec::new(),
        }
    }

    /// Adds a point to each curve if one is due at this second.
    pub(super) fn sample_if_due(&mut self, context: &LoadContext<'_>, second: u64) {
        if second.is_multiple_of(self.interval_seconds) {
            self.sample(context, second);
        }
    }

    fn sample(&mut self, context: &LoadContext<'_>, second: u64) {
        let (mixed, all) = count_polluted(context);
        self.unusable_points.push((second, context.unusable_free_index()));
        self.polluted_points.push((second, to_millionths(mixed, all)));
    }

    /// Ends the curves, and records figures of the memory: the last point equals those of the phase.
    pub(super) fn finish(mut self, context: &mut LoadContext<'_>, seconds: u64) -> LoadResult {
        self.sample(context, seconds);
        context.add_order_series("F_u", "seconds", self.unusable_points);
        context.add_series("polluted pageblocks", "seconds", self.polluted_points);
        context.add_memory_figures()?;
        let (polluted, all) = count_polluted(context);
        context.add_figure("polluted pageblocks", polluted, all.max(1), "share");
        Ok(())
    }
}

/// Number of pageblocks with an unmovable page, and of all pageblocks.
fn count_polluted(context: &LoadContext<'_>) -> (u64, u64) {
    let (mut polluted, mut all) = (0, 0);
    for (config, _) in context.machine.memory().zones() {
        let geometry = config.geometry;
        let mut first = geometry.first_frame;
        while first < geometry.end() {
            let next = geometry.end().min(first + (1 << geometry.pageblock_order));
            polluted += u64::from(has_unmovable_page(context, first, next));
            all += 1;
            first = next;
        }
    }
    (polluted, all)
}

/// Whether a page of these frames is unmovable.
fn has_unmovable_page(context: &LoadContext<'_>, mut frame: Frame, end: Frame) -> bool {
    while frame < end {
        frame += match context.machine.use_of_frame(frame) {
            Some((class, _)) if class.allocation_type() != AllocationType::Movable => return true,
            Some((_, order)) => 1 << order,
            None => 1,
        };
    }
    false
}

/// Sets the expected duration of a load that boots, runs for a number of seconds and ends at rest.
pub(super) fn set_duration(context: &mut LoadContext<'_>, seconds: u64) {
    let at_rest = u64::from(context.model.max_huge_pages) * TICKS_BETWEEN_ATTEMPTS;
    context.set_duration_ticks(
        (BOOT_SECONDS + seconds).saturating_mul(TICKS_PER_SECOND).saturating_add(at_rest),
    );
}

/// Counts the available huge pages after the programs have exited, with one attempt per huge page; allocated
/// pages are held until the last attempt.
pub(super) fn measure_quiesced(context: &mut LoadContext<'_>, system: &mut BaseSystem) -> LoadResult {
    context.begin_phase("at rest")?;
    let (order, possible) = (context.model.huge_order, context.model.max_huge_pages);
    let (unusable, free) = context.machine.unusable_free_frames(order);
    let (polluted, all) = count_polluted(context);
    let mut pages = Vec::new();
    for _ in 0..possible {
        context.pick_random_cpu();
        let request = AllocRequest { order, ..context.page_request(PageUse::Hugetlb) };
        pages.extend(context.machine.allocate_block(&request)?);
        for _ in 0..TICKS_BETWEEN_ATTEMPTS {
            system.sweep_random_file(context)?;
            context.advance_tick()?;
        }
    }
    add_huge_page_figures(context, &pages, possible)?;
    context.add_figure(&format!("F_u({order})"), unusable, free.max(1), "share");
    context.add_figure("polluted pageblocks", polluted, all.max(1), "share");
    context.add_figure("pages: free", free, context.model.frames, "share");
    Ok(context.free_blocks(pages)?)
}

/// Figures of held huge pages: their number, the number of attempts, and both by zone.
pub(super) fn add_huge_page_figures(
    context: &mut LoadContext<'_>,
    pages: &[BlockHandle],
    possible: u32,
) -> LoadResult {
    context.add_figure("huge pages", pages.len() as u64, 1, "blocks");
    context.add_figure("success", pages.len() as u64, u64::from(possible.max(1)), "share");
    let zones: Vec<(String, ZoneGeometry)> = {
        let setups = context.machine.memory().zones();
        setups.map(|(config, _)| (config.name.clone(), config.geometry)).collect()
    };
    for (name, geometry) in zones {
        let mut count = 0;
        for &held in pages {
            count += u64::from(
                context.machine.frame_of_block(held)?.is_some_and(|frame| geometry.contains(frame)),
            );
        }
        context.add_figure(&format!("from {name}"), count, 1, "blocks");
    }
    Ok(())
}
