//! `pagelab run`: an experiment, from its recipe to its run file and report.

pub mod gate;
pub mod load;
mod model;
mod plan;
mod progress;
mod ready;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use pagelab_experiment::resolve::{Overrides, Resolved};
use pagelab_experiment::session::{Came, News, Session, Times};
use pagelab_experiment::simulated;
use pagelab_experiment::swap::Swap;
use pagelab_experiment::trial::Bench;
use pagelab_host::capture::Stop;
use pagelab_host::guard::Site;
use pagelab_model::run::{Ending, Run};
use pagelab_model::{Bytes, Snapshot};
use pagelab_runfile::Writer;
use pagelab_sys::cpuid;

use super::{report, sim, tune, usage};
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::{manifest, out};
pub use load::check_program;
use progress::Progress;

const AFTER_HELP: &str = "\
Examples:
  pagelab recipes                         what there is
  pagelab run thp --dry-run               the plan, and nothing runs
  pagelab run thp --quick                 whether it works here, in 2 minutes
  pagelab run thp -o thp.pagelab          the whole experiment
  pagelab run thp -- ./server --bench     its variants over a program of yours
  pagelab run own.toml                    a recipe of yours (docs/recipes.md)
  pagelab run --resume thp.pagelab        go on after Ctrl-C, or after a kill

Each trial is written as soon as it has ended. Settings are changed while a \
trial runs, and put back after it; after a kill -9, pagelab restore does it.

Exit code 5: some trials did not end well; the report says which and why.
docs/run.md, docs/recipes.md
";

/// What `run` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A recipe's file, or the name of one that comes with pagelab
    #[arg(value_name = "RECIPE", required_unless_present = "resume")]
    recipe: Option<String>,

    /// Smaller and fewer trials: shows that all works, and decides nothing
    #[arg(long)]
    quick: bool,

    /// Rounds that count [default: the recipe's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: Option<u32>,

    /// Print what would run and what would be changed, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Go on with a run that was stopped or killed
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["recipe", "quick", "repeats", "dry_run", "output", "command",
            "swap_dir", "model"])]
    resume: Option<PathBuf>,

    /// Write this run file [default: RECIPE-1.pagelab, the first free number]
    #[arg(short = 'o', long = "run", value_name = "FILE", conflicts_with = "dry_run")]
    output: Option<PathBuf>,

    /// Where a swap file is made, if a variant wants one [default: $TMPDIR,
    /// else /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap_dir: Option<PathBuf>,

    /// Where the processor's counters cannot be read: also run each workload
    /// once under each variant with a modelled TLB (columns model.…), which
    /// takes some 26 times as long as a trial
    #[arg(long)]
    model: bool,

    /// The plan, or the report, as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,

    /// Run the recipe's variants over this program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Carries it out.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(path) = &args.resume {
        return resume(path, args.json);
    }
    let name = args.recipe.as_deref().unwrap_or_default();
    let (origin, text) = load::text(name)?;
    if simulated::is_simulated(&text) {
        return simulate(args, &origin, &text);
    }
    let resolved = resolve(args, load::parse(&origin, &text)?)?;
    if args.dry_run {
        return plan::show(&resolved, args.json, args.model).map(|()| Exit::Done as u8);
    }
    load::check_programs(&resolved)?;
    let snapshot = look();
    let started = manifest::now();
    let path = match &args.output {
        Some(path) => path.clone(),
        None => free_name(&resolved.plan.name),
    };
    let mut manifest = manifest::of_this_process("run", Some(resolved.plan.seed), started, &snapshot);
    manifest.machine.tlb = tlb(&snapshot);
    let mut writer = Writer::create(&path, &manifest).map_err(|error| super::run_file(&error))?;
    writer.plan(0, &resolved.plan).map_err(|error| super::run_file(&error))?;
    writer.flush().map_err(|error| super::run_file(&error))?;
    let times = Times::since(started);
    let swap = Swap::in_dir(args.swap_dir.clone());
    conduct(&path, writer, (times, None), swap, &resolved, &snapshot, (args.json, args.model))
}

/// A recipe of the simulator, which has seeds for rounds.
fn simulate(args: &Args, origin: &str, text: &str) -> Result<u8, Failure> {
    if !args.command.is_empty() || args.swap_dir.is_some() || args.model {
        return Err(usage(
            "this recipe is simulated: it starts no program, and needs no folder for swap and no --model",
        ));
    }
    let asked = sim::run::Asked { quick: args.quick, seeds: args.repeats, ..Default::default() };
    if args.dry_run {
        return sim::run::dry_run(origin, text, &asked, args.json);
    }
    let how = sim::session::How { output: args.output.clone(), json: args.json, ..Default::default() };
    sim::run::recipe(origin, text, &asked, how)
}

