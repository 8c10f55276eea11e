//! `pagelab workload`: one workload alone, or what there is: those that are built in, and external ones.
//!
//! The options of a workload are a table of its own, from which its command line and its help are built.

mod external;
mod json;
mod setup;

use std::io::Write;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use pagelab_contig::reserve::Reserve;
use pagelab_experiment::probe::{PhaseProbe, Wanted};
use pagelab_formats::meminfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use pagelab_report::style::bytes;
use pagelab_report::text::{Column, Page};
use pagelab_workloads::options::{self, Kind, OptionHead, Options};
use pagelab_workloads::phase::Phase;
use pagelab_workloads::table::{self, WORKLOADS};
use pagelab_workloads::{Failed, Workload, mmap_access};

use super::map::explain;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `workload` was asked for.
#[derive(Debug)]
pub struct Args {
    chosen: Chosen,
    json: bool,
    /// The process map instead of the figures.
    explain: bool,
}

#[derive(Debug)]
enum Chosen {
    /// The list of all.
    List,
    /// One that is built in, with its options.
    BuiltIn(&'static Workload, Options),
    /// One that is not ours.
    External(external::Asked),
    /// External ones are set up.
    Setup(setup::Args),
}

const ABOUT_ALL: &str = "\
Without a name, all workloads are listed. Each takes its memory when it starts, checks what it computed, and \
prints one line of JSON: its figure of merit, working set, checksum, latencies, and what generated its \
accesses (docs/json.md; docs/workloads.md tells them in full). External ones are programs that are not ours: \
databases, compilers, benchmarks (docs/external.md).

Examples:
  pagelab workload                                    what there is
  pagelab workload chase --help                       its options and generator
  pagelab workload chase --size 1G --advise nohuge    on base pages
  pagelab workload hot-regions --largepages list.txt  with huge pages for a list
  pagelab workload setup redis                        make redis ready
  pagelab workload redis --keys 5000000               one run of it
  pagelab workload ./own.toml                         one of your own

It needs no root, and changes no setting of the machine.";

impl clap::Args for Args {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
            .arg(
                clap::Arg::new("json")
                    .long("json")
                    .action(clap::ArgAction::SetTrue)
                    .help("List the workloads and all their options as one JSON document (docs/json.md)"),
            )
            .args_conflicts_with_subcommands(true)
            .disable_help_subcommand(true)
            .subcommand_value_name("NAME")
            .subcommand_help_heading("Workloads")
            .after_help(ABOUT_ALL)
            .subcommand(setup::command())
            .subcommands(WORKLOADS.iter().map(|workload| command_of(workload)))
            .subcommands(pagelab_experiment::external::all().iter().map(external::command_of))
            // A path: a manifest of the user's own. Of anything else the error lists what there is.
            .allow_external_subcommands(true)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Args::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Args, clap::Error> {
        let json = matches.get_flag("json");
        let Some((name, given)) = matches.subcommand() else {
            return Ok(Args { chosen: Chosen::List, json, explain: false });
        };
        if json {
            let text = format!("--json is for the list; {name} prints JSON without it");
            return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, text));
        }
        let mut explain = false;
        let chosen = match table::find(name) {
            Some(workload) => {
                let options = given_options(workload.options, Options::defaults(workload.options), given)?;
                explain = explains(workload) && given.get_flag(EXPLAIN);
                Chosen::BuiltIn(workload, options)
            }
            None if name == setup::NAME => Chosen::Setup(setup::Args::of(given)?),
            None => Chosen::External(external::Asked::of(name, given)?),
        };
        Ok(Args { chosen, json, explain })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Args::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag that shows a workload's process map.
const EXPLAIN: &str = "explain";

/// Whether a workload can show its process map.
fn explains(workload: &Workload) -> bool {
    workload.name == mmap_access::WORKLOAD.name
}

/// What is said of a name that no workload has.
fn not_one(name: &str) -> String {
    let built_in = WORKLOADS.iter().map(|workload| workload.name);
    let external = pagelab_experiment::external::all().iter().map(|manifest| manifest.name.as_str());
    let names: Vec<&str> = built_in.chain(external).collect();
    format!(
        "there is no workload {name:?}; there are {}\n  `pagelab workload` says what each does, and a path \
         with a slash or .toml names a manifest of yours",
        names.join(", ")
    )
}

/// The options with what was typed of them.
fn given_options(
    heads: &'static [OptionHead],
    mut options: Options,
    given: &ArgMatches,
) -> Result<Options, clap::Error> {
    for head in heads {
        if given.value_source(head.name) == Some(ValueSource::CommandLine)
            && let Some(typed) = given.get_one::<String>(head.name)
        {
            options.set(head.name, typed).map_err(wrong)?;
        }
    }
    Ok(options)
}

/// A value that is none.
fn wrong(text: impl Into<String>) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::InvalidValue, text.into())
}

