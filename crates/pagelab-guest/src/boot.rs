//! Boot of a guest, its supervision, and its outcome.

mod kvm_probe;
mod protocol;
mod session;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelab_model::Bytes;
use pagelab_model::size::{format_argument, format_exact};
use pagelab_model::{Failure, FailureKind};
use pagelab_packages::program;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::accelerator::Accelerator;
use crate::config::GuestConfig;
use crate::disk;
use crate::file_receiver::{FileReceiver, output_name};
use crate::initramfs;
use crate::job::{GuestJob, JOB_MAGIC, JobStep};
use crate::kernel::GuestKernel;
use crate::outcome::GuestOutcome;
use crate::qemu::{self, DescriptorNames};

pub use kvm_probe::{PROBE_TIMEOUT, ResolvedAccelerator, resolve_accelerator};
pub use session::GuestObserver;

/// What guests are, and what the program in them must be made for.
const GUEST_SCOPE: &str = "x86_64";

/// The part of a guest's memory that given files may be of: one in so many.
const INPUT_MEMORY_DIVISOR: u64 = 4;

/// Modules of virtio consoles: of the bulk channel, and of the terminal of a shell.
const CONSOLE_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

/// The program that runs guests, by its usual name.
pub const QEMU: &str = "qemu-system-x86_64";

/// Everything that a guest needs, resolved.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// QEMU's name or path.
    pub qemu: PathBuf,
    /// Whether QEMU puts itself into its sandbox.
    pub sandbox: bool,
    /// What runs the guest's CPUs.
    pub accelerator: Accelerator,
    /// The kernel.
    pub kernel: GuestKernel,
    /// The shape.
    pub config: GuestConfig,
    /// What to run.
    pub steps: Vec<JobStep>,
    /// The program that becomes PID 1 and runs the steps; `None` is the one that runs. It must be a pagelab.
    pub program: Option<PathBuf>,
    /// pagelab's own module, which the guest loads before its steps; `None` is a guest without it.
    pub module: Option<PathBuf>,
    /// Lines for its control file, such as `grouping off`, written before the first step.
    pub module_lines: Vec<String>,
    /// Files of the host to give.
    pub input_files: Vec<PathBuf>,
    /// Files and folders to take, by their path in the guest.
    pub output_paths: Vec<String>,
    /// The folder of the host where they go.
    pub output_dir: PathBuf,
    /// Bytes to take at most.
    pub output_bytes_max: u64,
    /// QEMU's end of a socket that is the terminal of a shell ([`JobStep::Shell`]).
    pub terminal: Option<Arc<OwnedFd>>,
    /// How long to wait.
    pub timeouts: GuestTimeouts,
}

/// How long to wait for a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestTimeouts {
    /// For its first line.
    pub first_line: Duration,
    /// For its whole job, from the start.
    pub total: Duration,
}

impl GuestPlan {
    /// A guest of this kernel and shape in which one command line of pagelab runs.
    pub fn new(kernel: GuestKernel, config: GuestConfig, steps: Vec<JobStep>) -> GuestPlan {
        GuestPlan {
            qemu: PathBuf::from(QEMU),
            sandbox: true,
            accelerator: Accelerator::Tcg,
            kernel,
            config,
            steps,
            program: None,
            module: None,
            module_lines: Vec::new(),
            input_files: Vec::new(),
            output_paths: Vec::new(),
            output_dir: PathBuf::from("."),
            output_bytes_max: 1 << 30,
            terminal: None,
            timeouts: GuestTimeouts { first_line: Duration::from_secs(120), total: Duration::from_secs(600) },
        }
    }

    /// QEMU's command line as a shell would take it, with words for the descriptors.
    pub fn command_line(&self) -> String {
        let has_bulk = self.bulk_files().is_some();
        let descriptors = DescriptorNames::with_placeholders(&self.config, has_bulk, self.terminal.is_some());
        qemu::format_command_line(&self.qemu.to_string_lossy(), &self.qemu_arguments(&descriptors))
    }

