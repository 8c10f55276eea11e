//! Context that all loads share: machine, clock, random numbers, caches, and the records of the run.

use pagelab_model::random::SplitMix64;
use pagelab_model::simulation::{MemoryPicture, TrialSeries};

use super::files::FsCaches;
use super::machine_model::MachineModel;
use super::process::Process;
use super::slab::SlabCache;
use crate::machine::{AllocRequest, BlockHandle, Machine, PageUse};
use crate::study::{SimulatedFigure, SimulationOutcome, SimulationSpec};
use crate::types::{Error, Frame};

/// Ticks in a second: a tick is 10 ms, a timer tick of `CONFIG_HZ=100`.
pub(super) const TICKS_PER_SECOND: u64 = 100;

/// Maximum number of pages that `kswapd` frees in a tick: 200 MiB/s.
const BACKGROUND_PAGES_PER_TICK: u32 = 512;

/// Why a load ends early.
#[derive(Debug)]
pub(super) enum LoadError {
    /// An error of the machine.
    Failed(Error),
    /// The caller stopped the run.
    Cancelled,
}

impl From<Error> for LoadError {
    fn from(wrong: Error) -> LoadError {
        LoadError::Failed(wrong)
    }
}

pub(super) type LoadResult<T = ()> = Result<T, LoadError>;

pub(super) struct LoadContext<'a> {
    pub(super) machine: Machine,
    pub(super) random: SplitMix64,
    pub(super) model: MachineModel,
    pub(super) cpu: u16,
    pub(super) caches: FsCaches,
    /// Areas of address space: 88 bytes each.
    pub(super) vma_slab: SlabCache,
    /// Blocks of directories and inode tables that were read.
    pub(super) metadata_blocks: Vec<BlockHandle>,
    /// File look-ups so far.
    pub(super) lookup_count: u64,
    /// Base pages that could not be allocated.
    pub(super) failed_pages: u64,
    /// Kernel memory that is kept until the end.
    pub(super) leaked_blocks: Vec<BlockHandle>,
    /// Processes that run until the end.
    pub(super) daemons: Vec<Process>,
    pub(super) outcome: SimulationOutcome,
    pub(super) phase: String,
    parameters: Vec<(&'static str, u64)>,
    current_tick: u64,
    total_ticks: u64,
    progress: &'a mut dyn FnMut(u32) -> bool,
    picture_count: u32,
}

impl<'a> LoadContext<'a> {
    pub(super) fn new(
        machine: Machine,
        model: MachineModel,
        parameters: Vec<(&'static str, u64)>,
        spec: &SimulationSpec,
        progress: &'a mut dyn FnMut(u32) -> bool,
    ) -> LoadContext<'a> {
        let is_64 = model.is_64_bit;
        LoadContext {
            machine,
            random: SplitMix64::new(spec.seed),
            model,
            cpu: 0,
            caches: FsCaches::new(is_64),
            vma_slab: SlabCache::new(PageUse::Kernel, if is_64 { 22 } else { 44 }),
            metadata_blocks: Vec::new(),
            lookup_count: 0,
            failed_pages: 0,
            leaked_blocks: Vec::new(),
            daemons: Vec::new(),
            outcome: SimulationOutcome::default(),
            phase: String::new(),
            parameters,
            current_tick: 0,
            total_ticks: 1,
            progress,
            picture_count: spec.picture_count,
        }
    }

    /// Value of a parameter that the table of the load lists.
    ///
    /// # Panics
    /// If the table does not list it: the name is misspelt.
    pub(super) fn parameter(&self, name: &str) -> u64 {
        super::optional_parameter(&self.parameters, name)
            .unwrap_or_else(|| panic!("the load reads parameter {name}, which is not in its table"))
    }

    /// Value of a parameter that not every load with this part has; 0 without.
    pub(super) fn count_parameter_or_zero(&self, name: &str) -> u32 {
        super::optional_parameter(&self.parameters, name).map_or(0, super::parameter_count)
    }

    /// Value of a parameter as a count, which the table bounds.
    pub(super) fn count_parameter(&self, name: &str) -> u32 {
        super::parameter_count(self.parameter(name))
    }

    /// Sets the expected duration of the load in seconds.
    pub(super) fn set_duration_seconds(&mut self, seconds: u64) {
        self.set_duration_ticks(seconds.saturating_mul(TICKS_PER_SECOND));
    }

    /// Sets the expected duration of the load in ticks.
    pub(super) fn set_duration_ticks(&mut self, ticks: u64) {
        self.total_ticks = ticks.max(1);
    }

