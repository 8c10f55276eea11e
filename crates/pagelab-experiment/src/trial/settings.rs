//! Settings of a variant, applied before a trial and undone after it: all through the guard, all read back.

use pagelab_host::guard::{ChangeOutcome, Guard, GuardError, GuardOptions, Knob, SignalWatch, UndoOutcome};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{paths, settings};
use pagelab_model::experiment::Flag;
use pagelab_model::{Absence, AbsenceReason, Bytes, Meminfo, size};

use super::fragmentation::{HeldFragmentation, hold_fragmentation};
use super::hog::HogProcess;
use super::{TrialContext, TrialResult, caches};
use crate::cgroup::TrialCgroup;
use crate::cpu_isolation::IsolatedCpu;
use crate::recipe::{HogKind, PinPolicy, ThpMode, Variant, Workload};
use crate::swap_file::ExperimentSwap;

#[derive(Default)]
pub(super) struct TrialSettings {
    guard: Option<Guard>,
    /// The trial's control group, if there is one.
    pub cgroup: Option<TrialCgroup>,
    /// The group around it and its competitor, if both share a limit.
    pub(super) shared_cgroup: Option<TrialCgroup>,
    fragmentation: Option<HeldFragmentation>,
    /// The competitor, if it is a process.
    pub hog: Option<HogProcess>,
    isolated_cpu: Option<IsolatedCpu>,
    /// The isolated CPU of the trial.
    pub cpu: Option<u32>,
    /// Settings that deviate from the requested value.
    pub flags: Vec<Flag>,
    /// Notes for the report.
    pub notes: Vec<String>,
}

impl TrialSettings {
    /// Applies them. An error is the reason why the trial cannot begin; then everything is undone.
    pub fn apply(
        context: &TrialContext<'_>,
        workload: &Workload,
        variant: &Variant,
    ) -> Result<TrialSettings, String> {
        let guard = context.site.as_ref().map_err(Clone::clone).and_then(|site| {
            let guard = Guard::new(site, SignalWatch::without_handler(), GuardOptions::default());
            guard.map_err(|error| error.to_string())
        });
        let guard_error = guard.as_ref().err().cloned().unwrap_or_default();
        let mut settings = TrialSettings { guard: guard.ok(), ..TrialSettings::default() };
        // First, while free memory is not fragmented and huge pages are available for it.
        if let Some(target) = &variant.fragmentation {
            let guard = settings.guard.as_ref();
            settings.fragmentation = Some(hold_fragmentation(target, guard, context)?);
        }
        settings.apply_thp_modes(variant, &guard_error)?;
        settings.create_cgroup(variant, &guard_error)?;
        settings.limit_swap(variant, &context.swap_file.borrow())?;
        settings.start_hog(variant, context)?;
        settings.isolate_cpu(variant.pin)?;
        if let Some(wanted) = variant.page_cache {
            for text in caches::prepare_page_cache(wanted, &workload.files, settings.guard.as_ref())? {
                settings.push_flag(text);
            }
        }
        // Last: everything above used the caches itself.
        if variant.evict_caches {
            let available = read_available_memory().unwrap_or_default();
            settings.notes.push(caches::evict_caches(context.machine, settings.cpu, available)?);
        }
        Ok(settings)
    }

