//! `pagelab guest run`: runs a pagelab command in a guest, with its output and exit code.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagelab_command::progress::{self, CommandStatus, StatusEnd};
use pagelab_command::setup_progress::SetupProgress;
use pagelab_formats::duration;
use pagelab_guest::accelerator::AcceleratorChoice;
use pagelab_guest::boot::{self, GuestPlan, QEMU};
use pagelab_guest::cache::KernelCache;
use pagelab_guest::config::GuestConfig;
use pagelab_guest::job::{CgroupConfig, CgroupVersion, JobStep};
use pagelab_guest::json;
use pagelab_guest::kernel::GuestKernel;
use pagelab_guest::kernel_setup::set_up_kernel;
use pagelab_guest::message::StepExit;
use pagelab_guest::outcome::{FirstMessageCost, GuestOutcome as Guest};
use pagelab_model::dimms::Dimms;
use pagelab_model::guest_size::ICOUNT_SHIFT_MAX;
use pagelab_model::size::{self, format_exact};
use pagelab_model::{Bytes, module_features::FEATURES, names};
use pagelab_report::style::format_plural;

use super::{guest_command, memory};
use crate::atomic_file::check_output;
use crate::exit::{Exit, Failure, FailureKind};
use crate::output;
use crate::output_args::ForceArgs;
use crate::value_parsers::{Choice, choice, parse_bounded};

/// Default kernel: the long-term kernel of the distribution.
pub const DEFAULT_KERNEL: &str = pagelab_experiment::recipe::KERNEL_DEFAULT;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Memory of the guest; the kernel disables THP below 600M
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    memory: Bytes,
    /// Add DIMMs, for example 8x128M: hot-pluggable memory above 4 GiB
    #[arg(long, value_name = "COUNTxSIZE", value_parser = Dimms::parse)]
    dimms: Option<Dimms>,
    /// CPUs of the guest; with TCG, a single QEMU thread emulates all of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_bounded::<u32, 1, 64>)]
    cpus: u32,
    /// Guest time by counted instructions, 2^SHIFT ns each; one CPU, TCG only
    #[arg(long, value_name = "SHIFT", value_parser = parse_bounded::<u32, 0, { ICOUNT_SHIFT_MAX as u64 }>)]
    icount: Option<u32>,
    /// NUMA nodes; memory and CPUs are divided evenly among them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_bounded::<u32, 1, 16>)]
    nodes: u32,
    /// A series such as 6.1 or 6.12 (downloaded once), a package, or the path of a vmlinuz
    #[arg(long, value_name = "SERIES|PACKAGE|PATH", default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Directory with modules.dep, for a kernel given by path
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Load the kernel module of pagelab, which `guest setup --module` builds
    #[arg(long)]
    module: bool,
    /// Switch a feature of the module before the command, for example grouping=off
    #[arg(long, value_name = "NAME=STATE", requires = "module", value_parser = parse_switch)]
    switch: Vec<String>,
    /// Kernel command line parameters, for example kernelcore=256M
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Add a swap disk of this size
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    swap: Option<Bytes>,
    /// Add an ext4 disk of this size at /disk
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    disk: Option<Bytes>,
    /// Run the command in the root of the tool disk: a shell, make, a compiler
    #[arg(long)]
    tools: bool,
    /// Add the source tree of `workload kbuild`
    #[arg(long, requires = "tools")]
    linux_source: bool,
    /// Cgroup version to mount
    #[arg(long, default_value = "v2", value_parser = choice(&CGROUPS))]
    cgroup: MountedCgroup,
    /// Run the command in a cgroup with this memory limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cgroup_limit: Option<Bytes>,
    /// Copy a file into the working directory of the guest
    #[arg(long, value_name = "FILE")]
    give: Vec<PathBuf>,
    /// Copy a file or directory out of the guest at the end
    #[arg(long, value_name = "PATH")]
    take: Vec<String>,
    /// Destination directory for --take
    #[arg(long, value_name = "DIR", default_value = ".", requires = "take")]
    to: PathBuf,
    /// Maximum total size of files copied with --take
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    take_max: Bytes,
    /// Time limit for the guest
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse_or_seconds)]
    timeout: Duration,
    /// Time limit for the first output line
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse_or_seconds)]
    boot_timeout: Duration,
    /// Write the guest's console output to this file
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
    /// QEMU binary
    #[arg(long, value_name = "PROGRAM", default_value = QEMU)]
    qemu: PathBuf,
    /// Accelerator that runs the guest's CPUs
    #[arg(long, default_value = "tcg", value_parser = choice(&ACCELERATORS))]
    accel: AcceleratorChoice,
    /// Start QEMU without its seccomp sandbox
    #[arg(long)]
    no_sandbox: bool,
    /// Kernel cache directory [default: $XDG_CACHE_HOME/pagelab or ~/.cache/pagelab]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print the plan and the QEMU command line, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the outcome as JSON, including the output of the command
    #[arg(long)]
    json: bool,
    /// Print progress even if standard error is not a terminal
    #[arg(short, long)]
    verbose: bool,
    /// The pagelab command to run, without `pagelab`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Copy errors that are printed; further errors are counted.