    /// Allocates a base page on the current processor.
    pub(super) fn page_request(&self, class: PageUse) -> AllocRequest {
        AllocRequest { cpu: self.cpu, ..AllocRequest::for_base_page(class) }
    }

    /// Allocates a block, and counts the request if it fails.
    pub(super) fn allocate_counted(&mut self, request: AllocRequest) -> Result<Option<BlockHandle>, Error> {
        let held = self.machine.allocate_block(&request)?;
        self.failed_pages += u64::from(held.is_none());
        Ok(held)
    }

    pub(super) fn free_blocks(&mut self, blocks: impl IntoIterator<Item = BlockHandle>) -> Result<(), Error> {
        blocks.into_iter().try_for_each(|held| self.machine.free_block(held))
    }

    /// One of eight values with equal probability: a distribution by its quantiles.
    pub(super) fn sample_quantiles(&mut self, quantiles: &[u32; 8]) -> u32 {
        quantiles[self.random.next_below(8) as usize]
    }

    pub(super) fn pick_random_cpu(&mut self) {
        self.cpu = self.random.next_below(u64::from(self.machine.config().pcp_config.cpus)) as u16;
    }

    /// Advances the clock by a tick of 10 ms: background work runs.
    pub(super) fn advance_tick(&mut self) -> LoadResult {
        self.machine.run_background(BACKGROUND_PAGES_PER_TICK)?;
        self.current_tick += 1;
        if self.current_tick.is_multiple_of(TICKS_PER_SECOND) {
            self.run_second()?;
        }
        let pictures_before = (self.current_tick - 1) * u64::from(self.picture_count) / self.total_ticks;
        if self.current_tick * u64::from(self.picture_count) / self.total_ticks > pictures_before {
            let picture = self.take_picture();
            self.outcome.pictures.push(picture);
        }
        let done_permille = (self.current_tick * 1000 / self.total_ticks).min(1000) as u32;
        if self.current_tick.is_multiple_of(64) && !(self.progress)(done_permille) {
            return Err(LoadError::Cancelled);
        }
        Ok(())
    }

    /// Sets a number of pictures that differs from the request: they are spread over the expected duration of
    /// the load.
    pub(super) fn note_picture_count(&mut self) {
        let (taken, requested) = (self.outcome.pictures.len(), self.picture_count);
        if taken as u64 != u64::from(requested) {
            let (expected_seconds, actual_seconds) =
                (self.total_ticks / TICKS_PER_SECOND, self.current_tick / TICKS_PER_SECOND);
            self.outcome.notes.push(format!(
                "pictures: {taken} kept, {requested} requested: the load took {actual_seconds} s, not the \
                 expected {expected_seconds} s"
            ));
        }
    }

    /// Activity once a second: a daemon runs, a script starts a helper, and the kernel allocates pages that
    /// it keeps.
    fn run_second(&mut self) -> LoadResult {
        // A load without the parameters of the base system has no such activity.
        if super::optional_parameter(&self.parameters, "daemons").is_none() {
            return Ok(());
        }
        if !self.daemons.is_empty() {
            let at = self.random.next_below(self.daemons.len() as u64) as usize;
            let process = std::mem::take(&mut self.daemons[at]);
            let hot_pages = u64::from(process.pages()) * self.parameter("hot") / 100;
            self.touch_first_pages(&process, hot_pages as usize)?;
            self.daemons[at] = process;
        }
        let seconds = self.parameter("restart");
        if seconds > 0
            && (self.current_tick / TICKS_PER_SECOND).is_multiple_of(seconds)
            && !self.daemons.is_empty()
        {
            let at = self.random.next_below(self.daemons.len() as u64) as usize;
            let old = self.daemons.swap_remove(at);
            self.end_process(old)?;
            let mut new = self.start_process(40)?;
            self.grow_process(&mut new, self.count_parameter("daemon_pages"))?;
            self.daemons.push(new);
        }
        for _ in 0..self.parameter("helpers") {
            self.pick_random_cpu();
            let mut helper = self.start_process(25)?;
            self.grow_process(&mut helper, self.count_parameter("helper_pages"))?;
            self.end_process(helper)?;
        }
        let (second, leak) = (self.current_tick / TICKS_PER_SECOND, self.parameter("leak"));
        for _ in (second - 1) * leak / 10..second * leak / 10 {
            self.pick_random_cpu();
            let request = self.page_request(PageUse::Kernel);
            let held = self.allocate_counted(request)?;
            self.leaked_blocks.extend(held);
        }
        Ok(())
    }

    /// Begins a phase; metadata is validated between phases.
    pub(super) fn begin_phase(&mut self, phase: &str) -> LoadResult {
        self.machine.validate()?;
        phase.clone_into(&mut self.phase);
        Ok(())
    }

