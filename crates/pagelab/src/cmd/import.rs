//! `pagelab import`: recordings that other tools made become one run file.

mod perf_stat;
mod places;
mod source;
mod table;
mod times;

use std::io::Write;
use std::path::{Path, PathBuf};

use pagelab_formats::node_exporter::Uname;
use pagelab_host::paths;
use pagelab_model::run::{Ending, Event, Manifest, Moment};
use pagelab_model::{Absence, AbsentWhy, Bytes, Machine, PageSize, Snapshot};
use pagelab_report::quantity::duration;
use pagelab_report::style::{bytes, count};
use pagelab_runfile::{Error, ErrorKind, Writer};

use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use source::{Gathered, gather};
use times::TimesFrom;

/// What `import` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help(), args_conflicts_with_subcommands = true, subcommand_negates_reqs = true,
          disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    recording: Recording,
}

/// What becomes something else than a recording.
#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Outputs of `perf stat -x,` and of the shell's `time` as an experiment
    PerfStat(perf_stat::Args),
}

/// What becomes a recording.
#[derive(Debug, clap::Args)]
struct Recording {
    /// Files, and folders of files, with snapshots of buddyinfo or scrapes of node_exporter; `-` is
    /// one on standard input
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// The run file to be written; nothing is overwritten
    #[arg(short, long, required = true, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Of files called NAME.SECONDS take those of this machine; of others, what the machine is called
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Where times are from that the files do not hold
    #[arg(long, value_enum, default_value = "auto")]
    times: TimesFrom,
    /// The machine's page size, such as 4K or 64K, which no such file says
    #[arg(long, value_name = "SIZE")]
    page_size: Option<String>,
}

fn after_help() -> String {
    let buddyinfo = paths::BUDDYINFO;
    format!(
        "\
What is read, told by its content:
  buddyinfo   copies of {buddyinfo}, one reading in each file
  scrape      the text that node_exporter shows, of one or of several times

When each was taken is, in this order: what the scrape itself says (time stamps, or node_time_seconds); the \
end of the file's name, NAME.SECONDS with seconds since 1970; the time at which the file was last changed. \
What was used is printed, and stands in the run file.

Examples:
  while :; do cat {buddyinfo} > day/$(hostname).$(date +%s); sleep 5; done
  pagelab import -o day.pagelab day             then: pagelab report day.pagelab
  curl -s localhost:9100/metrics | pagelab import -o now.pagelab -
  pagelab import perf-stat results logs -o a.pagelab     outputs of perf stat

node_exporter shows buddyinfo only with --collector.buddyinfo, and mostly less of vmstat than the kernel \
has. What the files do not hold is absent in the run file too, with its reason: nothing is made up.

A file that cannot be read is named and left out; the exit code then is 5, and 3 if none can be read, \
or 4 where only permission was missing."
    )
}

/// Reads everything, and writes it as a recording or an experiment.
pub fn run(args: &Args) -> Outcome {
    match &args.other {
        Some(Other::PerfStat(args)) => perf_stat::run(args),
        None => recording(&args.recording),
    }
}

/// Reads everything, sorts it by time, and writes it as a recording.
fn recording(args: &Recording) -> Outcome {
    let Some(output) = &args.output else { return Err(super::usage("--output FILE is wanted")) };
    let page_size = args.page_size.as_deref().map(super::page_size).transpose()?;
    let gathered = gather(&args.sources, args.machine.as_deref(), args.times)?;
    let Some((first, last)) = gathered.span() else {
        let wanted = "a reading of memory";
        return Err(nothing(gathered.denied > 0 && gathered.denied == gathered.left_out.len(), wanted));
    };
    let started = Moment { realtime_ns: first, boottime_ns: gathered.boottime_ns(first) };
    let manifest = manifest(started, page_size, &gathered);
    let mut writer = Writer::create(output, &manifest).map_err(|error| not_written(&error))?;
    let after_ns = last - first;
    write(&mut writer, &gathered, first).map_err(|error| not_written(&error))?;
    writer.close(Ending::Complete { after_ns }).map_err(|error| not_written(&error))?;
    say(args, output, &gathered, after_ns)?;
    Ok(if gathered.left_out.is_empty() { Exit::Done } else { Exit::Partial })
}

