//! `pagelab guest shell`: a shell and a compiler of the distribution in a guest.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_command::setup_progress::SetupProgress;
use pagelab_formats::duration;
use pagelab_guest::accelerator::AcceleratorChoice;
use pagelab_guest::boot::{self, GuestPlan, QEMU};
use pagelab_guest::config::GuestConfig;
use pagelab_guest::job::{CgroupConfig, CgroupVersion, JobStep, TerminalSize};
use pagelab_guest::outcome::FirstMessageCost;
use pagelab_model::Bytes;
use pagelab_model::size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::memory;
use super::run::{
    ACCELERATORS, DEFAULT_KERNEL, GuestWatcher, choose_accelerator, guest_title, report_outcome,
};
use crate::cmd::usage_error;
use crate::exit::{Exit, Failure, FailureKind};
use crate::output;
use crate::value_parsers::{choice, parse_bounded};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Run this command of the shell instead, with its output and exit code
    #[arg(short, long, value_name = "COMMAND", allow_hyphen_values = true)]
    command: Option<OsString>,
    /// Memory of the guest
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    memory: Bytes,
    /// CPUs of the guest; with TCG, a single QEMU thread emulates all of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_bounded::<u32, 1, 64>)]
    cpus: u32,
    /// A series such as 6.1 or 6.12 (downloaded once), a package, or the path of a vmlinuz
    #[arg(long, value_name = "SERIES|PACKAGE|PATH", default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Directory with modules.dep, for a kernel given by path
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Kernel command line parameters, for example kernelcore=256M
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Add a swap disk of this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    swap: Option<Bytes>,
    /// Size of the ext4 disk at /disk, which has temporary files
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    disk: Bytes,
    /// Add the source tree of `workload kbuild`, as /dev/pagelab-tree
    #[arg(long)]
    linux_source: bool,
    /// Copy a file into /data of the guest
    #[arg(long, value_name = "FILE")]
    give: Vec<PathBuf>,
    /// Time limit for a command of -c
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse_or_seconds)]
    timeout: Duration,
    /// Accelerator that runs the guest's CPUs
    #[arg(long, default_value = "tcg", value_parser = choice(&ACCELERATORS))]
    accel: AcceleratorChoice,
    /// QEMU binary
    #[arg(long, value_name = "PROGRAM", default_value = QEMU)]
    qemu: PathBuf,
    /// Cache directory [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print progress even if standard error is not a terminal
    #[arg(short, long)]
    verbose: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab guest shell
  pagelab guest shell -c 'gcc --version && pagelab checkup'
  pagelab guest shell --give t.c -c 'cc -o /tmp/t t.c && /tmp/t'

The shell is dash. It runs as root in the root of a read-only disk with gcc, make, binutils, coreutils, \
 findutils, tar and plocate of Debian, which is made once (80 packages, 60 MB). /tmp is in memory, /disk is \
 an ext4 disk, /data has the given files; all of them are discarded with the guest.

Exit the shell with `exit` or Ctrl-D. Ctrl-] ends the guest at once.";

/// An interactive shell has no time limit: this is more than anybody stays.
const NO_TIME_LIMIT: Duration = Duration::from_secs(365 * 86_400);
/// Ctrl-], as in telnet.
const ESCAPE: u8 = 0x1d;
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Boots the guest, and returns the exit code of the shell.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.command.is_none() && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let why = "standard input and output are not a terminal";
        return Err(usage_error(&format!("cannot start an interactive shell: {why}; hint: use -c COMMAND")));
    }
    let mut told = SetupProgress::start(args.verbose)?;
    let mut plan = resolve_plan(args, &mut told)?;
    choose_accelerator(args.accel, &mut plan, &told)?;
    told.print(&format!("booting {}", guest_title(&plan)));
    let status = CommandStatus::start("booting the guest", StatusEnd::AtMost(plan.timeouts.first_line));
    match &args.command {
        Some(_) => run_command(&plan, told, status),
        None => run_interactive(plan, told, status),
    }
}

/// Forwards the output of the command, and prints progress, as `guest run` does.
fn run_command(plan: &GuestPlan, progress: SetupProgress, status: CommandStatus) -> Result<u8, Failure> {
    let (start, time_limit) = (Instant::now(), plan.timeouts.total);
    let mut watcher =
        GuestWatcher { progress, status, console: None, forwards_output: true, start, time_limit };
    let guest = boot::run_guest(plan, &mut watcher).map_err(output::exit_if_stopped)?;
    Ok(report_outcome(&guest, false))
}

fn run_interactive(
    mut plan: GuestPlan,
    progress: SetupProgress,
    status: CommandStatus,
) -> Result<u8, Failure> {
    let pair = UnixStream::pair();
    let (socket, other) = pair.map_err(|error| Failure::system_error("cannot create a socket", error))?;
    plan.terminal = Some(Arc::new(OwnedFd::from(other)));
    let is_escaped = Arc::new(AtomicBool::new(false));
    let mut watcher = ShellWatcher {
        progress,
        status: Some(status),
        terminal: None,
        socket,
        is_escaped: Arc::clone(&is_escaped),
    };
    let guest = boot::run_guest(&plan, &mut watcher);
    // The terminal is the user's again before anything is printed.
    drop(watcher);
    match guest {
        Err(failure)
            if is_escaped.load(Ordering::Relaxed) && matches!(failure.kind(), FailureKind::Stopped(_)) =>
        {
            output::print_note("the guest was ended");
            Ok(Exit::Success as u8)
        }
        Err(failure) => Err(output::exit_if_stopped(failure)),
        Ok(guest) => Ok(report_outcome(&guest, false)),
    }
}