    /// The files of the modules that the guest loads.
    pub fn module_files(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut names = self.config.required_modules();
        if self.terminal.is_some() {
            names.extend(CONSOLE_MODULES);
        }
        let mut files = self.kernel.module_files(&names)?;
        files.extend(self.module.clone());
        Ok(files)
    }

    /// The names of the same files.
    pub fn list_module_names(&self) -> Result<Vec<String>, Failure> {
        let files = self.module_files()?;
        let names = files.iter().filter_map(|path| path.file_name());
        Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    /// The files of the modules for the bulk channel; without them everything comes over the slow line.
    fn bulk_files(&self) -> Option<Vec<PathBuf>> {
        self.kernel.module_files(&CONSOLE_MODULES).ok()
    }

    /// What can be checked without doing anything.
    pub fn check(&self) -> Result<(), Failure> {
        let usage_error = |message: String| Failure::new(FailureKind::Usage, message);
        self.config.check().map_err(usage_error)?;
        if self.config.icount.is_some() && self.accelerator == Accelerator::Kvm {
            let reason = "--icount counts the instructions that QEMU emulates, and KVM emulates none";
            return Err(usage_error(reason.to_owned()).hint("use --accel tcg"));
        }
        let mut names = Vec::new();
        for take in &self.output_paths {
            let Some(name) = output_name(take) else {
                let message = format!("cannot take {take}: it has no file name to store it under");
                return Err(usage_error(message));
            };
            if names.contains(&name) {
                let message = format!("cannot take two files named {name}; hint: rename one in the guest");
                return Err(usage_error(message));
            }
            names.push(name);
        }
        self.check_input_files()
    }

    /// The given files are twice in the guest's memory while it boots, and once in pagelab's; of two files
    /// with one name the later would replace the other.
    fn check_input_files(&self) -> Result<(), Failure> {
        let usage_error = |message: String| Err(Failure::new(FailureKind::Usage, message));
        let name = |path: &PathBuf| path.file_name().map(ToOwned::to_owned);
        let is_twice =
            |(n, path): &(usize, &PathBuf)| self.input_files[..*n].iter().any(|g| name(g) == name(path));
        if let Some((_, path)) = self.input_files.iter().enumerate().find(is_twice) {
            return usage_error(format!(
                "cannot give {}: two files have this name; hint: rename one",
                path.display()
            ));
        }
        let mut bytes = 0u64;
        for path in &self.input_files {
            bytes = bytes.saturating_add(initramfs::input_file_bytes(path)?);
        }
        if bytes > self.config.memory.0 / INPUT_MEMORY_DIVISOR {
            let whole = Bytes((bytes.saturating_mul(INPUT_MEMORY_DIVISOR) >> 20).saturating_add(1) << 20);
            let (bytes, needed, memory) =
                (format_exact(Bytes(bytes)), format_exact(whole), format_argument(whole));
            return usage_error(format!(
                "cannot give {bytes} of files: they need a guest with {needed}; hint: use --memory {memory}"
            ));
        }
        Ok(())
    }

    fn qemu_arguments(&self, descriptors: &DescriptorNames) -> Vec<String> {
        let image = self.kernel.image.to_string_lossy();
        qemu::build_arguments(self.accelerator, &self.config, &image, descriptors, self.sandbox)
    }

    /// The job, with these modules of the host.
    fn build_job(&self, host_modules: &HostModules) -> GuestJob {
        GuestJob {
            magic: JOB_MAGIC.to_owned(),
            modules: host_modules.guest_paths(&host_modules.modules),
            cgroup: self.config.cgroup,
            swap: self.config.swap.is_some(),
            disk: self.config.disk.is_some(),
            tools: self.config.tools.is_some(),
            tree: self.config.tree.is_some(),
            bulk: host_modules.bulk.as_ref().map(|files| host_modules.guest_paths(files)),
            module_lines: self.module_lines.clone(),
            steps: self.steps.clone(),
            output_paths: self.output_paths.clone(),
            output_bytes_max: self.output_bytes_max,
        }
    }
}

#[derive(Debug)]
struct HostModules {
    modules: Vec<PathBuf>,
    bulk: Option<Vec<PathBuf>>,
}

impl HostModules {
    /// All of them, each once.
    fn all_files(&self) -> Vec<PathBuf> {
        let mut all = self.modules.clone();
        all.extend(self.bulk.iter().flatten().filter(|file| !self.modules.contains(file)).cloned());
        all
    }

