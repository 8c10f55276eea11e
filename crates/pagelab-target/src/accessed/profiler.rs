//! The profiling run: selection and schedule of the swept processes, and the profile.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{io, thread};

use pagelab_formats::process_status;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{machine, paths};
use pagelab_model::PageSize;
use pagelab_model::profile::{ImageStart, ProfilingCost};
use pagelab_model::{Failure, FailureKind};
use pagelab_sys::spawn;
use rustix::process::setpriority_process;

use super::image::SweptImage;
use super::injector::{CallInjector, StartedProgram};
use super::splitter::Advice;
use super::{AccessedProfile, AccessedProfileRequest, ProfileTarget, injector, sweep};
use crate::accessed::split;
use crate::priority;
use crate::process_failure::no_such_process;
use crate::process_injection::ProcessIdentity;

/// Process images that are profiled at most.
const IMAGES_MAX: usize = 64;

/// The shortest time between two scans for new processes.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Notes are rare, and each is reported once.
const NOTES_MAX: usize = 20;

pub(super) struct AccessProfiler<'w> {
    pub(super) root: Root,
    pub(super) request: &'w AccessedProfileRequest<'w>,
    pub(super) injector: CallInjector,
    pub(super) page: PageSize,
    pub(super) huge: u64,
    pub(super) images: Vec<SweptImage>,
    pub(super) notes: Vec<String>,
    pub(super) profiling_cost: ProfilingCost,
    /// The start of the profile.
    pub(super) start: Instant,
    pub(super) sweeps: u64,
    pub(super) busy_time: Duration,
    /// Of that, sweeps: if the zero page is scanned too, each has its part of the duty.
    pub(super) sweep_time: Duration,
    /// Whether the program still ran when the profile ended.
    pub(super) is_outlived: bool,
    /// The last time that memory was checked and not short.
    pub(super) pressure_checked: Option<Instant>,
    pub(super) longest_split: Duration,
    /// The cost of a returned zero-page entry, once it was measured.
    pub(super) return_cost: Option<Duration>,
    /// Why such entries were not dropped: by process, the last reason.
    pub(super) drop_failures: BTreeMap<u32, String>,
    /// Of the time that threads were stopped, that in which they waited for a CPU.
    pub(super) stop_wait_ns: u64,
    /// Time in which all threads were stopped to drop zero-page entries.
    pub(super) zero_stop_ns: u64,
    /// Stops of a program.
    pub(super) splits: u64,
    /// Ranges that are still split, since their process could not be made to merge them.
    pub(super) unmerged: Vec<(ProcessIdentity, Vec<Range<u64>>)>,
}

/// Runs the profile.
pub fn profile_program(request: &mut AccessedProfileRequest<'_>) -> Result<AccessedProfile, Failure> {
    let splitter = request.splitter.take();
    let (page, huge) = read_page_sizes()?;
    if let Some(why) = (request.memory_pressure)() {
        return Err(Failure::refused(format!("cannot scan accessed bits: {why}; hint: try again later")));
    }
    let mut profiler = AccessProfiler {
        root: Root::live(),
        request,
        injector: CallInjector::Disabled,
        page,
        huge,
        images: Vec::new(),
        notes: Vec::new(),
        profiling_cost: ProfilingCost::default(),
        start: Instant::now(),
        sweeps: 0,
        busy_time: Duration::ZERO,
        sweep_time: Duration::ZERO,
        is_outlived: false,
        pressure_checked: None,
        longest_split: Duration::ZERO,
        return_cost: None,
        drop_failures: BTreeMap::new(),
        stop_wait_ns: 0,
        zero_stop_ns: 0,
        splits: 0,
        unmerged: Vec::new(),
    };
    let (child, command) = match &request.target {
        ProfileTarget::Command(command) => {
            (Some(profiler.launch_program(command, splitter)?), command.clone())
        }
        ProfileTarget::Process(pid) => {
            profiler.injector = splitter.map_or(Ok(CallInjector::Disabled), injector::start_splitter)?;
            profiler.attach_process(*pid)?;
            (None, Vec::new())
        }
    };
    profiler.start = Instant::now();
    let old_priority = priority::raise_priority();
    let result = profiler.run_until_end(child);
    if let Some(old_priority) = old_priority {
        let _ = setpriority_process(None, old_priority);
    }
    let (exit, watch_time) = result?;
    let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(AccessedProfile { profile: profiler.into_profile(command, watch_time), exit })
}

fn read_page_sizes() -> Result<(PageSize, u64), Failure> {
    let root = Root::live();
    let huge = machine::reported_pmd_size(&Reader::new(&root)).map(|huge| huge.0);
    machine::live_page_size().zip(huge.filter(|huge| huge.is_power_of_two())).ok_or_else(|| {
        Failure::not_available("cannot profile regions of huge page size: this kernel is built without THP")
    })
}

