//! Boots a guest, listens to it, and says how it ended.

mod listen;
mod talk;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pagelab_model::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::disks;
use crate::error::{Error, Kind};
use crate::initramfs::{self, Contents};
use crate::job::{Job, MAGIC, Step};
use crate::kernel::Kernel;
use crate::outcome::Outcome;
use crate::qemu::{self, Wiring};
use crate::shape::{Shape, show};
use crate::taken::{Taker, name_of};
use pagelab_packages::program;

pub use listen::Watcher;

/// What guests are, and what the program in them must be made for.
const GUEST: &str = "x86_64";

/// The part of a guest's memory that given files may be of: one in so many.
const GIVES_PART: u64 = 4;

/// The program that runs guests, by its usual name.
pub const QEMU: &str = "qemu-system-x86_64";

/// Everything that a guest needs, resolved.
#[derive(Clone, Debug)]
pub struct Plan {
    /// QEMU's name or path.
    pub qemu: PathBuf,
    /// Whether QEMU puts itself into its sandbox.
    pub sandbox: bool,
    /// The kernel.
    pub kernel: Kernel,
    /// The shape.
    pub shape: Shape,
    /// What to run.
    pub steps: Vec<Step>,
    /// The program that becomes PID 1 and runs the steps; `None` is the one that runs. It must be a pagelab.
    pub program: Option<PathBuf>,
    /// Files of the host to give.
    pub gives: Vec<PathBuf>,
    /// Files and folders to take, by their path in the guest.
    pub takes: Vec<String>,
    /// The folder of the host where they go.
    pub take_to: PathBuf,
    /// Bytes to take at most.
    pub take_bytes_max: u64,
    /// How long to wait.
    pub patience: Patience,
}

/// How long to wait for a guest.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For its first line.
    pub first_line: Duration,
    /// For its whole job, from the start.
    pub whole: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { first_line: Duration::from_secs(120), whole: Duration::from_secs(600) }
    }
}

impl Plan {
    /// A guest of this kernel and shape in which one command line of pagelab runs.
    pub fn new(kernel: Kernel, shape: Shape, steps: Vec<Step>) -> Plan {
        Plan {
            qemu: PathBuf::from(QEMU),
            sandbox: true,
            kernel,
            shape,
            steps,
            program: None,
            gives: Vec::new(),
            takes: Vec::new(),
            take_to: PathBuf::from("."),
            take_bytes_max: 1 << 30,
            patience: Patience::default(),
        }
    }

    /// QEMU's command line as a shell would take it, with words for the descriptors.
    pub fn command_line(&self) -> String {
        let wiring = Wiring::for_show(&self.shape, self.bulk_files().is_some());
        qemu::show(&self.qemu.to_string_lossy(), &self.arguments(&wiring))
    }

    /// The files of the modules that the guest loads.
    pub fn module_files(&self) -> Result<Vec<PathBuf>, Error> {
        self.kernel.module_files(&self.shape.wants())
    }

    /// The names of the same files.
    pub fn module_names(&self) -> Result<Vec<String>, Error> {
        let files = self.module_files()?;
        let names = files.iter().filter_map(|path| path.file_name());
        Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    /// The files of the modules for the bulk channel; without them everything comes over the slow line.
    fn bulk_files(&self) -> Option<Vec<PathBuf>> {
        self.kernel.module_files(&["virtio_pci", "virtio_console"]).ok()
    }

    /// What can be checked without doing anything.
    pub fn check(&self) -> Result<(), Error> {
        self.shape.check().map_err(|why| Error::new(Kind::Usage, why))?;
        let mut names = Vec::new();
        for take in &self.takes {
            let name = name_of(take).ok_or_else(|| {
                Error::new(Kind::Usage, format!("--take {take}: has no name to put it under on this machine"))
            })?;
            if names.contains(&name) {
                return Err(Error::new(
                    Kind::Usage,
                    format!("--take: two of the name {name}; rename one in the guest"),
                ));
            }
            names.push(name);
        }
        self.check_gives()
    }

    /// Given files lie twice in the guest's memory while it boots, and once in ours; of two of one name the
    /// later would take the place of the other.
    fn check_gives(&self) -> Result<(), Error> {
        let usage = |message: String| Err(Error::new(Kind::Usage, message));
        let name = |path: &PathBuf| path.file_name().map(ToOwned::to_owned);
        let is_twice = |(n, path): &(usize, &PathBuf)| self.gives[..*n].iter().any(|g| name(g) == name(path));
        if let Some((_, path)) = self.gives.iter().enumerate().find(is_twice) {
            return usage(format!("--give {}: two of that name; rename one", path.display()));
        }
        let mut bytes = 0u64;
        for path in &self.gives {
            bytes = bytes.saturating_add(initramfs::given_bytes(path)?);
        }
        if bytes > self.shape.memory.0 / GIVES_PART {
            let whole = Bytes((bytes.saturating_mul(GIVES_PART) >> 20).saturating_add(1) << 20);
            let (bytes, whole) = (show(Bytes(bytes)), show(whole));
            return usage(format!("--give: {bytes} in all want a guest of {whole}: --memory {whole}"));
        }
        Ok(())
    }

    fn arguments(&self, wiring: &Wiring) -> Vec<String> {
        qemu::arguments(&self.shape, &self.kernel.image.to_string_lossy(), wiring, self.sandbox)
    }

    /// The job, whose modules are these of the host.
    fn job(&self, packed: &Packed) -> Job {
        Job {
            magic: MAGIC.to_owned(),
            modules: packed.places(&packed.modules),
            cgroup: self.shape.cgroup,
            swap: self.shape.swap.is_some(),
            disk: self.shape.disk.is_some(),
            bulk: packed.bulk.as_ref().map(|files| packed.places(files)),
            steps: self.steps.clone(),
            takes: self.takes.clone(),
            take_bytes_max: self.take_bytes_max,
        }
    }
}

/// Module files of the host for a guest.
#[derive(Debug)]
struct Packed {
    modules: Vec<PathBuf>,
    bulk: Option<Vec<PathBuf>>,
}

impl Packed {
    /// All of them, each once.
    fn all(&self) -> Vec<PathBuf> {
        let mut all = self.modules.clone();
        all.extend(self.bulk.iter().flatten().filter(|file| !self.modules.contains(file)).cloned());
        all
    }

