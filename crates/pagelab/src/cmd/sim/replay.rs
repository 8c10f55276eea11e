//! `pagelab sim replay`: a recorded trace under simulated policies, compared with the kernel's memory.

use std::num::NonZero;
use std::path::PathBuf;

use pagelab_runfile::TraceReader;
use pagelab_sim::policies;
use pagelab_sim::replay::types::ZoneSelection;
use pagelab_study::catalogue::placement_policies;
use pagelab_study::replay::{replay_policies, run_file, show};

use crate::atomic_file::NewRunFile;
use crate::exit::{Exit, Outcome, read_trace_failure};
use crate::output;
use crate::output_args::OutputArgs;
use crate::value_parsers::{Choice, choice, parse_thread_count};

const OUTPUT_HELP: &str = "Also write free memory over time, simulated and sampled, to this run file";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("output", |arg| arg.help(OUTPUT_HELP)))]
pub struct Args {
    /// Trace written by `pagelab trace record`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Policies to compare, from `pagelab sim list` [default: that of the traced kernel]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policy: Vec<String>,
    /// Zones that an object may use: the traced zone, or all that its GFP flags allow
    #[arg(long, value_name = "WHICH", default_value = "traced", value_parser = choice(&ZONES))]
    zones: ZoneSelection,
    #[command(flatten)]
    output: OutputArgs,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = parse_thread_count)]
    threads: Option<NonZero<usize>>,
    /// Also print the elapsed time; outputs then differ between runs
    #[arg(long)]
    time: bool,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  pagelab sim replay t.pagelab                        accuracy of the simulator
  pagelab sim replay t.pagelab --policy mobility,standard,list2
  pagelab sim replay t.pagelab -o r.pagelab           then: pagelab report

docs/sim.md describes the replay and the gaps in a trace.";

const ZONES: [Choice<ZoneSelection>; 2] = [
    (&["traced"], "The traced zone", ZoneSelection::Traced),
    (&["requested", "asked"], "All zones allowed by the GFP flags", ZoneSelection::GfpAllowed),
];

pub fn run(args: &Args) -> Outcome {
    let mut policies = placement_policies("--policy", &args.policy, "a replayed trace has neither")?;
    let output = args.output.run_file();
    output.as_ref().map_or(Ok(()), NewRunFile::check)?;
    let mut reader = TraceReader::open(&args.file).map_err(|error| read_trace_failure(&error))?;
    if policies.is_empty() {
        policies.extend(policies::find_policy(policies::name_for_release(&reader.header().kernel)));
    }
    let told = replay_policies(&mut reader, &args.file, args.zones, args.threads, &policies)?;
    if let Some(file) = &output {
        run_file::write_run_file(file, &told)?;
    }
    let text =
        if args.json { show::report_json(&told, args.time)? } else { show::report_text(&told, args.time) };
    output::print(&text)?;
    Ok(Exit::Success)
}
