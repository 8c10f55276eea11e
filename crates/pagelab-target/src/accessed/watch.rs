//! The run: which processes are swept, when, and what is made of it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::process_stat;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{machine, paths};
use pagelab_model::PageSize;
use pagelab_model::profile::{Begun, Effort};
use pagelab_sys::spawn;
use rustix::process::setpriority_process;

use super::hands::{self, Hands, Started};
use super::image::Image;
use super::splitter::Advice;
use super::{Done, Subject, Wanted, pieces, sweep};
use crate::error::{Error, ErrorKind};
use crate::inject::Identity;
use crate::priority;

/// Process images that are watched at most.
const IMAGES_MAX: usize = 64;

/// The shortest time between two looks at what runs.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Notes are few and each is said once.
const NOTES_MAX: usize = 20;

pub(super) struct Watch<'w> {
    pub(super) root: Root,
    pub(super) wanted: &'w Wanted<'w>,
    pub(super) hands: Hands,
    pub(super) page: PageSize,
    pub(super) huge: u64,
    pub(super) images: Vec<Image>,
    pub(super) notes: Vec<String>,
    pub(super) effort: Effort,
    /// When it began to watch.
    pub(super) began: Instant,
    pub(super) sweeps: u64,
    pub(super) busy: Duration,
    /// Of that, sweeps: where scans of the zero page are made too, each has its part of the duty.
    pub(super) busy_with_sweeps: Duration,
    /// When it was looked last whether memory is short, and it was not.
    pub(super) relieved: Option<Instant>,
    pub(super) longest_split: Duration,
    /// What a returned entry of the page of zeros costs, once it was measured.
    pub(super) return_cost: Option<Duration>,
    /// Why such entries were not dropped: by process, the last reason.
    pub(super) not_dropped: BTreeMap<u32, String>,
    /// Of the time that threads stood, that in which they waited for a CPU.
    pub(super) waited_ns: u64,
    /// Time in which all threads stood, for entries of the page of zeros.
    pub(super) all_stood_ns: u64,
    /// Stops of a program.
    pub(super) splits: u64,
    /// What is still split, because whose it is could not be made to merge it.
    pub(super) unmerged: Vec<(Identity, Vec<Range<u64>>)>,
}