const COPY_ERRORS_SHOWN: usize = 8;

const AFTER_HELP: &str = "\
Examples:
  pagelab guest run -- checkup -v                         kernel 6.1
  pagelab guest run --kernel 6.12 --nodes 2 -- checkup    two nodes
  pagelab guest run --give bug.txt -- frag --from bug.txt
  pagelab guest run --module --switch grouping=off -- can 100 --really
  pagelab guest run --tools --linux-source --disk 2G -- workload kbuild
  pagelab guest run --take a.pagelab -- checkup --probe -o a.pagelab

The exit code is the command's, 128 plus the signal number if a signal ended it, or 6 if the guest was lost: \
 kernel panic, QEMU killed, time limit.

The command runs as root. The guest has proc, sysfs, debugfs, tmpfs at /run and /tmp, and pagelab. Standard \
 input is not passed on: use --give FILE.

By default the guest is emulated (QEMU TCG), about ten times slower than hardware, and /dev/kvm is never \
 opened. With --accel kvm or auto, QEMU opens it, first for a probe boot of at most 10 s; if that fails, \
 auto uses TCG.";

pub const ACCELERATORS: [Choice<AcceleratorChoice>; 3] = [
    (&["tcg"], "Emulation, which works on every host", AcceleratorChoice::Tcg),
    (&["kvm"], "Hardware virtualization through /dev/kvm", AcceleratorChoice::Kvm),
    (&["auto"], "KVM if a probe boot works, otherwise TCG", AcceleratorChoice::Auto),
];

/// Cgroup version in a guest. The alias keeps clap from reading `Option` as an optional argument.
type MountedCgroup = Option<CgroupVersion>;

const CGROUPS: [Choice<MountedCgroup>; 3] = [
    (&["v2"], "Unified hierarchy with the memory controller", Some(CgroupVersion::V2)),
    (&["v1"], "Separate hierarchy for the memory controller", Some(CgroupVersion::V1)),
    (&["none"], "No cgroup hierarchy", None),
];

