//! The place: guests of the variants, boots for groups of trials, and what comes back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelab_experiment::checksum::{self, CHECKSUM_EVENT, ChecksumState, ChecksumTable};
use pagelab_experiment::engine::StopRequest;
use pagelab_experiment::place::{
    EventSink, FinishedTrial, GroupEvent, LossKind, LostTrial, Place, PlaceEvent, check_same_plan,
};
use pagelab_experiment::recipe::{BootPolicy, RequiredGuest};
use pagelab_experiment::resolve::ResolvedExperiment;
use pagelab_guest::accelerator::Accelerator;
use pagelab_guest::boot::{GuestPlan, run_guest};
use pagelab_guest::config::GuestConfig;
use pagelab_guest::disk;
use pagelab_guest::job::{CgroupConfig, CgroupVersion, JobStep, WORK_DIR};
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::outcome::{GuestOutcome, LossReason};
use pagelab_model::dimms::Dimms;
use pagelab_model::experiment::{Plan, ScheduleSlot, TrialEnd, TrialRole};
use pagelab_model::run::Run;
use pagelab_model::size::format_exact;
use pagelab_model::{Bytes, Failure, FailureKind};
use pagelab_runfile::Error;

use crate::boot_observer::BootObserver;
use crate::host_activity::GuestProcesses;
use crate::trial_end;

/// Below this size the kernel disables transparent huge pages (docs/guests.md).
const THP_MEMORY_MIN: Bytes = Bytes(608 << 20);
/// The recipe in the guest; the first step of each job writes it.
const RECIPE_NAME: &str = "recipe.toml";
/// Time of a boot, for the estimate of the first trials.
pub const BOOT_TIME: Duration = Duration::from_secs(5);
/// Time beside the time limits of the trials of a boot: their settings, fragmentation, a disk.
const GRACE: Duration = Duration::from_secs(120);

/// The guest of a workload under a variant, with all that it needs found.
#[derive(Clone, Debug)]
pub struct VariantGuest {
    /// What the recipe requires.
    pub required: RequiredGuest,
    /// Its kernel.
    pub kernel: GuestKernel,
    /// pagelab's kernel module for that kernel, if the guest loads it.
    pub module: Option<PathBuf>,
    /// Image of the tool disk, if the guest has one.
    pub tools: Option<PathBuf>,
    /// Archive of the source tree, if the guest has one.
    pub tree: Option<PathBuf>,
}

impl VariantGuest {
    /// Its configuration.
    pub fn config(&self) -> GuestConfig {
        GuestConfig { tools: self.tools.clone(), tree: self.tree.clone(), ..config_of(&self.required) }
    }

    /// `guest with Linux 6.1.0-56-cloud-amd64, 1 GiB, 1 CPU`
    pub fn describe(&self) -> String {
        let RequiredGuest { memory, cpus, append, swap, dimms, icount, .. } = &self.required;
        let plural = if *cpus == 1 { "" } else { "s" };
        let mut text = format!(
            "guest with Linux {}, {}, {cpus} CPU{plural}",
            self.kernel.release,
            format_exact(*memory)
        );
        if let Some(Dimms { count, size }) = dimms {
            let plural = if *count == 1 { "" } else { "s" };
            text.push_str(&format!(", {count} DIMM{plural} of {}", format_exact(*size)));
        }
        if let Some(swap) = swap {
            text.push_str(&format!(", swap {}", format_exact(*swap)));
        }
        if !append.is_empty() {
            text.push_str(&format!(", {append}"));
        }
        if self.module.is_some() {
            text.push_str(", with pagelab's module");
        }
        if let Some(shift) = icount {
            text.push_str(&format!(", {} ns an instruction", 1u64 << shift));
        }
        // Two kernels that were built here may have one release.
        if self.kernel.package.is_none() {
            text.push_str(&format!(", {}", self.kernel.image.display()));
        }
        text
    }
}

/// The configuration of a guest, whatever its kernel and the image of its tool disk.
pub fn config_of(required: &RequiredGuest) -> GuestConfig {
    let RequiredGuest { memory, cpus, append, swap, disk, dimms, icount, .. } = required.clone();
    let cgroup = Some(CgroupConfig { version: CgroupVersion::V2, limit_bytes: None });
    GuestConfig { memory, dimms, cpus, icount, nodes: 1, append, swap, disk, tools: None, tree: None, cgroup }
}

/// The guests of workloads under variants, by the numbers of both.
pub type TrialGuests = BTreeMap<(usize, usize), VariantGuest>;

