//! Hardware sampling of a program that is started, or of a running process, into a profile.

use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use pagelab_formats::perf_data::{
    Decoder, Endian, Event, EventInfo, EventQueue, FileInfo, Mapping, PerfEventAttr,
};
use pagelab_formats::{cpu_list, maps};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Failure;
use pagelab_model::TlbProfile;
use pagelab_model::profile::{ImageStart, ProfileSource};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::perf_ring::{AccessSampling, PerfEvent, Ring};
use pagelab_sys::{perf_ring, spawn};
use rustix::io::Errno;

use super::probe::{Sampler, SamplingHardware};
use crate::process_failure::{cannot_open_process, no_such_process};
use crate::sampling::SampleCollector;
use crate::{program, sampling};

/// The program or process to be sampled.
#[derive(Debug)]
pub enum RecordTarget {
    /// A program, from its start to its end, with all that it starts.
    Start(Command),
    /// A running process with all its threads.
    Attach(u32),
}

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Pages, and a range if there is one.
    pub sampling_options: sampling::SamplingOptions,
    /// Room for records on each CPU, for each event.
    pub ring_bytes: u64,
    /// The longest duration; `None`: until the program ends.
    pub duration_max: Option<Duration>,
}

/// The result of a recording.
#[derive(Debug)]
pub struct RecordingResult {
    /// The profile.
    pub profile: TlbProfile,
    /// Exit of the program; `None` if it was already running, or continues.
    pub status: Option<ExitStatus>,
}

/// Interval at which a waiting reader checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Searches for threads that begin while a process is attached to.
const ATTACH_ROUNDS: usize = 16;

/// Samples until the program ends, the time is over, or `stop` returns true.
pub fn record_profile(
    hardware: &SamplingHardware,
    target: RecordTarget,
    options: &RecordOptions,
    stop: &dyn Fn() -> bool,
) -> Result<RecordingResult, Failure> {
    let began_ns = thread_cpu_ns();
    let mut recording = Recording::new(hardware, options);
    let cpus = Reader::new(&Root::live())
        .parse(paths::CPU_ONLINE, cpu_list::parse)
        .map_err(|absence| Failure::not_available(absence.reason()))?;
    let started = Instant::now();
    let (mut child, pid, arguments) = match target {
        RecordTarget::Start(command) => {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            let arguments = words.map(|word| word.to_string_lossy().into_owned()).collect();
            let held_program = HeldProgram::start(command)?;
            let pid = held_program.pid;
            recording.open_task_events(pid, &cpus, true)?;
            (Some(held_program.release()?), pid, arguments)
        }
        RecordTarget::Attach(pid) => {
            recording.attach_process(pid, &cpus)?;
            (None, pid, Vec::new())
        }
    };
    let mut status = None;
    loop {
        perf_ring::wait_for_records(&recording.rings, POLL_INTERVAL)
            .map_err(|error| refused_error("wait for samples", &error))?;
        recording.drain_rings();
        if let Some(child) = &mut child {
            status = child.try_wait().map_err(|error| refused_error("wait for the program", &error))?;
        }
        let is_timed_out = options.duration_max.is_some_and(|duration_max| started.elapsed() >= duration_max);
        let is_gone = child.is_none() && !pagelab_sys::kernel_support::process_exists(pid);
        if status.is_some() || is_timed_out || is_gone || stop() {
            break;
        }
    }
    recording.disable();
    recording.drain_rings();
    let wall = started.elapsed();
    let mut profile = recording.finish();
    complete_images(&mut profile, pid, arguments);
    profile.wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
    profile.effort.cpu_ns = Some(thread_cpu_ns().saturating_sub(began_ns));
    Ok(RecordingResult { profile, status })
}

/// Adds to images what is not in the kernel's records: which one was started here, and the file of each
/// program.
fn complete_images(profile: &mut TlbProfile, pid: u32, arguments: Vec<String>) {
    for image in &mut profile.images {
        if !image.program.path.is_empty() {
            image.program = program::identify_program(Path::new(&image.program.path));
        }
    }
    let first = profile.images.iter_mut().find(|image| image.pid == pid && image.parent.is_none());
    if let Some(first) = first.filter(|_| !arguments.is_empty()) {
        (first.begun, first.arguments) = (ImageStart::Launched, arguments.clone());
    }
    profile.command = arguments;
}

fn refused_error(what: &str, error: &io::Error) -> Failure {
    Failure::refused(format!("cannot {what}: {error}"))
}

