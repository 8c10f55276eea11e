//! Session of `apply`: a program with planned huge pages, launched or already running.
//!
//! The request is resolved once: what the supervisor process does is in its job, which it
//! receives with the plan in a memfd, and it reports in typed messages over a pipe.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_command::exit::{Exit, Failure, FailureKind, usage_error};
use pagelab_command::machine_guard::open_guard;
use pagelab_command::{input, output};
use pagelab_formats::plan_toml;
use pagelab_host::guard::{Guard, GuardOptions, Knob};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{machine, paths};
use pagelab_model::huge_plan::HugePlan;
use pagelab_model::{Bytes, PageSize};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style;
use pagelab_sys::{clock, spawn};
use pagelab_target::program;
use pagelab_target::remote_collapse::RemoteCollapse;
use pagelab_target::supervisor::{HugePageChoice, PlanMatch, ProgramExit, Summary, match_plan};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use pagelab_target::program::find_program;

use front_end::block_signals;
use messages::SupervisorJob;
pub use supervise::run_supervisor;

mod front_end;
mod messages;
mod supervise;

/// Which program gets huge pages, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplyRequest {
    /// The plan: a file, `-` for standard input, `never`, `none` or `all`.
    pub plan: OsString,
    /// The program.
    pub subject: ApplySubject,
    /// Whether the program's own advice against huge pages is overridden.
    pub overrides: bool,
    /// Whether a plan for another build of the program is applied.
    pub allow_stale: bool,
    /// Summary file to write, as JSON.
    pub summary: Option<OsString>,
    /// Whether memory is collapsed from outside, without tracing.
    pub is_untraced: bool,
    /// Whether regions are backed by the hugetlb pool.
    pub uses_hugetlb: bool,
    /// Time limit for one region of a running process.
    pub region_deadline: Duration,
}

/// The program that gets huge pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ApplySubject {
    /// A command to start, its own name first.
    Launch(Vec<OsString>),
    /// A running process.
    Process(u32),
}

/// Applies the plan, and returns the exit code: the program's, or that of the collapses. A failure is also
/// written to the summary file.
pub fn run_apply(request: &ApplyRequest) -> Result<u8, Failure> {
    let outcome = request.to_job().and_then(|job| apply_job(&job));
    if let Err(failure) = &outcome {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "apply",
            "failure": { "code": Exit::from(failure.kind()) as u8, "message": failure.to_string() },
        });
        // If that fails too, only the failure itself is reported.
        let _ = supervise::write_summary(request.summary.as_deref(), &document);
    }
    outcome
}

/// Describes what would be done, and changes nothing.
pub fn describe_apply(request: &ApplyRequest) -> Result<String, Failure> {
    let job = request.to_job()?;
    match job.request.subject {
        ApplySubject::Launch(_) => Ok(describe_launch(&job)),
        ApplySubject::Process(pid) => job.open_process(pid).map(|process| describe_collapse(&process)),
    }
}

fn apply_job(job: &SupervisorJob) -> Result<u8, Failure> {
    let arguments = match &job.request.subject {
        ApplySubject::Process(pid) => {
            // The worker opens it again: the descriptor here is closed before the worker acts.
            drop(job.open_process(*pid)?);
            return front_end::run_supervised(job, Some(job.request.region_deadline), block_signals()?);
        }
        ApplySubject::Launch(arguments) => arguments,
    };
    if job.request.is_untraced {
        return run_untraced(job, arguments);
    }
    let signals = block_signals()?;
    let pool = enlarge_pool(job)?;
    let code = front_end::run_supervised(job, None, signals);
    pool.into_iter().for_each(restore_pool);
    code
}

/// The plan that disables huge pages, also where the program requests them.
const NEVER: &str = "never";

impl ApplyRequest {
    fn disables_thp(&self) -> bool {
        self.plan == NEVER
    }

    /// Reads the plan and finds the program.
    fn to_job(&self) -> Result<SupervisorJob, Failure> {
        if let (true, ApplySubject::Process(_)) = (self.disables_thp(), &self.subject) {
            let message = "`never` applies to a program that is started: only a process itself can disable \
                           its huge pages";
            return Err(usage_error(message));
        }
        let choice = read_choice(Path::new(&self.plan))?;
        let program = match &self.subject {
            ApplySubject::Launch(command) => find_program(&command.first().cloned().unwrap_or_default())?,
            ApplySubject::Process(_) => PathBuf::new(),
        };
        let job = SupervisorJob {
            request: self.clone(),
            program: program.into_os_string(),
            choice,
            disables_thp: self.disables_thp(),
            page: base_page_size().bytes(),
            huge: pmd_size().0,
        };
        reject_stale_plan(&job)?;
        reject_unforced_override(&job)?;
        Ok(job)
    }
}