    /// Paths of these in the initramfs.
    fn guest_paths(&self, files: &[PathBuf]) -> Vec<String> {
        let all = self.all_files();
        let places: Vec<_> = all.iter().zip(initramfs::module_paths(&all)).collect();
        let place = |file: &PathBuf| places.iter().find(|(path, _)| *path == file).map(|(_, p)| p.clone());
        files.iter().filter_map(place).collect()
    }
}

/// Finds QEMU by its name or path.
pub fn find_qemu(qemu: &Path) -> Result<PathBuf, Failure> {
    program::find_program(qemu).ok_or_else(|| {
        let message = format!("cannot find {}; hint: apt-get install qemu-system-x86", qemu.display());
        Failure::new(FailureKind::NotAvailable, message)
    })
}

/// Runs the plan to its end. It blocks the thread that calls it: QEMU lives as long as that thread at most.
/// An error means that there was no guest, or that the host ended it; all failures of the guest are a
/// [`GuestOutcome`].
pub fn run_guest(plan: &GuestPlan, observer: &mut dyn GuestObserver) -> Result<GuestOutcome, Failure> {
    plan.check()?;
    if std::env::consts::ARCH != GUEST_SCOPE {
        let here = std::env::consts::ARCH;
        let message = format!(
            "cannot start a guest: guests require {GUEST_SCOPE}, and this pagelab is built for {here}"
        );
        return Err(Failure::new(FailureKind::NotAvailable, message));
    }
    let program = find_qemu(&plan.qemu)?;
    let host_modules = HostModules { modules: plan.module_files()?, bulk: plan.bulk_files() };
    let names: Vec<String> = plan.output_paths.iter().filter_map(|take| output_name(take)).collect();
    let receiver = (!names.is_empty())
        .then(|| FileReceiver::new(&plan.output_dir, names, plan.output_bytes_max))
        .transpose()
        .map_err(|why| Failure::new(FailureKind::Partial, why))?;
    let (modules, job) = (host_modules.all_files(), plan.build_job(&host_modules));
    let initramfs = initramfs::pack_initramfs(plan.program.as_deref(), &modules, &plan.input_files, &job)?;
    let swap = plan.config.swap.map(disk::create_sparse_disk).transpose()?;
    let disk = plan.config.disk.map(disk::create_sparse_disk).transpose()?;
    if let Some(disk) = &disk {
        disk::format_ext4(disk, &mut || observer.stop_signal())?;
    }
    let tools = plan.config.tools.as_deref().map(open_image).transpose()?;
    let tree = plan.config.tree.as_deref().map(open_image).transpose()?;
    let files = [Some(&initramfs), swap.as_ref(), disk.as_ref(), tools.as_ref(), tree.as_ref()];
    let started = start_guest(plan, &program, host_modules.bulk.is_some(), files)?;
    session::run_session(plan, started, receiver, observer)
}

fn open_image(image: &Path) -> Result<File, Failure> {
    File::open(image)
        .map_err(|error| Failure::system_error(format!("cannot open {}", image.display()), error))
}

/// A guest that was started: QEMU, and our ends of its channels.
#[derive(Debug)]
struct RunningGuest {
    qemu: Child,
    console: UnixStream,
    host_link: UnixStream,
    bulk: Option<UnixStream>,
    /// How long to wait for QEMU to exit after SIGKILL; `None` is until it has.
    exit_wait: Option<Duration>,
    /// Whether QEMU did not exit within that time. It is no longer waited for.
    is_abandoned: bool,
}

/// How long QEMU may take to exit after SIGKILL if it uses KVM, whose driver may hang in the kernel. Then
/// QEMU exits when the driver returns, if at all.
const KVM_EXIT_WAIT: Duration = Duration::from_secs(2);
/// Time between checks whether QEMU has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl RunningGuest {
    /// Kills QEMU and its descendants, in case it is a script. It was waited for, so its PID is no longer
    /// valid, and no signal is sent.
    fn kill(&mut self) {
        if self.is_abandoned {
            return;
        }
        if let (Ok(None), Some(group)) = (self.qemu.try_wait(), Pid::from_raw(self.qemu.id() as i32)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.qemu.kill();
        self.is_abandoned = !wait_for_exit(&mut self.qemu, self.exit_wait);
    }
}

/// Waits for a process, at most this long; returns whether it has exited.
fn wait_for_exit(process: &mut Child, limit: Option<Duration>) -> bool {
    let Some(limit) = limit else { return process.wait().is_ok() };
    let start = Instant::now();
    loop {
        if !matches!(process.try_wait(), Ok(None)) {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
}

/// In every case, including a panic of a watcher, QEMU has exited after this, unless KVM holds it.
impl Drop for RunningGuest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts QEMU with its ends of the channels and with these files: initramfs, swap, disk, tool disk,
/// source tree.
fn start_guest(
    plan: &GuestPlan,
    program: &Path,
    has_bulk: bool,
    files: [Option<&File>; 5],
) -> Result<RunningGuest, Failure> {
    let to_error =
        |error: std::io::Error| Failure::system_error(format!("cannot start {}", plan.qemu.display()), error);
    let pair = || {
        let (own, other) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        Ok((own, other))
    };
    let (console, qemu_console) = pair().map_err(to_error)?;
    let (host_link, qemu_link) = pair().map_err(to_error)?;
    let bulk = has_bulk.then(pair).transpose().map_err(to_error)?;
    let (bulk, qemu_bulk) = bulk.unzip();
    let number = |fd: &dyn AsRawFd| fd.as_raw_fd().to_string();
    let [initramfs, swap, disk, tools, tree] = files;
    let descriptors = DescriptorNames {
        initramfs: initramfs.map(|file| number(file)).unwrap_or_default(),
        console: number(&qemu_console),
        host_link: number(&qemu_link),
        bulk: qemu_bulk.as_ref().map(|bulk| number(bulk)),
        swap: swap.map(|file| number(file)),
        disk: disk.map(|file| number(file)),
        tools: tools.map(|file| number(file)),
        tree: tree.map(|file| number(file)),
        terminal: plan.terminal.as_ref().map(|socket| number(&**socket)),
    };
    let mut kept = vec![qemu_console.as_fd(), qemu_link.as_fd()];
    kept.extend(qemu_bulk.as_ref().map(AsFd::as_fd));
    kept.extend(files.into_iter().flatten().map(AsFd::as_fd));
    kept.extend(plan.terminal.as_ref().map(|socket| socket.as_fd()));
    let mut command = Command::new(program);
    command
        .args(plan.qemu_arguments(&descriptors))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // A group of its own: what the terminal sends is for us, and we end the guest.
    command.process_group(0);
    pagelab_sys::spawn::keep_fds_open(&mut command, &kept);
    pagelab_sys::spawn::die_with_parent(&mut command);
    let qemu = command.spawn().map_err(to_error)?;
    let exit_wait = match plan.accelerator {
        Accelerator::Tcg => None,
        Accelerator::Kvm => Some(KVM_EXIT_WAIT),
    };
    Ok(RunningGuest { qemu, console, host_link, bulk, exit_wait, is_abandoned: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_exit_is_waited_for_no_longer_than_that() {
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let start = Instant::now();
        assert!(!wait_for_exit(&mut process, Some(Duration::from_millis(20))));
        assert!((Duration::from_millis(20)..Duration::from_secs(60)).contains(&start.elapsed()));
        process.kill().unwrap();
        assert!(wait_for_exit(&mut process, Some(Duration::from_secs(60))));
        assert!(wait_for_exit(&mut process, None), "it was waited for before");
    }
}
