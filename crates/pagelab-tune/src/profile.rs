//! Session of a profile: one program or file, one source, one run file.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_command::setup_progress::SetupProgress;
use pagelab_command::{manifest, output};
use pagelab_experiment::gate;
use pagelab_formats::{plan_toml, region_list};
use pagelab_host::orphan_keeper::OrphanKeeper;
use pagelab_host::root::Root;
use pagelab_model::machine::{Machine, Tlb};
use pagelab_model::run::RunEnd;
use pagelab_model::{Bytes, PageSize, Snapshot, TlbProfile};
use pagelab_packages::store;
use pagelab_probe::walk_cost;
use pagelab_runfile::RunWriter;
use pagelab_sys::cpuid;
use pagelab_target::exact::HugePageSet;
use pagelab_target::pmu::{RecordTarget, SamplingHardware, probe};
use pagelab_target::sampling::file;
use pagelab_target::{exact, pmu, sampling};
use pagelab_tlb::engine::tlb::SamplingWindow;
use pagelab_tlb::syntax;

use pagelab_target::program::find_program;

pub use accessed::{AccessedOptions, serve_reader, serve_splitter};

mod accessed;

/// Request to profile a program.
#[derive(Debug, Default)]
pub struct ProfileRequest {
    /// Profile source.
    pub source: MissSource,
    /// File written by perf, for [`MissSource::PerfData`].
    pub file: Option<PathBuf>,
    /// A running process, instead of a command.
    pub pid: Option<u32>,
    /// Duration of the profile; `None`: until the program exits, or a signal.
    pub time_limit: Option<Duration>,
    /// Run file to create; `None`: named after the program.
    pub output: Option<NewRunFile>,
    /// TLB geometry of [`MissSource::Exact`]; `None`: that of this machine.
    pub tlb: Option<String>,
    /// Huge pages with which [`MissSource::Exact`] counts misses too: `all`, or a plan.
    pub what_ifs: Vec<String>,
    /// Accesses that [`MissSource::Exact`] models, as `N/M`; `None`: all.
    pub window: Option<String>,
    /// Options of [`MissSource::Accessed`].
    pub accessed: AccessedOptions,
    /// Address range of [`MissSource::PerfData`] to use: one mapping.
    pub range: Option<Range<u64>>,
    /// Base page size of the machine of [`MissSource::PerfData`]; `None`: 4 KiB.
    pub page_size: Option<PageSize>,
    /// Command to profile.
    pub command: Vec<OsString>,
}

/// Profile source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissSource {
    /// Hardware samples where available, otherwise accessed bits.
    #[default]
    Auto,
    /// Precise samples of a hardware counter (PMU).
    Pmu,
    /// Accessed bits of page tables: an estimate, at native speed.
    Accessed,
    /// A modelled TLB under QEMU user mode: every access, slow.
    Exact,
    /// A file written by perf.
    PerfData,
}

impl MissSource {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            MissSource::Auto => "auto",
            MissSource::Pmu => "pmu",
            MissSource::Accessed => "accessed",
            MissSource::Exact => "exact",
            MissSource::PerfData => "perf-data",
        }
    }
}

/// Starts the keeper that kills this process's orphans: what a child starts does not die with this process by
/// itself.
pub fn start_orphan_keeper() -> Result<OrphanKeeper, Failure> {
    gate::start_orphan_keeper()
        .map_err(|error| Failure::cannot(FailureKind::NotAvailable, "start a helper process", error))
}

/// Checks whether a running process can be profiled from this source, before anything is measured.
pub fn check_attached_source(source: MissSource) -> Result<(), Failure> {
    match source {
        MissSource::Auto | MissSource::Accessed => Ok(()),
        MissSource::Pmu => detect_hardware().map(drop),
        MissSource::Exact => Err(exact_cannot_attach()),
        MissSource::PerfData => Err(perf_data_takes_no_program()),
    }
}

fn exact_cannot_attach() -> Failure {
    usage_error(
        "--source exact cannot attach to a running process: QEMU must start it; hint: add `-- COMMAND`, or \
         use --source accessed",
    )
}

fn perf_data_takes_no_program() -> Failure {
    usage_error("--source perf-data cannot be used with a command or --pid")
}

