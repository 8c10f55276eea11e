//! Listening to a guest until it is done or lost.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_sys::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::talk::{Heard, Talk};
use super::{Plan, Started};
use crate::console::{Console, is_out_of_memory, printable};
use crate::error::{Error, Kind};
use crate::outcome::{About, Finished, FirstLine, Lost, Outcome, Why};
use crate::taken::Taker;

/// Whoever has a guest run sees what it says while it says it. Every method may be left as it is.
pub trait Watcher {
    /// Bytes that a step wrote to standard output. An error ends the guest. Whoever waits long in here asks
    /// for the signal and looks at the time: nobody else does meanwhile.
    fn stdout(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Bytes that a step wrote to standard error. An error ends the guest.
    fn stderr(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Bytes of the kernel's console. An error ends the guest.
    fn console(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// The first line came, at this cost.
    fn first_line(&mut self, _cost: FirstLine) {}
    /// Something that the agent could not do.
    fn note(&mut self, _note: &str) {}
    /// QEMU runs under this number.
    fn started(&mut self, _qemu: u32) {}
    /// The number of the signal that asked to stop; asked some twenty times a second.
    fn stop(&mut self) -> Option<i32> {
        None
    }
}

/// Nobody watches.
impl Watcher for () {}

/// How long to wait for something to be said before time is looked at.
const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// A guest that has panicked and does not end (its command line says otherwise) is ended.
const AFTER_PANIC: Duration = Duration::from_secs(5);
/// How long at most what is on its way is listened to after the end.
const REST: Duration = Duration::from_secs(5);
/// Bytes of what QEMU itself says that are kept.
const QEMU_SAID_MAX: usize = 16 << 10;

/// How listening ended.
enum Ended {
    /// The job is done, or the host could not go on taking files.
    Done,
    /// QEMU ended by itself.
    Qemu(ExitStatus),
    /// We end it.
    Because(Why),
}

/// Where a guest is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Console,
    Line,
    Bulk,
    Qemu,
}

const CHANNELS: [Channel; 4] = [Channel::Console, Channel::Line, Channel::Bulk, Channel::Qemu];
/// Bytes that are read at once, and how often before other things are looked at.
const PIECE: usize = 64 << 10;
const PIECES_AT_ONCE: usize = 16;

struct Listening<'a> {
    plan: &'a Plan,
    guest: Started,
    qemu_stderr: Option<ChildStderr>,
    watcher: &'a mut dyn Watcher,
    talk: Talk,
    console: Console,
    about: About,
    start: Instant,
    panicked: Option<Instant>,
    /// Which channels have not ended, in the order of [`CHANNELS`].
    open: [bool; 4],
    /// Whether anything was said in this turn.
    anything: bool,
    qemu_said: Vec<u8>,
}

/// Listens until the guest is done or lost, and ends it in any case.
pub fn listen(
    plan: &Plan,
    mut guest: Started,
    taker: Option<Taker>,
    watcher: &mut dyn Watcher,
) -> Result<Outcome, Error> {
    let qemu_stderr = guest.qemu.stderr.take();
    if let Some(stderr) = &qemu_stderr {
        let _ = rustix::io::ioctl_fionbio(stderr, true);
    }
    watcher.started(guest.qemu.id());
    let talk = Talk::new(plan.steps.len(), guest.bulk.is_some(), taker);
    let open = [true, true, guest.bulk.is_some(), qemu_stderr.is_some()];
    let (console, about, start, panicked) = (Console::default(), About::default(), Instant::now(), None);
    let (anything, qemu_said) = (false, Vec::new());
    let mut listening = Listening {
        plan,
        guest,
        qemu_stderr,
        watcher,
        talk,
        console,
        about,
        start,
        panicked,
        open,
        anything,
        qemu_said,
    };
    let ended = listening.until_the_end().or_else(|error| listening.judged(error));
    listening.guest.end();
    let ended = ended?;
    // What was said before the end and is still on its way counts; only a reason of our own comes first.
    let rest = match (listening.hear_the_rest(), ended) {
        (Ok(Some(why)), Ended::Qemu(_)) => Ok(Ended::Because(why)),
        (Ok(_), ended) => Ok(ended),
        (Err(error), _) => listening.judged(error),
    };
    Ok(listening.outcome(rest?))
}

impl Listening<'_> {
    fn until_the_end(&mut self) -> Result<Ended, Error> {
        loop {
            if let Some(signal) = self.watcher.stop() {
                return Err(Error::stopped(signal));
            }
            let status = self.guest.qemu.try_wait();
            let status = status.map_err(|error| Error::refused("cannot watch QEMU", error))?;
            if let Some(why) = self.hear()? {
                return Ok(Ended::Because(why));
            }
            if self.is_over() {
                return Ok(Ended::Done);
            }
            if let Some(status) = status {
                return Ok(Ended::Qemu(status));
            }
            if let Ok(cpu_ns) = clock::process_cpu_ns(self.guest.qemu.id()) {
                self.about.host_cpu = Duration::from_nanos(cpu_ns);
            }
            if let Some(why) = self.out_of_time() {
                return Ok(Ended::Because(why));
            }
            self.wait();
        }
    }

