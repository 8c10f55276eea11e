//! `pagelab guest run`: a command line of pagelab in a guest, as if it ran here.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagelab_guest::boot::{self, Plan, QEMU};
use pagelab_guest::cache::Cache;
use pagelab_guest::job::{Cgroup, CgroupVersion, Step};
use pagelab_guest::kernel::Kernel;
use pagelab_guest::message::End;
use pagelab_guest::outcome::{FirstLine, Outcome as Guest};
use pagelab_guest::setup::setup;
use pagelab_guest::shape::{Shape, parse_size, show};
use pagelab_model::Bytes;

use super::setup::Told;
use super::{answer, command, memory};
use crate::exit::{Exit, Failure};
use crate::out;

/// The kernel that is taken when none is named: the distribution's long-term one.
pub const KERNEL: &str = "6.1";

/// What `guest run` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Memory of the guest; a kernel with less than 600M switches transparent huge pages off
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    memory: Bytes,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// NUMA nodes; memory and processors are spread evenly
    #[arg(long, value_name = "N", default_value_t = 1)]
    nodes: u32,
    /// A series such as 6.1 or 6.12 (fetched once), a package, or the path of a vmlinuz
    #[arg(long, value_name = "SERIES|PACKAGE|PATH", default_value = KERNEL)]
    kernel: String,
    /// The folder with modules.dep, for a kernel by its path
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Words for the guest's kernel command line, such as kernelcore=256M
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// A swap disk of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    swap: Option<Bytes>,
    /// An ext4 disk of this size, mounted at /disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk: Option<Bytes>,
    /// Control groups to mount
    #[arg(long, value_enum, default_value_t = Groups::V2)]
    cgroup: Groups,
    /// Run the command in a control group with this memory limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cgroup_limit: Option<Bytes>,
    /// A file for the guest: it lies in the folder in which the command runs
    #[arg(long, value_name = "FILE")]
    give: Vec<PathBuf>,
    /// A file or folder of the guest to take when the command has ended
    #[arg(long, value_name = "PATH")]
    take: Vec<String>,
    /// The folder for what is taken
    #[arg(long, value_name = "DIR", default_value = ".", requires = "take")]
    to: PathBuf,
    /// Take no more than this
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    take_max: Bytes,
    /// Seconds until the guest is ended
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
    /// Seconds until its first line must have come
    #[arg(long, value_name = "S", default_value_t = 120)]
    boot_timeout: u64,
    /// Write all that the guest's kernel says to this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// The QEMU to use
    #[arg(long, value_name = "PROGRAM", default_value = QEMU)]
    qemu: PathBuf,
    /// Start QEMU without its sandbox, for one that has none
    #[arg(long)]
    no_sandbox: bool,
    /// Keep kernels here [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Start nothing; print the plan and QEMU's command line, with --json as JSON
    #[arg(long)]
    dry_run: bool,
    /// Print how it went as JSON, with the command's output in it
    #[arg(long)]
    json: bool,
    /// Tell what is done, also where standard error is no terminal
    #[arg(short, long)]
    verbose: bool,
    /// The command line, without `pagelab`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Sentences about what could not be taken, until they are only counted.
const NOT_TAKEN: usize = 8;

const AFTER_HELP: &str = "\
Examples:
  pagelab guest run -- checkup -v                         on kernel 6.1
  pagelab guest run --kernel 6.12 --nodes 2 -- checkup    another, two nodes
  pagelab guest run --give bug.txt -- frag --from bug.txt
  pagelab guest run --take a.pagelab -- checkup --probe --run a.pagelab

The exit code is the command's own, 128 plus the signal's number if a signal ended it, and 6 if the guest \
was lost: its kernel panicked, QEMU was killed, time ran out.

The guest is root's own machine: proc, sysfs, debugfs, tmpfs at /run and /tmp, and pagelab. Standard input \
is not passed to it: --give FILE. It is emulated (QEMU's TCG), some ten times slower than hardware: that \
works without /dev/kvm, which is never touched, so that a guest that hangs does not hang this machine.";

/// Which control groups a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Groups {
    /// One hierarchy with the memory controller
    V2,
    /// The memory controller's own hierarchy
    V1,
    /// None
    None,
}

