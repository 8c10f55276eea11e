//! Bounded allocation for the modes without a target: each piece is checked against the reserve, and held
//! memory is released if other processes need it.

use std::ffi::OsString;
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Exit, Failure, FailureKind, absence_failure, usage_error};
use pagelab_command::output;
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::fragment::memory_monitor::MemoryMonitor;
use pagelab_contig::oom::OomScoreGuard;
use pagelab_contig::random_walk;
use pagelab_contig::reserve::Reserve;
use pagelab_host::capture::{StopSignal, signal_name};
use pagelab_model::run::RunEvent;
use pagelab_model::{BuddyInfo, Bytes, Snapshot};
use pagelab_report::style::format_bytes;
use rustix::process::Signal;

use super::holding::HoldPhase;
use super::machine_changes::{ChangeRequest, MachineChanges, offer_to_oom_killer};
use super::options::MemorySize;
use super::recording::FragmentRecording;

/// Interval of memory samples while memory is held.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Fraction of the held memory, as a divisor, that is released at a time if other processes need it.
const BACK_OFF_DIVISOR: u64 = 8;

/// State while memory is allocated. Memory is released before settings are restored.
pub struct BoundedAllocation {
    pub stop: StopSignal,
    pub watch: MemoryMonitor,
    reserve: Reserve,
    pub changes: MachineChanges,
    oom_offer: Option<OomScoreGuard>,
    /// The run file, if there is one.
    pub recording: Option<FragmentRecording>,
    /// Memory released during the hold phase because other processes needed it.
    pub released: Bytes,
}

/// Returns the reserve of this machine: the given one, or the default.
pub fn resolve_reserve(size: Option<MemorySize>, facts: &FragmentInputs) -> Reserve {
    size.map_or_else(
        || Reserve::from_total_memory(facts.mem_total),
        |size| Reserve(size.to_bytes(facts.mem_total)),
    )
}

impl BoundedAllocation {
    /// Begins: records signals, creates a cgroup with a limit, and makes this process the first choice of the
    /// OOM killer. `held_max` is the maximum memory to be held.
    pub fn begin(
        facts: &FragmentInputs,
        reserve: Reserve,
        held_max: Bytes,
    ) -> Result<BoundedAllocation, Failure> {
        let stop = StopSignal::watch().map_err(Failure::no_signal_handlers)?;
        Ok(BoundedAllocation {
            stop,
            watch: open_monitor(facts, reserve)?,
            reserve,
            changes: MachineChanges::apply(&ChangeRequest { held_max, ..ChangeRequest::default() })?,
            oom_offer: offer_to_oom_killer(),
            recording: None,
            released: Bytes(0),
        })
    }

    /// Starts recording free blocks and memory use in a run file, if a path is given.
    pub fn start_recording(
        &mut self,
        file: Option<&NewRunFile>,
        seed: u64,
        snapshot: &Snapshot,
    ) -> Result<(), Failure> {
        let begin = |file| FragmentRecording::create(file, seed, snapshot, self.watch.last_snapshot());
        self.recording = file.map(begin).transpose()?;
        Ok(())
    }