/// Reads the plan; this is the only time.
fn read_choice(plan: &Path) -> Result<HugePageChoice, Failure> {
    match plan.to_str() {
        Some("none" | NEVER) => return Ok(HugePageChoice::Nothing),
        Some("all") => return Ok(HugePageChoice::All),
        _ => {}
    }
    let consumer = input::InputConsumer::RunFileFrom("`pagelab plan -o FILE`");
    let (name, text) = input::read_bounded_input(plan, consumer)?;
    let plan = plan_toml::parse(&text, pmd_size())
        .map_err(|error| Failure::new(FailureKind::BadInput, error.message_in_file(&name)))?;
    Ok(HugePageChoice::Plan(plan))
}

/// Returns the huge page size of this machine, or the default of the architecture if the kernel has none.
fn pmd_size() -> Bytes {
    machine::pmd_size(&Reader::new(&Root::live()), base_page_size())
}

fn base_page_size() -> PageSize {
    machine::live_page_size().unwrap_or(PageSize::DEFAULT)
}

/// Rejects a plan for another build of the program to be started.
fn reject_stale_plan(job: &SupervisorJob) -> Result<(), Failure> {
    let (HugePageChoice::Plan(plan), ApplySubject::Launch(_)) = (&job.choice, &job.request.subject) else {
        return Ok(());
    };
    let path = Path::new(&job.program);
    let program = program::identify_program(&path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    match match_plan(plan, &program) {
        PlanMatch::Stale(_) if !job.request.allow_stale => {
            let reason = format_args!("it is for another build of {}", path.display());
            Err(Failure::cannot(FailureKind::BadInput, "apply the plan", reason)
                .hint("profile this build and plan again, or use --stale"))
        }
        _ => Ok(()),
    }
}

/// Rejects a plan that takes effect only against the program's own advice, which the user has not overridden.
fn reject_unforced_override(job: &SupervisorJob) -> Result<(), Failure> {
    match &job.choice {
        HugePageChoice::Plan(plan) if plan.overrides_advice && !job.request.overrides => {
            let reason = "the program refuses huge pages for this memory (MADV_NOHUGEPAGE or prctl)";
            Err(Failure::cannot(FailureKind::Usage, "apply the plan", reason)
                .hint("use --override to override the program's own advice"))
        }
        _ => Ok(()),
    }
}

/// Describes the advice for a program to be started.
fn describe_launch(job: &SupervisorJob) -> String {
    let program = job.program.display();
    match &job.choice {
        HugePageChoice::Nothing if job.disables_thp => {
            format!("would start {program} with huge pages disabled (PR_SET_THP_DISABLE)\n")
        }
        HugePageChoice::Nothing => format!("would start {program} without advice\n"),
        HugePageChoice::All => {
            let least = style::format_bytes(Bytes(job.huge));
            format!(
                "would start {program} and advise all anonymous mappings of at least\n{least} when they are \
                created, and its heap as it grows\n"
            )
        }
        HugePageChoice::Plan(plan) => {
            let regions = describe_regions(plan);
            format!("would start {program} and advise these regions when they are mapped:\n{regions}")
        }
    }
}

/// Describes what would be collapsed in a running process.
fn describe_collapse(process: &RemoteCollapse) -> String {
    let regions = match &process.choice {
        HugePageChoice::Nothing => "  none\n".to_owned(),
        HugePageChoice::All => "  all anonymous memory that is mostly resident\n".to_owned(),
        HugePageChoice::Plan(plan) => describe_regions(plan),
    };
    let notes: String = process.build_summary().notes.iter().map(|note| format!("{note}\n")).collect();
    format!("would collapse memory of process {}:\n{regions}{notes}", process.pid)
}

fn describe_regions(plan: &HugePlan) -> String {
    let mut text = String::new();
    for program in &plan.programs {
        let name = if program.program.path.is_empty() { "any program" } else { &program.program.path };
        for mapping in &program.mappings {
            let bytes: u64 = mapping.regions.iter().map(|region| region.page.0).sum();
            let bytes = style::format_bytes(Bytes(bytes));
            let what = pagelab_target::supervisor::describe_mapping(&mapping.key);
            let count = mapping.regions.len();
            text.push_str(&format!("  {name}: {what}: {count} regions, {bytes}\n"));
        }
    }
    text
}

/// Minimum interval between two scans. The pause after a scan is also two hundred times its duration.
const SCAN_INTERVAL_MIN: Duration = Duration::from_millis(50);
const PAUSE_FACTOR: u32 = 200;
/// Interval of the checks whether the program has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

fn run_untraced(job: &SupervisorJob, arguments: &[OsString]) -> Result<u8, Failure> {
    let cannot = |error: io::Error| {
        Failure::cannot(FailureKind::BadInput, format_args!("start {}", job.program.display()), error)
    };
    let signals = block_signals()?;
    let began = Instant::now();
    let mut command = Command::new(&job.program);
    command.arg0(arguments.first().unwrap_or(&job.program)).args(arguments.iter().skip(1));
    match job.disables_thp {
        true => spawn::disable_thp(&mut command),
        false => spawn::limit_thp_to_advised(&mut command),
    };
    let mut child = command.spawn().map_err(cannot)?;
    front_end::detach_stdio(false).map_err(cannot)?;
    front_end::forward_signals(signals, std::sync::Arc::new(child.id().into()));
    let is_wanted = job.choice != HugePageChoice::Nothing;
    // Right after the start the process may not have executed the program yet.
    let mut process = None;
    let mut next = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break status;
        }
        if is_wanted && Instant::now() >= next {
            let scan_started = Instant::now();
            if process.is_none() {
                process = job.open_process(child.id()).ok();
            }
            // One that has just ended cannot be read, and that is no error.
            let _ = process.as_mut().map(|outside| outside.run_collapse_pass(|| {}));
            next = Instant::now()
                + SCAN_INTERVAL_MIN.max(scan_started.elapsed() * PAUSE_FACTOR).min(Duration::from_secs(5));
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    };
    let mut summary = process.map(|outside| outside.build_summary()).unwrap_or_default();
    summary.wall_ns = began.elapsed().as_nanos() as u64;
    summary.supervisor_cpu_ns = clock::process_cpu_ns(std::process::id()).unwrap_or(0);
    let ended = status.code().map(ProgramExit::Code).or(status.signal().map(ProgramExit::Signal));
    summary.exit = ended;
    let document = summary_to_json(&summary);
    if let Some(note) = supervise::write_summary(job.request.summary.as_deref(), &document) {
        output::warn(&format!("note: {note}"));
    }
    front_end::print_summary(&summary);
    Ok(ended.map_or(Exit::Bug as u8, ProgramExit::exit_code))
}