/// The command line of one workload.
fn command_of(workload: &'static Workload) -> clap::Command {
    let explain = explains(workload).then(|| {
        clap::Arg::new(EXPLAIN)
            .long(EXPLAIN)
            .action(clap::ArgAction::SetTrue)
            .help("Print what every mapping of its process is, after the accesses, and no figures")
    });
    clap::Command::new(workload.name)
        .args(explain)
        .about(workload.about)
        .after_help(format!("Generator: {}", workload.generator))
        .args(workload.options.iter().map(argument_of))
}

/// One option as clap knows it; it is checked by the same rules as in a recipe.
fn argument_of(head: &'static OptionHead) -> clap::Arg {
    // A negative number is refused as a number, not as a flag that there is not.
    let argument = clap::Arg::new(head.name).long(head.name).help(head.help).allow_negative_numbers(true);
    let argument = if head.default.is_empty() { argument } else { argument.default_value(head.default) };
    let checked = move |typed: &str| match options::parse(head, typed) {
        Ok(_) => Ok(typed.to_owned()),
        // Clap has named the option already.
        Err(text) => Err(text.trim_start_matches(head.name).trim_start_matches(": ").to_owned()),
    };
    match head.kind {
        Kind::Word(words) => argument.value_name("WORD").value_parser(PossibleValuesParser::new(words)),
        Kind::Switch => argument.value_name("YES").value_parser(PossibleValuesParser::new(["yes", "no"])),
        Kind::Size => argument.value_name("SIZE").value_parser(checked),
        Kind::Number(..) => argument.value_name("N").value_parser(checked),
        Kind::Thousandths(_) => argument.value_name("X").value_parser(checked),
        Kind::Path => argument.value_name("FILE").value_parser(checked),
    }
}

