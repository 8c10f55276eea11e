//! `pagelab tune`: does this program gain from huge pages, and how many does it take? Profile, plan, and the
//! arms beside each other; then the verdict.

mod arms;
mod attached;
mod profiling;
mod recipe;
mod resume;
mod unseen;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_experiment::resolve::{Overrides, Resolved};
use pagelab_experiment::session::Times;
use pagelab_experiment::swap::Swap;
use pagelab_host::capture::Stop;
use pagelab_model::Bytes;
use pagelab_model::profile::ProfileSource;
use pagelab_model::run::Ending;
use pagelab_report::text::Page;
use pagelab_runfile::Writer;

use super::profile::Source;
use super::{run as experiment, run_file, usage};
use crate::exit::{Exit, Failure};
use crate::{manifest, out};
use arms::Chosen;
pub use recipe::ORIGIN;

const AFTER_HELP: &str = "\
Examples:
  pagelab tune -- ./server --bench       profile, plan, none / plan / all
  pagelab tune --share 0.9 -- ./server   as few pages as have 90 % of the gain
  pagelab tune -n 15 --curve -- ./x      15 pages; and 0, 8, 16, 32 … all
  pagelab tune --source exact -- ./x     misses by a modelled TLB
  pagelab tune --pid 4121 --metric './load -n 100000'
  pagelab tune --dry-run -- ./server     what would be done
  pagelab tune --resume tune-x-1.pagelab go on after Ctrl-C, or after a kill

The arms run under the same supervisor, none with an empty plan. Each trial is \
written as soon as it has ended. The answer may be that huge pages do not help.

docs/tune.md
";

/// What `tune` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    size: Size,

    /// How misses are found
    #[arg(long, value_enum, default_value_t)]
    source: Source,

    /// Take this profile instead of making one
    #[arg(long, value_name = "FILE.pagelab", conflicts_with = "source")]
    profile: Option<PathBuf>,

    /// Rounds that count; below 6 there is no verdict
    #[arg(long, value_name = "N", default_value_t = 7,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,

    /// Measure 8, 16, 32 … huge pages too, and as many by chance and by use
    #[arg(long)]
    curve: bool,

    /// Two rounds without warm-up: shows that all works, and decides nothing
    #[arg(long, conflicts_with = "repeats")]
    quick: bool,

    /// The program's own figure: the text around it, such as "took {} s"
    #[arg(long, value_name = "TEXT")]
    figure: Option<String>,

    /// Exit codes of the program that are no failure, such as 0,1
    #[arg(long, value_name = "CODES", value_delimiter = ',', default_value = "0")]
    exit_codes: Vec<u8>,

    /// More of the figure is better
    #[arg(long)]
    higher: bool,

    /// How long one run of the program may take
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = limit)]
    time_limit: std::time::Duration,

    /// A running process: its huge pages come and go, nothing is restarted
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "curve"], requires = "metric")]
    pid: Option<u32>,

    /// With --pid, a command for sh that loads the process: its last line is
    /// the number that judges, or else its time is
    #[arg(long, value_name = "CMD", requires = "pid")]
    metric: Option<String>,

    /// With --pid, how long it is profiled, while CMD runs
    #[arg(long = "for", value_name = "TIME", default_value = "10s", requires = "pid")]
    profile_for: String,

    /// Seed of the order, and of what is chosen by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Go on with a run that was stopped or killed
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["number", "share", "budget", "source", "profile", "repeats", "curve",
            "quick", "figure", "exit_codes", "dry_run", "output", "plan", "command", "pid", "metric"])]
    resume: Option<PathBuf>,

    /// Write this run file [default: tune-PROGRAM-1.pagelab, the first free]
    #[arg(short = 'o', long = "run", value_name = "FILE.pagelab")]
    output: Option<PathBuf>,

    /// Write the plan here [default: beside the run file, .plan.toml]
    #[arg(long, value_name = "FILE.toml")]
    plan: Option<PathBuf>,

    /// The report as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,

    /// The program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How much is planned.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Size {
    /// So many huge pages
    #[arg(short = 'n', long, value_name = "N")]
    number: Option<usize>,

    /// As few as have this share of what all save [default: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    share: Option<f64>,

    /// As many as fit into so much memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: Option<Bytes>,
}

/// The share of what all save that a plan has where nobody says.
const SHARE: f64 = 0.9;

fn limit(text: &str) -> Result<std::time::Duration, String> {
    pagelab_formats::duration::parse(text)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a share above 0 and up to 1 was wanted, such as 0.9".to_owned())
}

