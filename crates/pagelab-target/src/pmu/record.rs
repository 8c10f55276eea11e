//! Samples a program that is started here, or one that runs, and makes a profile of what came.

use std::fs;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagelab_formats::perf_data::{About, Attr, Decoder, Endian, Event, EventAbout, Mapping, Queue};
use pagelab_formats::{cpu_list, maps};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Profile;
use pagelab_model::profile::{Begun, ProfileSource};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::perf_ring::{self, AccessSampling, PerfEvent, Ring};
use pagelab_sys::spawn;
use rustix::io::Errno;

use super::probe::{Hardware, Sampler};
use crate::error::{Error, ErrorKind};
use crate::identity;
use crate::sampled::{self, Sampled};

/// What is sampled.
#[derive(Debug)]
pub enum Target {
    /// A program, from its start to its end, with all that it starts.
    Start(Command),
    /// A running process with all its threads.
    Attach(u32),
}

/// How.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages, and a range if there is one.
    pub sampled: sampled::Options,
    /// Room for records on each CPU, for each event.
    pub ring_bytes: u64,
    /// How long at most; `None`: as long as the program runs.
    pub most: Option<Duration>,
}

/// What came of it.
#[derive(Debug)]
pub struct Ran {
    /// The profile.
    pub profile: Profile,
    /// What the samples were.
    pub seen: sampled::Seen,
    /// How the program ended; `None` for one that ran already, or goes on.
    pub status: Option<ExitStatus>,
}

/// A waiting reader looks this often whether the program has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Threads that begin while a process is attached to are looked for again, so many times.
const ROUNDS: usize = 16;

/// Samples until the program ends, the time is over, or `stop` says so.
pub fn record(
    hardware: &Hardware,
    target: Target,
    options: &Options,
    stop: &dyn Fn() -> bool,
) -> Result<Ran, Error> {
    let began_ns = thread_cpu_ns();
    let mut recording = Recording::new(hardware, options);
    let cpus = Reader::new(&Root::live())
        .parse(paths::CPU_ONLINE, cpu_list::parse)
        .map_err(|absence| Error::new(ErrorKind::NotAvailable, absence.reason()))?;
    let started = Instant::now();
    let arguments = match &target {
        Target::Start(command) => {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_string_lossy().into_owned()).collect()
        }
        Target::Attach(_) => Vec::new(),
    };
    let (mut child, pid) = match target {
        Target::Start(command) => {
            let held = Held::start(command)?;
            recording.open(held.pid, &cpus, true)?;
            let pid = held.pid;
            (Some(held.let_go()?), pid)
        }
        Target::Attach(pid) => {
            recording.attach(pid, &cpus)?;
            (None, pid)
        }
    };
    let mut status = None;
    loop {
        perf_ring::wait(&recording.rings, LOOK).map_err(|error| cannot("wait for samples", &error))?;
        recording.drain();
        if let Some(child) = &mut child {
            status = child.try_wait().map_err(|error| cannot("wait for the program", &error))?;
        }
        let over = options.most.is_some_and(|most| started.elapsed() >= most);
        let gone = child.is_none() && !pagelab_sys::presence::process(pid);
        if status.is_some() || over || gone || stop() {
            break;
        }
    }
    recording.disable();
    recording.drain();
    let wall = started.elapsed();
    let (mut profile, seen) = recording.finish();
    named(&mut profile, pid, arguments);
    profile.wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
    profile.effort.cpu_ns = Some(thread_cpu_ns().saturating_sub(began_ns));
    Ok(Ran { profile, seen, status })
}

/// Says of images what the kernel's records do not: which one was started here, and which file each program
/// is.
fn named(profile: &mut Profile, pid: u32, arguments: Vec<String>) {
    for image in &mut profile.images {
        if !image.program.path.is_empty() {
            image.program = identity::of(Path::new(&image.program.path));
        }
    }
    let first = profile.images.iter_mut().find(|image| image.pid == pid && image.parent.is_none());
    if let Some(first) = first.filter(|_| !arguments.is_empty()) {
        (first.begun, first.arguments) = (Begun::Launched, arguments.clone());
    }
    profile.command = arguments;
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Refused, format!("cannot {what}: {error}"))
}

/// A program that waits before its first instruction.
struct Held {
    pid: u32,
    word: PipeWriter,
    starter: JoinHandle<io::Result<Child>>,
}

