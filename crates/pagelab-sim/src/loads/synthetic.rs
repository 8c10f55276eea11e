//! Loads of other kinds than builds: server, churn, desktop, updatedb and streaming.

use super::base_system::{BOOT_SECONDS, BaseSystem};
use super::load_context::{LoadContext, LoadResult, TICKS_PER_SECOND};
use super::process::Process;
use super::quiesced::{FragmentationSeries, measure_quiesced, set_duration};
use crate::machine::{AllocRequest, BlockHandle, Effort, PageUse};

/// Areas of address space of a worker.
const WORKER_VMAS: u32 = 60;
/// Live network buffers for each worker.
const BUFFERS_PER_WORKER: usize = 8;

/// Server with load peaks: workers start and exit, network buffers are allocated and freed. At the end all
/// workers exit.
pub(super) fn run_server(context: &mut LoadContext<'_>) -> LoadResult {
    let (seconds, period) = (context.parameter("seconds"), context.parameter("period").max(1));
    set_duration(context, seconds);
    let mut system = BaseSystem::boot(context)?;
    context.begin_phase("peaks")?;
    let (base_workers, peak) = (context.parameter("workers"), context.parameter("peak_workers"));
    let mut workers: Vec<Process> = Vec::new();
    let mut buffers: Vec<BlockHandle> = Vec::new();
    let mut worker_index = 0;
    let mut series = FragmentationSeries::for_duration(context, seconds);
    for tick in 0..seconds * TICKS_PER_SECOND {
        if tick.is_multiple_of(TICKS_PER_SECOND) {
            series.sample_if_due(context, tick / TICKS_PER_SECOND);
        }
        context.pick_random_cpu();
        // A fifth of each period is the peak.
        let is_peak = tick / TICKS_PER_SECOND % period >= period - period / 5;
        let target_workers = if is_peak { peak } else { base_workers };
        if (workers.len() as u64) < target_workers {
            workers.push(context.start_process(WORKER_VMAS)?);
        } else if workers.len() as u64 > target_workers && tick.is_multiple_of(5) {
            let victim_index = context.random.next_below(workers.len() as u64) as usize;
            let victim = workers.swap_remove(victim_index);
            context.end_process(victim)?;
        }
        if !workers.is_empty() {
            worker_index = (worker_index + 1) % workers.len();
            let worker = &mut workers[worker_index];
            let growth = context
                .count_parameter("worker_pages")
                .saturating_sub(worker.pages())
                .min(context.count_parameter("pace"));
            context.grow_process(worker, growth)?;
            context.touch_random_pages(worker, 20)?;
        }
        network(context, &mut buffers, workers.len())?;
        // A request reads a file, sometimes one that was not read before.
        let files = system.boot_files.len() as u64;
        let chosen = context.random.next_below(files.max(1)) as usize;
        if let Some(file) = system.boot_files.get(chosen) {
            context.read_file(file, 0, 12)?;
        }
        if tick.is_multiple_of(10) {
            system.boot_files.push(context.create_file(12, false)?);
        }
        context.advance_tick()?;
    }
    series.finish(context, seconds)?;
    workers.into_iter().try_for_each(|worker| context.end_process(worker))?;
    context.free_blocks(buffers)?;
    measure_quiesced(context, &mut system)
}

/// Packet buffers: requests that cannot wait, with a short lifetime; some are of order 1.
fn network(context: &mut LoadContext<'_>, buffers: &mut Vec<BlockHandle>, workers: usize) -> LoadResult {
    for _ in 0..workers.min(64) {
        let order = u8::from(context.random.next_below(8) == 0);
        let request = AllocRequest { order, effort: Effort::Atomic, ..context.page_request(PageUse::Kernel) };
        buffers.extend(context.machine.allocate_block(&request)?);
    }
    while buffers.len() > workers * BUFFERS_PER_WORKER {
        let at = context.random.next_below(buffers.len() as u64) as usize;
        context.machine.free_block(buffers.swap_remove(at))?;
    }
    Ok(())
}

/// Blocks that are freed and allocated in a tick.
const PAIRS_PER_TICK: u64 = 200;

/// Churn: blocks of all sizes with random lifetimes; unlike any program, but simple to analyse.
pub(super) fn run_churn(context: &mut LoadContext<'_>) -> LoadResult {
    context.begin_phase("churn")?;
    let target_frames = context.model.frames * context.parameter("full").min(95) / 100;
    // Memory is filled even if few pairs are requested.
    let pairs = context.parameter("pairs");
    let (ticks, pairs_per_tick) = ((pairs / PAIRS_PER_TICK).max(1), pairs.clamp(1, PAIRS_PER_TICK));
    context.set_duration_ticks(ticks);
    let (mut blocks, mut frames): (Vec<(BlockHandle, u8)>, u64) = (Vec::new(), 0);
    for _ in 0..ticks {
        context.pick_random_cpu();
        for _ in 0..pairs_per_tick {
            while frames >= target_frames && !blocks.is_empty() {
                let at = context.random.next_below(blocks.len() as u64) as usize;
                let (held, order) = blocks.swap_remove(at);
                context.machine.free_block(held)?;
                frames -= 1 << order;
            }
            // Memory is filled at full speed.
            while frames < target_frames {
                let request = random_request(context);
                let Some(held) = context.machine.allocate_block(&request)? else { break };
                blocks.push((held, request.order));
                frames += 1 << request.order;
            }
        }
        context.advance_tick()?;
    }
    context.add_memory_figures()
}

