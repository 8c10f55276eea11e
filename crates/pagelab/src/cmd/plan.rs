//! `pagelab plan`: selection of the huge pages that pay, from a profile.

use std::path::PathBuf;
use std::time::Duration;

use pagelab_formats::duration;
use pagelab_model::{Bytes, TlbProfile, size};
use pagelab_probe::machine_tlb;
use pagelab_report::json;
use pagelab_report::plan::{PlanReport, render, render_walk_cost};
use pagelab_report::style::format_bytes;
use pagelab_tlb::plan::predict::NativeTime;
use pagelab_tlb::plan::{self, PlanSize, RankBy, RankOptions};
use pagelab_tune::profile_source::{self, ProfileSource};
use pagelab_tune::region_plan::{check_profile, format_addresses, format_plan, planned_page_size};
use pagelab_tune::tuning::format_plan_size;

use super::usage_error;
use crate::atomic_file::{OutputFile, check_output};
use crate::exit::{Exit, Outcome};
use crate::output_args::ForceArgs;
use crate::value_parsers::{Choice, bounded_ns, choice, choice_word};
use crate::{output, value_parsers, walk_cost};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Profile written by `pagelab profile`, or a text file of misses per region
    #[arg(value_name = "PROFILE", required_unless_present = "calibrate")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    size: PlanSizeArgs,
    /// Ranking key for regions; all but cost serve as controls
    #[arg(long, default_value = "cost", value_parser = choice(&RANKINGS))]
    by: RankBy,
    /// Seed of --by random
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parsers::parse_seed)]
    seed: u64,
    /// Size of the planned pages: a folio smaller than a huge page (mTHP) [default: the huge page size of
    /// the profiled machine]
    #[arg(long, alias = "page", value_name = "SIZE", value_parser = size::parse_nonzero)]
    folio_size: Option<Bytes>,
    /// Also plan for file mappings and stacks
    #[arg(long)]
    files: bool,
    /// Run time without huge pages and with all memory on huge pages, for example 12.4s,9.9s
    #[arg(long, value_name = "TIME,TIME", value_parser = parse_nonzero_times, group = "native")]
    pair: Option<(u64, u64)>,
    /// With --pair, the system time of both runs, which includes page faults, for example 1.2s,0.3s
    #[arg(long, value_name = "TIME,TIME", value_parser = parse_times, requires = "pair")]
    kernel: Option<(u64, u64)>,
    /// Run time without huge pages
    #[arg(long, value_name = "TIME", value_parser = duration::parse, group = "native")]
    base_time: Option<Duration>,
    /// Measure the cost of page walks with two buffers of this size, and cache the result; takes about 15 s
    /// [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_nonzero, num_args = 0..=1,
          default_missing_value = "1G", require_equals = true)]
    calibrate: Option<Bytes>,
    /// Write the plan for `pagelab apply`
    #[arg(short, long, value_name = "FILE", requires = "file")]
    output: Option<PathBuf>,
    /// Write the region addresses, one per line, in decimal
    #[arg(long, value_name = "FILE", requires = "file")]
    largepages: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Size of the plan.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct PlanSizeArgs {
    /// Plan this number of huge pages
    #[arg(short = 'n', long, alias = "number", value_name = "N", value_parser = value_parsers::parse_count)]
    pages: Option<usize>,
    /// Plan the fewest regions that give this share of the total gain [default: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = size::parse_nonzero_share)]
    share: Option<f64>,
    /// Plan as many huge pages as fit into this much memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse_nonzero)]
    budget: Option<Bytes>,
}

impl PlanSizeArgs {
    pub(super) fn to_plan_size(&self) -> PlanSize {
        match (self.pages, self.budget) {
            (Some(pages), _) => PlanSize::Pages(pages),
            (None, Some(budget)) => PlanSize::Budget(budget),
            (None, None) => PlanSize::Share(self.share.unwrap_or(0.9)),
        }
    }
}

/// Keys by which regions are ranked; the seed of a random order is that of `--seed`.
const RANKINGS: [Choice<RankBy>; 4] = [
    (&["cost"], "Predicted time saved per huge page", RankBy::Cost),
    (&["misses"], "Misses", RankBy::Misses),
    (&["accesses"], "Accesses, if the source counts them", RankBy::Accesses),
    (&["random"], "Random order", RankBy::Random(0)),
];

const AFTER_HELP: &str = "\
Examples:
  pagelab plan xz.profile.pagelab    the curve, and 90 % of the gain
  pagelab plan --share 0.8 -o plan.toml xz.profile.pagelab
  pagelab plan --budget 64M --pair 12.4s,9.9s -o plan.toml xz.profile.pagelab
  pagelab plan --pair 12.4s,9.9s --kernel 1.2s,0.3s xz.profile.pagelab
  pagelab plan -n 8 --largepages largepages.txt hot.profile.pagelab
  pagelab plan --calibrate           measure the cost of page walks

