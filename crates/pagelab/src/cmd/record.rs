//! `pagelab record`: memory over time, into a run file.

mod dry;
mod gap;
mod maps;
mod rows;
#[cfg(test)]
mod rows_tests;
mod session;
pub(super) mod status;
pub(super) mod tick;
mod wall;

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_formats::duration;
use pagelab_host::guard::Watched;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::sampler::{Metric, Metrics, Sampler};
use pagelab_host::tracepoints::StackDepth;
use pagelab_model::run::Ending;
use pagelab_model::{Absence, Snapshot};
use pagelab_report::quantity;
use pagelab_runfile::Writer;
use pagelab_sys::clock;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Exit, Failure};
use crate::{manifest, out};
use maps::Maps;
use session::{Ended, Session};
use status::{Status, Summary};
use tick::{Alarm, Grid, Stop};

/// What `record` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// The new run file
    #[arg(short, long, value_name = "FILE.pagelab")]
    output: PathBuf,
    /// Time from sample to sample: 100ms to 1d [default: 5s, or a tenth of --for where that is shorter]
    #[arg(long, value_name = "TIME")]
    every: Option<String>,
    /// End after this time, such as 12h; without it, Ctrl-C ends the recording
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<String>,
    /// What to record, with commas; see below
    #[arg(long, value_name = "LIST", default_value = "default")]
    metrics: String,
    /// Also a map of physical memory so often, such as 1m: the class of every page (1s to 1d)
    #[arg(long, value_name = "TIME")]
    maps: Option<String>,
    /// Record who spoils pageblocks: call stacks of allocations that fall back (root)
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "user")]
    stacks: Option<Depth>,
    /// Say what would be recorded, what a sample costs and how large the file would become
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Refused: a saved tree does not move
    #[arg(long, value_name = "DIR|TAR", hide = true)]
    root: Option<PathBuf>,
}

/// How far call stacks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Depth {
    /// Functions of the kernel
    Kernel,
    /// And frames of the program, as far as it keeps frame pointers
    User,
}