/// Runs the guest, and returns the exit code of the command.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(exit) = guest_command::handle_without_guest(&args.command)? {
        return Ok(exit as u8);
    }
    let shape = guest_shape(args)?;
    if args.dry_run {
        return dry_run(args, shape).map(|()| Exit::Success as u8);
    }
    let mut told = SetupProgress::start(args.verbose)?;
    memory::check_host_memory(&shape).map_err(|why| Failure::new(FailureKind::NotAvailable, why))?;
    let (plan, fetches_into) = resolve_plan(args, shape)?;
    plan.check()?;
    let mut plan = match fetches_into {
        Some(cache) => GuestPlan {
            kernel: set_up_kernel(&cache, &args.kernel, &mut told).map_err(output::exit_if_stopped)?,
            ..plan
        },
        None => plan,
    };
    if args.tools {
        plan.config.tools = Some(super::find_or_make_tools(args.cache.as_ref(), &mut told)?);
    }
    if args.linux_source {
        plan.config.tree = Some(super::find_or_make_tree(args.cache.as_ref(), &mut told)?);
    }
    let kvm_failure = choose_accelerator(args.accel, &mut plan, &told)?;
    let console = args.console.as_ref();
    let console = console.map(|path| create_console_file(path, args.replacement.force)).transpose()?;
    told.print(&format!("booting {}", guest_title(&plan)));
    let (start, whole) = (Instant::now(), plan.timeouts.total);
    let status = CommandStatus::start("booting the guest", StatusEnd::AtMost(plan.timeouts.first_line));
    let forwards_output = !args.json;
    let mut watcher =
        GuestWatcher { progress: told, status, console, forwards_output, start, time_limit: whole };
    let guest = boot::run_guest(&plan, &mut watcher).map_err(output::exit_if_stopped)?;
    if args.json {
        output::print_json(&json::outcome_to_json(&plan, kvm_failure.as_deref(), &guest))?;
    }
    Ok(report_outcome(&guest, args.json))
}

/// Sets the accelerator of the plan, after a probe boot if KVM was requested. Returns why TCG had to replace
/// it, which was printed.
pub fn choose_accelerator(
    choice: AcceleratorChoice,
    plan: &mut GuestPlan,
    told: &SetupProgress,
) -> Result<Option<String>, Failure> {
    if choice == AcceleratorChoice::Tcg {
        return Ok(None);
    }
    told.print(&format!("probing KVM with kernel {}", plan.kernel.release));
    let status = CommandStatus::start("probing KVM", StatusEnd::AtMost(boot::PROBE_TIMEOUT));
    let resolved = boot::resolve_accelerator(choice, plan, &mut ProbeWatcher(told));
    let resolved = resolved.map_err(output::exit_if_stopped)?;
    drop(status);
    plan.accelerator = resolved.accelerator;
    if let Some(reason) = &resolved.kvm_failure {
        output::warn(&format!(
            "note: the guest is emulated (TCG), because KVM does not work with kernel {}: {reason}",
            plan.kernel.release
        ));
    }
    Ok(resolved.kvm_failure)
}

/// Ends a probe boot on a signal.
struct ProbeWatcher<'a>(&'a SetupProgress);

impl boot::GuestObserver for ProbeWatcher<'_> {
    fn stop_signal(&mut self) -> Option<i32> {
        self.0.stop.signal()
    }
}

/// Prints errors and warnings, and returns the exit code.
pub(super) fn report_outcome(guest: &Guest, is_json: bool) -> u8 {
    let finished = match guest {
        Guest::Completed(finished) => finished,
        Guest::Lost(lost) => {
            output::print_error(&format!("the guest was lost: {}", lost.reason));
            return Exit::GuestLost as u8;
        }
    };
    let warn_not_copied = |what: &str| output::warn(&format!("warning: not copied: {what}"));
    finished.missing_files.iter().take(COPY_ERRORS_SHOWN).for_each(|why| warn_not_copied(why));
    match finished.missing_files.len().saturating_sub(COPY_ERRORS_SHOWN) {
        0 => {}
        more => warn_not_copied(&format!("{more} more; --json lists them")),
    }
    match finished.steps.last().map(|step| &step.end) {
        Some(StepExit::Code(0)) | None if !finished.missing_files.is_empty() => Exit::Partial as u8,
        Some(StepExit::Code(code)) => u8::try_from(*code).unwrap_or(Exit::Partial as u8),
        Some(StepExit::Signal(signal)) => Exit::code_after_signal(*signal),
        Some(StepExit::NotRun(why)) => {
            if !is_json {
                let why = pagelab_guest::console::printable(why);
                output::print_error(&format!("cannot run the command in the guest: {why}"));
            }
            Exit::Partial as u8
        }
        None => Exit::Success as u8,
    }
}

