//! `pagelab workload`: one run of a built-in or external workload, or the list of workloads.
//!
//! A separate table defines the options of a workload, its command line and its help.

mod external;
mod setup;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use pagelab_contig::reserve::Reserve;
use pagelab_experiment::probe::{PhaseProbe, ProbeSelection};
use pagelab_formats::meminfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_map::process;
use pagelab_model::{Bytes, names};
use pagelab_probe::workload_json;
use pagelab_report::style::{format_argument, format_bytes};
use pagelab_report::text_report::TextReport;
use pagelab_workloads::WORKLOADS;
use pagelab_workloads::options::{self, OptionSpec, ValueKind, WorkloadOptions};
use pagelab_workloads::phase::MeasuredPhase;
use pagelab_workloads::{Workload, WorkloadError, mmap_access};

use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;

#[derive(Debug)]
pub enum Args {
    /// Lists all workloads.
    List { json: bool },
    /// Runs a built-in workload with these options.
    BuiltIn(&'static Workload, WorkloadOptions),
    /// Prints the process map of a workload instead of its figures.
    Explained(WorkloadOptions),
    /// Runs an external workload.
    External(external::ExternalRun),
    /// Sets up external workloads.
    Setup(setup::Args),
}

const ABOUT: &str = "\
Without a name, lists all workloads. A workload allocates its memory at the start, verifies its result, and \
 prints one line of JSON: figure of merit, working set, checksum, latencies and the generator of its \
 accesses (docs/json.md, docs/workloads.md). External workloads are other programs: databases, compilers, \
 benchmarks (docs/external.md).

Examples:
  pagelab workload                                    list the workloads
  pagelab workload chase --help                       options and generator
  pagelab workload chase --size 1G --advise nohuge    on base pages
  pagelab workload hot-regions --largepages list.txt  back listed regions
  pagelab workload setup redis                        prepare redis for pagelab
  pagelab workload redis --keys 5000000               run it once
  pagelab workload ./own.toml                         your own manifest

Needs no root and changes no settings of the machine.";

impl clap::Args for Args {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
            .arg(
                clap::Arg::new("json")
                    .long("json")
                    .action(clap::ArgAction::SetTrue)
                    .help("List the workloads and their options as JSON (docs/json.md)"),
            )
            .args_conflicts_with_subcommands(true)
            .disable_help_subcommand(true)
            .subcommand_value_name("NAME")
            .subcommand_help_heading("Workloads")
            .after_help(ABOUT)
            .subcommand(setup::build_command())
            .subcommands(WORKLOADS.iter().map(|workload| build_command(workload)))
            .subcommands(pagelab_experiment::external::manifests().iter().map(external::build_command))
            // A path to a user's manifest. For any other name, the error lists the workloads.
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
            return Ok(Args::List { json });
        };
        if json {
            let text = format!("--json applies to the list; {name} always prints JSON");
            return Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, text));
        }
        match pagelab_workloads::find_workload(name) {
            Some(workload) => {
                let options =
                    parse_options(workload.options, WorkloadOptions::with_defaults(workload.options), given)?;
                let is_explained = can_explain(workload) && given.get_flag(EXPLAIN_FLAG);
                Ok(if is_explained { Args::Explained(options) } else { Args::BuiltIn(workload, options) })
            }
            None if name == setup::NAME => setup::Args::from_arg_matches(given).map(Args::Setup),
            None => external::parse_run(name, given).map(Args::External),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Args::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Flag that prints a workload's process map.
const EXPLAIN_FLAG: &str = "explain";

/// Returns whether a workload can print its process map.
fn can_explain(workload: &Workload) -> bool {
    workload.name == mmap_access::WORKLOAD.name
}

fn unknown_workload(name: &str) -> String {
    let built_in = WORKLOADS.iter().map(|workload| workload.name);
    let external = pagelab_experiment::external::manifests().iter().map(|manifest| manifest.name.as_str());
    let names: Vec<&str> = built_in.chain(external).collect();
    let hint = names::suggest(name, &names).unwrap_or_else(|| {
        "`pagelab workload` describes each; a path with a slash or .toml is a manifest".to_owned()
    });
    format!("unknown workload `{name}`; expected one of {}; hint: {hint}", names.join(", "))
}

fn parse_options(
    heads: &'static [OptionSpec],
    mut options: WorkloadOptions,
    matches: &ArgMatches,
) -> Result<WorkloadOptions, clap::Error> {
    for head in heads {
        if matches.value_source(head.name) == Some(ValueSource::CommandLine)
            && let Some(typed) = matches.get_one::<String>(head.name)
        {
            options.set_value(head.name, typed).map_err(value_error)?;
        }
    }
    Ok(options)
}

fn value_error(text: impl Into<String>) -> clap::Error {
    clap::Error::raw(clap::error::ErrorKind::InvalidValue, text.into())
}

fn build_command(workload: &'static Workload) -> clap::Command {
    let explain = can_explain(workload).then(|| {
        clap::Arg::new(EXPLAIN_FLAG)
            .long(EXPLAIN_FLAG)
            .action(clap::ArgAction::SetTrue)
            .help("Explain every mapping of the process after the accesses, and print no figures")
    });
    clap::Command::new(workload.name)
        .aliases(pagelab_workloads::former_names(workload))
        .args(explain)
        .about(workload.description)
        .after_help(format!("Generator: {}", workload.generator))
        .args(workload.options.iter().map(build_argument))
}

/// Converts one option for clap; it is checked by the same rules as in a recipe.
fn build_argument(head: &'static OptionSpec) -> clap::Arg {
    // A negative number is rejected as a number, not as an unknown flag.
    let argument = clap::Arg::new(head.name).long(head.name).help(head.help).allow_negative_numbers(true);
    let argument = if head.default.is_empty() { argument } else { argument.default_value(head.default) };
    let checked = move |typed: &str| match options::parse_value(head, typed) {
        Ok(_) => Ok(typed.to_owned()),
        // Clap has named the option and the value already.
        Err(text) => {
            let text = text.trim_start_matches(head.name).trim_start_matches(": ");
            Err(text.trim_end_matches(&format!(", found {typed:?}")).to_owned())
        }
    };
    let argument = match head.kind {
        ValueKind::Choice(words) => {
            return argument.value_name("WORD").value_parser(PossibleValuesParser::new(words));
        }
        ValueKind::Switch => {
            return argument.value_name("YES").value_parser(PossibleValuesParser::new(["yes", "no"]));
        }
        ValueKind::Size => argument.value_name("SIZE"),
        ValueKind::Number(..) => argument.value_name("N"),
        ValueKind::Thousandths(_) => argument.value_name(if head.kind.is_share() { "SHARE" } else { "X" }),
        ValueKind::Duration(spec) => argument.value_name("TIME").aliases(spec.former_name),
        ValueKind::Path => argument.value_name("FILE"),
    };
    argument.value_parser(checked)
}

/// Runs the workload, or lists all workloads.
pub fn run(args: &Args) -> Outcome {
    let outcome = match args {
        Args::List { json } => {
            match json {
                true => output::print_json(&workload_json::list_json())?,
                false => output::print(&list_text())?,
            }
            return Ok(Exit::Success);
        }
        Args::Setup(args) => return setup::run(args),
        Args::External(asked) => {
            let (manifest, done, options) = external::run(asked)?;
            workload_json::external_outcome_json(manifest, &options, &done)
        }
        Args::Explained(options) => return run_explained(options),
        Args::BuiltIn(workload, options) => {
            check_reserve(workload, options)?;
            let mut probe = PhaseProbe::open(&ProbeSelection::default());
            let done = (workload.run)(options, &mut MeasuredPhase::with_observer(&mut probe));
            let done = done.map_err(|failed| workload_failure(workload, &failed))?;
            workload_json::outcome_json(workload, options, &done, &probe.into_readings())
        }
    };
    let line = pagelab_report::json::to_json_line(&outcome);
    output::print(&line.map_err(|error| Failure::not_serialized("JSON", error))?)?;
    Ok(Exit::Success)
}

/// Runs the accesses and then prints the process map.
fn run_explained(options: &WorkloadOptions) -> Outcome {
    let workload = &mmap_access::WORKLOAD;
    check_reserve(workload, options)?;
    let mut space = None;
    let mut look = |range| space = Some(process::read_address_space(std::process::id(), Some(range)));
    let done = mmap_access::run_with_observer(options, &mut MeasuredPhase::without_observer(), &mut look);
    done.map_err(|failed| workload_failure(workload, &failed))?;
    match space {
        Some(space) => process::print_space(&space?, false),
        None => Err(Failure::cannot(FailureKind::Bug, "explain the mapping", "its mapping was not read")),
    }
}

fn list_text() -> String {
    let mut page = TextReport::new(output::stdout_style());
    let widest = WORKLOADS.iter().map(|workload| workload.name.len()).max().unwrap_or(0);
    for workload in WORKLOADS {
        let size = workload.options.iter().find(|head| head.name == "size").map_or("", |head| head.default);
        page.add_paragraph(&format!("{:widest$}  {size:>5}  ", workload.name), workload.description);
    }
    page.add_gap();
    external::write_list(&mut page);
    page.add_gap();
    page.add_line("pagelab workload NAME         run it: prints one line of JSON");
    page.add_line("pagelab workload NAME --help  show its options and its generator");
    page.into_text()
}

/// Converts a workload's error to a failure with its exit code.
fn workload_failure(workload: &Workload, error: &WorkloadError) -> Failure {
    let kind = match error {
        WorkloadError::InvalidOptions(_) => FailureKind::Usage,
        WorkloadError::InvalidInput(_) => FailureKind::BadInput,
        WorkloadError::NotAvailable(_) => FailureKind::NotAvailable,
        WorkloadError::SystemError(_) => FailureKind::Partial,
        WorkloadError::WrongResult(_) => FailureKind::Bug,
    };
    Failure::cannot(kind, format_args!("run the workload {}", workload.name), error)
}

/// Checks that the workload leaves the reserve free. In a guest no other process suffers; if the memory is
/// unknown, the limit of the control group or the kernel decides.
fn check_reserve(workload: &Workload, options: &WorkloadOptions) -> Result<(), Failure> {
    let has_size = workload.options.iter().any(|head| head.name == "size");
    if !has_size || pagelab_guest::agent::runs_in_guest() {
        return Ok(());
    }
    let root = Root::live();
    let Ok(info) = Reader::new(&root).parse(paths::MEMINFO, meminfo::parse) else { return Ok(()) };
    let (Some(total), Some(available)) = (info.bytes("MemTotal"), info.bytes("MemAvailable")) else {
        return Ok(());
    };
    reserve_failure(workload.name, options.get_size("size"), total, available).map_or(Ok(()), Err)
}

/// Returns a failure if this size would use the reserve.
fn reserve_failure(name: &str, size: Bytes, total: Bytes, available: Bytes) -> Option<Failure> {
    let reserve = Reserve::from_total_memory(total);
    let room = reserve.headroom(available);
    (size > room).then(|| {
        let (size, available, left, room) = (
            format_bytes(size),
            format_bytes(available),
            format_bytes(reserve.0),
            format_argument(Bytes(room.0 >> 20 << 20)),
        );
        let reason = format!("it needs {size}, {available} is available, and {left} of that is reserved");
        Failure::cannot(FailureKind::NotAvailable, format_args!("run the workload {name}"), reason).hint(
            format!(
                "use --size {room} or less, or run it in a guest: pagelab guest run -- workload {name} …"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_left_alone() {
        let gib = |count: u64| Bytes(count << 30);
        assert!(reserve_failure("chase", gib(1), gib(24), gib(20)).is_none());
        let failure = reserve_failure("chase", gib(20), gib(24), gib(20)).unwrap();
        assert_eq!(failure.kind(), FailureKind::NotAvailable);
        let text = failure.to_string();
        assert!(text.contains("20 GiB") && text.contains("--size 19251M"), "{text}");
    }

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        let text = String::from("x");
        for (failed, kind) in [
            (WorkloadError::InvalidOptions(text.clone()), FailureKind::Usage),
            (WorkloadError::InvalidInput(text.clone()), FailureKind::BadInput),
            (WorkloadError::NotAvailable(text.clone()), FailureKind::NotAvailable),
            (WorkloadError::SystemError(text.clone()), FailureKind::Partial),
            (WorkloadError::WrongResult(text), FailureKind::Bug),
        ] {
            assert_eq!(workload_failure(WORKLOADS[0], &failed).kind(), kind);
        }
    }
}