/// Runs it, and returns the command's exit code.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(exit) = command::answered_here(&args.command)? {
        return Ok(exit as u8);
    }
    let shape = shape(args)?;
    if args.dry_run {
        return dry_run(args, shape).map(|()| Exit::Done as u8);
    }
    let mut told = Told::watch(args.verbose)?;
    memory::check(shape.memory).map_err(|why| Failure::new(Exit::NotAvailable, why))?;
    let (plan, fetches_into) = plan(args, shape)?;
    plan.check().map_err(super::failure)?;
    let plan = match fetches_into {
        Some(cache) => {
            Plan { kernel: setup(&cache, &args.kernel, &mut told).map_err(super::failure)?, ..plan }
        }
        None => plan,
    };
    let console = args.console.as_ref().map(|path| created(path)).transpose()?;
    told.say(&format!("booting {}", title(&plan)));
    let (start, whole) = (Instant::now(), plan.patience.whole);
    let mut watcher = Watcher { told, console, passes_on: !args.json, start, whole };
    let guest = boot::run(&plan, &mut watcher).map_err(super::failure)?;
    if args.json {
        answer::print_json(&plan, &guest)?;
    }
    Ok(judged(&guest, args.json))
}

/// Says what did not go as it should, and returns the exit code.
fn judged(guest: &Guest, is_json: bool) -> u8 {
    let say = |line: &str| out::complain(&format!("pagelab: {line}"));
    match guest {
        Guest::Lost(lost) => {
            say(&format!("the guest was lost: {}", lost.why));
            Exit::Lost as u8
        }
        Guest::Finished(finished) => {
            finished.not_taken.iter().take(NOT_TAKEN).for_each(|why| say(&format!("not taken: {why}")));
            match finished.not_taken.len().saturating_sub(NOT_TAKEN) {
                0 => {}
                more => say(&format!("not taken: {more} more; --json has them")),
            }
            let end = finished.steps.last().map(|step| &step.end);
            if let (Some(End::NotRun(why)), false) = (end, is_json) {
                say(&format!(
                    "the guest could not run the command: {}",
                    pagelab_guest::console::printable(why)
                ));
            }
            match end {
                Some(End::Code(0)) | None if !finished.not_taken.is_empty() => Exit::Partial as u8,
                Some(End::Code(code)) => u8::try_from(*code).unwrap_or(Exit::Partial as u8),
                Some(End::Signal(signal)) => {
                    u8::try_from(signal.saturating_add(128)).unwrap_or(Exit::Partial as u8)
                }
                Some(End::NotRun(_)) => Exit::Partial as u8,
                None => Exit::Done as u8,
            }
        }
    }
}

fn shape(args: &Args) -> Result<Shape, Failure> {
    let version = match args.cgroup {
        Groups::V1 => Some(CgroupVersion::V1),
        Groups::V2 => Some(CgroupVersion::V2),
        Groups::None => None,
    };
    if version.is_none() && args.cgroup_limit.is_some() {
        return Err(super::super::usage("--cgroup-limit wants control groups: --cgroup v2 or v1"));
    }
    let limit_bytes = args.cgroup_limit.map(|limit| limit.0);
    let shape = Shape {
        memory: args.memory,
        cpus: args.cpus,
        nodes: args.nodes,
        append: args.append.clone(),
        swap: args.swap,
        disk: args.disk,
        cgroup: version.map(|version| Cgroup { version, limit_bytes }),
    };
    shape.check().map_err(|why| super::super::usage(&why))?;
    Ok(shape)
}

/// The plan, and the cache into which its kernel is still to be fetched.
fn plan(args: &Args, shape: Shape) -> Result<(Plan, Option<Cache>), Failure> {
    let (kernel, cache) = known_kernel(args)?;
    let fetches_into = kernel.is_none().then(|| cache.clone());
    let unknown = || Kernel {
        release: format!("{} (to be fetched)", args.kernel),
        image: cache.folder().join("KERNEL"),
        modules: None,
        package: None,
    };
    let kernel = kernel.unwrap_or_else(unknown);
    let mut plan = Plan::new(kernel, shape, vec![Step::Pagelab(args.command.clone())]);
    plan.qemu = args.qemu.clone();
    plan.sandbox = !args.no_sandbox;
    plan.gives = args.give.clone();
    plan.takes = args.take.clone();
    plan.take_to = args.to.clone();
    plan.take_bytes_max = args.take_max.0;
    plan.patience.whole = Duration::from_secs(args.timeout);
    plan.patience.first_line = Duration::from_secs(args.boot_timeout);
    Ok((plan, fetches_into))
}