    /// Where these lie in the initramfs.
    fn places(&self, files: &[PathBuf]) -> Vec<String> {
        let all = self.all();
        let places: Vec<_> = all.iter().zip(initramfs::module_places(&all)).collect();
        let place = |file: &PathBuf| places.iter().find(|(path, _)| *path == file).map(|(_, p)| p.clone());
        files.iter().filter_map(place).collect()
    }
}

/// Runs the plan to its end. It blocks the thread that calls it: QEMU lives as long as that thread at most.
/// An error means that there was no guest, or that the host ended it; whatever a guest itself does is an
/// [`Outcome`].
pub fn run(plan: &Plan, watcher: &mut dyn Watcher) -> Result<Outcome, Error> {
    plan.check()?;
    if std::env::consts::ARCH != GUEST {
        let here = std::env::consts::ARCH;
        let message =
            format!("guests are {GUEST} machines, and this pagelab is for {here}: run it on {GUEST}");
        return Err(Error::new(Kind::NotAvailable, message));
    }
    let program = program::find(&plan.qemu).ok_or_else(|| {
        let qemu = plan.qemu.display();
        let message = format!("there is no {qemu} on this machine: `apt-get install qemu-system-x86`");
        Error::new(Kind::NotAvailable, message)
    })?;
    let packed = Packed { modules: plan.module_files()?, bulk: plan.bulk_files() };
    let taker = match plan.takes.is_empty() {
        true => None,
        false => {
            let names = plan.takes.iter().filter_map(|take| name_of(take)).collect();
            let taker = Taker::new(&plan.take_to, names, plan.take_bytes_max);
            Some(taker.map_err(|why| Error::new(Kind::Refused, why))?)
        }
    };
    let modules = packed.all();
    let contents = Contents { program: plan.program.as_deref(), modules: &modules, gives: &plan.gives };
    let initramfs = initramfs::pack(&contents, &plan.job(&packed))?;
    let swap = plan.shape.swap.map(disks::empty).transpose()?;
    let disk = plan.shape.disk.map(disks::empty).transpose()?;
    if let Some(disk) = &disk {
        disks::format_ext4(disk, &mut || watcher.stop())?;
    }
    let started =
        start(plan, &program, packed.bulk.is_some(), [Some(&initramfs), swap.as_ref(), disk.as_ref()])?;
    listen::listen(plan, started, taker, watcher)
}

/// A guest that was started: QEMU, and our ends of its channels.
#[derive(Debug)]
struct Started {
    qemu: Child,
    console: UnixStream,
    line: UnixStream,
    bulk: Option<UnixStream>,
}

impl Started {
    /// Ends QEMU and whatever it started, for one that is a script. Without a number of its own any more,
    /// since it was waited for, nobody is sent anything.
    fn end(&mut self) {
        if let (Ok(None), Some(group)) = (self.qemu.try_wait(), Pid::from_raw(self.qemu.id() as i32)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Whatever happened, a watcher's panic included: after this there is no QEMU.
impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts QEMU with its ends of the channels and with these files: initramfs, swap, disk.
fn start(plan: &Plan, program: &Path, has_bulk: bool, files: [Option<&File>; 3]) -> Result<Started, Error> {
    let failed =
        |error: std::io::Error| Error::refused(format!("cannot start {}", plan.qemu.display()), error);
    let pair = || {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((ours, theirs))
    };
    let (console, their_console) = pair().map_err(failed)?;
    let (line, their_line) = pair().map_err(failed)?;
    let bulk = has_bulk.then(pair).transpose().map_err(failed)?;
    let (bulk, their_bulk) = bulk.unzip();
    let number = |fd: &dyn AsRawFd| fd.as_raw_fd().to_string();
    let [initramfs, swap, disk] = files;
    let wiring = Wiring {
        initramfs: initramfs.map(|file| number(file)).unwrap_or_default(),
        console: number(&their_console),
        line: number(&their_line),
        bulk: their_bulk.as_ref().map(|bulk| number(bulk)),
        swap: swap.map(|file| number(file)),
        disk: disk.map(|file| number(file)),
    };
    let mut kept = vec![their_console.as_fd(), their_line.as_fd()];
    kept.extend(their_bulk.as_ref().map(AsFd::as_fd));
    kept.extend([initramfs, swap, disk].into_iter().flatten().map(AsFd::as_fd));
    let mut command = Command::new(program);
    command.args(plan.arguments(&wiring)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // A group of its own: what the terminal sends is for us, and we end the guest.
    command.process_group(0);
    pagelab_sys::spawn::keep_open(&mut command, &kept);
    pagelab_sys::spawn::die_with_parent(&mut command);
    let qemu = command.spawn().map_err(failed)?;
    Ok(Started { qemu, console, line, bulk })
}