impl Held {
    fn start(mut command: Command) -> Result<Held, Error> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error: io::Error| {
            let message = format!("cannot start {name}: {error}; give a program that can be run");
            Error::new(ErrorKind::CannotStart, message)
        };
        let (mut said, say) = io::pipe().map_err(failed)?;
        let (wait, word) = io::pipe().map_err(failed)?;
        spawn::hold(&mut command, say.into(), wait.into(), word.as_fd());
        // Dropping the command closes this process's copies of the child's ends.
        let starter = thread::spawn(move || command.spawn());
        let mut pid = [0; 4];
        if said.read_exact(&mut pid).is_err() {
            let ended = starter.join().map_or(Ok(()), |started| started.map(drop));
            return Err(failed(ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())));
        }
        Ok(Held { pid: u32::from_ne_bytes(pid), word, starter })
    }

    /// Lets it run. Where the program cannot be started after all, this says so.
    fn let_go(mut self) -> Result<Child, Error> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::CannotStart, format!("cannot start the program: {error}"))
        };
        self.word.write_all(b"g").map_err(failed)?;
        let started = self.starter.join().map_err(|_| failed(io::ErrorKind::Other.into()))?;
        started.map_err(failed)
    }
}

/// Rings, and what is read from them.
struct Recording<'a> {
    samplers: &'a [Sampler],
    options: &'a Options,
    about: About,
    /// One for each event, with that event alone.
    decoders: Vec<Decoder>,
    rings: Vec<Ring>,
    /// Which event and CPU a ring is of.
    of: Vec<(usize, u32)>,
    /// Events that write to the ring of another one, and leaders of groups.
    others: Vec<PerfEvent>,
    queue: Queue,
    sampled: Sampled,
    malformed: u64,
}