    /// Records a figure of the phase.
    pub(super) fn add_figure(&mut self, name: &str, value: u64, divisor: u64, unit: &'static str) {
        let (phase, name) = (self.phase.clone(), name.to_owned());
        self.outcome.figures.push(SimulatedFigure { phase, name, value, divisor, unit });
    }

    /// F_u for the order of huge pages, in millionths.
    pub(super) fn unusable_free_index(&self) -> i64 {
        let (value, divisor) = self.machine.unusable_free_frames(self.model.huge_order);
        to_millionths(value, divisor)
    }

    /// Records a series of the phase.
    pub(super) fn add_order_series(&mut self, name: &str, x_unit: &'static str, points: Vec<(u64, i64)>) {
        self.add_series(&format!("{name}({})", self.model.huge_order), x_unit, points);
    }

    /// Records a series that belongs to no order.
    pub(super) fn add_series(&mut self, name: &str, x_unit: &'static str, points: Vec<(u64, i64)>) {
        let name = format!("{name} {}", self.phase.trim_start_matches("highalloc "));
        self.outcome.series.push(TrialSeries { name, over: x_unit.to_owned(), points });
    }

    /// Records figures of the current memory: pages by use, F_u.
    pub(super) fn add_memory_figures(&mut self) -> LoadResult {
        let mut pages = [0u64; PageUse::ALL.len()];
        let mut free = self.model.frames;
        for (_, frames, class) in self.memory_runs() {
            for (count, of) in pages.iter_mut().zip(PageUse::ALL) {
                *count += if class == Some(of) { u64::from(frames) } else { 0 };
            }
            free -= if class.is_some() { u64::from(frames) } else { 0 };
        }
        let all = self.model.frames;
        for (count, class) in pages.into_iter().zip(PageUse::ALL) {
            self.add_figure(&format!("pages: {}", page_use_name(class)), count, all, "share");
        }
        self.add_figure("pages: free", free, all, "share");
        self.add_unusable_figure();
        Ok(())
    }

    /// Records F_u for the order of huge pages as a figure of the phase.
    pub(super) fn add_unusable_figure(&mut self) {
        let order = self.model.huge_order;
        let (value, per) = self.machine.unusable_free_frames(order);
        self.add_figure(&format!("F_u({order})"), value, per.max(1), "share");
    }

    fn take_picture(&self) -> MemoryPicture {
        let runs = self.memory_runs().into_iter();
        let zones = self.machine.memory().zones();
        MemoryPicture {
            step: self.current_tick,
            phase: self.phase.clone(),
            runs: runs
                .map(|(first, frames, class)| (first.number(), frames, page_use_number(class)))
                .collect(),
            owners: zones.flat_map(|(_, zone)| zone.zone().pageblock_owners()).copied().collect(),
        }
    }

    /// Runs of frames of one use, by address: first frame, frames, use. `None`: free.
    fn memory_runs(&self) -> Vec<(Frame, u32, Option<PageUse>)> {
        let mut runs: Vec<(Frame, u32, Option<PageUse>)> = Vec::new();
        for (config, _) in self.machine.memory().zones() {
            let mut frame = config.geometry.first_frame;
            while frame < config.geometry.end() {
                let (class, frames) = match self.machine.use_of_frame(frame) {
                    Some((class, order)) => (Some(class), 1 << order),
                    None => (None, 1),
                };
                match runs.last_mut() {
                    Some(run) if run.2 == class && run.0 + run.1 == frame => run.1 += frames,
                    _ => runs.push((frame, frames, class)),
                }
                frame += frames;
            }
        }
        runs
    }
}

pub(super) fn to_millionths(value: u64, divisor: u64) -> i64 {
    (u128::from(value) * 1_000_000 / u128::from(divisor.max(1))) as i64
}

/// Number of a use in a [`MemoryPicture`].
fn page_use_number(class: Option<PageUse>) -> u8 {
    match class {
        None => 0,
        Some(PageUse::Kernel) => 1,
        Some(PageUse::PageTable) => 2,
        Some(PageUse::Slab) => 3,
        Some(PageUse::File | PageUse::BlockDevice) => 4,
        Some(PageUse::Anonymous) => 5,
        Some(PageUse::Hugetlb) => 6,
    }
}

fn page_use_name(class: PageUse) -> &'static str {
    match class {
        PageUse::Kernel => "kernel",
        PageUse::PageTable => "page tables",
        PageUse::Slab => "names and inodes",
        PageUse::File => "files",
        PageUse::Anonymous => "programs",
        PageUse::Hugetlb => "huge pages",
        PageUse::BlockDevice => "block devices",
    }
}
