//! `pagelab profile`: where a program's TLB misses cost time, into a run file.

mod accessed;
mod exact;
mod perf_data;
mod pmu;
mod setup;
mod show;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pagelab_host::root::Root;
use pagelab_model::Profile;
use pagelab_model::machine::Machine;
use pagelab_model::run::Ending;
use pagelab_runfile::Writer;

use crate::cmd::run_file;
use crate::exit::{Exit, Failure};
use crate::manifest;

/// What `profile` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    ask: Ask,
}

/// What is done with a profile that is there.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// The regions of a profile: a table and a picture
    Show(show::Args),
    /// Fetches QEMU for --source exact ahead of time
    Setup(setup::Args),
    /// Splits mappings for a profile; not for people
    #[command(hide = true)]
    Splitter,
    /// Reads its own memory, to measure what a profile costs; not for people
    #[command(hide = true)]
    Reader,
}

/// What is to be profiled, and how.
#[derive(Debug, Default, clap::Args)]
struct Ask {
    /// How misses are found
    #[arg(long, value_enum, default_value_t)]
    source: Source,
    /// A file that perf wrote, with --source perf-data: perf.data, or the text of perf script or perf report
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A running process instead of a command
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Profile for this long [default: until it ends, or Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = pagelab_formats::duration::parse)]
    time: Option<std::time::Duration>,
    /// The new run file [default: the program's name, .profile.pagelab]
    #[arg(short, long, value_name = "FILE.pagelab")]
    output: Option<PathBuf>,
    /// Print the profile as JSON
    #[arg(long)]
    json: bool,
    /// Exit codes of the program that are no failure, such as 0,1: pagelab
    /// ends with 0 then; with others it ends as the program does
    #[arg(long, value_name = "CODES", value_delimiter = ',', conflicts_with = "pid")]
    exit_codes: Vec<u8>,
    /// The file is passed on to another command; not for people
    #[arg(long, hide = true)]
    passing: bool,
    #[command(flatten)]
    exact: exact::Options,
    #[command(flatten)]
    accessed: accessed::Options,
    #[command(flatten)]
    pmu: pmu::Options,
    #[command(flatten)]
    perf_data: perf_data::Options,
    /// The command to profile
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How misses are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// Hardware samples where there are some, else accessed bits
    #[default]
    Auto,
    /// Precise samples of a hardware counter
    Pmu,
    /// Accessed bits of the page tables: at native speed, an estimate
    Accessed,
    /// A modelled TLB under QEMU's user mode: every access, slowly
    Exact,
    /// A file that perf wrote
    PerfData,
}

impl Source {
    /// Its word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Source::Auto => "auto",
            Source::Pmu => "pmu",
            Source::Accessed => "accessed",
            Source::Exact => "exact",
            Source::PerfData => "perf-data",
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  pagelab profile -- ./server --bench             accessed bits, at native speed
  pagelab profile --source exact -- xz -9k file   a modelled TLB, every access
  pagelab profile --pid 4121 --for 30s            a running process
  pagelab profile --source perf-data perf.data    what perf mem record wrote
  pagelab profile show server.profile.pagelab     the regions";

/// Profiles, writes the run file and says what was found.
pub fn run(args: &Args) -> Result<u8, Failure> {
    match &args.action {
        Some(Action::Show(args)) => return show::run(args).map(|exit| exit as u8),
        Some(Action::Setup(args)) => return setup::run(args).map(|exit| exit as u8),
        Some(Action::Splitter) => return accessed::splitter().map(|exit| exit as u8),
        Some(Action::Reader) => return accessed::reader().map(|exit| exit as u8),
        None => {}
    }
    let ask = &args.ask;
    let output = ask.output()?;
    let look = manifest::this_machine(&Root::live());
    let manifest = manifest::of_this_process("profile", None, manifest::now(), &look);
    // Made first: a file that cannot be written is told before a program has run for an hour.
    let writer = Writer::create(&output, &manifest).map_err(|error| run_file(&error))?;
    let made = find(ask, &look.machine).and_then(|mut profile| {
        if profile.walk_cost.is_none() {
            profile.walk_cost = crate::walk_cost::known(&look.machine);
        }
        write(writer, &profile).map(|()| profile)
    });
    // A run file without a profile is of no use, and is ours: `Writer::create` makes none that was there.
    let profile = made.inspect_err(|_| pagelab_runfile::remove(&output))?;
    // What the program prints is its own, so with one the summary goes to standard error.
    show::summary(&profile, &output, ask.json, ask.command.is_empty(), !ask.passing)?;
    // The program's own end is ours, but for who asked for the profile alone: the end stands in it.
    let exit = profile.exit.filter(|exit| !ask.passing && !ask.exit_codes.contains(exit));
    Ok(exit.unwrap_or(Exit::Done as u8))
}

fn find(ask: &Ask, machine: &Machine) -> Result<Profile, Failure> {
    match ask.source {
        Source::Auto => match pmu::available() {
            Ok(()) => pmu::profile(ask),
            Err(why) => {
                let mut profile = accessed::profile(ask, machine)?;
                profile.notes.push(format!("--source auto took accessed bits: {why}"));
                Ok(profile)
            }
        },
        Source::Pmu => pmu::profile(ask),
        Source::Accessed => accessed::profile(ask, machine),
        Source::Exact => exact::profile(ask),
        Source::PerfData => perf_data::profile(ask),
    }
}

fn write(mut writer: Writer, profile: &Profile) -> Result<(), Failure> {
    writer.profile(profile.wall_ns, profile).map_err(|error| run_file(&error))?;
    writer.close(Ending::Complete { after_ns: profile.wall_ns }).map_err(|error| run_file(&error))
}

impl Ask {
    /// The run file's path: what was given, or the program's name with a number that is free.
    fn output(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.output {
            return Ok(path.clone());
        }
        let program = self.command.first().map(Path::new).or(self.file.as_deref());
        let name = program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = name.or(self.pid.map(|pid| format!("pid-{pid}"))).ok_or_else(|| {
            let message = "what shall be profiled? give a command behind `--`, --pid PID, or a file that \
                           perf wrote with --source perf-data";
            Failure::new(Exit::Usage, message)
        })?;
        let numbered = (2..).map(|number: u32| PathBuf::from(format!("{name}.{number}.profile.pagelab")));
        let first = PathBuf::from(format!("{name}.profile.pagelab"));
        Ok(std::iter::once(first).chain(numbered).find(|path| !path.exists()).unwrap_or_default())
    }
}