    fn isolate_cpu(&mut self, pin: Option<PinPolicy>) -> Result<(), String> {
        let Some(pin) = pin else { return Ok(()) };
        match IsolatedCpu::isolate() {
            Ok(isolated) => {
                self.cpu = Some(isolated.cpu);
                self.notes.push(isolated.description.clone());
                self.isolated_cpu = Some(isolated);
            }
            Err(why) if pin == PinPolicy::IfTwoCpus => {
                self.notes.push(format!("{why}; the trial continues without a dedicated CPU"));
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    fn push_flag(&mut self, text: String) {
        self.flags.push(super::not_applied(text));
    }

    fn apply_thp_modes(&mut self, variant: &Variant, guard_error: &str) -> Result<(), String> {
        for (knob, mode) in machine_wide_modes(variant) {
            let Some(guard) = &self.guard else {
                return Err(format!("cannot set {} to {mode:?}: {guard_error}", knob.label()));
            };
            let applied = guard.set_knob(&knob, mode).map_err(|error| self.not_set_text(&error))?;
            if !applied.is_exact() {
                self.push_flag(format!("{} should be {mode:?}, but is {:?}", knob.label(), applied.actual));
            }
        }
        Ok(())
    }

    fn not_set_text(&self, error: &GuardError) -> String {
        let root = Root::live();
        let thp = settings::read(&Reader::new(&root)).thp;
        let sizes = thp.ok().map(|thp| thp.sizes).unwrap_or_default();
        let sizes: Vec<String> = sizes.iter().map(|size| size::format_argument(size.size)).collect();
        match sizes.is_empty() {
            true => format!("{error}; hint: use Linux 6.8 or later for mTHP sizes"),
            false => format!("{error}; expected one of {}", sizes.join(", ")),
        }
    }

    /// Creates the control group. It is optional, unless a limit is requested.
    fn create_cgroup(&mut self, variant: &Variant, guard_error: &str) -> Result<(), String> {
        let is_shared = variant.hog.is_some_and(|hog| hog.leaves_of_limit.is_some());
        let created = match &self.guard {
            Some(guard) if is_shared => TrialCgroup::create_shared(guard, "shared").and_then(|shared| {
                let made = TrialCgroup::create_inside(guard, "trial", &shared);
                self.shared_cgroup = Some(shared);
                made
            }),
            Some(guard) => TrialCgroup::create(guard, "trial"),
            None => Err(Absence::new("control groups", AbsenceReason::Failed, guard_error)),
        };
        let made = created.map_err(|absence| absence.reason().to_owned());
        match made {
            Ok(made) => self.cgroup = Some(made),
            Err(why) if variant.memory_limit.is_some() => {
                return Err(format!("memory_limit requires a cgroup: {why}"));
            }
            Err(why) => self.notes.push(format!("no cgroup: {why}")),
        }
        let is_inside = self.cgroup.as_ref().is_some_and(|group| group.read_memory_usage().is_ok());
        if is_shared && !is_inside {
            return Err("hog.leaves: cannot limit the trial: its cgroup has no memory controller".to_owned());
        }
        if let (Some(limit), Some(group)) = (variant.memory_limit, self.limited_cgroup()) {
            let kernel_limit = group
                .limit_memory(limit)
                .map_err(|absence| format!("memory_limit: {}: {}", absence.source, absence.reason()))?;
            // The kernel rounds down to whole pages.
            if kernel_limit > limit || limit.0 - kernel_limit.0 > limit.0 / 100 {
                self.push_flag(format!(
                    "memory_limit should be {} bytes, but is {}",
                    limit.0, kernel_limit.0
                ));
            }
        }
        Ok(())
    }

    /// The group whose memory is limited: the trial's, or that of the trial and its competitor.
    fn limited_cgroup(&self) -> Option<&TrialCgroup> {
        self.shared_cgroup.as_ref().or(self.cgroup.as_ref())
    }

    /// Limits the swap of the group. A swap file for other variants is not for those without swap.
    fn limit_swap(&mut self, variant: &Variant, swap: &ExperimentSwap) -> Result<(), String> {
        let needs_swap = variant.swap_limit.is_some_and(|size| size.0 > 0);
        if let Some(why) = swap.why_missing().filter(|_| needs_swap) {
            return Err(format!("swap: {why}"));
        }
        let limit = match variant.swap_limit {
            Some(limit) => limit,
            None if swap.is_active() => Bytes(0),
            None => return Ok(()),
        };
        let Some(group) = self.limited_cgroup() else { return Ok(()) };
        match group.limit_swap(limit) {
            Ok(got) if got > limit || limit.0 - got.0 > limit.0 / 100 => {
                self.push_flag(format!("swap should be {} bytes, but is {}", limit.0, got.0));
            }
            Ok(_) => {}
            // Without swap on the machine there is nothing to limit.
            Err(_) if limit.0 == 0 && !has_swap() => {}
            Err(absence) => self.push_flag(format!(
                "swap should be at most {} bytes, but the cgroup has no swap limit: {}: {}",
                limit.0,
                absence.source,
                absence.reason()
            )),
        }
        Ok(())
    }

    /// Starts a process beside the trial. The workload's own process starts a thread.
    fn start_hog(&mut self, variant: &Variant, context: &TrialContext<'_>) -> Result<(), String> {
        let Some(hog) = variant.hog else { return Ok(()) };
        let memory_for_workload = context.reserve.headroom(read_available_memory().unwrap_or_default());
        if hog.size > memory_for_workload {
            return Err(format!(
                "hog: it needs {}, but only {} is available above the reserve",
                size::format_bytes(hog.size),
                size::format_bytes(memory_for_workload)
            ));
        }
        if hog.kind == HogKind::Process {
            let failed = |absence: Absence| format!("hog: {}: {}", absence.source, absence.reason());
            let groups = self.shared_cgroup.as_ref().zip(self.guard.as_ref());
            let hog_cgroup =
                groups.map(|(shared, guard)| TrialCgroup::create_beside(guard, "rival", shared)).transpose();
            let hog_cgroup = hog_cgroup.map_err(failed)?;
            self.hog = Some(HogProcess::start(hog.size, hog_cgroup.as_ref(), context.stop_signal)?);
        }
        Ok(())
    }

    /// Checks the held memory.
    pub fn check_held(&mut self) {
        if let Some(held) = &mut self.fragmentation {
            held.check_memory();
        }
    }

    /// CPU time that a competitor used so far, ns.
    pub fn hog_cpu_ns(&self) -> u64 {
        self.hog.as_ref().map_or(0, HogProcess::cpu_ns)
    }

    /// Undoes everything, in the opposite order, and adds what it measured and noted.
    pub fn finish(self, result: &mut TrialResult) {
        result.flags.extend(self.flags);
        result.notes.extend(self.notes);
        result.notes.extend(self.isolated_cpu.and_then(|mut isolated| isolated.restore()));
        drop(self.hog);
        if let Some(held) = self.fragmentation {
            let (measures, flags) = held.finish();
            result.measures.extend(measures);
            result.flags.extend(flags);
        }
        drop(self.cgroup);
        let outcomes = self.guard.map(Guard::finish).unwrap_or_default();
        result.notes.extend(outcomes.iter().filter(|o| is_not_restored(o)).map(|outcome| {
            let undo_name = outcome.undo.json_name().replace('_', " ");
            format!("cannot restore {}: {undo_name} {}", outcome.label, outcome.detail)
        }));
    }
}

/// Modes of huge pages of the entire machine.
pub(crate) fn machine_wide_modes(variant: &Variant) -> impl Iterator<Item = (Knob, &str)> {
    let whole = variant.thp_mode.and_then(ThpMode::machine_wide_mode).map(|mode| (Knob::thp_enabled(), mode));
    let sizes = variant.mthp_modes.iter().map(|(size, mode)| (Knob::thp_size_enabled(*size), mode.as_str()));
    whole.into_iter().chain(sizes)
}

/// Whether this machine has swap. An unreadable file counts as swap.
fn has_swap() -> bool {
    let root = Root::live();
    settings::read(&Reader::new(&root)).swap.is_ok_and(|areas| !areas.is_empty())
}

fn is_not_restored(outcome: &ChangeOutcome) -> bool {
    !matches!(outcome.undo, UndoOutcome::Restored | UndoOutcome::AlreadyRestored | UndoOutcome::OneWay)
}

/// Memory available without swapping.
fn read_available_memory() -> Option<Bytes> {
    let root = Root::live();
    let info: Meminfo = Reader::new(&root).parse(paths::MEMINFO, pagelab_formats::meminfo::parse).ok()?;
    info.available_bytes()
}
