//! Command line arguments as types. Parsing opens no file and reads nothing of the machine.

use std::fmt::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd;
use crate::exit::Exit;

/// The help of `pagelab` itself: `{before-help}` is the list of commands by task.
const HELP_TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

/// Commands by task, in the order of the help.
const COMMAND_GROUPS: [(&str, &[&str]); 6] = [
    ("Observe memory", &["checkup", "frag", "can", "map", "watch"]),
    ("Huge pages for a program", &["tune", "profile", "plan", "apply"]),
    ("Experiments", &["run", "recipes", "workload", "report", "compare"]),
    ("Record memory over time", &["record", "usage", "trace", "import", "capture"]),
    ("Change memory", &["compact", "fragment", "restore"]),
    ("Simulator and guests", &["sim", "guest"]),
];

/// Command line laboratory for physical memory on Linux.
#[derive(Debug, Parser)]
#[command(version, after_help = after_help(), max_term_width = 80, help_template = HELP_TEMPLATE)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the state of physical memory, its causes, and what to do
    Checkup(cmd::checkup::Args),
    /// Show fragmentation indices of a machine, a file or an OOM report
    Frag(cmd::frag::Args),
    /// Record memory statistics over time into a run file
    Record(cmd::record::Args),
    /// Predict whether N huge pages can be allocated
    Can(cmd::can::Args),
    /// Compact memory, and show what prevented more huge pages
    Compact(cmd::compact::Args),
    /// Fragment physical memory to a target F_u, and hold it
    Fragment(Box<cmd::fragment::Args>),
    /// Show run files as text, JSON, CSV tables or HTML
    Report(cmd::report::Args),
    /// Compare runs of one experiment across machines, kernels or days
    Compare(cmd::compare::Args),
    /// Draw a map of physical memory, or of what changed
    Map(cmd::map::Args),
    /// Summarize recorded memory use, one line per machine
    Usage(cmd::usage::Args),
    /// Import buddyinfo files, node_exporter scrapes or perf stat output
    Import(cmd::import::Args),
    /// Save this machine's memory files for --root
    Capture(cmd::capture::Args),
    /// Run pagelab in a disposable QEMU guest with a stock kernel
    Guest(cmd::guest::Args),
    /// Show free memory, huge pages, compaction and reclaim live
    Watch(cmd::watch::Args),
    /// Run an experiment: variants × workloads × rounds, into a run file
    Run(cmd::run::Args),
    /// List, explain and print the built-in experiments
    Recipes(cmd::recipes::Args),
    /// Start one trial of an experiment (internal)
    #[command(hide = true)]
    Gate(cmd::run::gate::Args),
    /// Carry out one trial of an experiment in a guest (internal)
    #[command(hide = true)]
    Trial(Box<cmd::run::trial::Args>),
    /// Simulate the page allocator: compare, sweep, replay
    Sim(Box<cmd::sim::Args>),
    /// Record and summarize every page allocation and free
    Trace(cmd::trace::Args),
    /// Find the 2 MiB regions whose TLB misses cost a program time
    Profile(Box<cmd::profile::Args>),
    /// Use a profile to choose which regions to back with huge pages
    Plan(Box<cmd::plan::Args>),
    /// Profile a program, plan its huge pages, and measure the speed-up
    Tune(Box<cmd::tune::Args>),
    /// Run a program with planned huge pages, or add them while it runs
    Apply(Box<cmd::apply::Args>),
    /// Supervise a program for `apply` (internal)
    #[command(hide = true)]
    Supervise(Box<cmd::apply::SuperviseArgs>),
    /// Run one workload and print its figures as JSON
    Workload(cmd::workload::Args),
    /// Restore settings left changed by a killed pagelab process
    Restore(cmd::restore::Args),
}

const EXAMPLES: &str = "\
Examples:
  pagelab checkup                  this machine's memory, on one screen
  pagelab checkup --deep           which processes use huge pages?
  pagelab can 4000                 can 4000 huge pages be allocated?
  pagelab tune -- ./server         do huge pages make this program faster?
  pagelab run thp --dry-run        what an experiment would run and change
";

fn after_help() -> String {
    format!("{EXAMPLES}\nExit codes:\n{}", Exit::format_table())
}

/// The command with its list of commands by task.
fn build_command() -> clap::Command {
    let command = Cli::command();
    let groups = format_groups(&command);
    allow_negative_numbers(command).before_help(groups)
}

fn format_groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in COMMAND_GROUPS {
        let _ = writeln!(text, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<9} {about}");
        }
        text.push('\n');
    }
    text.push_str(
        "`pagelab help COMMAND` or `pagelab COMMAND --help` describes a command,\n`pagelab help TERM` \
         explains a term such as polluted, and\n`pagelab help docs/can.md` prints a document.",
    );
    text
}