/// Profiles.
pub fn profile(wanted: &mut Wanted<'_>) -> Result<Done, Error> {
    let splitter = wanted.splitter.take();
    let (page, huge) = page_sizes()?;
    if let Some(why) = (wanted.pressure)() {
        let message =
            format!("accessed bits shall be swept, and {why}; sweeps would make it worse. Try again later");
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let mut watch = Watch {
        root: Root::live(),
        wanted,
        hands: Hands::Nobody,
        page,
        huge,
        images: Vec::new(),
        notes: Vec::new(),
        effort: Effort::default(),
        began: Instant::now(),
        sweeps: 0,
        busy: Duration::ZERO,
        busy_with_sweeps: Duration::ZERO,
        relieved: None,
        longest_split: Duration::ZERO,
        return_cost: None,
        not_dropped: BTreeMap::new(),
        waited_ns: 0,
        all_stood_ns: 0,
        splits: 0,
        unmerged: Vec::new(),
    };
    let (child, command) = match &wanted.subject {
        Subject::Command(command) => (Some(watch.launch(command, splitter)?), command.clone()),
        Subject::Process(pid) => {
            watch.hands = splitter.map_or(Ok(Hands::Nobody), hands::splitter)?;
            watch.attach(*pid)?;
            (None, Vec::new())
        }
    };
    let began = Instant::now();
    watch.began = began;
    let usual = priority::sooner();
    let ran = watch.run(child, began);
    if let Some(usual) = usual {
        let _ = setpriority_process(None, usual);
    }
    let (exit, watched) = ran?;
    let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Ok(Done { profile: watch.into_profile(command, watched), exit })
}

fn page_sizes() -> Result<(PageSize, u64), Error> {
    let root = Root::live();
    let huge = machine::told_pmd_size(&Reader::new(&root)).map(|huge| huge.0);
    machine::live_page_size().zip(huge.filter(|huge| huge.is_power_of_two())).ok_or_else(|| {
        let message = "regions of the size of a huge page are wanted, and this kernel does not tell it: it \
                       is built without transparent huge pages";
        Error::new(ErrorKind::NotAvailable, message)
    })
}

impl Watch<'_> {
    fn launch(
        &mut self,
        command: &[std::ffi::OsString],
        splitter: Option<Command>,
    ) -> Result<Started, Error> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Error::new(ErrorKind::BadInput, "a command is wanted behind `--`"));
        };
        if let Some(splitter) = splitter {
            if self.wanted.is_supervised {
                if let Some(started) = self.supervised(command)? {
                    return Ok(started);
                }
            } else {
                self.note(
                    "anonymous memory is named by its place, which holds for the next run only where \
                     addresses are not randomised; without --no-supervise it is named by length and number"
                        .to_owned(),
                );
            }
            match self.wanted.unjournalled.clone() {
                Some(why) => self.note(format!("mappings are seen whole and not by huge page: {why}")),
                None => self.hands = hands::splitter(splitter)?,
            }
        }
        let mut starting = Command::new(crate::program::find(program)?);
        starting.args(arguments).arg0(program);
        spawn::without_huge_pages(&mut starting);
        if let Hands::Splitter(splitter) = &self.hands {
            spawn::may_be_traced_by(&mut starting, splitter.pid());
        }
        let child = starting.spawn().map_err(|error| {
            let message = format!("{} cannot be started: {error}", program.to_string_lossy());
            Error::new(ErrorKind::CannotStart, message)
        })?;
        self.begin(child.id(), Begun::Launched, None).map(|_| Started::Child(child))
    }

    /// Starts the program under the supervisor; `None` where it cannot be supervised, which a note says.
    fn supervised(&mut self, command: &[std::ffi::OsString]) -> Result<Option<Started>, Error> {
        match Hands::launch(command, self.page.bytes(), self.huge) {
            Ok(hands) => {
                self.hands = hands;
                let Hands::Watch(watch) = &self.hands else { return Err(gone_at_once()) };
                let started = Started::Watched(watch.pid());
                self.begin(started.pid(), Begun::Launched, None)?;
                Ok(Some(started))
            }
            Err(error) if error.kind() == ErrorKind::NotAvailable => {
                // The way out that `apply` has is taken here.
                let why = error.to_string();
                let why = ["; `--no-tracer`", ": use --no-tracer"]
                    .iter()
                    .fold(why.as_str(), |why, way| why.split(way).next().unwrap_or(why));
                self.note(format!(
                    "anonymous memory is named by its place, which holds for this run alone: the program \
                     cannot be supervised: {why}"
                ));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn attach(&mut self, pid: u32) -> Result<(), Error> {
        if Identity::of(&self.root, pid).is_none() {
            let message = format!("process {pid} shall be profiled, and there is none of this number");
            return Err(Error::new(ErrorKind::BadInput, message));
        }
        self.begin(pid, Begun::Attached, None)?;
        if sweep::mappings(&self.root, pid).is_err() {
            return Err(not_permitted(pid));
        }
        self.take_back("by a pagelab that was killed");
        Ok(())
    }

    /// Merges what is split in the newest image: left by a killed pagelab, or inherited by a fork that was
    /// made while its parent was split.
    fn take_back(&mut self, by: &str) {
        let Some(process) = self.images.last().map(|image| image.process) else { return };
        let Ok(mappings) = sweep::mappings(&self.root, process.pid) else { return };
        let left = pieces::left_behind(&mappings, self.huge);
        if !self.hands.is_somebody() || left.is_empty() {
            return;
        }
        let (pid, count) = (process.pid, left.len());
        match self.hands.advise(process, Advice::DoDump, &left) {
            Ok(_) => self.note(format!(
                "{count} pieces of the memory of process {pid} were left out of core dumps {by}: undone"
            )),
            Err(why) => self.note(format!(
                "{count} pieces of the memory of process {pid} are left out of core dumps {by}: {why}"
            )),
        }
    }

    fn begin(&mut self, pid: u32, begun: Begun, parent: Option<usize>) -> Result<bool, Error> {
        let Some(process) = Identity::of(&self.root, pid) else { return Ok(false) };
        let clearer = match sweep::clearer(pid) {
            Ok(clearer) => clearer,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(not_permitted(pid)),
            Err(_) => return Ok(false),
        };
        self.images.push(Image::new(&self.root, process, begun, parent, clearer));
        Ok(true)
    }

    pub(super) fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Until the time is over, everybody has ended, or a person has seen enough: how the child ended, and
    /// how long was watched.
    fn run(
        &mut self,
        mut child: Option<Started>,
        began: Instant,
    ) -> Result<(Option<ExitStatus>, Duration), Error> {
        let mut next = began;
        let mut exit = None;
        let mut last_look = began;
        let failed =
            |error| Error::new(ErrorKind::Refused, format!("the program cannot be waited for: {error}"));
        loop {
            if let Some(child) = &mut child
                && exit.is_none()
            {
                exit = child.ended(&self.hands).map_err(failed)?;
            }
            let is_stopped = self.wanted.stop.load(Ordering::Relaxed);
            let is_over = self.wanted.time.is_some_and(|time| began.elapsed() >= time);
            let nobody = exit.is_some() || child.is_none() && !self.images.iter().any(|image| image.is_alive);
            if is_stopped || is_over || nobody {
                break;
            }
            if Instant::now() >= next {
                let turn = Instant::now();
                if last_look.elapsed() >= TICK * 5 || self.sweeps == 0 {
                    self.look_for_others();
                    last_look = turn;
                }
                let busy = self.turn();
                self.busy += busy;
                next = Instant::now() + self.until_next();
            }
            let until =
                next.saturating_duration_since(Instant::now()).clamp(Duration::from_micros(100), TICK);
            thread::sleep(if self.has_all_the_time() && self.sweeps > 0 { Duration::ZERO } else { until });
        }
        let watched = began.elapsed();
        if let (Some(child), None) = (&mut child, exit) {
            exit = self.wait(child).map_err(failed)?;
        }
        Ok((exit, watched))
    }

    /// Descendants that began, and images that were replaced by exec.
    fn look_for_others(&mut self) {
        for at in 0..self.images.len() {
            if !self.images[at].is_alive || !self.images[at].was_replaced(&self.root) {
                continue;
            }
            self.images[at].is_alive = false;
            let pid = self.images[at].process.pid;
            // What was never swept is no image worth telling of: a shell that becomes the program.
            let _ = self.begin(pid, Begun::Executed, Some(at));
        }
        let known =
            |images: &[Image], pid: u32| images.iter().position(|i| i.is_alive && i.process.pid == pid);
        let names = self.root.list(paths::PROC).unwrap_or_default();
        for pid in names.iter().filter_map(|name| name.parse::<u32>().ok()) {
            if known(&self.images, pid).is_some() {
                continue;
            }
            let stat = Reader::new(&self.root).parse(&paths::process_stat(pid), process_stat::parse);
            let Some(parent) = stat.ok().and_then(|stat| u32::try_from(stat.parent).ok()) else { continue };
            if known(&self.images, parent).is_none() {
                continue;
            }
            // A process that was attached to is profiled alone.
            if matches!(self.wanted.subject, Subject::Process(_)) {
                continue;
            }
            if self.images.len() >= IMAGES_MAX {
                self.forget_the_unswept();
            }
            let Some(parent) = known(&self.images, parent) else { continue };
            if self.images.len() >= IMAGES_MAX {
                self.note(format!("more than {IMAGES_MAX} processes: the later ones are not profiled"));
                return;
            }
            match self.begin(pid, Begun::Forked, Some(parent)) {
                Ok(true) => self.take_back("as in its parent when it was forked"),
                Ok(false) => {}
                Err(_) => self.note(format!("process {pid} is not profiled: it belongs to another user")),
            }
        }
    }

    /// Forgets images that ended without a sweep, such as the commands of a script, so that they take no
    /// place. Who began as one of them began as its parent.
    fn forget_the_unswept(&mut self) {
        for image in &mut self.images {
            image.is_alive = image.is_alive && image.process.is_there(&self.root);
        }
        let stays = |(at, image): (usize, &Image)| at == 0 || image.is_alive || image.was_swept();
        let stays: Vec<bool> = self.images.iter().enumerate().map(stays).collect();
        let parents: Vec<Option<usize>> = self.images.iter().map(|image| image.parent).collect();
        let place = |mut parent: Option<usize>| {
            while let Some(at) = parent.filter(|&at| !stays[at]) {
                parent = parents[at];
            }
            parent.map(|at| stays[..at].iter().filter(|stays| **stays).count())
        };
        for image in &mut self.images {
            image.parent = place(image.parent);
        }
        let mut stays = stays.iter();
        self.images.retain(|_| stays.next().is_some_and(|stays| *stays));
    }
}

fn gone_at_once() -> Error {
    Error::new(ErrorKind::CannotStart, "the supervisor of the program is gone")
}

fn not_permitted(pid: u32) -> Error {
    let message = format!(
        "the accessed bits of process {pid} are wanted, and the kernel keeps them from this user: it is \
         another's. A way out: sudo, or the user whose process it is"
    );
    Error::new(ErrorKind::NotAvailable, message)
}