fn size(text: &str) -> Result<Bytes, String> {
    let size = pagelab_formats::size::parse_suffixed(text.as_bytes()).ok().filter(|size| size.0 > 0);
    size.ok_or_else(|| "a size was wanted, such as 64M".to_owned())
}

impl Size {
    fn wanted(&self) -> pagelab_tlb::plan::Size {
        use pagelab_tlb::plan::Size as Wanted;
        match (self.number, self.budget) {
            (Some(number), _) => Wanted::Pages(number),
            (None, Some(budget)) => Wanted::Budget(budget),
            (None, None) => Wanted::Share(self.share.unwrap_or(SHARE)),
        }
    }

    /// As it would be typed.
    fn words(&self) -> String {
        match (self.number, self.budget) {
            (Some(number), _) => format!("-n {number}"),
            (None, Some(budget)) => format!("--budget {}", pagelab_experiment::recipe::short(budget)),
            (None, None) => format!("--share {}", self.share.unwrap_or(SHARE)),
        }
    }
}

/// Carries it out.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(path) = &args.resume {
        resume::plans(path)?;
        return experiment::resume(path, args.json);
    }
    if let Some(pid) = args.pid {
        return attached::run(args, pid);
    }
    let words = words(&args.command)?;
    let Some(program) = words.first() else {
        let text = "what is to be tuned? give the program behind `--`: pagelab tune -- ./server --bench";
        return Err(usage(text));
    };
    if args.higher && args.figure.is_none() {
        return Err(usage(
            "--higher is of the program's own figure: --figure 'TEXT {} TEXT' says where it stands",
        ));
    }
    let name = format!("tune-{}", recipe::plain(program));
    let path = args.output.clone().unwrap_or_else(|| experiment::free_name(&name));
    if path.symlink_metadata().is_ok() {
        return Err(usage(&format!("{}: it is there already, and is not overwritten", path.display())));
    }
    let plan_path = args.plan.clone().unwrap_or_else(|| beside(&path, "plan.toml"));
    if args.dry_run {
        return dry_run(args, &words, &name, &path, &plan_path);
    }
    experiment::check_program(program)?;
    launched(args, &words, &name, &path, &plan_path)
}

/// Profile, plan and measure a program that is started for it.
fn launched(args: &Args, words: &[String], name: &str, path: &Path, plan_path: &Path) -> Result<u8, Failure> {
    let stop = Stop::watch().map_err(|error| {
        Failure::new(Exit::NotAvailable, "cannot watch for signals, so nothing is begun").because(error)
    })?;
    let mut how = how(args, &stop);
    let at = passing(path, "profile");
    let mut profile = match &args.profile {
        Some(file) => profiling::read(file, &how)?,
        None => profiling::make(args.source, words, &at, &how)?,
    };
    if args.source == Source::Auto
        && args.profile.is_none()
        && let Some(seen) = profile
    {
        profile = unseen::go_on(seen, words, &at, &mut how)?;
    }
    let Some(profile) = profile else { return Ok(stopped(&stop)) };
    let mut chosen = arms::choose(args, &profile, plan_path)?;
    if arms::is_by_address(&chosen.tune.plan) {
        out::complain(&format!(
            "pagelab: the profile names memory by its address, which is another one in each run of most \
             programs: {}",
            why_by_address(&profile, args.profile.is_none())
        ));
    }
    let text = recipe::text(&recipe::Told::of(args), name, words, &chosen.tune.arms, &chosen.files);
    let resolved = resolve(&text)?;
    let snapshot = experiment::look();
    let started = manifest::now();
    let mut manifest = manifest::of_this_process("tune", Some(args.seed), started, &snapshot);
    manifest.machine.tlb = experiment::tlb(&snapshot);
    // The profile first: whatever comes, it need not be made again.
    let mut writer = Writer::create(path, &manifest).map_err(|error| run_file(&error))?;
    let kept = writer.profile(0, &profile).and_then(|()| writer.flush());
    kept.map_err(|error| run_file(&error))?;
    if profile.source == ProfileSource::Exact && !args.quick && !chosen.tune.plan_file.is_empty() {
        let after = profiling::recount(words, plan_path, &passing(path, "recount"), &how);
        chosen.tune.after = after.map(Box::new);
    }
    write(&mut writer, &chosen, &resolved).map_err(|error| run_file(&error))?;
    let times = Times::since(started);
    if let Some(signal) = stop.signal() {
        let ending = Ending::Stopped { after_ns: times.now_ns(), why: signal_name(signal).to_owned() };
        writer.close(ending).map_err(|error| run_file(&error))?;
        out::complain(&format!(
            "pagelab: stopped by {}; the profile and the plan are kept in {1}\n  go on with: pagelab tune \
             --resume {1}",
            signal_name(signal),
            path.display()
        ));
        return Ok(code_after(signal));
    }
    experiment::carry_out(path, writer, (times, None), Swap::in_dir(None), &resolved, &snapshot, args.json)
}