/// A random order and use: 85 % of order 0, 15 % of orders 1 to 9 uniformly; a tenth for the kernel, a tenth
/// for caches, the rest for programs.
fn random_request(context: &mut LoadContext<'_>) -> AllocRequest {
    let order = if context.random.next_below(100) < 85 { 0 } else { 1 + context.random.next_below(9) as u8 };
    let class = match context.random.next_below(10) {
        0 => PageUse::Kernel,
        1 => PageUse::Slab,
        _ => PageUse::Anonymous,
    };
    AllocRequest { order, effort: Effort::NoRetry, ..context.page_request(class) }
}

/// Areas of address space of a desktop program.
const PROGRAM_VMAS: u32 = 150;

/// Desktop over a long time: programs start and exit, files are read, and the kernel keeps a page at
/// intervals, a slow leak that spreads unmovable pages. At the end all programs are closed.
pub(super) fn run_desktop(context: &mut LoadContext<'_>) -> LoadResult {
    let seconds = context.parameter("seconds");
    set_duration(context, seconds);
    let mut system = BaseSystem::boot(context)?;
    context.begin_phase("desktop")?;
    let max_programs = context.parameter("programs").max(1) as usize;
    let mut programs: Vec<Process> = Vec::new();
    let mut series = FragmentationSeries::for_duration(context, seconds);
    for second in 0..seconds {
        series.sample_if_due(context, second);
        // A program is opened or closed about twice a minute.
        if context.random.next_below(30) == 0 || programs.is_empty() {
            if programs.len() < max_programs {
                programs.push(context.start_process(PROGRAM_VMAS)?);
            } else {
                let victim_index = context.random.next_below(programs.len() as u64) as usize;
                let victim = programs.swap_remove(victim_index);
                context.end_process(victim)?;
            }
        }
        system.boot_files.push(context.create_file(context.count_parameter("read"), false)?);
        for _ in 0..TICKS_PER_SECOND {
            context.pick_random_cpu();
            let at = context.random.next_below(programs.len() as u64) as usize;
            if let Some(program) = programs.get_mut(at) {
                let growth = context.count_parameter("program_pages").saturating_sub(program.pages()).min(20);
                context.grow_process(program, growth)?;
                context.touch_random_pages(program, 10)?;
            }
            system.sweep_random_file(context)?;
            context.advance_tick()?;
        }
    }
    series.finish(context, seconds)?;
    programs.into_iter().try_for_each(|program| context.end_process(program))?;
    measure_quiesced(context, &mut system)
}

/// `updatedb`: one pass over the names and inodes of all files on the disk.
pub(super) fn run_updatedb(context: &mut LoadContext<'_>) -> LoadResult {
    let seconds = context.parameter("disk_files") / (context.parameter("walk").max(1) * TICKS_PER_SECOND) + 1;
    context.set_duration_seconds(BOOT_SECONDS + seconds);
    let mut system = BaseSystem::boot(context)?;
    context.begin_phase("updatedb")?;
    for _ in 0..seconds * TICKS_PER_SECOND {
        context.pick_random_cpu();
        system.walk_files(context)?;
        context.advance_tick()?;
    }
    context.add_memory_figures()
}

/// Streaming: large files, each read once, in turn, beside the daemons.
pub(super) fn run_streaming(context: &mut LoadContext<'_>) -> LoadResult {
    let seconds = context.parameter("seconds");
    context.set_duration_seconds(BOOT_SECONDS + seconds);
    BaseSystem::boot(context)?;
    context.begin_phase("streaming")?;
    let (size, disk_pages) = (context.count_parameter("file_pages").max(1), context.count_parameter("disk"));
    let max_files = context.parameter("files").max(1) as usize;
    let mut files = std::collections::VecDeque::new();
    let mut file = context.create_file(0, false)?;
    for _ in 0..seconds * TICKS_PER_SECOND {
        context.pick_random_cpu();
        context.extend_file(&mut file, disk_pages, false)?;
        if file.pages() >= size {
            files.push_back(file);
            file = context.create_file(0, false)?;
            // Files that are not read again are deleted at last; most of their pages were reclaimed before.
            if files.len() > max_files
                && let Some(oldest) = files.pop_front()
            {
                context.delete_file(oldest)?;
            }
        }
        if let Some(oldest) = files.front_mut() {
            context.sweep_file_part(oldest, disk_pages)?;
        }
        context.advance_tick()?;
    }
    context.add_memory_figures()
}