/// Makes a profile and writes it to a new run file at `output`.
pub fn record_profile(request: &ProfileRequest, output: &NewRunFile) -> Result<TlbProfile, Failure> {
    let snapshot = manifest::read_this_machine(&Root::live());
    let manifest = manifest::build_for_process("profile", None, manifest::current_moment(), &snapshot);
    // Created first: a file that cannot be written is reported before a program has run for an hour.
    let writer = output.create(&manifest)?;
    let end = request.time_limit.map_or(StatusEnd::Unknown, StatusEnd::After);
    let _status = CommandStatus::start(request.describe(), end);
    let written = make_profile(request, &snapshot.machine).and_then(|mut profile| {
        if profile.walk_cost.is_none() {
            profile.walk_cost = walk_cost::load_cached(&snapshot.machine);
        }
        write_profile(writer, &profile).map(|()| profile)
    });
    // A run file without a profile is useless and belongs to this run: `Writer::create_journal` never reuses
    // an existing file.
    written.inspect_err(|_| pagelab_runfile::remove_run_file(&output.path))
}

fn make_profile(request: &ProfileRequest, machine: &Machine) -> Result<TlbProfile, Failure> {
    match request.source {
        MissSource::Auto => match detect_hardware() {
            Ok(hardware) => profile_pmu(request, hardware),
            Err(why) => {
                let mut profile = accessed::profile_accessed(request, machine)?;
                profile.notes.push(format!("--source auto uses accessed bits: {why}"));
                Ok(profile)
            }
        },
        MissSource::Pmu => profile_pmu(request, detect_hardware()?),
        MissSource::Accessed => accessed::profile_accessed(request, machine),
        MissSource::Exact => profile_exact(request),
        MissSource::PerfData => profile_perf_data(request),
    }
}

fn write_profile(mut writer: RunWriter, profile: &TlbProfile) -> Result<(), Failure> {
    writer.add_profile(profile.wall_ns, profile)?;
    Ok(writer.close(RunEnd::Complete { after_ns: profile.wall_ns })?)
}

impl ProfileRequest {
    /// The program and the source, as a phrase.
    fn describe(&self) -> String {
        let program = match (self.command.first(), self.pid, &self.file) {
            (Some(program), ..) => Path::new(program).display().to_string(),
            (None, Some(pid), _) => format!("process {pid}"),
            (None, None, Some(file)) => file.display().to_string(),
            (None, None, None) => "nothing".to_owned(),
        };
        format!("profiling {program}, source {}", self.source.name())
    }

    /// Returns the run file's path: as given, or the program's name with a free number.
    pub fn output_file(&self) -> Result<NewRunFile, Failure> {
        if let Some(file) = &self.output {
            return Ok(file.clone());
        }
        let program = self.command.first().map(Path::new).or(self.file.as_deref());
        let name = program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = name
            .or(self.pid.map(|pid| format!("pid-{pid}")))
            .ok_or_else(|| Failure::no_command("`-- COMMAND`, `--pid PID`, or `--source perf-data FILE`"))?;
        let numbered = (2..).map(|number: u32| PathBuf::from(format!("{name}.{number}.profile.pagelab")));
        let first = PathBuf::from(format!("{name}.profile.pagelab"));
        let free = std::iter::once(first).chain(numbered).find(|path| !path.exists());
        Ok(NewRunFile::at(free.unwrap_or_default()))
    }
}

fn profile_perf_data(request: &ProfileRequest) -> Result<TlbProfile, Failure> {
    let Some(path) = &request.file else {
        let message = "no file given: add `--source perf-data FILE`, where FILE is the output of perf mem \
            record, or the text output of perf script or perf mem report; use `-` for standard input";
        return Err(usage_error(message));
    };
    if !request.command.is_empty() || request.pid.is_some() {
        return Err(perf_data_takes_no_program());
    }
    let page_size = request.page_size.unwrap_or(PageSize::DEFAULT);
    let options = sampling::SamplingOptions::new(page_size, request.range.clone());
    file::read_profile(path, options)
}

/// Size of the ring buffer of each CPU: 1 MiB holds about 15 000 samples, and perf_event_mlock_kb allows
/// about half a MiB to every user.
const RING_BYTES_ROOT: u64 = 1 << 20;
const RING_BYTES_USER: u64 = 128 << 10;

fn detect_hardware() -> Result<SamplingHardware, Failure> {
    probe::find_hardware(&Root::live(), &probe::try_open_here)
}

fn record_options(request: &ProfileRequest) -> pmu::RecordOptions {
    let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap_or(PageSize::DEFAULT);
    let is_root = rustix::process::geteuid().is_root();
    pmu::RecordOptions {
        sampling_options: sampling::SamplingOptions::new(page_size, None),
        ring_bytes: if is_root { RING_BYTES_ROOT } else { RING_BYTES_USER },
        duration_max: request.time_limit,
    }
}

