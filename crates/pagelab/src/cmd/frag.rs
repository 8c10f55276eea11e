//! `pagelab frag`: shows fragmentation indices of this machine, a saved buddyinfo or pagetypeinfo, or an
//! allocation failure report.

use std::path::PathBuf;

use pagelab_command::arguments::parse_page_size;
use pagelab_map::free_blocks::{self, FragInput, FragPlan, FragView};
use pagelab_model::{Order, PageSize};
use pagelab_report::frag::{self, KernelFile, format_kernel_file};
use pagelab_report::json;

use super::usage_error;
use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;
use crate::value_parsers::{Choice, choice, choice_word, parse_bounded, parse_count};

const EXAMPLES: &str = "\
Examples:
  pagelab frag                             this machine
  pagelab frag --order 4 --explain         F_u(4) and F_i(4) with all numbers
  dmesg | pagelab frag --from -            the last failure in the kernel log
  pagelab frag --from bug.txt --report 1   the first of several reports
  pagelab frag --format extfrag            as extfrag/extfrag_index in debugfs

F_u(j), unusable free space index: share of the free memory in blocks\n        smaller than order j; 0 none, \
 1 all
F_i(j), fragmentation index (extfrag_index): if a request of order j fails, near\n        0 for lack of \
 memory, \
 near 1 for fragmentation; −1: it would succeed
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read FILE instead of this machine: buddyinfo, pagetypeinfo, a kernel log with failure reports, or a
    /// run file with a snapshot; - for standard input
    ///
    /// The file type is detected from its contents. Unrelated lines of text are skipped.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,

    /// Read a saved tree instead of this machine
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,

    /// Use this report or reading, counted from 1 [default: the last]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    report: Option<usize>,

    /// Base page size, if the source does not state it: 4K, 16K, 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_page_size)]
    page_size: Option<PageSize>,

    /// Output format [default: table]
    #[arg(long, value_parser = choice(&FORMATS))]
    format: Option<FragView>,

    /// Buddy order J to report on [default: the order of the failed request in a report, else that of a PMD
    /// huge page]
    #[arg(long, value_name = "J", value_parser = parse_bounded::<u8, 0, 63>)]
    order: Option<u8>,

    /// Also print F_i as defined by Gorman and Whitcroft 2006: 1 − (free / 2^J) / blocks
    #[arg(long)]
    paper: bool,

    /// Show the calculation of the indices step by step
    #[arg(long)]
    explain: bool,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

const FORMATS: [Choice<FragView>; 4] = [
    (&["table"], "Aligned columns, the summary first", FragView::Table),
    (
        &["unusable"],
        "Identical to the kernel's extfrag/unusable_index",
        FragView::Kernel(KernelFile::UnusableIndex),
    ),
    (
        &["extfrag"],
        "Identical to the kernel's extfrag/extfrag_index",
        FragView::Kernel(KernelFile::FragmentationIndex),
    ),
    (&["json"], "", FragView::Json),
];

pub fn run(args: &Args) -> Outcome {
    let plan = resolve_plan(args)?;
    let report = free_blocks::load_report(&plan)?;
    let style = output::stdout_style();
    let text = match plan.view {
        FragView::Kernel(which) => {
            check_exactness(&report, which)?;
            format_kernel_file(&report.buddyinfo, which)
        }
        FragView::Table => {
            let options = frag::TableOptions { paper: args.paper, is_single_order: args.order.is_some() };
            frag::render_table(&report, options, &style)
        }
        FragView::Explain => frag::render_explanation(&report, args.paper, &style),
        FragView::Json => output::json_text(&json::frag::to_document(&report))?,
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

/// Refuses to print a file of the kernel from counts that are only bounds.
fn check_exactness(report: &frag::FragReport, which: KernelFile) -> Result<(), Failure> {
    let capped = report.capped_zones();
    if capped.is_empty() {
        return Ok(());
    }
    let name = choice_word(&FORMATS, &FragView::Kernel(which));
    let reason = format!("the counts in {} are capped (>), so only bounds are known", capped.join(", "));
    let failure = Failure::cannot(FailureKind::BadInput, format_args!("print --format {name}"), reason);
    Err(failure.hint("use the table or --json, which print bounds, or a buddyinfo taken at the same time"))
}

/// Checks the arguments against each other, before a file is opened.
fn resolve_plan(args: &Args) -> Result<FragPlan, Failure> {
    let view = resolve_view(args)?;
    let input = match (&args.from, &args.root) {
        (Some(_), Some(_)) => return Err(usage_error("--from and --root cannot be used together")),
        (Some(path), None) => FragInput::File(path.clone()),
        (None, Some(path)) => FragInput::Tree(path.clone()),
        (None, None) => FragInput::Live,
    };
    if args.report.is_some() && args.from.is_none() {
        return Err(usage_error("--report requires --from FILE"));
    }
    Ok(FragPlan { input, report: args.report, page_size: args.page_size, order: args.order.map(Order), view })
}

fn resolve_view(args: &Args) -> Result<FragView, Failure> {
    let view = match args.format {
        Some(view) if args.json && view != FragView::Json => {
            let name = choice_word(&FORMATS, &view);
            return Err(usage_error(&format!("--json and --format {name} cannot be used together")));
        }
        None if args.json => FragView::Json,
        format => format.unwrap_or(FragView::Table),
    };
    let refused = |what: &str, why: &str| {
        let name = choice_word(&FORMATS, &view);
        Err(usage_error(&format!("{what} cannot be used with --format {name}: {why}")))
    };
    match view {
        FragView::Table if args.explain => Ok(FragView::Explain),
        _ if args.explain => refused("--explain", "the calculation is printed as text"),
        FragView::Kernel(_) if args.paper => refused("--paper", "the kernel's file has no such column"),
        FragView::Kernel(_) if args.order.is_some() => {
            refused("--order", "the kernel's file always lists every order")
        }
        _ => Ok(view),
    }
}