/// How guests are run, and how the experiment is repeated in them.
#[derive(Clone, Debug)]
pub struct GuestRunner {
    /// QEMU's name or path.
    pub qemu: PathBuf,
    /// What runs their CPUs.
    pub accelerator: Accelerator,
    /// Guests at the same time.
    pub lanes: NonZero<usize>,
    /// Changes of the recipe, as options of the trial in the guest.
    pub trial_options: Vec<OsString>,
}

/// Guests as a place.
pub struct GuestPlace<'p> {
    resolved: &'p ResolvedExperiment,
    guests: TrialGuests,
    runner: GuestRunner,
    stop: StopRequest<'p>,
    checksums: Mutex<ChecksumTable>,
    /// Notes of trials so far.
    notes: Mutex<BTreeSet<String>>,
    /// Those of the guests that run.
    processes: GuestProcesses,
    /// Whether a guest has booted.
    has_booted: AtomicBool,
    /// Descriptions of guests in the file of an earlier session.
    earlier_guests: BTreeSet<String>,
}

impl<'p> GuestPlace<'p> {
    /// The place, with the guest of each trial. `earlier_run` is the file as found, if it is resumed.
    pub fn new(
        resolved: &'p ResolvedExperiment,
        guests: TrialGuests,
        runner: GuestRunner,
        stop: StopRequest<'p>,
        earlier_run: Option<&Run>,
    ) -> GuestPlace<'p> {
        let events = earlier_run.map_or(&[][..], |run| &run.events);
        let earlier_guests = events.iter().filter(|event| event.kind == Run::GUEST_EVENT);
        GuestPlace {
            resolved,
            guests,
            runner,
            stop,
            checksums: Mutex::new(ChecksumTable::from_run(earlier_run)),
            notes: Mutex::default(),
            processes: GuestProcesses::default(),
            has_booted: AtomicBool::new(false),
            earlier_guests: earlier_guests.map(|event| event.text.clone()).collect(),
        }
    }

    fn plan(&self) -> &'p Plan {
        &self.resolved.plan
    }

    fn slot(&self, slot: usize) -> Result<ScheduleSlot, LostTrial> {
        self.plan()
            .schedule
            .get(slot)
            .ok_or_else(|| LostTrial::by_defect(format!("the plan has no slot {slot}")))
    }

    fn guest_of(&self, slot: usize) -> Result<&VariantGuest, LostTrial> {
        let ScheduleSlot { workload, variant, .. } = self.slot(slot)?;
        self.guests.get(&(workload, variant)).ok_or_else(|| {
            LostTrial::by_defect(format!("workload {workload} has no guest with variant {variant}"))
        })
    }

    /// Whether two slots may share a boot.
    fn shares_boot(&self, first: usize, second: usize) -> bool {
        let (Ok(one), Ok(other)) = (self.slot(first), self.slot(second)) else { return false };
        let is_same_round =
            one.round == other.round && (one.role == TrialRole::WarmUp) == (other.role == TrialRole::WarmUp);
        let required =
            |slot: ScheduleSlot| self.guests.get(&(slot.workload, slot.variant)).map(|guest| &guest.required);
        is_same_round && required(one) == required(other)
    }

    /// The command line of a trial in its guest.
    fn trial_words(&self, slot: ScheduleSlot) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["trial".into(), RECIPE_NAME.into()];
        for (name, value) in [
            ("--workload", slot.workload.to_string()),
            ("--variant", slot.variant.to_string()),
            ("--role", slot.role.slug().to_owned()),
        ] {
            words.extend([OsString::from(name), value.into()]);
        }
        let recipe = &self.resolved.recipe;
        if recipe.has_seed_by_round {
            words.extend(["--seed".into(), recipe.seed_of_round(slot.round).to_string().into()]);
        }
        words.extend(self.runner.trial_options.iter().cloned());
        words
    }

    /// Time limits of trials, with what precedes and follows them in the guest.
    fn limits(&self, slots: &[usize]) -> Vec<Duration> {
        let limit = |slot: &usize| {
            let workload = self.slot(*slot).map_or(0, |slot| slot.workload);
            self.resolved.time_limit(workload) + GRACE
        };
        slots.iter().map(limit).collect()
    }

    /// The job of a boot: the recipe, and a step for each trial.
    fn boot_plan(&self, slots: &[usize], limits: &[Duration]) -> Result<GuestPlan, LostTrial> {
        let first = slots.first().copied().unwrap_or(usize::MAX);
        let guest = self.guest_of(first)?;
        let recipe =
            JobStep::Write { path: format!("{WORK_DIR}/{RECIPE_NAME}"), text: self.plan().recipe.clone() };
        let mut steps = vec![recipe];
        for &slot in slots {
            steps.push(JobStep::Pagelab(self.trial_words(self.slot(slot)?)));
        }
        let mut plan = GuestPlan::new(guest.kernel.clone(), guest.config(), steps);
        plan.qemu.clone_from(&self.runner.qemu);
        plan.accelerator = self.runner.accelerator;
        plan.module.clone_from(&guest.module);
        plan.timeouts.total = plan.timeouts.first_line + limits.iter().sum::<Duration>();
        Ok(plan)
    }

    /// Boots a guest for these slots, and returns how many of them have ended; the last one may be lost.
    fn boot_for(
        &self,
        slots: &[usize],
        keep_going: &mut dyn FnMut(u32) -> bool,
        report: &mut dyn FnMut(GroupEvent) -> bool,
    ) -> Result<usize, LostTrial> {
        let limits = self.limits(slots);
        let plan = self.boot_plan(slots, &limits)?;
        let required = &self.guest_of(slots[0])?.required;
        let is_oom_result = required.is_oom_result;
        let stop_signal = || (self.stop)();
        let host = (&stop_signal as &dyn Fn() -> Option<i32>, limits.clone());
        let mut observer = BootObserver::new(slots, (required, &self.processes), keep_going, report, host);
        observer.start_first(plan.timeouts.first_line);
        let outcome = run_guest(&plan, &mut observer);
        let (ended, is_overdue) = (observer.ended, observer.is_overdue);
        self.has_booted.fetch_or(observer.has_booted, Ordering::Relaxed);
        if observer.is_host_full {
            return Err(disk_full(&disk::host_disk_full()));
        }
        let console = observer.console().to_vec();
        // It borrows the receiver of the trials.
        drop(observer);
        let Some(&slot) = slots.get(ended) else { return Ok(ended) };
        let mut lose = |finished: FinishedTrial| {
            report(GroupEvent::Ended(Box::new(finished)));
            Ok(ended + 1)
        };
        match outcome {
            Ok(GuestOutcome::Completed(_)) => Ok(slots.len()),
            // Without any boot so far it is QEMU that does not work, and every other trial would be lost too.
            Ok(GuestOutcome::Lost(lost))
                if !self.has_booted.load(Ordering::Relaxed)
                    && matches!(lost.reason, LossReason::QemuRefused(..) | LossReason::PoweredOff) =>
            {
                let reason = format!("no guest has booted: {}", lost.reason);
                Err(LostTrial { kind: LossKind::NotAvailable, reason })
            }
            Ok(GuestOutcome::Lost(lost)) => {
                lose(trial_end::of_lost_guest(slot, &lost.reason, &console, is_oom_result))
            }
            Err(failure) if matches!(failure.kind(), FailureKind::Stopped(_)) && is_overdue => {
                let limit = limits.get(ended).copied().unwrap_or_default();
                lose(trial_end::of_lost_guest(slot, &LossReason::TimedOut(limit), &console, false))
            }
            // The host requested it.
            Err(failure) if matches!(failure.kind(), FailureKind::Stopped(_)) => Ok(slots.len()),
            Err(failure) if failure.kind() == FailureKind::Output => Err(disk_full(&failure)),
            // One operation failed, and may work for the next boot.
            Err(failure) if failure.kind() == FailureKind::Partial => {
                lose(trial_end::with_end(slot, TrialEnd::Lost(failure.to_string())).into())
            }
            Err(failure) => Err(LostTrial { kind: LossKind::NotAvailable, reason: failure.to_string() }),
        }
    }

    /// Compares the checksum of a trial with those of the trials before, as a host does, and drops notes that
    /// were reported before.
    fn check_events(&self, finished: &mut FinishedTrial) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        finished.events.retain(|event| !event.is_note || notes.insert(event.text.clone()));
        let mut checksums = self.checksums.lock().unwrap_or_else(PoisonError::into_inner);
        let end = &mut finished.trial.end;
        finished.events.retain(|event| {
            let Some((command, sum)) = checksum::parse(&event.text).filter(|_| event.kind == CHECKSUM_EVENT)
            else {
                return true;
            };
            match checksums.check(command, sum) {
                ChecksumState::New => true,
                ChecksumState::Known => false,
                ChecksumState::Differs(why) => {
                    *end = TrialEnd::InvalidResult(why);
                    false
                }
            }
        });
    }
}