/// The kernel, if it is there, and the cache that it would come into.
fn known_kernel(args: &Args) -> Result<(Option<Kernel>, Cache), Failure> {
    if args.kernel.contains('/') || Path::new(&args.kernel).is_file() {
        let kernel = Kernel::at(Path::new(&args.kernel), args.modules.as_deref()).map_err(super::failure)?;
        return Ok((Some(kernel), Cache::below(Path::new(""))));
    }
    let cache = super::cache(args.cache.as_ref())?;
    Ok((cache.find(&args.kernel), cache))
}

fn created(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|e| Failure::new(Exit::Partial, format!("cannot write {}", path.display())).because(e))
}

/// `6.1.0-56-cloud-amd64, 512 MiB, 2 CPUs`
fn title(plan: &Plan) -> String {
    let Shape { memory, cpus, nodes, swap, disk, .. } = &plan.shape;
    let mut title = format!("{}, {}, {cpus} CPU", plan.kernel.release, show(*memory));
    title.push_str(if *cpus == 1 { "" } else { "s" });
    if *nodes > 1 {
        title.push_str(&format!(", {nodes} nodes"));
    }
    for (name, size) in [("swap", swap), ("disk", disk)] {
        title.push_str(&size.map_or_else(String::new, |size| format!(", {name} {}", show(size))));
    }
    title
}

fn dry_run(args: &Args, shape: Shape) -> Result<(), Failure> {
    let (plan, fetches_into) = plan(args, shape)?;
    plan.check().map_err(super::failure)?;
    let fetches = fetches_into
        .map(|cache| format!("the newest {} cloud kernel into {}", args.kernel, cache.folder().display()));
    if args.json {
        return answer::print_plan(&plan, fetches.as_deref());
    }
    let mut out = out::stdout();
    writeln!(out, "guest     {}", title(&plan))?;
    writeln!(out, "emulated  QEMU's TCG: works without /dev/kvm, which is never touched; ten times slower")?;
    match &fetches {
        Some(fetches) => writeln!(out, "fetches   {fetches}")?,
        None => {
            let names = plan.module_names().map_err(super::failure)?.join(" ");
            writeln!(out, "modules   {}", if names.is_empty() { "none" } else { &names })?;
        }
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    writeln!(out, "runs      pagelab {}", words.join(" "))?;
    writeln!(out, "\n{}", plan.command_line())?;
    out.flush()?;
    Ok(())
}

/// Passes on what the command says, and tells how far it is.
struct Watcher {
    told: Told,
    console: Option<File>,
    passes_on: bool,
    /// When QEMU was started, and how long it may take.
    start: Instant,
    whole: Duration,
}

/// The deadline is looked at by whoever listens to the guest; here only later, so that it is past there too.
const GRACE: Duration = Duration::from_millis(100);

impl Watcher {
    fn pass_on(&self, to: impl AsFd, bytes: &[u8]) -> io::Result<()> {
        let is_late = || self.start.elapsed() > self.whole.saturating_add(GRACE);
        let gives_up = || self.told.stop.signal().is_some() || is_late();
        if self.passes_on { out::pass_on(to, bytes, gives_up) } else { Ok(()) }
    }
}

impl boot::Watcher for Watcher {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pass_on(io::stdout().lock(), bytes)
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pass_on(io::stderr().lock(), bytes)
    }

    fn console(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.console.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn started(&mut self, _qemu: u32) {
        self.start = Instant::now();
    }

    fn first_line(&mut self, cost: FirstLine) {
        let (wall, cpu) = (cost.wall.as_secs_f64(), cost.host_cpu.as_secs_f64());
        self.told.say(&format!("first line after {wall:.1} s, {cpu:.1} s of CPU time"));
    }

    fn note(&mut self, note: &str) {
        out::complain(&format!("pagelab: in the guest: {note}"));
    }

    fn stop(&mut self) -> Option<i32> {
        self.told.stop.signal()
    }
}