docs/plan.md describes the model of costs and gains, and the keys of a plan.";

/// Shows the curve and writes the plan.
pub fn run(args: &Args) -> Outcome {
    let target = |path: &Option<PathBuf>| {
        path.as_deref().map(|path| check_output(path, args.replacement.force)).transpose()
    };
    let (output, list) = (target(&args.output)?, target(&args.largepages)?);
    let source = args.file.as_deref().map(profile_source::read_profile).transpose()?;
    let snapshot = machine_tlb::read_machine();
    let measured = match args.calibrate {
        Some(largest) => {
            output::print_note("note: measuring the cost of page walks, about 15 s");
            Some(walk_cost::measure(&snapshot, largest)?)
        }
        None => None,
    };
    let Some(source) = source else {
        let cost = measured.ok_or_else(|| usage_error("no profile given: add a profile or --calibrate"))?;
        match args.json {
            true => output::print_json(&json::plan::walk_cost_document(&cost))?,
            false => output::print(&render_walk_cost(&cost, output::stdout_style()))?,
        }
        return Ok(Exit::Success);
    };
    let ProfileSource { mut profile, machine } = source;
    if measured.is_some() {
        profile.walk_cost = measured;
    } else if profile.walk_cost.is_none()
        && machine.is_none_or(|of| of == walk_cost::machine_key(&snapshot.machine))
    {
        profile.walk_cost = walk_cost::load_cached(&snapshot.machine);
    }
    let page = planned_page_size(args.folio_size, &profile)?;
    let by = if let RankBy::Random(_) = args.by { RankBy::Random(args.seed) } else { args.by };
    let ranking = plan::rank_regions(&profile, RankOptions { page, by, include_files: args.files });
    check_profile(&profile, &ranking, page)?;
    let size = args.size.to_plan_size();
    let chosen = ranking.region_count(size, page);
    if chosen == 0 {
        return Err(usage_error(&format!(
            "the plan would be empty; hint: allow at least one page of {}",
            format_bytes(page)
        )));
    }
    let native = args.native_times();
    let plan_arguments = format_plan_size(size);
    let report = PlanReport {
        profile: &profile,
        ranking: &ranking,
        page_size: page,
        chosen,
        plan_arguments: &plan_arguments,
        chosen_by: choice_word(&RANKINGS, &args.by),
        native_result: native,
    };
    let lost = native.filter(|_| report.predicted_speedup(chosen).is_none());
    lost.iter().for_each(|_| output::warn(NO_SPEEDUP));
    output.as_ref().map_or(Ok(()), |output| output.write(format_plan(&report).as_bytes()))?;
    list.as_ref().map_or(Ok(()), |list| list.write(format_addresses(&report).as_bytes()))?;
    match args.json {
        true => output::print_json(&json::plan::to_document(&report))?,
        false => {
            output::print(&(render(&report, output::stdout_style()) + &next_step(output.as_ref(), &profile)))?
        }
    }
    Ok(Exit::Success)
}

const NO_SPEEDUP: &str = "warning: cannot predict a speed-up: the cost of page walks is unknown, or exceeds \
                          the given time; hint: --pair scales it to the program";

impl Args {
    fn native_times(&self) -> Option<NativeTime> {
        let kernel_ns = self.kernel;
        let pair = self.pair.map(|(base_ns, huge_ns)| NativeTime::Pair { base_ns, huge_ns, kernel_ns });
        pair.or_else(|| Some(NativeTime::Base(bounded_ns(self.base_time?))))
    }
}

/// Command that applies the plan.
fn next_step(output: Option<&OutputFile>, profile: &TlbProfile) -> String {
    let Some(output) = output else { return String::new() };
    let style = output::stdout_style();
    let command = if profile.command.is_empty() { "COMMAND".to_owned() } else { profile.command.join(" ") };
    let line = format!("→ pagelab apply {} -- {command}", output.name());
    style.to_one_line(&line) + "\n"
}

/// Parses two times, in ns.
fn parse_times(text: &str) -> Result<(u64, u64), String> {
    let (base, huge) = text.split_once(',').ok_or("expected two times, for example 12.4s,9.9s")?;
    let ns = |text: &str| {
        let time = duration::parse(text.trim())?;
        u64::try_from(time.as_nanos()).map_err(|_| "expected a shorter time".to_owned())
    };
    Ok((ns(base)?, ns(huge)?))
}

/// Parses two times, in ns, that are both above zero.
fn parse_nonzero_times(text: &str) -> Result<(u64, u64), String> {
    match parse_times(text)? {
        (base, huge) if base > 0 && huge > 0 => Ok((base, huge)),
        _ => Err("expected times above zero".to_owned()),
    }
}