fn resolve_plan(args: &Args, told: &mut SetupProgress) -> Result<GuestPlan, Failure> {
    let mut shape = GuestConfig {
        memory: args.memory,
        cpus: args.cpus,
        append: args.append.clone(),
        swap: args.swap,
        disk: Some(args.disk),
        cgroup: Some(CgroupConfig { version: CgroupVersion::V2, limit_bytes: None }),
        ..GuestConfig::default()
    };
    shape.check().map_err(|why| usage_error(&why))?;
    memory::check_host_memory(&shape).map_err(|why| Failure::new(FailureKind::NotAvailable, why))?;
    boot::find_qemu(&args.qemu)?;
    let kernel =
        super::find_or_fetch_kernel(args.cache.as_ref(), &args.kernel, args.modules.as_deref(), told);
    let kernel = kernel.map_err(output::exit_if_stopped)?;
    shape.tools = Some(super::find_or_make_tools(args.cache.as_ref(), told)?);
    if args.linux_source {
        shape.tree = Some(super::find_or_make_tree(args.cache.as_ref(), told)?);
    }
    let step = match &args.command {
        Some(command) => JobStep::Script(command.clone()),
        None => JobStep::Shell(terminal_size()),
    };
    let mut plan = GuestPlan::new(kernel, shape, vec![step]);
    plan.qemu.clone_from(&args.qemu);
    plan.accelerator = args.accel.first();
    plan.input_files.clone_from(&args.give);
    plan.timeouts.total = if args.command.is_some() { args.timeout } else { NO_TIME_LIMIT };
    plan.check()?;
    Ok(plan)
}

fn terminal_size() -> TerminalSize {
    let term = std::env::var("TERM").unwrap_or_else(|_| "vt100".to_owned());
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => TerminalSize { term, rows: size.ws_row, columns: size.ws_col },
        _ => TerminalSize { term, rows: 24, columns: 80 },
    }
}

/// Standard input as raw bytes; dropped, it is as it was.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> io::Result<RawTerminal> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        Ok(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Connects the terminal to the guest's from its first message on.
struct ShellWatcher {
    progress: SetupProgress,
    status: Option<CommandStatus>,
    terminal: Option<RawTerminal>,
    /// Our end of the guest's terminal.
    socket: UnixStream,
    /// Whether the user ended the guest.
    is_escaped: Arc<AtomicBool>,
}

impl ShellWatcher {
    fn connect(&mut self) -> io::Result<()> {
        self.status = None;
        self.terminal = Some(RawTerminal::enter()?);
        let (from_guest, to_guest) = (self.socket.try_clone()?, self.socket.try_clone()?);
        let is_escaped = Arc::clone(&self.is_escaped);
        std::thread::spawn(move || forward_input(to_guest, &is_escaped));
        std::thread::spawn(move || {
            let _ = io::copy(&mut &from_guest, &mut UnbufferedOutput);
        });
        Ok(())
    }
}

/// Standard output, of which nothing stays in a buffer.
struct UnbufferedOutput;

impl Write for UnbufferedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Passes on what is typed until the guest's terminal is gone.
fn forward_input(mut to_guest: UnixStream, is_escaped: &AtomicBool) {
    let mut bytes = [0; 1024];
    loop {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&to_guest, PollFlags::HUP)];
        if poll(&mut polled, Some(&POLL_INTERVAL)).is_err() {
            continue;
        }
        let (typed, is_gone) =
            (!polled[0].revents().is_empty(), polled[1].revents().contains(PollFlags::HUP));
        if is_gone {
            return;
        }
        if !typed {
            continue;
        }
        let count = match stdin.lock().read(&mut bytes) {
            // The user's terminal is gone.
            Ok(0) | Err(_) => return is_escaped.store(true, Ordering::Relaxed),
            Ok(count) => count,
        };
        if bytes[..count].contains(&ESCAPE) {
            return is_escaped.store(true, Ordering::Relaxed);
        }
        if to_guest.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

impl boot::GuestObserver for ShellWatcher {
    fn on_first_message(&mut self, _cost: FirstMessageCost) {
        if let Err(error) = self.connect() {
            output::warn(&format!("warning: cannot use the terminal: {error}"));
            self.is_escaped.store(true, Ordering::Relaxed);
        }
    }

    fn on_note(&mut self, note: &str) {
        output::warn(&format!("note: in the guest: {note}"));
    }

    fn stop_signal(&mut self) -> Option<i32> {
        let escaped =
            self.is_escaped.load(Ordering::Relaxed).then_some(rustix::process::Signal::TERM.as_raw());
        self.progress.stop.signal().or(escaped)
    }
}

impl Drop for ShellWatcher {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
