//! `pagelab import`: converts recordings of other tools to a run file.

mod perf_stat;

use std::path::{Path, PathBuf};

use pagelab_command::arguments::parse_page_size;
use pagelab_host::paths;
use pagelab_import::source::{ImportedReadings, TimeSource, import_files};
use pagelab_import::{nothing_to_import, unknown_machine_manifest, write_failure, write_recording};
use pagelab_model::run::{ClockReading, RunEnd};
use pagelab_model::{Bytes, PageSize};
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{format_bytes, format_plural};

use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::output_args::OutputArgs;
use crate::value_parsers::{Choice, choice};

#[derive(Debug, clap::Args)]
#[command(after_help = after_help(), args_conflicts_with_subcommands = true, subcommand_negates_reqs = true,
          disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    format: Option<ImportFormat>,
    #[command(flatten)]
    recording: RecordingArgs,
}

/// Sources of times that files do not contain.
const TIMES: [Choice<TimeSource>; 3] = [
    (&["auto"], "From the file name if it is NAME.SECONDS, else the modification time", TimeSource::Auto),
    (&["name"], "From the file name, NAME.SECONDS, in seconds since 1970", TimeSource::Name),
    (&["modified"], "Modification time of each file", TimeSource::Modified),
];

/// What becomes something else than a recording.
#[derive(Debug, clap::Subcommand)]
enum ImportFormat {
    /// Import output of `perf stat -x,` and of the shell's `time` as an experiment
    PerfStat(perf_stat::Args),
}

/// Arguments for a recording.
#[derive(Debug, clap::Args)]
#[command(mut_arg("output", |arg| arg.required(true)))]
struct RecordingArgs {
    /// Files or directories with buddyinfo snapshots or node_exporter scrapes; `-` for standard input
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Name of the machine; of files named NAME.SECONDS, only those with this NAME are imported
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Source of the timestamps that files do not contain
    #[arg(long, default_value = "auto", value_parser = choice(&TIMES))]
    times: TimeSource,
    /// Base page size of the machine, for example 4K or 64K; the files do not state it
    #[arg(long, value_name = "SIZE", value_parser = parse_page_size)]
    page_size: Option<PageSize>,
}

fn after_help() -> String {
    let buddyinfo = paths::BUDDYINFO;
    format!(
        "\
The format of a file is detected from its content:\n  buddyinfo   copies of {buddyinfo}, one snapshot per file
  scrape      output of node_exporter, one or several scrapes

The time of a snapshot comes from the first of these that is available: the scrape itself (timestamps or \
 node_time_seconds); the end of the file name, NAME.SECONDS with seconds since 1970; the file's \
 modification time. The source is printed and stored in the run file.

Examples:
  while :; do cat {buddyinfo} > day/$(hostname).$(date +%s); sleep 5; done
  pagelab import -o day.pagelab day             then: pagelab report day.pagelab
  curl -s localhost:9100/metrics | pagelab import -o now.pagelab -
  pagelab import perf-stat results logs -o a.pagelab     perf stat output

node_exporter exports buddyinfo only with --collector.buddyinfo, and usually only a part of vmstat. Missing \
 data is marked as absent in the run file, with the reason.

Unreadable files are listed and skipped; the exit code is then 5, or 3 if none can be read, or 4 if \
 permission is denied for all of them."
    )
}

/// Reads everything, and writes it as a recording or an experiment.
pub fn run(args: &Args) -> Outcome {
    match &args.format {
        Some(ImportFormat::PerfStat(args)) => perf_stat::run(args),
        None => import_recording(&args.recording),
    }
}

/// Reads everything, sorts it by time, and writes it as a recording.
fn import_recording(args: &RecordingArgs) -> Outcome {
    let output = args.output.required_run_file()?;
    output.check()?;
    let gathered = import_files(&args.sources, args.machine.as_deref(), args.times)?;
    let Some((first, last)) = gathered.tables.time_span() else {
        let is_denied = gathered.denied_count > 0 && gathered.denied_count == gathered.unreadable.len();
        return Err(nothing_to_import(is_denied, "any memory statistics"));
    };
    let started = ClockReading { realtime_ns: first, boottime_ns: gathered.boottime_ns(first) };
    let manifest = unknown_machine_manifest(started, args.page_size, &gathered.uname);
    let mut writer = output.create(&manifest)?;
    let after_ns = last - first;
    write_recording(&mut writer, &gathered, first).map_err(|error| write_failure(&error))?;
    writer.close(RunEnd::Complete { after_ns }).map_err(|error| write_failure(&error))?;
    print_summary(args, &output.path, &gathered, after_ns)?;
    Ok(if gathered.unreadable.is_empty() { Exit::Success } else { Exit::Partial })
}

/// Imported data, its sources, and its gaps.
fn print_summary(
    args: &RecordingArgs,
    output: &Path,
    gathered: &ImportedReadings,
    after_ns: u64,
) -> Result<(), Failure> {
    let mut out = output::stdout();
    let style = output::stdout_style();
    let readings = gathered.tables.reading_count();
    let of = gathered.uname.host_name.as_deref().map_or(String::new(), |name| format!(" of {name}"));
    let size = std::fs::metadata(output).map_or(0, |file| file.len());
    let line = format!(
        "{}   {}{of}   {}   {}",
        output.display(),
        format_plural(readings, "reading"),
        if after_ns > 0 {
            format!("over {}", format_duration(after_ns))
        } else {
            "one point in time".to_owned()
        },
        format_bytes(Bytes(size))
    );
    writeln!(out, "{}", style.to_one_line(&line))?;
    writeln!(out, "  series: {}", style.to_one_line(&gathered.tables.summary()))?;
    for note in gathered.notes() {
        writeln!(out, "  {}", style.to_one_line(&note))?;
    }
    let page_size = format!(
        "the page size (assuming {}; set it with --page-size)",
        format_bytes(Bytes(PageSize::DEFAULT.bytes()))
    );
    let mut absent = gathered.tables.absent_kinds();
    absent.push("settings");
    if gathered.uname.host_name.is_none() {
        absent.push("the machine's name (--machine)");
    }
    if args.page_size.is_none() {
        absent.push(&page_size);
    }
    writeln!(out, "  missing from the files: {}", absent.join(", "))?;
    writeln!(out, "→ pagelab report {}", style.to_one_line(&output.display().to_string()))?;
    out.flush()?;
    Ok(())
}