fn guest_shape(args: &Args) -> Result<GuestConfig, Failure> {
    if args.cgroup.is_none() && args.cgroup_limit.is_some() {
        return Err(super::super::usage_error("--cgroup-limit requires --cgroup v2 or v1"));
    }
    let limit_bytes = args.cgroup_limit.map(|limit| limit.0);
    // Until they are found or made: QEMU gets descriptors, so the plan shows no names.
    let named = |wanted: bool, name: &str| wanted.then(|| PathBuf::from(name));
    let shape = GuestConfig {
        memory: args.memory,
        dimms: args.dimms,
        cpus: args.cpus,
        icount: args.icount,
        nodes: args.nodes,
        append: args.append.clone(),
        swap: args.swap,
        disk: args.disk,
        tools: named(args.tools, "TOOLS"),
        tree: named(args.linux_source, "TREE"),
        cgroup: args.cgroup.map(|version| CgroupConfig { version, limit_bytes }),
    };
    shape.check().map_err(|why| super::super::usage_error(&why))?;
    Ok(shape)
}

/// Returns the plan, and the cache for its kernel if that must be downloaded first.
fn resolve_plan(args: &Args, shape: GuestConfig) -> Result<(GuestPlan, Option<KernelCache>), Failure> {
    let name = &args.kernel;
    let found = super::find_kernel(args.cache.as_ref(), name, args.modules.as_deref());
    let (kernel, fetches_into) = match found.map_err(output::exit_if_stopped)? {
        Some(kernel) => (kernel, None),
        None => {
            let cache = super::open_cache(args.cache.as_ref())?;
            let (release, image) = (format!("{name} (to be downloaded)"), cache.store().dir().join("KERNEL"));
            (GuestKernel { release, image, modules: None, package: None }, Some(cache))
        }
    };
    let mut plan = GuestPlan::new(kernel, shape, vec![JobStep::Pagelab(args.command.clone())]);
    plan.module = args
        .module
        .then(|| super::find_own_module(args.cache.as_ref(), &args.kernel, &plan.kernel))
        .transpose()?;
    plan.module_lines = args.switch.clone();
    plan.qemu = args.qemu.clone();
    plan.sandbox = !args.no_sandbox;
    plan.accelerator = args.accel.first();
    plan.input_files = args.give.clone();
    plan.output_paths = args.take.clone();
    plan.output_dir = args.to.clone();
    plan.output_bytes_max = args.take_max.0;
    plan.timeouts.total = args.timeout;
    plan.timeouts.first_line = args.boot_timeout;
    Ok((plan, fetches_into))
}

/// The line of the module's control file for `NAME=STATE`.
fn parse_switch(text: &str) -> Result<String, String> {
    let Some((name, state)) = text.split_once('=') else {
        return Err(format!("expected NAME=STATE, for example grouping=off, found `{text}`"));
    };
    let Some((_, states)) = FEATURES.iter().find(|(known, _)| *known == name) else {
        return Err(names::describe_unknown("feature", name, &FEATURES.map(|(known, _)| known)));
    };
    match states.contains(&state) {
        true => Ok(format!("{name} {state}")),
        false => Err(names::describe_unknown(&format!("state of {name}"), state, states)),
    }
}

fn create_console_file(path: &Path, replaces: bool) -> Result<File, Failure> {
    check_output(path, replaces)?;
    File::create(path).map_err(|error| Failure::cannot_write(path.display(), &error, "file"))
}

/// `6.1.0-56-cloud-amd64, 512 MiB, 2 CPUs`
pub(super) fn guest_title(plan: &GuestPlan) -> String {
    let GuestConfig { memory, dimms, cpus, nodes, swap, disk, .. } = &plan.config;
    let mut title = format!("{}, {}", plan.kernel.release, format_exact(*memory));
    if let Some(Dimms { count, size }) = dimms {
        title.push_str(&format!(", {} of {}", format_plural(*count, "DIMM"), format_exact(*size)));
    }
    title.push_str(&format!(", {}", format_plural(*cpus, "CPU")));
    if *nodes > 1 {
        title.push_str(&format!(", {nodes} nodes"));
    }
    for (name, size) in [("swap", swap), ("disk", disk)] {
        title.push_str(&size.map_or_else(String::new, |size| format!(", {name} {}", format_exact(size))));
    }
    title
}