    /// Stores the last sample as a row of the run file.
    pub fn sample(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.sample(self.watch.last_snapshot());
        }
    }

    pub fn record_event(&mut self, kind: &str, text: &str) {
        if let Some(recording) = &mut self.recording {
            let (kind, text) = (kind.to_owned(), text.to_owned());
            recording.store_with(|writer, at_ns| writer.add_event(&RunEvent { at_ns, kind, text }));
        }
    }

    /// Checks whether this much more may be allocated; an error states why not.
    pub fn check_room(&mut self, next: Bytes) -> Result<(), String> {
        let room = check_room_within(&mut self.watch, self.reserve, &self.stop, next);
        self.sample();
        room
    }

    /// Reads the free blocks after draining the pcp lists.
    pub fn read_free_blocks(&mut self) -> Result<BuddyInfo, Failure> {
        self.watch.drain_pcp_lists().map_err(absence_failure)?;
        self.watch.last_snapshot().buddyinfo().cloned().map_err(|absence| absence_failure(absence.clone()))
    }

    /// Returns an error if a signal has requested a stop.
    pub fn check_signal(&self) -> Result<(), Failure> {
        let Some(signal) = self.stop.signal() else { return Ok(()) };
        let reason = format_args!("stopped by {}", signal_name(signal));
        Err(Failure::cannot(FailureKind::Partial, "fragment memory", reason))
    }

    /// Holds until a signal, or while a command runs; releases step by step while other processes need
    /// memory. After a signal there is no hold phase, and no command is started. Returns the exit code.
    pub fn hold_memory(
        &mut self,
        command: &[OsString],
        held_pages: &mut Option<random_walk::FragmentedMemory>,
    ) -> Result<u8, Failure> {
        if let Some(signal) = self.stop.signal() {
            return Ok(Exit::code_after_signal(signal));
        }
        let (stop, cgroup) = (self.stop.clone(), self.changes.command_cgroup().map(str::to_owned));
        let score = self.oom_offer.as_ref().map_or("0", OomScoreGuard::previous_score).to_owned();
        let phase = HoldPhase {
            command,
            cgroup: cgroup.as_deref(),
            oom_score: &score,
            stop: &stop,
            check_interval: SAMPLE_INTERVAL,
        };
        let command_code = phase.run(|| {
            self.back_off(held_pages);
            self.sample();
            Ok(true)
        })?;
        Ok(match (command_code, stop.signal()) {
            (Some(code), _) => code,
            // SIGINT is the normal end of holding; SIGTERM and SIGHUP are not.
            (None, Some(signal)) if signal != Signal::INT.as_raw() => Exit::code_after_signal(signal),
            (None, _) => Exit::Success as u8,
        })
    }

    fn back_off(&mut self, held_pages: &mut Option<random_walk::FragmentedMemory>) {
        if self.watch.refresh().is_err() {
            return;
        }
        let (Some(danger), Some(held)) = (self.watch.backoff_reason(), held_pages.as_mut()) else { return };
        if held.filled == Bytes(0) {
            return;
        }
        match held.free_chunks(Bytes(held.filled.0 / BACK_OFF_DIVISOR)) {
            Ok(back) => {
                self.released = Bytes(self.released.0.saturating_add(back.0));
                let (back, left) = (format_bytes(back), format_bytes(held.filled));
                let text = format!("released {back}, {left} still held: {danger}");
                output::warn(&text);
                self.record_event("backed off", &text);
            }
            Err(error) => output::warn(&format!("warning: cannot release memory: {error}")),
        }
    }

    /// Ends: restores settings and cgroup, and closes the run file. `is_complete`: it ended normally. Returns
    /// whether all changes were undone, and warns about the others.
    pub fn finish(self, is_complete: bool) -> bool {
        let signal = self.stop.signal().filter(|_| !is_complete).map(signal_name);
        if let Some(recording) = self.recording {
            recording.finish(signal);
        }
        self.changes.restore()
    }
}

/// Opens the monitor of the memory files, after draining the pcp lists.
pub fn open_monitor(facts: &FragmentInputs, reserve: Reserve) -> Result<MemoryMonitor, Failure> {
    let mut watch = MemoryMonitor::open(facts.zone.clone(), reserve, facts.page_size, facts.unit_order)
        .map_err(absence_failure)?;
    watch.drain_pcp_lists().map_err(absence_failure)?;
    Ok(watch)
}

/// Checks whether this much more may be allocated; an error states why not.
pub fn check_room_within(
    watch: &mut MemoryMonitor,
    reserve: Reserve,
    stop: &StopSignal,
    next: Bytes,
) -> Result<(), String> {
    if let Some(signal) = stop.signal() {
        return Err(format!("stopped by {}", signal_name(signal)));
    }
    watch.refresh().map_err(|absence| format!("{}: {}", absence.source, absence.reason()))?;
    if let Some(danger) = watch.backoff_reason() {
        return Err(danger.to_string());
    }
    let available = watch.available_memory();
    if reserve.headroom(available) < next {
        let (available, reserve) = (format_bytes(available), format_bytes(reserve.0));
        return Err(format!("{available} is available, {reserve} is reserved"));
    }
    Ok(())
}

/// Returns an error if the memory held by this process exceeds the room in its cgroups. MemAvailable is of
/// the entire machine and does not show this.
pub fn check_cgroup_room(facts: &FragmentInputs, held: Bytes) -> Result<(), String> {
    match facts.cgroup_headroom {
        Some(room) if held > room => Err(format!("the cgroup has {} left", format_bytes(room))),
        _ => Ok(()),
    }
}

/// Rejects a size above the memory of the machine, except in a guest.
pub fn check_size(size: Bytes, facts: &FragmentInputs) -> Result<(), Failure> {
    if size <= facts.mem_total || pagelab_guest::agent::runs_in_guest() {
        return Ok(());
    }
    let (requested, total) = (format_bytes(size).replace(' ', ""), format_bytes(facts.mem_total));
    Err(usage_error(&format!(
        "--size {requested} exceeds the {total} of this machine, which is allowed only in a guest.\n  \
         use --size 100% or less, or: \
         pagelab guest run -- fragment random --size {requested} -- pagelab frag"
    )))
}

/// Returns the exit code of a run: that of its command, if it had one. A clean run allocated all requested
/// memory, held it until the end, and undid all changes.
pub fn exit_code(code: u8, is_of_command: bool, is_clean: bool) -> u8 {
    if code == 0 && !is_of_command && !is_clean { Exit::Partial as u8 } else { code }
}