fn after_help() -> String {
    let mut text =
        "Metrics (* is recorded by default; the words default and all stand for many):\n".to_owned();
    for (name, what, is_default) in Metric::table() {
        let mark = if is_default { '*' } else { ' ' };
        text += &format!("  {mark} {name:<13} {what}\n");
    }
    text + "
What a sample costs is recorded too. A tick that was missed is told, never made up for. A file that is \
killed in the middle lacks one sample at most.

Examples:
  pagelab record -o day.pagelab --for 12h          a working day
  pagelab record -o now.pagelab --every 100ms      until Ctrl-C
  pagelab record -o s.pagelab --metrics default,slab,cgroups=/system.slice/*
  pagelab record -o m.pagelab --maps 1m            for pagelab map m.pagelab@2h
  pagelab record -o why.pagelab --for 10m --stacks who spoils pageblocks
  pagelab report day.pagelab                       what is in it"
}

/// How long a signal waits for the file to be closed. A disk that takes longer leaves it unclosed, and
/// readable.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

/// The exit code after Ctrl-C.
pub(super) const SIGINT: i32 = 130;

/// How long the end that was asked for waits for the map that is being scanned.
const MAP_PATIENCE: Duration = Duration::from_secs(30);

/// Everything resolved before anything is made.
struct Plan {
    root: Root,
    every_ns: u64,
    for_ns: Option<u64>,
    metrics: Metrics,
    maps_every: Option<Duration>,
    /// The machine and its settings.
    look: Snapshot,
}

/// Records until the time is over or a signal comes.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let plan = resolve(args)?;
    allow_files();
    let sampler = Sampler::open(&plan.root, &plan.metrics);
    for (metric, absence) in sampler.absent() {
        out::complain(&format!("pagelab: {}", not_recorded(metric.name(), absence)));
    }
    if let Some(absence) = plan.maps_every.and_then(|_| maps::absence(&plan.root)) {
        out::complain(&format!("pagelab: {}", not_recorded("maps", &absence)));
    }
    if sampler.is_empty() {
        let message = "nothing of what was asked for can be recorded here; choose other --metrics";
        return Err(Failure::new(Exit::NotAvailable, message));
    }
    if args.dry_run {
        return dry::run(&plan, &args.output, args.json);
    }
    record(args, &plan, sampler)
}

/// Tracepoints take a dozen descriptors on each CPU, and huge pages by size one for each counter: on a large
/// machine that is more than the usual soft limit. What the hard limit allows is taken.
pub(super) fn allow_files() {
    let now = getrlimit(Resource::Nofile);
    // Where it cannot be raised, the metric that lacks descriptors says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

fn resolve(args: &Args) -> Result<Plan, Failure> {
    if let Some(root) = &args.root {
        let message = format!(
            "--root {}: a saved tree does not move, so there is nothing to record; `pagelab checkup --root` \
             reads it, and record runs on this machine",
            root.display()
        );
        return Err(super::usage(&message));
    }
    let for_ns = match &args.duration {
        Some(text) => Some(time("--for", text, EVERY_MIN, 366 * DAY)?),
        None => None,
    };
    let every_ns = match &args.every {
        Some(text) => time("--every", text, EVERY_MIN, DAY)?,
        None => usual_every_ns(for_ns),
    };
    if let Some(for_ns) = for_ns.filter(|&for_ns| for_ns < every_ns) {
        let (for_text, every_text) = (quantity::duration(for_ns), quantity::duration(every_ns));
        out::complain(&format!(
            "pagelab: --for {for_text} is shorter than --every {every_text}: there will be one sample"
        ));
    }
    let metrics =
        Metrics::parse(&args.metrics).map_err(|error| super::usage(&format!("--metrics: {error}")))?;
    let maps_every_ns = match &args.maps {
        Some(text) => Some(time("--maps", text, Duration::from_secs(1), DAY)?),
        None => None,
    };
    let metrics = match args.stacks {
        None => metrics,
        Some(Depth::Kernel) => metrics.with_stacks(StackDepth::Kernel),
        Some(Depth::User) => metrics.with_stacks(StackDepth::KernelAndUser),
    };
    let root = Root::live();
    let look = manifest::this_machine(&root);
    let maps_every = maps_every_ns.map(Duration::from_nanos);
    Ok(Plan { root, every_ns, for_ns, metrics, maps_every, look })
}

/// The least time between samples.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Time between samples where none was given: 5 s, or less so that a short recording has ten of them.
fn usual_every_ns(for_ns: Option<u64>) -> u64 {
    const USUAL_NS: u64 = 5_000_000_000;
    let least_ns = EVERY_MIN.as_nanos() as u64;
    for_ns.map_or(USUAL_NS, |for_ns| (for_ns / 10).clamp(least_ns, USUAL_NS))
}

pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// A length of time within bounds, in nanoseconds.
pub(super) fn time(option: &str, text: &str, least: Duration, most: Duration) -> Result<u64, Failure> {
    let length = duration::parse(text).map_err(|error| super::usage(&format!("{option} {error}")))?;
    if length < least || length > most {
        let most = most.as_secs() / DAY.as_secs();
        let least = match least.as_millis() {
            ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
            ms => format!("{ms}ms"),
        };
        let message = format!("{option} {text}: from {least} to {most}d was wanted");
        return Err(super::usage(&message));
    }
    // At most a year, which is far below 2^64.
    Ok(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}

fn not_recorded(what: &str, absence: &Absence) -> String {
    let way_out = absence.way_out.as_ref().map(|way| format!("; {way}")).unwrap_or_default();
    let verb = if what == "maps" { "are" } else { "is" };
    format!("{what} {verb} not recorded: {}: {}{way_out}", absence.source, absence.reason())
}

fn record(args: &Args, plan: &Plan, sampler: Sampler) -> Result<u8, Failure> {
    let system = |errno: Errno| Failure::new(Exit::NotAvailable, "cannot make a timer").because(errno);
    let stop = Stop::new().map_err(system)?;
    let alarm = Alarm::new(stop.clone()).map_err(system)?;
    let mut status = Status::new(&Reader::new(&plan.root), plan.look.pmd_order);
    let absent: Vec<String> =
        sampler.absent().iter().map(|(metric, absence)| not_recorded(metric.name(), absence)).collect();
    let started = manifest::now();
    let manifest = manifest::of_this_process("record", None, started, &plan.look);
    let writer = Writer::create(&args.output, &manifest).map_err(|error| super::run_file(&error))?;
    watch_signals(&args.output, &stop);
    let first_ns = clock::boottime_ns().saturating_sub(started.boottime_ns);
    let grid = Grid { start_ns: started.boottime_ns, first_ns, every_ns: plan.every_ns };
    let (path, page_size) = (args.output.clone(), plan.look.machine.page_size);
    let mut session = Session::new(&plan.root, path, writer, sampler, grid, page_size);
    if let Some(every) = plan.maps_every {
        session.maps = Some(Maps::start(plan.root.clone(), grid.start_ns, every).map_err(|error| {
            Failure::new(Exit::NotAvailable, "cannot start a thread for maps").because(error)
        })?);
    }
    for text in absent {
        session.event(0, "absent", text).map_err(|error| super::run_file(&error))?;
    }
    let ended = session.run(&alarm, plan.for_ns, &mut status);
    status.clear();
    let patience = match &ended {
        Ok(Ended::Over) => MAP_PATIENCE,
        Ok(Ended::Signal(_)) => CLOSE_PATIENCE / 2,
        _ => Duration::ZERO,
    };
    if let Err(error) = session.last_map(patience) {
        return finish(args, plan, session, Ended::Failed(error));
    }
    finish(args, plan, session, ended?)
}

/// From now on a signal ends the recording in good order, and the process a little later in any case.
pub(super) fn watch_signals(path: &Path, stop: &Stop) {
    let (stop, file) = (stop.clone(), path.display().to_string());
    let watched = Watched::signals(Box::new(move |code, outcomes| {
        stop.ask(code);
        std::thread::sleep(CLOSE_PATIENCE);
        let kept = format!("{file} could not be closed in time; what had been written can be read");
        out::signalled(code, &kept, outcomes)
    }));
    if let Err(error) = watched {
        out::complain(&format!("pagelab: a signal will leave {} unclosed: {error}", path.display()));
    }
}

/// Closes the file, says what is in it, and finds the exit code.
fn finish(args: &Args, plan: &Plan, session: Session, ended: Ended) -> Result<u8, Failure> {
    let after_ns = clock::boottime_ns().saturating_sub(session.grid.start_ns);
    let (ending, said) = match (&ended, plan.for_ns) {
        (Ended::Over, _) | (Ended::Signal(_), None) => (Ending::Complete { after_ns }, "complete"),
        (Ended::Signal(code), Some(_)) => {
            let why = out::signal_name(*code);
            (Ending::Stopped { after_ns, why: why.to_owned() }, why)
        }
        (Ended::Failed(error), _) => {
            let why = "the file could not be written any more";
            (Ending::Stopped { after_ns, why: error.to_string() }, why)
        }
    };
    let (closed, totals) = session.close(ending);
    let summary =
        Summary { path: &args.output, every_ns: plan.every_ns, after_ns, totals: &totals, ending: said };
    let (failed, code) = match ended {
        Ended::Failed(error) => (Some(error), Exit::Partial as u8),
        // Without --for this is the end that its help speaks of.
        Ended::Signal(SIGINT) if plan.for_ns.is_none() => (closed.err(), Exit::Done as u8),
        Ended::Signal(code) => (closed.err(), u8::try_from(code).unwrap_or(Exit::Bug as u8)),
        Ended::Over => (closed.err(), Exit::Done as u8),
    };
    if let Some(error) = failed {
        let failure = super::run_file(&error);
        let message = format!("the recording stopped after {} samples: {failure}", totals.samples);
        return Err(Failure::new(failure.exit(), message));
    }
    summary.print(args.json)?;
    Ok(code)
}