/// Runs the workload, or lists all.
pub fn run(args: &Args) -> Outcome {
    let mut out = out::stdout();
    let text = match &args.chosen {
        Chosen::List if args.json => pagelab_report::json::to_text(&json::list()),
        Chosen::List => Ok(list()),
        Chosen::Setup(args) => return setup::run(args),
        Chosen::External(asked) => {
            let (manifest, done, options) = external::run(asked)?;
            pagelab_report::json::to_line(&external::done(manifest, &options, &done))
        }
        Chosen::BuiltIn(_, options) if args.explain => return explained(options),
        Chosen::BuiltIn(workload, options) => {
            within_reserve(workload, options)?;
            let mut probe = PhaseProbe::open(&Wanted::default());
            let done = (workload.run)(options, &mut Phase::watched(&mut probe));
            let done = done.map_err(|failed| failure(workload, &failed))?;
            pagelab_report::json::to_line(&json::done(workload, options, &done, &probe.found()))
        }
    };
    let text = text.map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

/// Runs the accesses and prints the process map as it is after them.
fn explained(options: &Options) -> Outcome {
    let workload = &mmap_access::WORKLOAD;
    within_reserve(workload, options)?;
    let mut space = None;
    let mut look = |range| space = Some(explain::look(std::process::id(), Some(range)));
    let done = mmap_access::run_and_look(options, &mut Phase::unwatched(), &mut look);
    done.map_err(|failed| failure(workload, &failed))?;
    match space {
        Some(space) => explain::show(&space?, false),
        None => Err(Failure::new(Exit::Bug, "the mapping was not looked at")),
    }
}

/// The list for people.
fn list() -> String {
    let mut page = Page::new(out::style());
    let size_of = |workload: &Workload| {
        let size = workload.options.iter().find(|head| head.name == "size");
        size.map_or(String::new(), |head| head.default.to_owned())
    };
    let name_of = |workload: &&Workload| workload.name.len();
    let widest = WORKLOADS.iter().map(name_of).max().unwrap_or(0);
    for workload in WORKLOADS {
        let size = size_of(workload);
        page.hanging(&format!("{:widest$}  {size:>5}  ", workload.name), workload.about);
    }
    page.gap();
    external::list(&mut page);
    page.gap();
    page.table(
        0,
        &[Column::left(""), Column::left("")],
        &[
            vec!["pagelab workload NAME".to_owned(), "runs it: one line of JSON".to_owned()],
            vec!["pagelab workload NAME --help".to_owned(), "its options and its generator".to_owned()],
        ],
    );
    page.finish()
}

/// The exit code of a workload that has no result.
fn failure(workload: &Workload, failed: &Failed) -> Failure {
    let exit = match failed {
        Failed::Options(_) => Exit::Usage,
        Failed::Input(_) => Exit::BadInput,
        Failed::Missing(_) => Exit::NotAvailable,
        Failed::System(_) => Exit::Partial,
        Failed::Wrong(_) => Exit::Bug,
    };
    Failure::new(exit, format!("workload {}: {failed}", workload.name))
}

/// An error if the workload would take memory that is left to everybody else. In a guest nobody else is hurt,
/// and where it cannot be known, a limit of the control group or the kernel decides.
fn within_reserve(workload: &Workload, options: &Options) -> Result<(), Failure> {
    if pagelab_guest::agent::is_here() {
        return Ok(());
    }
    let root = Root::live();
    let Ok(info) = Reader::new(&root).parse(paths::MEMINFO, meminfo::parse) else { return Ok(()) };
    let (Some(total), Some(available)) = (info.bytes("MemTotal"), info.bytes("MemAvailable")) else {
        return Ok(());
    };
    refused(workload.name, options.size("size"), total, available).map_or(Ok(()), Err)
}

/// Why so much is not taken of a machine.
fn refused(name: &str, size: Bytes, total: Bytes, available: Bytes) -> Option<Failure> {
    let reserve = Reserve::of(total);
    let room = reserve.room(available);
    (size > room).then(|| {
        let (size, available, left, room) = (bytes(size), bytes(available), bytes(reserve.0), room.0 >> 20);
        let message = format!(
            "workload {name} would take {size}, and of the {available} available {left} are left to others: \
             give --size {room}M or less, or run it in a guest: \
             pagelab guest run -- workload {name} …"
        );
        Failure::new(Exit::NotAvailable, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_left_alone() {
        let gib = |count: u64| Bytes(count << 30);
        assert!(refused("chase", gib(1), gib(24), gib(20)).is_none());
        let failure = refused("chase", gib(20), gib(24), gib(20)).unwrap();
        assert_eq!(failure.exit(), Exit::NotAvailable);
        let text = failure.to_string();
        assert!(text.contains("20 GiB") && text.contains("--size 19251M"), "{text}");
    }

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        let text = String::from("x");
        for (failed, exit) in [
            (Failed::Options(text.clone()), Exit::Usage),
            (Failed::Input(text.clone()), Exit::BadInput),
            (Failed::Missing(text.clone()), Exit::NotAvailable),
            (Failed::System(text.clone()), Exit::Partial),
            (Failed::Wrong(text), Exit::Bug),
        ] {
            assert_eq!(failure(WORKLOADS[0], &failed).exit(), exit);
        }
    }
}