fn write(writer: &mut Writer, gathered: &Gathered, first_ns: u64) -> Result<(), Error> {
    for text in gathered.notes() {
        writer.event(&Event { at_ns: 0, kind: "import".to_owned(), text })?;
    }
    for (file, why) in &gathered.left_out {
        let text = format!("{file} was left out: {why}");
        writer.event(&Event { at_ns: 0, kind: "left out".to_owned(), text })?;
    }
    gathered.tables.write(writer, first_ns)
}

/// Whose recording it is, as far as the files say.
fn manifest(started: Moment, page_size: Option<PageSize>, gathered: &Gathered) -> Manifest {
    manifest_of(started, page_size, &gathered.uname)
}

/// The manifest of a machine of which little is known.
fn manifest_of(started: Moment, page_size: Option<PageSize>, uname: &Uname) -> Manifest {
    let absent = || Absence::new("the imported files", AbsentWhy::NotSaved, "they do not say");
    let known = Snapshot::unread("the imported files", page_size.unwrap_or(PageSize::USUAL));
    let said = |text: &Option<String>| text.clone().ok_or_else(absent);
    let machine = Machine {
        host_name: uname.host_name.clone(),
        kernel_release: said(&uname.release),
        kernel_version: Err(absent()),
        kernel_cmdline: Err(absent()),
        architecture: said(&uname.machine),
        page_size_source: if page_size.is_some() { "--page-size" } else { "assumed" }.to_owned(),
        cpu: Err(absent()),
        caches: Err(absent()),
        tlb: Err(absent()),
        nodes: Err(absent()),
        hypervisor: Err(absent()),
        direct_map: Err(absent()),
        cgroup: Err(absent()),
        memory_block: Err(absent()),
        ram: Err(absent()),
        page_reporting: None,
        ..known.machine
    };
    let mut settings = known.settings;
    (settings.thp, settings.hugetlb, settings.swap) = (Err(absent()), Err(absent()), Err(absent()));
    settings.vm_absent = vec![absent()];
    Manifest {
        kind: "import".to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        seed: None,
        started,
        machine,
        settings,
    }
}

/// What was imported, from where, and what is not in it.
fn say(args: &Recording, output: &Path, gathered: &Gathered, after_ns: u64) -> Result<(), Failure> {
    let mut out = out::stdout();
    let style = out::style();
    let readings = gathered.tables.readings();
    let of = gathered.uname.host_name.as_deref().map_or(String::new(), |name| format!(" of {name}"));
    let size = std::fs::metadata(output).map_or(0, |file| file.len());
    let line = format!(
        "{}   {} reading{}{of}   {}   {}",
        output.display(),
        count(readings as u128),
        if readings == 1 { "" } else { "s" },
        if after_ns > 0 { format!("over {}", duration(after_ns)) } else { "one moment".to_owned() },
        bytes(Bytes(size))
    );
    writeln!(out, "{}", style.one_line(&line))?;
    writeln!(out, "  series: {}", style.one_line(&gathered.tables.summary()))?;
    for note in gathered.notes() {
        writeln!(out, "  {}", style.one_line(&note))?;
    }
    let page_size =
        format!("the page size ({} is assumed: --page-size)", bytes(Bytes(PageSize::USUAL.bytes())));
    let mut absent = gathered.tables.absent();
    absent.push("settings");
    if gathered.uname.host_name.is_none() {
        absent.push("the machine's name (--machine)");
    }
    if args.page_size.is_none() {
        absent.push(&page_size);
    }
    writeln!(out, "  not in the files, and therefore absent: {}", absent.join(", "))?;
    writeln!(out, "→ pagelab report {}", style.one_line(&output.display().to_string()))?;
    out.flush()?;
    Ok(())
}

/// Nothing could be read: because of permission alone, or because no file holds what is wanted.
fn nothing(is_denied: bool, wanted: &str) -> Failure {
    match is_denied {
        true => {
            let message = "nothing to import: this user may read none of the files";
            Failure::new(Exit::NotAvailable, message)
        }
        false => {
            let message = format!("nothing to import: no file holds {wanted}; --help says what is read");
            Failure::new(Exit::BadInput, message)
        }
    }
}

fn not_written(error: &Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::Exists | ErrorKind::NotThere => Exit::Usage,
        ErrorKind::NotPermitted => Exit::NotAvailable,
        ErrorKind::NotStorable => Exit::BadInput,
        _ => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}