impl AccessProfiler<'_> {
    fn launch_program(
        &mut self,
        command: &[std::ffi::OsString],
        splitter: Option<Command>,
    ) -> Result<StartedProgram, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::bad_input("no command given: add `-- COMMAND`"));
        };
        if let Some(splitter) = splitter {
            if self.request.is_supervised {
                if let Some(started) = self.launch_supervised(command)? {
                    return Ok(started);
                }
            } else {
                self.add_note(
                    "anonymous memory is identified by address, which holds for the next run only if address \
                     randomisation is off; without --no-supervise it is identified by length and number",
                );
            }
            match self.request.journal_error.clone() {
                Some(why) => {
                    self.add_note(format!("mappings are observed as a whole, not by huge page: {why}"))
                }
                None => self.injector = injector::start_splitter(splitter)?,
            }
        }
        let mut child_command = Command::new(crate::program::find_program(program)?);
        child_command.args(arguments).arg0(program);
        spawn::disable_thp(&mut child_command);
        if let CallInjector::Splitter(splitter) = &self.injector {
            spawn::allow_tracer(&mut child_command, splitter.pid());
        }
        let child = child_command.spawn().map_err(|error| {
            Failure::bad_input(format!("cannot start {}: {error}", program.to_string_lossy()))
        })?;
        self.add_image(child.id(), ImageStart::Launched, None).map(|_| StartedProgram::Child(child))
    }

    /// Starts the program under the supervisor; `None` and a note if the supervisor cannot trace it.
    fn launch_supervised(
        &mut self,
        command: &[std::ffi::OsString],
    ) -> Result<Option<StartedProgram>, Failure> {
        match injector::start_supervised(command, self.page.bytes(), self.huge) {
            Ok(supervisor) => {
                let pid = supervisor.pid();
                self.injector = CallInjector::Supervisor(supervisor);
                self.add_image(pid, ImageStart::Launched, None)?;
                Ok(Some(StartedProgram::Supervised(pid)))
            }
            Err(error) if error.kind() == FailureKind::NotAvailable => {
                // The hint is for `apply`; this profile already runs without a tracer.
                let message = error.to_string();
                let why = message.split("; hint: ").next().unwrap_or(&message);
                self.add_note(format!(
                    "the supervisor cannot trace the program ({why}), so anonymous memory is identified by \
                     address, which is valid for this run only"
                ));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn attach_process(&mut self, pid: u32) -> Result<(), Failure> {
        if ProcessIdentity::from_pid(&self.root, pid).is_none() {
            return Err(no_such_process("profile", pid));
        }
        self.add_image(pid, ImageStart::Attached, None)?;
        if sweep::read_mappings(&self.root, pid).is_err() {
            return Err(permission_error(pid));
        }
        self.merge_leftover_pieces("by a pagelab process that was killed");
        Ok(())
    }

    /// Merges split mappings of the newest image: left by a killed pagelab, or inherited by a fork that was
    /// made while its parent was split.
    fn merge_leftover_pieces(&mut self, origin: &str) {
        let Some(process) = self.images.last().map(|image| image.process) else { return };
        let Ok(mappings) = sweep::read_mappings(&self.root, process.pid) else { return };
        let leftovers = split::find_leftovers(&mappings, self.huge);
        if !self.injector.can_inject() || leftovers.is_empty() {
            return;
        }
        let (pid, count) = (process.pid, leftovers.len());
        match self.injector.advise_ranges(process, Advice::DoDump, &leftovers) {
            Ok(_) => self.add_note(format!(
                "{count} ranges of process {pid} had been excluded from core dumps {origin}: undone"
            )),
            Err(failure) => self.add_note(format!(
                "{count} ranges of process {pid} remain excluded from core dumps {origin}: {}",
                failure.reason
            )),
        }
    }

    fn add_image(&mut self, pid: u32, start: ImageStart, parent: Option<usize>) -> Result<bool, Failure> {
        let Some(process) = ProcessIdentity::from_pid(&self.root, pid) else { return Ok(false) };
        let clear_refs = match sweep::open_clear_refs(pid) {
            Ok(clear_refs) => clear_refs,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(permission_error(pid));
            }
            Err(_) => return Ok(false),
        };
        self.images.push(SweptImage::new(&self.root, process, start, parent, clear_refs));
        Ok(true)
    }

    pub(super) fn add_note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Sweeps until the time is over, all processes have ended, or the user stops it: returns how the child
    /// ended, and the observed time.
    fn run_until_end(
        &mut self,
        mut child: Option<StartedProgram>,
    ) -> Result<(Option<ExitStatus>, Duration), Failure> {
        let start = self.start;
        let mut next = start;
        let mut exit = None;
        let mut last_search = start;
        let failed = |error| Failure::refused(format!("cannot wait for the program: {error}"));
        loop {
            if let Some(child) = &mut child
                && exit.is_none()
            {
                exit = child.poll_exit(&self.injector).map_err(failed)?;
            }
            let is_stopped = self.request.stop.load(Ordering::Relaxed);
            let is_over = self.request.time_limit.is_some_and(|time| start.elapsed() >= time);
            let is_everyone_gone =
                exit.is_some() || child.is_none() && !self.images.iter().any(|image| image.is_alive);
            if is_stopped || is_over || is_everyone_gone {
                let is_running = |image: &SweptImage| image.process.is_running(&self.root);
                self.is_outlived = !is_everyone_gone && self.images.iter().any(is_running);
                break;
            }
            if Instant::now() >= next {
                let turn_start = Instant::now();
                if last_search.elapsed() >= TICK * 5 || self.sweeps == 0 {
                    self.find_new_images();
                    last_search = turn_start;
                }
                let turn_time = self.run_turn();
                self.busy_time += turn_time;
                next = Instant::now() + self.time_to_next_turn();
            }
            let until =
                next.saturating_duration_since(Instant::now()).clamp(Duration::from_micros(100), TICK);
            thread::sleep(if self.is_unlimited() && self.sweeps > 0 { Duration::ZERO } else { until });
        }
        let watch_time = start.elapsed();
        if let (Some(child), None) = (&mut child, exit) {
            exit = self.wait_for_exit(child).map_err(failed)?;
        }
        Ok((exit, watch_time))
    }

    /// Finds new descendants, and images that were replaced by exec.
    fn find_new_images(&mut self) {
        for index in 0..self.images.len() {
            if !self.images[index].is_alive || !self.images[index].was_replaced(&self.root) {
                continue;
            }
            self.images[index].is_alive = false;
            let pid = self.images[index].process.pid;
            let _ = self.add_image(pid, ImageStart::Executed, Some(index));
        }
        // A process that was attached to is profiled alone.
        if matches!(self.request.target, ProfileTarget::Process(_)) {
            return;
        }
        let find_alive =
            |images: &[SweptImage], pid: u32| images.iter().position(|i| i.is_alive && i.process.pid == pid);
        for pid in self.root.list_processes().unwrap_or_default() {
            if find_alive(&self.images, pid).is_some() {
                continue;
            }
            let stat =
                Reader::new(&self.root).parse(&paths::process_stat_file(pid), process_status::parse_stat);
            let Some(parent) = stat.ok().and_then(|stat| u32::try_from(stat.parent).ok()) else { continue };
            if find_alive(&self.images, parent).is_some() && self.images.len() >= IMAGES_MAX {
                self.remove_unswept_images();
            }
            let Some(parent) = find_alive(&self.images, parent) else { continue };
            if self.images.len() >= IMAGES_MAX {
                self.add_note(format!("more than {IMAGES_MAX} processes: later ones are not profiled"));
                return;
            }
            match self.add_image(pid, ImageStart::Forked, Some(parent)) {
                Ok(true) => self.merge_leftover_pieces("as in its parent when it was forked"),
                Ok(false) => {}
                Err(_) => self.add_note(format!("process {pid} is not profiled: it belongs to another user")),
            }
        }
    }

    /// Forgets images that ended without a sweep, such as the commands of a script, so that they take no
    /// slot. A child of such an image becomes a child of its parent.
    fn remove_unswept_images(&mut self) {
        for image in &mut self.images {
            image.is_alive = image.is_alive && image.process.is_running(&self.root);
        }
        let is_kept = |(at, image): (usize, &SweptImage)| at == 0 || image.is_alive || image.sweeps > 0;
        let kept: Vec<bool> = self.images.iter().enumerate().map(is_kept).collect();
        let parents: Vec<Option<usize>> = self.images.iter().map(|image| image.parent).collect();
        let new_index = |mut parent: Option<usize>| {
            while let Some(at) = parent.filter(|&at| !kept[at]) {
                parent = parents[at];
            }
            parent.map(|at| kept[..at].iter().filter(|stays| **stays).count())
        };
        for image in &mut self.images {
            image.parent = new_index(image.parent);
        }
        let mut kept_iter = kept.iter();
        self.images.retain(|_| kept_iter.next().is_some_and(|stays| *stays));
    }
}

fn permission_error(pid: u32) -> Failure {
    Failure::not_available(format!(
        "cannot read the accessed bits of process {pid}: permission denied; hint: use sudo, or run as its \
         owner"
    ))
}