fn accelerator_title(choice: AcceleratorChoice, icount: Option<u32>) -> String {
    let name = choice.name();
    let probe = format!("a probe boot of at most {} s", boot::PROBE_TIMEOUT.as_secs());
    let text = match choice {
        AcceleratorChoice::Tcg if icount.is_some() => {
            let ns = 1 << icount.unwrap_or(0);
            format!("emulated by QEMU, which counts instructions: {ns} ns of guest time each")
        }
        AcceleratorChoice::Tcg => {
            "emulated by QEMU, about ten times slower than hardware; /dev/kvm is not opened".to_owned()
        }
        AcceleratorChoice::Kvm => format!("the processor of this machine, after {probe}"),
        AcceleratorChoice::Auto => format!("kvm as shown below if {probe} works, otherwise tcg"),
    };
    format!("{name}: {text}")
}

fn dry_run(args: &Args, shape: GuestConfig) -> Result<(), Failure> {
    let (plan, fetches_into) = resolve_plan(args, shape)?;
    plan.check()?;
    let fetches = fetches_into.map(|cache| {
        format!("the newest {} cloud kernel into {}", args.kernel, cache.store().dir().display())
    });
    if args.json {
        let document = json::plan_to_json(&plan, args.accel, fetches.as_deref())?;
        return output::print_json(&document);
    }
    let mut out = output::stdout();
    writeln!(out, "guest     {}", guest_title(&plan))?;
    writeln!(out, "accel     {}", accelerator_title(args.accel, args.icount))?;
    match &fetches {
        Some(fetches) => writeln!(out, "fetches   {fetches}")?,
        None => {
            let names = plan.list_module_names()?.join(" ");
            writeln!(out, "modules   {}", if names.is_empty() { "none" } else { &names })?;
        }
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    writeln!(out, "runs      pagelab {}", words.join(" "))?;
    writeln!(out, "\n{}", plan.command_line())?;
    out.flush()?;
    Ok(())
}

/// Forwards the output of the command, and prints progress.
pub(super) struct GuestWatcher {
    pub progress: SetupProgress,
    pub status: CommandStatus,
    pub console: Option<File>,
    pub forwards_output: bool,
    /// Start of QEMU, and its time limit.
    pub start: Instant,
    pub time_limit: Duration,
}

/// Grace period after the deadline. The listener of the guest checks the deadline; this check follows later.
const DEADLINE_GRACE: Duration = Duration::from_millis(100);

impl GuestWatcher {
    fn forward(&self, to: impl AsFd, bytes: &[u8]) -> io::Result<()> {
        let is_late = || self.start.elapsed() > self.time_limit.saturating_add(DEADLINE_GRACE);
        let gives_up = || self.progress.stop.signal().is_some() || is_late();
        if self.forwards_output { output::forward(to, bytes, gives_up) } else { Ok(()) }
    }
}

impl boot::GuestObserver for GuestWatcher {
    fn on_stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.forward(io::stdout().lock(), bytes)
    }

    fn on_stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        progress::postpone_log_line();
        self.forward(io::stderr().lock(), bytes)
    }

    fn on_console(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.console.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn on_started(&mut self, _qemu: u32) {
        self.start = Instant::now();
    }

    fn on_first_message(&mut self, cost: FirstMessageCost) {
        let (wall, cpu) = (cost.wall_time.as_secs_f64(), cost.host_cpu.as_secs_f64());
        self.progress.print(&format!("first line of output after {wall:.1} s, {cpu:.1} s of CPU time"));
        let left = self.time_limit.saturating_sub(self.start.elapsed());
        self.status.update("running the command in the guest", StatusEnd::AtMost(left));
    }

    fn on_note(&mut self, note: &str) {
        output::warn(&format!("note: in the guest: {note}"));
    }

    fn stop_signal(&mut self) -> Option<i32> {
        self.progress.stop.signal()
    }
}