/// Whether `pagelab help NAME` describes a command, hidden ones too.
pub fn is_command(name: &str) -> bool {
    name == "help" || Cli::command().find_subcommand(name).is_some()
}

/// Parses the command line. A word that looks like a negative number is the value of the option before it, so
/// that the option's own parser reports the error.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut command = build_command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn allow_negative_numbers(command: clap::Command) -> clap::Command {
    let option = |arg: clap::Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    command.mut_args(option).mut_subcommands(allow_negative_numbers)
}

/// Prints the error of a command line. Help and version also arrive here; they are no failure.
pub fn report_usage_error(error: &clap::Error) -> Exit {
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Success }
}

#[cfg(test)]
mod tests {
    use pagelab_model::{PageSize, Snapshot};
    use pagelab_report::findings::NextCommand;

    use super::*;

    /// Help is wrapped at 80 columns: a longer line must be a complete paragraph, followed by an empty line.
    fn collect_broken_lines(command: &clap::Command, found: &mut Vec<String>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines: Vec<&str> = text.lines().chain([""]).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].chars().count() > 80) {
            let is_paragraph = !pair[0].starts_with(' ') && pair[1].is_empty();
            if !is_paragraph {
                found.push(format!("{}: {}", command.get_name(), pair[0]));
            }
        }
        command.get_subcommands().for_each(|of| collect_broken_lines(of, found));
    }

    /// Adds the short help of a command and of all below it, and the long help where it is another.
    fn collect_help(path: &str, command: &mut clap::Command, text: &mut String) {
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        let _ = writeln!(text, "$ {path} -h\n{short}");
        if long != short {
            let _ = writeln!(text, "$ {path} --help\n{long}");
        }
        for of in command.get_subcommands_mut().filter(|of| of.get_name() != "help") {
            let path = format!("{path} {}", of.get_name());
            collect_help(&path, of, text);
        }
    }

    /// Checks the commands for a snapshot of this machine and for one of a saved tree.
    #[test]
    fn every_command_that_a_finding_may_print_is_one() {
        let mut live = Snapshot::new_unread("this machine", PageSize::DEFAULT);
        live.taken.euid = Some(0);
        let saved = Snapshot::new_unread("memory.tar.zst", PageSize::DEFAULT);
        for next in NextCommand::ALL {
            let lines = [next.command_line(&live), next.command_line(&saved)];
            assert!(lines[0].is_some(), "{next:?}");
            for line in lines.iter().flatten() {
                let read = build_command().try_get_matches_from(line.split(' '));
                assert!(read.is_ok(), "{line}: {}", read.unwrap_err());
            }
        }
    }

    #[test]
    fn no_line_of_the_help_is_broken() {
        let mut found = Vec::new();
        collect_broken_lines(&Cli::command(), &mut found);
        assert!(found.is_empty(), "broken in mid-line: {found:#?}");
    }

    /// All help texts: a change of wording is seen in review (`UPDATE_EXPECT=1` writes them anew).
    #[test]
    fn help_texts() {
        let mut command = build_command();
        command.build();
        let mut text = String::new();
        collect_help("pagelab", &mut command, &mut text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        expect_test::expect_file!["../tests/snapshots/help.txt"].assert_eq(&(lines.join("\n") + "\n"));
    }

    /// The command lines of the examples of a command and of all below it, without their explanations.
    fn collect_examples(command: &clap::Command, found: &mut Vec<String>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let text = text.replace("\\\n", "");
        for line in text.lines().filter(|line| line.starts_with("  ")) {
            let Some(at) = line.find("pagelab ") else { continue };
            let example = line[at..].split("  ").next().unwrap_or_default();
            // The shell's part: another program, and files of input and output.
            let ends = [" | ", " <", " > "];
            let end = ends.iter().filter_map(|mark| example.find(mark)).min().unwrap_or(example.len());
            found.push(example[..end].to_owned());
        }
        command.get_subcommands().for_each(|of| collect_examples(of, found));
    }

    /// The words of a command line, with quoted ones as one.
    fn words_of(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for c in line.chars() {
            match (c, quote) {
                (' ', None) => words.push(String::new()),
                ('\'' | '"', None) => quote = Some(c),
                (c, Some(open)) if c == open => quote = None,
                (c, _) => words.last_mut().unwrap().push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn each_example_of_the_help_is_a_command_line() {
        let mut examples = Vec::new();
        collect_examples(&build_command(), &mut examples);
        assert!(examples.len() > 100, "{}", examples.len());
        for example in &examples {
            let read = build_command().try_get_matches_from(words_of(example));
            let is_help = |error: &clap::Error| error.kind() == clap::error::ErrorKind::DisplayHelp;
            assert!(read.as_ref().err().is_none_or(is_help), "{example}: {}", read.unwrap_err());
        }
    }

    /// Calls `check` with the path and the definition of each option of a command and of all below it.
    fn for_each_option(path: &str, command: &clap::Command, check: &mut dyn FnMut(&str, &clap::Arg)) {
        for arg in command.get_arguments() {
            check(&format!("{path} --{}", arg.get_long().unwrap_or(arg.get_id().as_str())), arg);
        }
        for of in command.get_subcommands() {
            for_each_option(&format!("{path} {}", of.get_name()), of, check);
        }
    }

    /// Sizes, shares and durations have one grammar in every option; a bound may refuse a value, the grammar
    /// may not.
    #[test]
    fn values_of_one_kind_are_read_alike() {
        let kinds: [(&str, &[&str], &str); 3] = [
            ("SIZE", &["5T", "2Mi", "2MiB", "2GB", "1GB", "1.5G", "2 MiB"], "expected a size, for example"),
            ("SHARE", &["50%", "0.5", "50 %"], "expected a share"),
            ("TIME", &["5s", "2m", "1.5s", "100ms", "5 s", "1 min 30 s"], "expected a duration"),
        ];
        let mut counts = [0; 3];
        for_each_option("pagelab", &build_command(), &mut |path, arg| {
            let names = arg.get_value_names().unwrap_or_default();
            let Some(kind) = kinds.iter().position(|(name, ..)| names.iter().any(|of| of.as_str() == *name))
            else {
                return;
            };
            counts[kind] += 1;
            let (_, texts, refused) = kinds[kind];
            let parser = arg.get_value_parser().clone();
            assert_ne!(
                format!("{parser:?}"),
                "ValueParser::string",
                "{path}: the value is parsed after clap"
            );
            let command = clap::Command::new("x").arg(clap::Arg::new("value").value_parser(parser));
            for text in texts {
                let error =
                    command.clone().try_get_matches_from(["x", *text]).err().map(|error| error.to_string());
                assert!(
                    !error.as_ref().is_some_and(|text| text.contains(refused)),
                    "{path} {text}: {error:?}"
                );
            }
        });
        assert!(counts[0] > 40 && counts[1] > 5 && counts[2] > 15, "{counts:?}");
    }

    /// Renamed options and values: both names are read alike.
    #[test]
    fn former_names_are_read() {
        let renamed: [(&str, &str, &str); 16] = [
            ("sim run churn", "--policy zone", "--scheme zone"),
            ("sim sweep", "--policy zone", "--scheme zone"),
            ("sim compare", "--policies list,zone", "--schemes list,zone"),
            ("map", "--scheme classic", "--colours classic"),
            ("report a.pagelab", "--csv tables", "--tables tables"),
            ("plan p.pagelab", "--page 64K", "--folio-size 64K"),
            ("tune", "--number 3", "--pages 3"),
            ("fragment", "--ask", "--measure-thp"),
            ("compact", "--how asking", "--how direct"),
            ("guest run", "--timeout 600 checkup", "--timeout 10m checkup"),
            ("fragment procedure", "--settle 60", "--settle 1m"),
            ("workload aim9", "--milliseconds 200", "--time 200ms"),
            ("trace record -o t.pagelab", "--through perf", "--backend perf"),
            ("sim bench", "--engine drawn", "--engine random"),
            ("sim bench", "--engine plain", "--engine btree"),
            ("sim replay t.pagelab", "--zones asked", "--zones requested"),
        ];
        let mut command = build_command();
        for (path, old, new) in renamed {
            let mut parse = |option: &str| {
                let words = ["pagelab"].into_iter().chain(path.split(' ')).chain(option.split(' '));
                let matches =
                    command.try_get_matches_from_mut(words).unwrap_or_else(|error| panic!("{error}"));
                format!("{:?}", Cli::from_arg_matches(&matches).unwrap().command)
            };
            assert_eq!(parse(old), parse(new), "{path}");
        }
    }

    /// The buddy order is the only meaning of `--order`; the map's order of pixels is named by the error.
    #[test]
    fn order_is_the_buddy_order() {
        let words = ["pagelab", "map", "--order", "hilbert"];
        let error = build_command().try_get_matches_from(words).unwrap_err().to_string();
        assert!(error.contains("the order of pixels is --layout"), "{error}");
        let mut found = Vec::new();
        for_each_option("pagelab", &build_command(), &mut |path, arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if path.ends_with(" --order")
                && !arg.is_hide_set()
                && !help.to_lowercase().contains("buddy order")
            {
                found.push(path.to_owned());
            }
        });
        found.retain(|path| !path.contains(" workload "));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn each_command_is_in_one_group() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|of| !of.is_hide_set()).map(clap::Command::get_name);
        let (mut visible, mut grouped): (Vec<&str>, Vec<&str>) =
            (visible.collect(), COMMAND_GROUPS.iter().flat_map(|(_, names)| *names).copied().collect());
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
        for of in command.get_subcommands() {
            let about = of.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.chars().count() <= 68, "{}: too long for one line: {about}", of.get_name());
        }
    }
}