/// A program that waits before its first instruction.
struct HeldProgram {
    pid: u32,
    release_pipe: PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

impl HeldProgram {
    fn start(mut command: Command) -> Result<HeldProgram, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error: io::Error| Failure::bad_input(format!("cannot start {name}: {error}"));
        let (mut pid_reader, pid_writer) = io::pipe().map_err(failed)?;
        let (release_reader, release_pipe) = io::pipe().map_err(failed)?;
        spawn::hold_before_exec(&mut command, pid_writer.into(), release_reader.into(), release_pipe.as_fd());
        // Dropping the command closes this process's copies of the child's ends.
        let spawner = thread::spawn(move || command.spawn());
        let mut pid = [0; 4];
        if pid_reader.read_exact(&mut pid).is_err() {
            let ended = spawner.join().map_or(Ok(()), |started| started.map(drop));
            return Err(failed(ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())));
        }
        Ok(HeldProgram { pid: u32::from_ne_bytes(pid), release_pipe, spawner })
    }

    /// Resumes it. Returns an error if the program cannot be started after all.
    fn release(mut self) -> Result<Child, Failure> {
        let failed = |error: io::Error| Failure::bad_input(format!("cannot start the program: {error}"));
        self.release_pipe.write_all(b"g").map_err(failed)?;
        let started = self.spawner.join().map_err(|_| failed(io::ErrorKind::Other.into()))?;
        started.map_err(failed)
    }
}

/// Rings and their reader.
struct Recording<'a> {
    samplers: &'a [Sampler],
    options: &'a RecordOptions,
    file_info: FileInfo,
    /// One for each event, with that event alone.
    decoders: Vec<Decoder>,
    rings: Vec<Ring>,
    /// Which event and CPU a ring is of.
    ring_sources: Vec<(usize, u32)>,
    /// Events that write to the ring of another one, and leaders of groups.
    other_events: Vec<PerfEvent>,
    queue: EventQueue,
    collector: SampleCollector,
    malformed: u64,
}