/// What a recipe and a command line come to.
fn resolve(args: &Args, recipe: pagelab_experiment::recipe::Recipe) -> Result<Resolved, Failure> {
    let text = |word: &OsString| match word.to_str() {
        Some(word) => Ok(word.to_owned()),
        None => Err(usage(&format!("{}: it is not UTF-8, and a plan is", word.to_string_lossy()))),
    };
    let words: Vec<String> = args.command.iter().map(text).collect::<Result<_, Failure>>()?;
    let command = (!words.is_empty()).then_some(words);
    let overrides = Overrides { quick: args.quick, repeats: args.repeats, command };
    Resolved::of(recipe, &overrides).map_err(|bad| usage(&bad.to_string()))
}

/// Goes on with a file: its own recipe under its own command line, as far as it was not carried out.
pub fn resume(path: &Path, json: bool) -> Result<u8, Failure> {
    let bad =
        |text: &str| Failure::new(Exit::BadInput, format!("cannot go on with {}: {text}", path.display()));
    let (mut writer, run) =
        Writer::resume(path).map_err(|error| report::refusal_by(&error, "`pagelab run RECIPE -o FILE`"))?;
    let Some(experiment) = &run.experiment else {
        return Err(bad("it holds no experiment; one is made by `pagelab run RECIPE`"));
    };
    let asked = Cli::try_parse_from(&run.manifest.command_line).ok();
    let args = match asked.map(|cli| cli.command) {
        Some(Command::Run(args)) => Some(args),
        // All that its command line says is in its recipe.
        Some(Command::Tune(_)) if run.tune.as_ref().is_some_and(|tune| tune.pid.is_none()) => None,
        Some(Command::Tune(_)) => {
            return Err(bad(
                "its process was not started by it, and need not be the same any more; begin anew",
            ));
        }
        _ => return Err(bad("its command line is not one of `pagelab run` or `tune`; begin a new run")),
    };
    let plan = &experiment.plan;
    let recipe = pagelab_experiment::recipe::Recipe::parse(&plan.origin, &plan.recipe)
        .map_err(|error| bad(&format!("this pagelab does not take its recipe:\n{error}")))?;
    let resolved = match &args {
        Some(args) => resolve(args, recipe)?,
        None => Resolved::of(recipe, &Overrides::default()).map_err(|error| bad(&error.to_string()))?,
    };
    if resolved.plan != *plan {
        return Err(bad(
            "this pagelab makes another plan of its recipe; take the version that began it, or a \
                        new run",
        ));
    }
    let snapshot = look();
    let now = manifest::now();
    let times = Times::of_resumed(&run, now);
    let kernel = |of: &pagelab_model::Machine| of.kernel_release.clone().ok();
    let (then, here) = (kernel(&run.manifest.machine), kernel(&snapshot.machine));
    let changed = match then == here {
        true => String::new(),
        false => format!(", on Linux {} now", here.unwrap_or_default()),
    };
    let text = format!("gone on with, {} trials of {} done{changed}", experiment.kept(), plan.schedule.len());
    let event = pagelab_model::run::Event { at_ns: times.now_ns(), kind: "resumed".to_owned(), text };
    writer.event(&event).map_err(|error| super::run_file(&error))?;
    out::complain(&format!("{}: {}", plan.name, event.text));
    load::check_programs(&resolved)?;
    let model = args.as_ref().is_some_and(|args| args.model);
    let swap = Swap::in_dir(args.and_then(|args| args.swap_dir));
    conduct(path, writer, (times, Some(&run)), swap, &resolved, &snapshot, (json, model))
}

/// Runs what is due, closes the file and prints the report.
pub fn carry_out(
    path: &Path,
    writer: Writer,
    times: (Times, Option<&Run>),
    swap: Swap,
    resolved: &Resolved,
    snapshot: &Snapshot,
    json: bool,
) -> Result<u8, Failure> {
    conduct(path, writer, times, swap, resolved, snapshot, (json, false))
}

