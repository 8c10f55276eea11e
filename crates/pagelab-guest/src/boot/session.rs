//! Supervision of a running guest until its job is finished or it is lost.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_model::{Failure, FailureKind};
use pagelab_sys::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{ProtocolEvent, ProtocolState};
use super::{GuestPlan, RunningGuest};
use crate::console::{ConsoleTail, is_oom_panic, printable};
use crate::file_receiver::FileReceiver;
use crate::outcome::{
    CompletedJob, FirstMessageCost, GuestOutcome, GuestReport, LossReason, LostGuest, StepEnd,
};

/// Observer of a running guest. All methods have defaults.
pub trait GuestObserver {
    /// Bytes that a step wrote to standard output. An error ends the guest. A method that blocks must check
    /// the signal and the deadline itself.
    fn on_stdout(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Bytes that a step wrote to standard error. An error ends the guest.
    fn on_stderr(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Bytes of the kernel's console. An error ends the guest.
    fn on_console(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// The hello arrived, at this cost.
    fn on_first_message(&mut self, _cost: FirstMessageCost) {}
    /// A step of the job began: its index.
    fn on_step_started(&mut self, _step: usize) {}
    /// A step of the job ended: its index and its end.
    fn on_step_ended(&mut self, _step: usize, _end: &StepEnd) {}
    /// Whether the output of a step is kept after its end.
    fn keeps_output(&self) -> bool {
        true
    }
    /// Something that the agent could not do.
    fn on_note(&mut self, _note: &str) {}
    /// QEMU runs under this number.
    fn on_started(&mut self, _qemu: u32) {}
    /// Number of the stop signal; checked about twenty times a second.
    fn stop_signal(&mut self) -> Option<i32> {
        None
    }
}

/// Output that is not watched.
impl GuestObserver for () {}

/// Maximum wait for input between checks of the time.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// A guest that has panicked and does not end (its command line says otherwise) is ended.
const PANIC_GRACE: Duration = Duration::from_secs(5);
/// Maximum time for reading remaining data after the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the output of QEMU that are kept.
const QEMU_STDERR_MAX: usize = 16 << 10;

enum SessionEnd {
    /// The job is done, or the host could not receive more files.
    Completed,
    Qemu(ExitStatus),
    /// We end it.
    GuestLost(LossReason),
}

/// Where a guest is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Console,
    HostLink,
    Bulk,
    Qemu,
}

const CHANNELS: [Channel; 4] = [Channel::Console, Channel::HostLink, Channel::Bulk, Channel::Qemu];
/// Bytes per read, and reads before other channels and signals are checked.
const READ_BYTES: usize = 64 << 10;
const READS_PER_ROUND: usize = 16;

struct GuestSession<'a> {
    plan: &'a GuestPlan,
    guest: RunningGuest,
    qemu_stderr: Option<ChildStderr>,
    observer: &'a mut dyn GuestObserver,
    protocol: ProtocolState,
    console: ConsoleTail,
    report: GuestReport,
    start: Instant,
    panicked_at: Option<Instant>,
    /// Which channels have not ended, in the order of [`CHANNELS`].
    open_channels: [bool; 4],
    received_any: bool,
    qemu_stderr_bytes: Vec<u8>,
}

/// Listens until the guest is done or lost, and ends it in any case.
pub fn run_session(
    plan: &GuestPlan,
    mut guest: RunningGuest,
    receiver: Option<FileReceiver>,
    observer: &mut dyn GuestObserver,
) -> Result<GuestOutcome, Failure> {
    let qemu_stderr = guest.qemu.stderr.take();
    if let Some(stderr) = &qemu_stderr {
        let _ = rustix::io::ioctl_fionbio(stderr, true);
    }
    observer.on_started(guest.qemu.id());
    let protocol = ProtocolState::new(plan.steps.len(), guest.bulk.is_some(), receiver);
    let open_channels = [true, true, guest.bulk.is_some(), qemu_stderr.is_some()];
    let mut session = GuestSession {
        plan,
        guest,
        qemu_stderr,
        observer,
        protocol,
        console: ConsoleTail::default(),
        report: GuestReport::default(),
        start: Instant::now(),
        panicked_at: None,
        open_channels,
        received_any: false,
        qemu_stderr_bytes: Vec::new(),
    };
    let end = session.run_until_end().or_else(|error| session.classify_error(error));
    session.guest.kill();
    let end = end?;
    // Messages sent before the end count; only pagelab's own reason takes precedence.
    let rest = match (session.drain_channels(), end) {
        (Ok(Some(why)), SessionEnd::Qemu(_)) => Ok(SessionEnd::GuestLost(why)),
        (Ok(_), ended) => Ok(ended),
        (Err(error), _) => session.classify_error(error),
    };
    Ok(session.into_outcome(rest?))
}

impl GuestSession<'_> {
    fn run_until_end(&mut self) -> Result<SessionEnd, Failure> {
        loop {
            if let Some(signal) = self.observer.stop_signal() {
                return Err(Failure::stopped(signal));
            }
            let status = self.guest.qemu.try_wait();
            let status = status.map_err(|error| Failure::system_error("cannot wait for QEMU", error))?;
            if let Some(reason) = self.read_channels()? {
                return Ok(SessionEnd::GuestLost(reason));
            }
            if self.is_complete() {
                return Ok(SessionEnd::Completed);
            }
            if let Some(status) = status {
                return Ok(SessionEnd::Qemu(status));
            }
            if let Ok(cpu_ns) = clock::process_cpu_ns(self.guest.qemu.id()) {
                self.report.host_cpu = Duration::from_nanos(cpu_ns);
            }
            if let Some(reason) = self.check_timeouts() {
                return Ok(SessionEnd::GuestLost(reason));
            }
            self.wait_for_input();
        }
    }