impl<'a> Recording<'a> {
    fn new(hardware: &'a Hardware, options: &'a Options) -> Recording<'a> {
        let attr = |sampler: &Sampler| {
            let of = &sampler.sampling;
            Attr {
                kind: of.kind,
                config: of.config,
                period_or_frequency: of.period_or_frequency,
                sample_type: of.sample_type,
                flags: of.flags(),
                ..Attr::default()
            }
        };
        let event = |sampler: &Sampler| EventAbout { name: sampler.name.clone(), attr: attr(sampler) };
        let about = About {
            arch: std::env::consts::ARCH.to_owned(),
            cpuid: hardware.cpuid.clone(),
            events: hardware.samplers.iter().map(event).collect(),
            pmus: vec![(hardware.kind, hardware.pmu.clone())],
            ..About::default()
        };
        let decoder = |sampler: &Sampler| {
            let mut decoder = Decoder::new(Endian::NATIVE);
            decoder.add(attr(sampler), []);
            decoder
        };
        Recording {
            samplers: &hardware.samplers,
            options,
            about,
            decoders: hardware.samplers.iter().map(decoder).collect(),
            rings: Vec::new(),
            of: Vec::new(),
            others: Vec::new(),
            queue: Queue::default(),
            sampled: Sampled::new(options.sampled.clone()),
            malformed: 0,
        }
    }

    /// Opens all events of a task on all CPUs.
    fn open(&mut self, task: u32, cpus: &[u32], from_exec: bool) -> Result<(), Error> {
        for (event, sampler) in self.samplers.iter().enumerate() {
            for &cpu in cpus {
                match self.open_one(task, cpu, (event, sampler), from_exec) {
                    Ok(()) => {}
                    // The CPU went offline since the list was read.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {}
                    Err(error) => return Err(self.refused(sampler, &error)),
                }
            }
        }
        Ok(())
    }

    fn open_one(
        &mut self,
        task: u32,
        cpu: u32,
        (event, sampler): (usize, &Sampler),
        from_exec: bool,
    ) -> io::Result<()> {
        let wakeup_bytes = u32::try_from(self.options.ring_bytes / 4).unwrap_or(u32::MAX);
        let with = |of: &AccessSampling| AccessSampling { from_exec, wakeup_bytes, ..*of };
        let leader =
            sampler.leader.as_ref().map(|leader| PerfEvent::accesses(task, cpu, &with(leader), None));
        let leader = leader.transpose()?;
        // One ring of a CPU tells mappings; the other events of it would tell the same again.
        let sampling = AccessSampling { tells_mappings: event == 0, ..with(&sampler.sampling) };
        let opened = PerfEvent::accesses(task, cpu, &sampling, leader.as_ref())?;
        let place = self.of.iter().position(|of| *of == (event, cpu));
        match place {
            Some(place) => {
                opened.send_to(&self.rings[place])?;
                self.others.push(opened);
            }
            None => {
                self.rings.push(Ring::new(opened, self.options.ring_bytes)?);
                self.of.push((event, cpu));
            }
        }
        self.others.extend(leader);
        Ok(())
    }

    /// Opens the events for all threads of a process, enables them, and reads what it has mapped.
    fn attach(&mut self, pid: u32, cpus: &[u32]) -> Result<(), Error> {
        let no_such = || {
            let message = format!("no process has the number {pid}; look with ps");
            Error::new(ErrorKind::BadInput, message)
        };
        let mut opened = Vec::new();
        for _ in 0..ROUNDS {
            let tasks = fs::read_dir(paths::process(pid, "task")).map_err(|_| no_such())?;
            let tasks = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
            let new: Vec<u32> = tasks.filter(|task| !opened.contains(task)).collect();
            for &task in &new {
                self.open(task, cpus, false)?;
            }
            if new.is_empty() {
                break;
            }
            opened.extend(new);
        }
        let events = self.rings.iter().map(Ring::event).chain(&self.others);
        for event in events {
            event.enable().map_err(|error| cannot("enable an event", &error))?;
        }
        self.mapped(pid).ok_or_else(no_such)
    }

    /// What a process has mapped already.
    fn mapped(&mut self, pid: u32) -> Option<()> {
        let text = fs::read(paths::process(pid, "maps")).ok()?;
        let found = maps::parse(&text).ok()?;
        let name = fs::read_to_string(paths::process(pid, "comm")).unwrap_or_default();
        let name = name.trim_end().to_owned();
        self.sampled.take(&self.about, Event::Named { pid, tid: pid, name, exec: false });
        for map in found {
            let name = if map.name.is_empty() { "//anon".to_owned() } else { map.name };
            let (start, bytes, offset) = (map.start, map.end - map.start, map.offset);
            let mapping = Mapping { pid, start, bytes, offset, name, build_id: None, kernel: false };
            self.sampled.take(&self.about, Event::Mapped(mapping));
        }
        Some(())
    }

    fn disable(&self) {
        // One that cannot be disabled goes on into a ring that nobody reads.
        for event in self.rings.iter().map(Ring::event).chain(&self.others) {
            let _ = event.disable();
        }
    }

    /// Reads what came into the rings up to now.
    fn drain(&mut self) {
        let Recording { rings, of, decoders, about, queue, sampled, malformed, .. } = self;
        let mut out = |event| sampled.take(about, event);
        for (ring, &(event, _)) in rings.iter_mut().zip(of.iter()) {
            ring.look();
            loop {
                let bytes = match ring.record() {
                    Ok(Some(record)) => {
                        match decoders[event].decode(record, 0) {
                            Ok(Some((time, read))) => queue.push(time, with_event(read, event), &mut out),
                            Ok(None) => {}
                            Err(_) => *malformed += 1,
                        }
                        record.len()
                    }
                    Ok(None) => break,
                    Err(_) => {
                        *malformed += 1;
                        break;
                    }
                };
                ring.pass(bytes);
            }
            ring.release();
        }
        queue.round(&mut out);
    }

    fn finish(mut self) -> (Profile, sampled::Seen) {
        let Recording { about, queue, sampled, .. } = &mut self;
        queue.finish(&mut |event| sampled.take(about, event));
        let (seen, late) = (self.sampled.seen(), self.queue.late());
        let mut profile = self.sampled.finish(ProfileSource::Pmu, &self.about);
        let names: Vec<&str> = self.samplers.iter().map(|sampler| sampler.name.as_str()).collect();
        profile.notes.push(format!("events: {}", names.join(", ")));
        if self.malformed + late > 0 {
            let Recording { malformed, .. } = self;
            profile.notes.push(format!("{malformed} records could not be read, {late} came out of order"));
        }
        (profile, seen)
    }

    fn refused(&self, sampler: &Sampler, error: &io::Error) -> Error {
        let why = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                "not permitted: it is another user's process, one that changed its user, or its rings are \
                 more than kernel.perf_event_mlock_kb allows; run as root"
                    .to_owned()
            }
            Some(Errno::SRCH) => "the process is gone".to_owned(),
            Some(Errno::MFILE) => "this process may not have so many open files: ulimit -n 65536".to_owned(),
            Some(Errno::BUSY) => "the counter is taken by somebody else; end the other user".to_owned(),
            _ => format!("{error}; use --source accessed"),
        };
        Error::new(ErrorKind::NotAvailable, format!("cannot sample by {}: {why}", sampler.name))
    }
}

/// A sample read by the decoder of its own event, with that event's place in the list.
fn with_event(event: Event, place: usize) -> Event {
    match event {
        Event::Sample(sample) => Event::Sample(pagelab_formats::perf_data::Sample { event: place, ..sample }),
        other => other,
    }
}