fn profile_pmu(request: &ProfileRequest, hardware: SamplingHardware) -> Result<TlbProfile, Failure> {
    let target = match (request.command.split_first(), request.pid) {
        (Some((program, arguments)), None) => {
            let mut command = Command::new(find_program(program)?);
            command.args(arguments);
            RecordTarget::Start(command)
        }
        (None, Some(pid)) => RecordTarget::Attach(pid),
        _ => return Err(Failure::no_command("`-- COMMAND` or `--pid PID`")),
    };
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without this, a signal kills pagelab at once, and the profile is lost.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stopped));
    }
    let options = record_options(request);
    let recorded = pmu::record_profile(&hardware, target, &options, &|| stopped.load(Ordering::Relaxed));
    let recorded = recorded?;
    if let Some(status) = recorded.status.filter(|status| !status.success()) {
        output::warn(&format!("note: the program ended with {status}"));
    }
    Ok(recorded.profile)
}

fn profile_exact(request: &ProfileRequest) -> Result<TlbProfile, Failure> {
    if request.pid.is_some() {
        return Err(exact_cannot_attach());
    }
    let machine = manifest::read_this_machine(&Root::live());
    let page_size = machine.machine.page_size;
    let huge = page_size.block_bytes(machine.pmd_order);
    let exact_request = exact::ExactProfileRequest {
        command: request.command.clone(),
        tlb: resolve_tlb(request.tlb.as_deref(), &machine)?,
        page_size,
        huge,
        what_ifs: request
            .what_ifs
            .iter()
            .map(|name| parse_huge_page_set(name, huge))
            .collect::<Result<_, _>>()?,
        window: request.window.as_deref().map(parse_window).transpose()?,
        cache: store::default_cache_dir(),
    };
    let mut progress = SetupProgress::start(true)?;
    let mut keeper = start_orphan_keeper()?;
    exact::profile_program(&exact_request, &mut keeper, &mut progress).map_err(output::exit_if_stopped)
}

fn resolve_tlb(given: Option<&str>, machine: &Snapshot) -> Result<Tlb, Failure> {
    let given = given.map(syntax::parse).transpose();
    let given = given.map_err(|error| usage_error(&format!("--tlb: {error}")))?;
    let found = match (&machine.machine.cpu, given) {
        (Ok(cpu), given) => pagelab_tlb::select_geometry(cpu, &cpuid::read_leaves(), given),
        (Err(_), Some(given)) => Ok(given),
        (Err(absence), None) => Err(absence.clone()),
    };
    found.map_err(|absence| {
        let message = format!(
            "the TLB geometry of this processor is unknown ({}); hint: use --tlb, for example --tlb \
             l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M",
            absence.reason()
        );
        Failure::new(FailureKind::NotAvailable, message)
    })
}

/// A set of huge pages by its name on the command line.
fn parse_huge_page_set(name: &str, huge: Bytes) -> Result<(String, HugePageSet), Failure> {
    if name == "all" {
        return Ok((name.to_owned(), HugePageSet::All));
    }
    let text = std::fs::read(name)
        .map_err(|error| Failure::cannot_read(name, &error).hint("use --what-if all, or a plan file"))?;
    let short = Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy().into_owned());
    let set = match region_list::is_region_list(&text) {
        true => region_list::parse(&text).map(HugePageSet::Addresses),
        false => plan_toml::parse(&text, huge).map(HugePageSet::Plan),
    };
    let bad = |error| Failure::new(FailureKind::BadInput, format!("--what-if {name}: {error}"));
    set.map(|set| (short, set)).map_err(bad)
}

/// Parses `10M/100M`.
fn parse_window(text: &str) -> Result<SamplingWindow, Failure> {
    let numbers = text
        .split_once('/')
        .and_then(|(sampled, period)| Some((parse_access_count(sampled)?, parse_access_count(period)?)));
    match numbers {
        Some((sampled, period)) if sampled > 0 && sampled < period => Ok(SamplingWindow { sampled, period }),
        _ => Err(usage_error(&format!("--window {text}: expected N/M, for example 10M/100M"))),
    }
}

/// Parses a count of accesses with k, M or G for powers of 1000.
fn parse_access_count(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, times) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], 1_000),
        'm' | 'M' => (&text[..text.len() - 1], 1_000_000),
        'g' | 'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_samples_end_after_the_requested_time() {
        for time_limit in [None, Some(Duration::from_secs(30))] {
            let request = ProfileRequest { time_limit, ..ProfileRequest::default() };
            assert_eq!(record_options(&request).duration_max, time_limit);
        }
    }

    #[test]
    fn windows_are_read() {
        assert_eq!(
            parse_window("10M/100M").unwrap(),
            SamplingWindow { sampled: 10_000_000, period: 100_000_000 }
        );
        assert_eq!(
            parse_window(" 5k / 1G ").unwrap(),
            SamplingWindow { sampled: 5000, period: 1_000_000_000 }
        );
        for bad in ["", "5", "5/5", "0/5", "9/3", "a/b", "5é/9é", "99999999999999G/2"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }
}