impl<'a> Recording<'a> {
    fn new(hardware: &'a SamplingHardware, options: &'a RecordOptions) -> Recording<'a> {
        let attr = |sampler: &Sampler| {
            let sampling = &sampler.sampling;
            PerfEventAttr {
                kind: sampling.kind,
                config: sampling.config,
                period_or_frequency: sampling.period_or_frequency,
                sample_type: sampling.sample_type,
                flags: sampling.attr_flags(),
                ..PerfEventAttr::default()
            }
        };
        let event = |sampler: &Sampler| EventInfo { name: sampler.name.clone(), attr: attr(sampler) };
        let file_info = FileInfo {
            arch: std::env::consts::ARCH.to_owned(),
            cpuid: hardware.cpuid.clone(),
            events: hardware.samplers.iter().map(event).collect(),
            pmus: vec![(hardware.kind, hardware.pmu.clone())],
            ..FileInfo::default()
        };
        let decoder = |sampler: &Sampler| {
            let mut decoder = Decoder::new(Endian::NATIVE);
            decoder.add_event(attr(sampler), []);
            decoder
        };
        Recording {
            samplers: &hardware.samplers,
            options,
            file_info,
            decoders: hardware.samplers.iter().map(decoder).collect(),
            rings: Vec::new(),
            ring_sources: Vec::new(),
            other_events: Vec::new(),
            queue: EventQueue::default(),
            collector: SampleCollector::new(options.sampling_options.clone()),
            malformed: 0,
        }
    }

    fn open_task_events(&mut self, task: u32, cpus: &[u32], from_exec: bool) -> Result<(), Failure> {
        for (event, sampler) in self.samplers.iter().enumerate() {
            for &cpu in cpus {
                match self.open_event(task, cpu, (event, sampler), from_exec) {
                    Ok(()) => {}
                    // The CPU went offline since the list was read.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {}
                    Err(error) => return Err(self.open_error(sampler, &error)),
                }
            }
        }
        Ok(())
    }

    fn open_event(
        &mut self,
        task: u32,
        cpu: u32,
        (event, sampler): (usize, &Sampler),
        from_exec: bool,
    ) -> io::Result<()> {
        let wakeup_bytes = u32::try_from(self.options.ring_bytes / 4).unwrap_or(u32::MAX);
        let with_wakeup =
            |of: &AccessSampling| AccessSampling { enable_on_exec: from_exec, wakeup_bytes, ..*of };
        let open_leader = |leader| PerfEvent::open_accesses(task, cpu, &with_wakeup(leader), None);
        let leader = sampler.leader.as_ref().map(open_leader).transpose()?;
        // One ring of a CPU records mappings; its other events would record the same ones.
        let sampling = AccessSampling { reports_mappings: event == 0, ..with_wakeup(&sampler.sampling) };
        let opened = PerfEvent::open_accesses(task, cpu, &sampling, leader.as_ref())?;
        match self.ring_sources.iter().position(|of| *of == (event, cpu)) {
            Some(place) => {
                opened.set_output(&self.rings[place])?;
                self.other_events.push(opened);
            }
            None => {
                self.rings.push(Ring::new(opened, self.options.ring_bytes)?);
                self.ring_sources.push((event, cpu));
            }
        }
        self.other_events.extend(leader);
        Ok(())
    }

    /// Opens the events for all threads of a process, enables them, and reads its mappings.
    fn attach_process(&mut self, pid: u32, cpus: &[u32]) -> Result<(), Failure> {
        let mut opened = Vec::new();
        for _ in 0..ATTACH_ROUNDS {
            let tasks = fs::read_dir(paths::process_file(pid, "task"));
            let tasks = tasks.map_err(|error| match Errno::from_io_error(&error) {
                Some(errno) => cannot_open_process("sample", pid, errno),
                None => no_such_process("sample", pid),
            })?;
            let tasks = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
            let new: Vec<u32> = tasks.filter(|task| !opened.contains(task)).collect();
            for &task in &new {
                self.open_task_events(task, cpus, false)?;
            }
            if new.is_empty() {
                break;
            }
            opened.extend(new);
        }
        let events = self.rings.iter().map(Ring::event).chain(&self.other_events);
        for event in events {
            event.enable().map_err(|error| refused_error("enable an event", &error))?;
        }
        self.read_mappings(pid).ok_or_else(|| no_such_process("sample", pid))
    }

    fn read_mappings(&mut self, pid: u32) -> Option<()> {
        let text = fs::read(paths::process_file(pid, "maps")).ok()?;
        let found = maps::parse(&text).ok()?;
        let name = fs::read_to_string(paths::process_file(pid, "comm")).unwrap_or_default();
        let name = name.trim_end().to_owned();
        self.collector.add_event(&self.file_info, Event::Named { pid, tid: pid, name, is_exec: false });
        for map in found {
            let name = if map.name.is_empty() { "//anon".to_owned() } else { map.name };
            let (start, bytes, offset) = (map.start, map.end - map.start, map.offset);
            let mapping = Mapping { pid, start, bytes, offset, name, build_id: None, is_kernel: false };
            self.collector.add_event(&self.file_info, Event::Mapped(mapping));
        }
        Some(())
    }

    fn disable(&self) {
        // One that cannot be disabled continues to write into a ring that is not read.
        for event in self.rings.iter().map(Ring::event).chain(&self.other_events) {
            let _ = event.disable();
        }
    }

    fn drain_rings(&mut self) {
        let mut out = |event| self.collector.add_event(&self.file_info, event);
        for (ring, &(event, _)) in self.rings.iter_mut().zip(&self.ring_sources) {
            ring.update_head();
            loop {
                let bytes = match ring.next_record() {
                    Ok(Some(record)) => {
                        match self.decoders[event].decode(record, 0) {
                            Ok(Some((time, read))) => {
                                self.queue.push(time, set_event_index(read, event), &mut out)
                            }
                            Ok(None) => {}
                            Err(_) => self.malformed += 1,
                        }
                        record.len()
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.malformed += 1;
                        break;
                    }
                };
                ring.advance(bytes);
            }
            ring.release_space();
        }
        self.queue.end_round(&mut out);
    }

    fn finish(mut self) -> TlbProfile {
        self.queue.finish(&mut |event| self.collector.add_event(&self.file_info, event));
        let late = self.queue.late_events();
        let mut profile = self.collector.finish(ProfileSource::Pmu, &self.file_info);
        let names: Vec<&str> = self.samplers.iter().map(|sampler| sampler.name.as_str()).collect();
        profile.notes.push(format!("events: {}", names.join(", ")));
        if self.malformed + late > 0 {
            profile
                .notes
                .push(format!("{} records were malformed, {late} were out of order", self.malformed));
        }
        profile
    }

    fn open_error(&self, sampler: &Sampler, error: &io::Error) -> Failure {
        let why = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                "not permitted: another user's process, a process that changed its user ID, or ring buffers \
                 above kernel.perf_event_mlock_kb; hint: run as root"
                    .to_owned()
            }
            Some(Errno::SRCH) => "the process exited".to_owned(),
            Some(Errno::MFILE) => "too many open files; hint: ulimit -n 65536".to_owned(),
            Some(Errno::BUSY) => "the counter is in use; hint: stop whatever else uses it".to_owned(),
            _ => format!("{error}; hint: use --source accessed"),
        };
        Failure::not_available(format!("cannot sample with {}: {why}", sampler.name))
    }
}

/// A sample read by the decoder of its own event, with that event's place in the list.
fn set_event_index(event: Event, event_index: usize) -> Event {
    match event {
        Event::Sample(sample) => Event::Sample(pagelab_formats::perf_data::Sample { event_index, ..sample }),
        other => other,
    }
}