/// The same, with a model of the TLBs where that is wanted and counters cannot be read.
fn conduct(
    path: &Path,
    mut writer: Writer,
    (times, so_far): (Times, Option<&Run>),
    swap: Swap,
    resolved: &Resolved,
    snapshot: &Snapshot,
    (json, wants_model): (bool, bool),
) -> Result<u8, Failure> {
    let stop = Stop::watch().map_err(|error| {
        Failure::new(Exit::NotAvailable, "cannot watch for signals, so nothing is begun").because(error)
    })?;
    // Whoever a trial leaves behind comes to us and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let mut machine = snapshot.machine.clone();
    machine.tlb = tlb(snapshot);
    let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let asked = || stop.signal();
    let missing = ready::make(resolved, so_far, &stop);
    let modelled = |workload: usize, variant: usize| model::measures(resolved, (workload, variant), &asked);
    let is_modelled = wants_model && !model::is_counted(snapshot);
    if wants_model && !is_modelled {
        out::note("model: the processor's counters can be read here, so nothing is modelled");
    }
    let bench = Bench {
        site: Site::live().map_err(|error| error.to_string()),
        machine: &machine,
        total: total.unwrap_or(Bytes(0)),
        swap,
        resolved,
        stop: &asked,
        look: &look,
        missing: &missing,
        peaks: std::cell::RefCell::default(),
        model: if is_modelled { Some(&modelled) } else { None },
    };
    head(&machine, snapshot);
    let mut progress = Progress::new(&resolved.plan);
    let mut news = |news: &News<'_>| progress.tell(news);
    let came = Session::new(bench, &mut writer, times, so_far, &mut news).run();
    progress.clear();
    let signal = stop.signal();
    let after_ns = times.now_ns();
    let ending = match (signal, &came) {
        (Some(signal), Ok(came)) if came.left > 0 => {
            Ending::Stopped { after_ns, why: out::signal_name(128 + signal).to_owned() }
        }
        (_, Err(error)) => Ending::Stopped { after_ns, why: error.to_string() },
        _ => Ending::Complete { after_ns },
    };
    let is_stopped = matches!(ending, Ending::Stopped { .. });
    let closed = writer.close(ending);
    let came = came.map_err(|error| super::run_file(&error))?;
    closed.map_err(|error| super::run_file(&error))?;
    let shown = report::show(path, json)?;
    let command = if resolved.plan.origin == tune::ORIGIN { "tune" } else { "run" };
    Ok(end(path, command, came, signal.filter(|_| is_stopped), shown))
}

/// What the processor has, and whether it can be counted on, before anything is measured.
fn head(machine: &pagelab_model::Machine, snapshot: &Snapshot) {
    for (name, text) in pagelab_report::checkup::geometry(machine) {
        out::note(&format!("{name:<10}{text}"));
    }
    let counters = snapshot.instruments.iter().find(|instrument| instrument.name == "hardware_counters");
    let Some(counters) = counters else { return };
    let text = match &counters.state {
        Ok(found) => found.clone(),
        Err(absence) => {
            let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
            format!("none of the hardware: {}{way_out}", absence.reason())
        }
    };
    out::note(&format!("counters  {text}"));
}

/// The last line, and the exit code. `command` is what goes on with it.
fn end(path: &Path, command: &str, came: Came, signal: Option<i32>, shown: Exit) -> u8 {
    let name = path.display();
    if let Some(signal) = signal {
        let why = out::signal_name(128 + signal);
        out::complain(&format!(
            "pagelab: stopped by {why}; {} trials are kept in {name}, {} are left; all settings are put \
             back\n  go on with: pagelab {command} --resume {name}",
            came.trials, came.left
        ));
        return u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8);
    }
    out::note(&format!("→ {name}   pagelab report {name}"));
    match (came.good == came.trials, shown) {
        (true, shown) => shown as u8,
        (false, _) => Exit::Partial as u8,
    }
}

/// A look at the machine, without its processes.
pub fn look() -> Snapshot {
    let root = pagelab_host::root::Root::live();
    let nobody = pagelab_host::processes::Budget { processes_max: 0, ..Default::default() };
    let options = pagelab_host::collect::CollectOptions {
        pagetypeinfo: false,
        processes: nobody,
        known: pagelab_host::machine::Known::default(),
        taken_realtime_ns: None,
    };
    pagelab_host::collect::collect(&pagelab_host::reader::Reader::new(&root), &options)
}

pub fn tlb(snapshot: &Snapshot) -> pagelab_model::Reading<pagelab_model::machine::Tlb> {
    match &snapshot.machine.cpu {
        Ok(cpu) => pagelab_tlb::choose(cpu, &cpuid::leaves(), None),
        Err(_) => snapshot.machine.tlb.clone(),
    }
}

/// `thp-1.pagelab`, or the first number of which there is none here.
pub fn free_name(recipe: &str) -> PathBuf {
    let name = |number: u32| PathBuf::from(format!("{recipe}-{number}.pagelab"));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..10_000).map(name).find(is_free).unwrap_or_else(|| name(10_000))
}
