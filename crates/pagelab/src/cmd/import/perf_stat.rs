//! Import of `perf stat -x,` and `time` output as an experiment.

use std::path::PathBuf;

use pagelab_import::perf_stat::ImportedExperiment;
use pagelab_report::style::format_plural;

use crate::exit::{Exit, Outcome};
use crate::output;
use crate::output_args::OutputArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, mut_arg("output", |arg| arg.required(true)))]
pub struct Args {
    /// Files or directories: PATH, VARIANT=PATH or WORKLOAD/VARIANT=PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Baseline variant [default: the first without huge pages]
    #[arg(long, value_name = "VARIANT")]
    baseline: Option<String>,
    /// Workload name for all files, regardless of their paths
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Name of the experiment
    #[arg(long, value_name = "NAME", default_value = "perf-stat")]
    name: String,
}

const AFTER_HELP: &str = "\
Reads the output of `perf stat -x, -o FILE` for a whole run, and the real, user and sys lines of the \
 shell's `time`; the format is detected from the content. The times and counters of one workload, variant \
 and round form one trial.

Directory names give workload and variant: results/canneal/thp/always-3.csv is round 3 of the workload \
 canneal under the variant always, and logs/canneal/thp/always-3.log has its times. If a file is named like \
 its workload, the directory is the variant: results/canneal/no-thp/canneal.csv is the variant no-thp. A \
 prefix VARIANT= or WORKLOAD/VARIANT= overrides the path; files in different directories count as rounds of \
 one variant only with such a prefix.

Examples:
  perf stat -x, -o off-1.csv -e dTLB-load-misses ./program
  pagelab import perf-stat off=off-1.csv on=on-1.csv -o thp.pagelab
  pagelab import perf-stat hugepage -o thp.pagelab
  pagelab report thp.pagelab

With perf stat -r, each value is a mean and counts as one trial. Interval counts (-I) and per-CPU counts \
 (-A, --per-socket …) are rejected. Unreadable files are listed and skipped; the exit code is then 5, or 3 \
 if none can be read, or 4 if permission is denied for all of them.";

/// Reads all files, and writes them as an experiment.
pub fn run(args: &Args) -> Outcome {
    let output = args.output.required_run_file()?;
    output.check()?;
    let path = output.path.display().to_string();
    let imported = ImportedExperiment::read_files(&args.sources, args.workload.as_deref())?;
    let baseline = imported.find_baseline(args.baseline.as_deref())?;
    let (experiment, first_ns) = imported.build_experiment(&args.name, baseline);
    imported.write(&output, &experiment, first_ns)?;
    let mut out = output::stdout();
    let style = output::stdout_style();
    let line = format!(
        "{}   {} of {} under {}, against {}",
        path,
        format_plural(experiment.trials.len(), "trial"),
        format_plural(imported.workloads.len(), "workload"),
        format_plural(imported.variants.len(), "variant"),
        experiment.plan.variants[baseline].name
    );
    writeln!(out, "{}", style.to_one_line(&line))?;
    writeln!(out, "→ pagelab report {}", style.to_one_line(&path))?;
    out.flush()?;
    Ok(if imported.rejected.is_empty() { Exit::Success } else { Exit::Partial })
}