/// Why a profile names memory by its address, as its own notes have it, and what would name it by length and
/// number.
fn why_by_address(profile: &pagelab_model::Profile, is_own: bool) -> String {
    const REASONS: [&str; 3] = ["seen whole", "cannot be supervised", "named by its place"];
    let reason = REASONS.iter().find_map(|of| profile.notes.iter().find(|note| note.contains(of)));
    match reason {
        Some(note) => note.clone(),
        None if is_own => {
            "mostly small mappings that touch one another, which have no length of their own; what \
                           is planned there holds only where addresses are not randomised"
                .to_owned()
        }
        None => "`pagelab profile` under its supervisor names it by length and number".to_owned(),
    }
}

/// How a profile is come by. A quick tuning predicts nothing that it has not got already.
fn how<'s>(args: &'s Args, stop: &'s Stop) -> profiling::How<'s> {
    profiling::How { stop, prices: !args.quick, window: None, good: &args.exit_codes }
}

/// Says that a signal came before anything could be kept; the exit code.
fn stopped(stop: &Stop) -> u8 {
    let signal = stop.signal().unwrap_or_default();
    out::complain(&format!("pagelab: stopped by {}; nothing was measured yet", signal_name(signal)));
    code_after(signal)
}

fn signal_name(signal: i32) -> &'static str {
    out::signal_name(128 + signal)
}

fn code_after(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)
}

fn write(writer: &mut Writer, chosen: &Chosen, resolved: &Resolved) -> Result<(), pagelab_runfile::Error> {
    writer.tune(0, &chosen.tune)?;
    writer.plan(0, &resolved.plan)?;
    writer.flush()
}

fn resolve(text: &str) -> Result<Resolved, Failure> {
    let recipe = pagelab_experiment::recipe::Recipe::parse(ORIGIN, text);
    let resolved = recipe.and_then(|recipe| Resolved::of(recipe, &Overrides::default()));
    // What a person typed stands in it, such as the text around a figure.
    resolved.map_err(|bad| usage(&bad.to_string()))
}

fn words(command: &[OsString]) -> Result<Vec<String>, Failure> {
    let text = |word: &OsString| match word.to_str() {
        Some(word) => Ok(word.to_owned()),
        None => Err(usage(&format!("{}: it is not UTF-8, and a plan is", word.to_string_lossy()))),
    };
    command.iter().map(text).collect()
}

/// `tune-x-1.plan.toml` beside `tune-x-1.pagelab`.
fn beside(path: &Path, what: &str) -> PathBuf {
    path.with_extension(what)
}

/// A name beside the run file for what is only passed on; no other tuning has it.
fn passing(path: &Path, what: &str) -> PathBuf {
    beside(path, &format!("{what}-{}.pagelab", std::process::id()))
}

/// What would be done, and how often the program would run.
fn dry_run(args: &Args, words: &[String], name: &str, path: &Path, plan: &Path) -> Result<u8, Failure> {
    let mut page = Page::new(out::style());
    match &args.profile {
        Some(file) => page.hanging("profile  ", &format!("read from {}", file.display())),
        None => page.hanging("profile  ", &profiling::in_words(args.source, words)),
    }
    page.hanging("plan     ", &format!("{}, to {}", args.size.words(), plan.display()));
    if !args.quick && !profiling::is_priced() {
        page.hanging("price    ", "what a page walk costs here is measured, some 15 s, and kept");
    }
    let three = arms::unplanned(plan);
    let curve = match args.curve {
        true => {
            "; with --curve, 8, 16, 32 … pages, each by cost, by chance and by use, as the profile has them"
        }
        false => "",
    };
    let text = recipe::text(&recipe::Told::of(args), name, words, &three.0, &three.1);
    let resolved = resolve(&text)?;
    let trials = resolved.plan.schedule.len();
    let order = "none / plan / all under the same supervisor";
    page.hanging("measure  ", &format!("{order}: {trials} runs of the program{curve}"));
    page.hanging("write    ", &path.display().to_string());
    page.hanging("", "It takes as long as these runs take; nothing of the machine's settings is changed.");
    let mut stdout = out::stdout();
    stdout.write_all(page.finish().as_bytes())?;
    stdout.flush()?;
    Ok(Exit::Done as u8)
}