/// Maximum wait for another pagelab process that has changed the pool.
const GUARD_TIMEOUT: Duration = Duration::from_secs(30);

fn enlarge_pool(job: &SupervisorJob) -> Result<Option<Guard>, Failure> {
    let pages = match &job.choice {
        _ if !job.request.uses_hugetlb => return Ok(None),
        HugePageChoice::Plan(plan) => {
            let mappings = plan.programs.iter().flat_map(|program| &program.mappings);
            mappings.map(|mapping| mapping.regions.len() as u64).sum::<u64>()
        }
        HugePageChoice::Nothing => 0,
        HugePageChoice::All => {
            let message = "--backing hugetlb requires a plan: `all` does not determine the pool size";
            return Err(usage_error(message));
        }
    };
    let options = GuardOptions { wait_timeout: GUARD_TIMEOUT, ..GuardOptions::default() };
    let guard = open_guard(options)?;
    let knob = Knob::hugetlb(Bytes(job.huge), None);
    let path = format!("{}/hugepages-{}kB/nr_hugepages", paths::HUGETLB, job.huge >> 10);
    let before = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let before = before.ok_or_else(|| {
        let reason = "this kernel has no pool of this page size";
        Failure::cannot(FailureKind::NotAvailable, format_args!("read {path}"), reason)
    })?;
    let wanted = before.saturating_add(pages);
    let applied = guard.set_knob(&knob, &wanted.to_string())?;
    if !applied.is_exact() {
        output::warn(&format!(
            "warning: the pool has {} of {wanted} requested pages: memory is fragmented; hint: run `pagelab \
            compact`",
            applied.actual
        ));
    }
    Ok(Some(guard))
}

/// Restores the pool size after the program has ended.
fn restore_pool(guard: Guard) {
    for outcome in guard.finish() {
        if !outcome.detail.is_empty() {
            output::warn(&format!("warning: {}: {}", outcome.label, outcome.detail));
        }
    }
}

fn summary_to_json(summary: &Summary) -> Value {
    let (code, signal) = match summary.exit {
        Some(ProgramExit::Code(code)) => (Some(code), None),
        Some(ProgramExit::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    json!({
        "pagelab_json": CONTRACT_VERSION,
        "kind": "apply",
        "regions": {
            "requested": summary.requested,
            "allocated": summary.allocated,
            "failed": summary.failed,
            "failed_more": summary.failed_more,
        },
        "huge_bytes": summary.huge_bytes,
        "heap_beyond_bytes": summary.heap_beyond_bytes,
        "supervisor_cpu_ns": summary.supervisor_cpu_ns,
        "collapse_cpu_ns": summary.collapse_cpu_ns,
        "stopped_ns": summary.stopped_ns,
        "stops": summary.stops,
        "wall_ns": summary.wall_ns,
        "exit": { "code": code, "signal": signal },
        "notes": summary.notes,
    })
}
