//! Profile by accessed bits of page tables.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use pagelab_command::exit::{Exit, Failure, FailureKind, Outcome};
use pagelab_command::machine_guard::open_unwatched_guard;
use pagelab_command::output::{self, OutputError};
use pagelab_contig::reserve::Reserve;
use pagelab_formats::{meminfo, pressure};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::Machine;
use pagelab_model::size::format_bytes;
use pagelab_model::{Bytes, TlbProfile};
use pagelab_probe::accessed_bit_cost;
use pagelab_probe::machine_tlb::known_tlb;
use pagelab_sys::spawn;
use pagelab_target::accessed::{self, AccessedProfile, AccessedProfileRequest, ProfileTarget};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::ProfileRequest;

/// Options of [`MissSource::Accessed`](super::MissSource::Accessed).
#[derive(Debug, Default)]
pub struct AccessedOptions {
    /// Share of the time spent on scans, in permille; `None`: the default.
    pub duty_permille: Option<u32>,
    /// Whether the command runs without the supervisor of `apply`.
    pub is_unsupervised: bool,
    /// Whether mappings are not split; nothing is then injected.
    pub keeps_mappings_whole: bool,
    /// Whether zero page entries are dropped; `None`: for a command only.
    pub drops_zero_pages: Option<bool>,
    /// Longest interval between clearing and reading the bits; `None`: the default.
    pub pause_max: Option<Duration>,
}

/// Memory pressure (10 s average) from which on no sweep is made, in hundredths of a percent.
const PRESSURE_LIMIT: u32 = 1000;

/// Profiles the requested program.
pub fn profile_accessed(request: &ProfileRequest, machine: &Machine) -> Result<TlbProfile, Failure> {
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let watched = signal_hook::flag::register_usize(signal, heard.clone(), signal as usize)
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        watched.map_err(Failure::no_signal_handlers)?;
    }
    let subject = match request.pid {
        Some(pid) => ProfileTarget::Process(pid),
        None => ProfileTarget::Command(request.command.clone()),
    };
    let options = &request.accessed;
    let mut job = AccessedProfileRequest {
        target: subject,
        time_limit: request.time_limit,
        duty_permille: options.duty_permille.unwrap_or(accessed::DUTY_PERMILLE),
        page_cost: accessed_bit_cost::load_or_measure(machine, available_room(), reader_command()),
        pause_max: options.pause_max.unwrap_or(accessed::PAUSE_MAX),
        drop_zero_pages: options.drops_zero_pages.unwrap_or(request.pid.is_none()),
        tlb_entries: tlb_entries(machine),
        is_supervised: !options.is_unsupervised,
        splitter: (!options.keeps_mappings_whole).then(splitter_command),
        journal_error: None,
        stop: &stop,
        last_signal: &heard,
        report: &|text| output::warn(&format!("warning: {text}")),
        memory_pressure: &pressure_refusal,
    };
    let done = profile_journalled(&mut job)?;
    let mut profile = done.profile;
    if let Some(exit) = done.exit {
        profile.exit = Some(exit.code().or(exit.signal().map(|signal| 128 + signal)).unwrap_or(0) as u8);
        if !exit.success() {
            profile.notes.push(format!("the program {}", exit_text(exit)));
        }
    }
    Ok(profile)
}

/// Number of base-page entries of the last-level TLB, if known.
fn tlb_entries(machine: &Machine) -> Option<u64> {
    let page_bytes = machine.page_size.bytes();
    known_tlb(machine).ok()?.reach(Bytes(page_bytes)).map(|reach| reach.0 / page_bytes)
}

fn exit_text(exit: ExitStatus) -> String {
    match (exit.code(), exit.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        _ => "ended".to_owned(),
    }
}

/// Profiles, with the splits in the journal. Where none can be written, only a program under the
/// supervisor is split.
fn profile_journalled(job: &mut AccessedProfileRequest<'_>) -> Result<AccessedProfile, Failure> {
    if job.splitter.is_none() {
        return accessed::profile_program(job);
    }
    let whom = match &job.target {
        ProfileTarget::Process(pid) => format!("process {pid}"),
        ProfileTarget::Command(_) => "the profiled program".to_owned(),
    };
    let act = format!(
        "parts of the memory of {whom} are excluded from core dumps (MADV_DONTDUMP) during the profile; this \
        ends when the process exits or is profiled again"
    );
    let guard = open_unwatched_guard();
    let why = match &guard {
        Ok(guard) => match guard.perform_one_way(&act, || accessed::profile_program(job)) {
            Ok(Some(done)) => return done,
            Ok(None) => {
                return Err(Failure::cannot(FailureKind::Bug, "profile the program", "nothing was profiled"));
            }
            Err(error) => error.to_string(),
        },
        // Its supervisor needs no journal: the program ends with it.
        Err(error) if matches!(job.target, ProfileTarget::Command(_)) => {
            job.journal_error = Some(error.to_string());
            return accessed::profile_program(job);
        }
        Err(error) => error.to_string(),
    };
    job.splitter = None;
    let mut done = accessed::profile_program(job)?;
    done.profile.notes.push(format!("mappings are observed as a whole, not by huge page: {why}"));
    Ok(done)
}

/// Command of this program as the splitter, in its own process group; the OOM killer spares it if permitted.
fn splitter_command() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").process_group(0).args(["profile", "splitter"]);
    if let Ok(path) = std::ffi::CString::new(paths::SELF_OOM_SCORE_ADJ) {
        spawn::write_own_file(&mut command, path, b"-1000".to_vec());
    }
    command
}

/// Command of this program as a child that reads its own memory.
fn reader_command() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0("pagelab").args(["profile", "reader"]);
    command
}

/// Serves as the child that measures the cost of an accessed bit.
pub fn serve_reader() -> Outcome {
    accessed::cost_calibration::serve_reads(io::stdin().lock(), io::stdout().lock()).map_err(OutputError)?;
    Ok(Exit::Success)
}

/// Memory that may be allocated briefly: half of the available memory above the reserve.
fn available_room() -> Bytes {
    let root = Root::live();
    let memory = Reader::new(&root).parse(paths::MEMINFO, meminfo::parse).ok();
    let sizes = memory.and_then(|memory| memory.bytes("MemTotal").zip(memory.bytes("MemAvailable")));
    sizes.map_or(Bytes(0), |(total, available)| {
        Bytes(Reserve::from_total_memory(total).headroom(available).0 / 2)
    })
}

/// Serves as the process that splits mappings.
pub fn serve_splitter() -> Outcome {
    accessed::serve_split_requests(io::stdin().lock(), io::stdout().lock()).map_err(OutputError)?;
    Ok(Exit::Success)
}

/// Reason for making no sweep now.
fn pressure_refusal() -> Option<String> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let memory = reader.parse(paths::MEMINFO, meminfo::parse).ok()?;
    let (total, available) = (memory.bytes("MemTotal")?, memory.bytes("MemAvailable")?);
    if Reserve::from_total_memory(total).headroom(available).0 == 0 {
        return Some(format!("memory is low: {} is available", format_bytes(available)));
    }
    let pressure = reader.parse(paths::PRESSURE_MEMORY, pressure::parse).ok()?;
    let waiting = pressure.some.avg10_centipercent;
    (waiting >= PRESSURE_LIMIT).then(|| format!("tasks wait for memory {} % of the time", waiting / 100))
}
