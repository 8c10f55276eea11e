//! `pagelab record`: recording of memory over time to a run file.

use std::path::PathBuf;
use std::time::Duration;

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_host::sampler::{Metric, Metrics};
use pagelab_host::tracepoints::StackDepth;
use pagelab_record::recording::{RecordPlan, run_plan};
use pagelab_report::quantity_format;

use crate::exit::{Failure, FailureKind};
use crate::output_args::OutputArgs;
use crate::value_parsers::{Choice, DAY, bounded_ns, choice, parse_bounded_duration};
use crate::{manifest, output};

#[derive(Debug, clap::Args)]
#[command(after_help = after_help(), mut_arg("output", |arg| arg.required(true)))]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    /// Sampling interval: 100ms to 1d [default: 5s, or a tenth of --for if shorter]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    every: Option<Duration>,
    /// Duration, for example 12h or 1d [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_length)]
    duration: Option<Duration>,
    /// Comma-separated list of metrics; see below
    #[arg(long, value_name = "LIST", default_value = "default")]
    metrics: String,
    /// Also record a map of physical memory at this interval, for example 1m (1s to 1d)
    #[arg(long, value_name = "TIME", value_parser = parse_map_interval)]
    maps: Option<Duration>,
    /// Record which code pollutes pageblocks: call stacks of fallback allocations (root)
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "user", value_parser = choice(&DEPTHS))]
    stacks: Option<StackDepth>,
    /// Print the metrics, the cost of a sample and the expected file size, and record nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Not supported: a saved tree does not change
    #[arg(long, value_name = "DIR|TAR", hide = true)]
    root: Option<PathBuf>,
}

/// Depths of call stacks.
const DEPTHS: [Choice<StackDepth>; 2] = [
    (&["kernel"], "Kernel functions", StackDepth::Kernel),
    (
        &["user"],
        "Kernel functions and program frames, if built with frame pointers",
        StackDepth::KernelAndUser,
    ),
];

fn after_help() -> String {
    let mut text = "Metrics (* is recorded by default; `default` and `all` are sets):\n".to_owned();
    for (name, what, is_default) in Metric::table() {
        let mark = if is_default { '*' } else { ' ' };
        text += &format!("  {mark} {name:<13} {what}\n");
    }
    text + "
The cost of each sample is recorded. Missed ticks are reported, never interpolated. If pagelab is killed, \
 at most one sample is lost.

Examples:
  pagelab record -o day.pagelab --for 1d           one day
  pagelab record -o now.pagelab --every 100ms      until Ctrl-C
  pagelab record -o s.pagelab --metrics default,slab,cgroups=/system.slice/*
  pagelab record -o m.pagelab --maps 1m            for pagelab map m.pagelab@2h
  pagelab record -o w.pagelab --stacks             code that pollutes pageblocks
  pagelab report day.pagelab                       show it"
}

/// Records until the time is over or a signal arrives.
pub fn run(args: &Args) -> Result<u8, Failure> {
    run_plan(&resolve_plan(args)?, args.dry_run, args.json)
}

fn resolve_plan(args: &Args) -> Result<RecordPlan, Failure> {
    if let Some(root) = &args.root {
        let message = format!(
            "--root {}: a saved tree does not change, so nothing can be recorded; hint: use `pagelab checkup \
             --root`",
            root.display()
        );
        return Err(super::usage_error(&message));
    }
    let output = args.output.required_run_file()?;
    let for_ns = args.duration.map(bounded_ns);
    let every_ns = args.every.map_or_else(|| default_interval_ns(for_ns), bounded_ns);
    if let Some(for_ns) = for_ns.filter(|&for_ns| for_ns < every_ns) {
        let (for_text, every_text) =
            (quantity_format::format_duration(for_ns), quantity_format::format_duration(every_ns));
        output::warn(&format!(
            "warning: --for {for_text} is shorter than --every {every_text}: only one sample is recorded"
        ));
    }
    let metrics =
        Metrics::parse(&args.metrics).map_err(|error| super::usage_error(&format!("--metrics: {error}")))?;
    if let Some(pid) = metrics.process_ids().find(|&pid| !is_running(pid)) {
        let failure =
            Failure::cannot(FailureKind::BadInput, format!("record process {pid}"), "no such process");
        return Err(failure.hint("list processes with `ps -e`"));
    }
    let metrics = match args.stacks {
        None => metrics,
        Some(depth) => metrics.with_stacks(depth),
    };
    let root = Root::live();
    let snapshot = manifest::read_this_machine(&root);
    let maps_every = args.maps;
    Ok(RecordPlan { output, root, every_ns, for_ns, metrics, maps_every, snapshot })
}

fn is_running(pid: u32) -> bool {
    std::path::Path::new(&paths::process_file(pid, "stat")).exists()
}

/// Minimum sampling interval.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Default sampling interval: 5 s, or less so that a short recording has ten samples.
fn default_interval_ns(for_ns: Option<u64>) -> u64 {
    const DEFAULT_NS: u64 = 5_000_000_000;
    let least_ns = INTERVAL_MIN.as_nanos() as u64;
    for_ns.map_or(DEFAULT_NS, |for_ns| (for_ns / 10).clamp(least_ns, DEFAULT_NS))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_bounded_duration(text, INTERVAL_MIN, DAY)
}

/// Parses the length of a recording.
pub(super) fn parse_length(text: &str) -> Result<Duration, String> {
    parse_bounded_duration(text, INTERVAL_MIN, 366 * DAY)
}

/// Parses an interval of maps.
fn parse_map_interval(text: &str) -> Result<Duration, String> {
    parse_bounded_duration(text, Duration::from_secs(1), DAY)
}