    /// A watcher that could not forward the output, perhaps only because of a signal or a timeout without a
    /// reader.
    fn classify_error(&mut self, error: Failure) -> Result<SessionEnd, Failure> {
        match (error.kind(), self.observer.stop_signal(), self.check_timeouts()) {
            (FailureKind::Output, Some(signal), _) => Err(Failure::stopped(signal)),
            (FailureKind::Output, None, Some(why)) => Ok(SessionEnd::GuestLost(why)),
            _ => Err(error),
        }
    }

    fn check_timeouts(&self) -> Option<LossReason> {
        let elapsed = self.start.elapsed();
        if self.panicked_at.is_some_and(|at| at.elapsed() > PANIC_GRACE) {
            return self.check_panic();
        }
        let patience = self.plan.timeouts;
        if self.protocol.hello.is_none() && elapsed >= patience.first_line.min(patience.total) {
            let waited = patience.first_line.min(patience.total);
            let silent = || LossReason::NoFirstMessage(waited, self.console.last_line());
            return Some(self.check_panic().unwrap_or_else(silent));
        }
        (elapsed >= patience.total)
            .then(|| self.check_panic().unwrap_or(LossReason::TimedOut(patience.total)))
    }

    fn wait_for_input(&self) {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(4);
        for channel in CHANNELS.into_iter().filter(|&channel| self.is_readable(channel)) {
            let fd = match channel {
                Channel::Console => Some(self.guest.console.as_fd()),
                Channel::HostLink => Some(self.guest.host_link.as_fd()),
                Channel::Bulk => self.guest.bulk.as_ref().map(AsFd::as_fd),
                Channel::Qemu => self.qemu_stderr.as_ref().map(AsFd::as_fd),
            };
            polled.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        // An error, such as a signal, only ends the wait.
        let _ = poll(&mut polled, Some(&POLL_INTERVAL));
    }

    /// An unread channel blocks its writer, so a guest cannot fill pagelab's memory with unexpected messages.
    fn is_readable(&self, channel: Channel) -> bool {
        let in_turn = match channel {
            Channel::HostLink => !self.protocol.uses_bulk(),
            Channel::Bulk => self.protocol.uses_bulk(),
            Channel::Console | Channel::Qemu => true,
        };
        self.open_channels[channel as usize] && in_turn
    }

    /// Reads all channels up to a bound, so that time and signals are checked in between.
    fn read_channels(&mut self) -> Result<Option<LossReason>, Failure> {
        let mut bytes = vec![0; READ_BYTES];
        for channel in CHANNELS {
            for _ in 0..READS_PER_ROUND {
                if !self.is_readable(channel) || self.is_complete() {
                    break;
                }
                let read = match channel {
                    Channel::Console => self.guest.console.read(&mut bytes),
                    Channel::HostLink => self.guest.host_link.read(&mut bytes),
                    Channel::Bulk => self.guest.bulk.as_mut().map_or(Ok(0), |bulk| bulk.read(&mut bytes)),
                    Channel::Qemu => self.qemu_stderr.as_mut().map_or(Ok(0), |said| said.read(&mut bytes)),
                };
                match read {
                    Ok(0) => self.open_channels[channel as usize] = false,
                    Ok(count) => {
                        self.received_any = true;
                        if let Some(reason) = self.handle_bytes(channel, &bytes[..count])? {
                            return Ok(Some(reason));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The other end is gone, with something unread in it.
                    Err(_) => self.open_channels[channel as usize] = false,
                }
            }
        }
        Ok(None)
    }

    /// Reads the rest of the data after QEMU has exited: the contents of the sockets, but nothing that
    /// another process continues to write.
    fn drain_channels(&mut self) -> Result<Option<LossReason>, Failure> {
        let start = Instant::now();
        loop {
            if start.elapsed() > DRAIN_TIMEOUT {
                return Ok(None);
            }
            self.received_any = false;
            if let Some(reason) = self.read_channels()? {
                return Ok(Some(reason));
            }
            if !self.received_any {
                return Ok(None);
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.protocol.is_done || self.protocol.receive_error.is_some()
    }

    fn handle_bytes(&mut self, channel: Channel, bytes: &[u8]) -> Result<Option<LossReason>, Failure> {
        match channel {
            Channel::Console => {
                self.console.push_bytes(bytes);
                self.observer.on_console(bytes).map_err(Failure::output_error)?;
                if self.panicked_at.is_none() && self.console.panic_line().is_some() {
                    self.panicked_at = Some(Instant::now());
                }
            }
            Channel::Qemu => {
                let room = QEMU_STDERR_MAX.saturating_sub(self.qemu_stderr_bytes.len());
                self.qemu_stderr_bytes.extend(&bytes[..bytes.len().min(room)]);
            }
            Channel::HostLink | Channel::Bulk => {
                self.protocol.push_bytes(channel == Channel::Bulk, bytes);
                while let Some(event) = self.protocol.next_event() {
                    match event {
                        Err(why) => return Ok(Some(why)),
                        Ok(heard) => self.notify_observer(heard)?,
                    }
                }
            }
        }
        Ok(None)
    }

    fn notify_observer(&mut self, event: ProtocolEvent) -> Result<(), Failure> {
        match event {
            ProtocolEvent::Handled => {}
            ProtocolEvent::Connected => {
                let cpu_ns = clock::process_cpu_ns(self.guest.qemu.id()).unwrap_or(0);
                let cost = FirstMessageCost {
                    wall_time: self.start.elapsed(),
                    host_cpu: Duration::from_nanos(cpu_ns),
                };
                self.report.first_message = Some(cost);
                self.observer.on_first_message(cost);
            }
            ProtocolEvent::Output(false, bytes) => {
                self.observer.on_stdout(&bytes).map_err(Failure::output_error)?
            }
            ProtocolEvent::Output(true, bytes) => {
                self.observer.on_stderr(&bytes).map_err(Failure::output_error)?
            }
            ProtocolEvent::Note(note) => self.observer.on_note(&note),
            ProtocolEvent::StepStarted(step) => self.observer.on_step_started(step as usize),
            ProtocolEvent::StepEnded => {
                if let Some((last, steps)) = self.protocol.steps.split_last_mut() {
                    self.observer.on_step_ended(steps.len(), last);
                    if !self.observer.keeps_output() {
                        (last.stdout, last.stderr) = (Vec::new(), Vec::new());
                    }
                }
            }
        }
        Ok(())
    }

    fn check_panic(&self) -> Option<LossReason> {
        let line = self.console.panic_line()?;
        Some(match () {
            () if is_oom_panic(&line) => LossReason::OutOfMemory(line),
            // The kernel cannot continue without PID 1, which is the agent; its last output is on the
            // console.
            () if line.contains("Attempted to kill init") => {
                LossReason::AgentError(format!("PID 1 exited: {line}"))
            }
            () => LossReason::Panic(line),
        })
    }

    /// Cause of a lost guest whose QEMU exited like this.
    fn classify_exit(&self, status: ExitStatus) -> LossReason {
        let stderr_text = String::from_utf8_lossy(&self.qemu_stderr_bytes);
        let stderr_text =
            stderr_text.lines().rev().find(|line| !line.trim().is_empty()).map(printable).unwrap_or_default();
        let never_spoke = self.protocol.hello.is_none();
        match (self.check_panic(), status.signal(), status.code()) {
            (Some(why), _, _) => why,
            (None, Some(signal), _) => LossReason::QemuKilled(signal),
            (None, None, Some(0)) if self.protocol.has_partial_message() => {
                LossReason::ProtocolError("its last message is truncated".to_owned())
            }
            (None, None, Some(0)) => LossReason::PoweredOff,
            (None, None, code) if never_spoke => LossReason::QemuRefused(code, stderr_text),
            (None, None, code) => LossReason::QemuFailed(code.unwrap_or(-1), stderr_text),
        }
    }

    fn into_outcome(mut self, end: SessionEnd) -> GuestOutcome {
        let reason = match end {
            SessionEnd::GuestLost(why) => Some(why),
            _ if self.is_complete() => None,
            SessionEnd::Qemu(status) => Some(self.classify_exit(status)),
            SessionEnd::Completed => None,
        };
        self.report.wall_time = self.start.elapsed();
        self.report.console = self.console.tail().to_vec();
        self.report.qemu_stderr = String::from_utf8_lossy(&self.qemu_stderr_bytes).into_owned();
        self.report.hello = self.protocol.hello.take();
        self.report.notes = std::mem::take(&mut self.protocol.notes);
        let steps = std::mem::take(&mut self.protocol.steps);
        let report = self.report;
        match reason {
            Some(reason) => GuestOutcome::Lost(LostGuest { reason, steps, report }),
            None => {
                let (files, missing_files) = self.protocol.take_files();
                GuestOutcome::Completed(CompletedJob { steps, files, missing_files, report })
            }
        }
    }
}