fn disk_full(failure: &Failure) -> LostTrial {
    LostTrial { kind: LossKind::DiskFull, reason: failure.to_string() }
}

impl Place for GuestPlace<'_> {
    fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        check_same_plan(plan, self.plan())
    }

    fn lanes(&self, due: usize) -> NonZero<usize> {
        // The end of an experiment by looks or a budget is decided at the end of a round.
        let most = if self.plan().early_end.is_some() { 1 } else { due.max(1) };
        self.runner.lanes.min(NonZero::new(most).unwrap_or(NonZero::<usize>::MIN))
    }

    fn shared(&self) -> Option<&(dyn Place + Sync)> {
        Some(self)
    }

    fn prepare(&self, due: &[usize], report: EventSink<'_>) -> Result<(), Error> {
        let is_due = |key: &(usize, usize)| {
            let of = |slot: &usize| self.slot(*slot).is_ok_and(|slot| (slot.workload, slot.variant) == *key);
            due.iter().any(of)
        };
        let guests: Vec<(usize, &VariantGuest)> = self
            .guests
            .iter()
            .filter(|(key, _)| is_due(key))
            .map(|((_, variant), guest)| (*variant, guest))
            .collect();
        let mut described = self.earlier_guests.clone();
        let small = guests.iter().filter(|(_, guest)| guest.required.memory < THP_MEMORY_MIN);
        let small: BTreeSet<usize> = small.map(|(variant, _)| *variant).collect();
        if !small.is_empty() {
            let names: Vec<&str> =
                small.iter().map(|&variant| self.plan().variants[variant].name.as_str()).collect();
            let text = format!(
                "guests below {} have no transparent huge pages (docs/guests.md): {}",
                format_exact(THP_MEMORY_MIN),
                names.join(", ")
            );
            report(PlaceEvent { kind: "preflight", text, is_note: true })?;
        }
        for (_, guest) in guests {
            let mut description = guest.describe();
            if self.runner.accelerator == Accelerator::Kvm {
                description.push_str(Run::KVM_GUEST);
            }
            if !described.insert(description.clone()) {
                continue;
            }
            if !self.earlier_guests.is_empty() {
                let text = format!("new in this run: {description}");
                report(PlaceEvent { kind: "kernel", text, is_note: true })?;
            }
            report(PlaceEvent { kind: Run::GUEST_EVENT, text: description, is_note: true })?;
        }
        Ok(())
    }

    fn carry_out(
        &self,
        slot: usize,
        keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<FinishedTrial, LostTrial> {
        let mut ended = None;
        self.carry_out_group(&[slot], keep_going, &mut |event| {
            if let GroupEvent::Ended(finished) = event {
                ended = Some(*finished);
            }
            true
        })?;
        let stopped = || FinishedTrial::from(trial_end::with_end(slot, TrialEnd::Stopped));
        Ok(ended.unwrap_or_else(stopped))
    }

    fn take_group(&self, due: &mut VecDeque<usize>) -> Vec<usize> {
        let Some(first) = due.pop_front() else { return Vec::new() };
        let mut group = vec![first];
        if self.resolved.recipe.guest.boot == Some(BootPolicy::Round) {
            due.retain(|&slot| {
                let is_shared = self.shares_boot(first, slot);
                if is_shared {
                    group.push(slot);
                }
                !is_shared
            });
        }
        group
    }

    fn carry_out_group(
        &self,
        group: &[usize],
        keep_going: &mut dyn FnMut(u32) -> bool,
        report: &mut dyn FnMut(GroupEvent) -> bool,
    ) -> Result<(), LostTrial> {
        let mut report = |event: GroupEvent| match event {
            GroupEvent::Ended(mut finished) => {
                self.check_events(&mut finished);
                report(GroupEvent::Ended(finished))
            }
            started => report(started),
        };
        let mut left = group;
        // The trials after a lost one get another guest.
        while !left.is_empty() && keep_going(0) {
            let ended = self.boot_for(left, keep_going, &mut report)?;
            left = left.get(ended..).unwrap_or_default();
        }
        Ok(())
    }

    fn expected_time(&self, slot: usize) -> Option<Duration> {
        let workload = self.slot(slot).ok()?.workload;
        Some(self.resolved.expected_time(workload)? + BOOT_TIME)
    }
}