    /// A watcher that could not pass on what was said, perhaps only because a signal came or time ran out
    /// while nobody read it.
    fn judged(&mut self, error: Error) -> Result<Ended, Error> {
        match (error.kind(), self.watcher.stop(), self.out_of_time()) {
            (Kind::Output, Some(signal), _) => Err(Error::stopped(signal)),
            (Kind::Output, None, Some(why)) => Ok(Ended::Because(why)),
            _ => Err(error),
        }
    }

    fn out_of_time(&self) -> Option<Why> {
        let elapsed = self.start.elapsed();
        if self.panicked.is_some_and(|at| at.elapsed() > AFTER_PANIC) {
            return self.panic();
        }
        let patience = self.plan.patience;
        if self.talk.hello.is_none() && elapsed >= patience.first_line.min(patience.whole) {
            let last = self.console.last_line();
            return Some(
                self.panic().unwrap_or(Why::NoFirstLine(patience.first_line.min(patience.whole), last)),
            );
        }
        (elapsed >= patience.whole).then(|| self.panic().unwrap_or(Why::TooLong(patience.whole)))
    }

    /// Waits until something is said, or a little.
    fn wait(&self) {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(4);
        for channel in CHANNELS.into_iter().filter(|&channel| self.is_listened_to(channel)) {
            let fd = match channel {
                Channel::Console => Some(self.guest.console.as_fd()),
                Channel::Line => Some(self.guest.line.as_fd()),
                Channel::Bulk => self.guest.bulk.as_ref().map(AsFd::as_fd),
                Channel::Qemu => self.qemu_stderr.as_ref().map(AsFd::as_fd),
            };
            polled.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        // An error, such as a signal that came, only ends the waiting.
        let _ = poll(&mut polled, Some(&TURN));
    }

    /// A channel that is not read from holds its writer up, so that nobody can fill our memory by talking out
    /// of turn.
    fn is_listened_to(&self, channel: Channel) -> bool {
        let in_turn = match channel {
            Channel::Line => !self.talk.is_on_bulk(),
            Channel::Bulk => self.talk.is_on_bulk(),
            Channel::Console | Channel::Qemu => true,
        };
        self.open[channel as usize] && in_turn
    }

    /// Takes what was said on all channels, up to a bound, so that time and signals are looked at in between.
    fn hear(&mut self) -> Result<Option<Why>, Error> {
        let mut bytes = vec![0; PIECE];
        for channel in CHANNELS {
            for _ in 0..PIECES_AT_ONCE {
                if !self.is_listened_to(channel) || self.is_over() {
                    break;
                }
                let read = match channel {
                    Channel::Console => self.guest.console.read(&mut bytes),
                    Channel::Line => self.guest.line.read(&mut bytes),
                    Channel::Bulk => self.guest.bulk.as_mut().map_or(Ok(0), |bulk| bulk.read(&mut bytes)),
                    Channel::Qemu => self.qemu_stderr.as_mut().map_or(Ok(0), |said| said.read(&mut bytes)),
                };
                match read {
                    Ok(0) => self.open[channel as usize] = false,
                    Ok(count) => {
                        self.anything = true;
                        if let Some(why) = self.said(channel, &bytes[..count])? {
                            return Ok(Some(why));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The other end is gone, with something unread in it.
                    Err(_) => self.open[channel as usize] = false,
                }
            }
        }
        Ok(None)
    }

    /// Takes what is still on its way after QEMU has ended: what sockets hold, and not what somebody goes on
    /// saying who has them too.
    fn hear_the_rest(&mut self) -> Result<Option<Why>, Error> {
        let start = Instant::now();
        loop {
            if start.elapsed() > REST {
                return Ok(None);
            }
            self.anything = false;
            if let Some(why) = self.hear()? {
                return Ok(Some(why));
            }
            if !self.anything {
                return Ok(None);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.talk.done || self.talk.taking_failed.is_some()
    }

    fn said(&mut self, channel: Channel, bytes: &[u8]) -> Result<Option<Why>, Error> {
        match channel {
            Channel::Console => {
                self.console.push(bytes);
                self.watcher.console(bytes).map_err(Error::output)?;
                if self.panicked.is_none() && self.console.panic_line().is_some() {
                    self.panicked = Some(Instant::now());
                }
            }
            Channel::Qemu => {
                let room = QEMU_SAID_MAX.saturating_sub(self.qemu_said.len());
                self.qemu_said.extend(&bytes[..bytes.len().min(room)]);
            }
            Channel::Line | Channel::Bulk => {
                self.talk.push(channel == Channel::Bulk, bytes);
                while let Some(heard) = self.talk.next() {
                    match heard {
                        Err(why) => return Ok(Some(why)),
                        Ok(heard) => self.tell(heard)?,
                    }
                }
            }
        }
        Ok(None)
    }

    fn tell(&mut self, heard: Heard) -> Result<(), Error> {
        match heard {
            Heard::Nothing => {}
            Heard::Hello => {
                let cpu_ns = clock::process_cpu_ns(self.guest.qemu.id()).unwrap_or(0);
                let cost = FirstLine { wall: self.start.elapsed(), host_cpu: Duration::from_nanos(cpu_ns) };
                self.about.first_line = Some(cost);
                self.watcher.first_line(cost);
            }
            Heard::Output(false, bytes) => self.watcher.stdout(&bytes).map_err(Error::output)?,
            Heard::Output(true, bytes) => self.watcher.stderr(&bytes).map_err(Error::output)?,
            Heard::Note(note) => self.watcher.note(&note),
        }
        Ok(())
    }

    fn panic(&self) -> Option<Why> {
        let line = self.console.panic_line()?;
        Some(match () {
            () if is_out_of_memory(&line) => Why::OutOfMemory(line),
            // The kernel cannot go on without PID 1, which is the agent; what it said last is on the console.
            () if line.contains("Attempted to kill init") => Why::Agent(format!("PID 1 is gone: {line}")),
            () => Why::Panic(line),
        })
    }

    /// Why a guest was lost whose QEMU ended like this.
    fn why(&self, status: ExitStatus) -> Why {
        let said = String::from_utf8_lossy(&self.qemu_said);
        let said = said.lines().rev().find(|line| !line.trim().is_empty()).map(printable).unwrap_or_default();
        let never_spoke = self.talk.hello.is_none();
        match (self.panic(), status.signal(), status.code()) {
            (Some(why), _, _) => why,
            (None, Some(signal), _) => Why::QemuKilled(signal),
            (None, None, Some(0)) if self.talk.is_within_a_message() => {
                Why::Damaged("its last message is cut off".to_owned())
            }
            (None, None, Some(0)) => Why::PoweredOff,
            (None, None, code) if never_spoke => Why::Refused(code, said),
            (None, None, code) => Why::QemuFailed(code.unwrap_or(-1), said),
        }
    }

    fn outcome(mut self, ended: Ended) -> Outcome {
        let why = match ended {
            Ended::Because(why) => Some(why),
            _ if self.is_over() => None,
            Ended::Qemu(status) => Some(self.why(status)),
            Ended::Done => None,
        };
        self.about.wall = self.start.elapsed();
        self.about.console = self.console.tail().to_vec();
        self.about.qemu_said = String::from_utf8_lossy(&self.qemu_said).into_owned();
        self.about.hello = self.talk.hello.take();
        self.about.notes = std::mem::take(&mut self.talk.notes);
        let steps = std::mem::take(&mut self.talk.steps);
        let about = self.about;
        match why {
            Some(why) => Outcome::Lost(Lost { why, steps, about }),
            None => {
                let (files, not_taken) = self.talk.files();
                Outcome::Finished(Finished { steps, files, not_taken, about })
            }
        }
    }
}
