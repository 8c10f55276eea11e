//! `pagelab frag`: fragmentation indices of this machine, of a saved buddyinfo, or of a report.

mod load;
mod plan;

use std::io::Write;
use std::path::PathBuf;

use pagelab_report::frag::{explain, kernel_file, table};
use pagelab_report::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use plan::{Plan, View};

const EXAMPLES: &str = "\
Examples:
  pagelab frag                             this machine
  pagelab frag --order 4 --explain         F_u(4) and F_i(4) with all numbers
  dmesg | pagelab frag --from -            the last failure in the kernel log
  pagelab frag --from bug.txt --report 1   the first of several reports
  pagelab frag --format extfrag            as extfrag/extfrag_index in debugfs

F_u(j), unusable free space index: share of the free memory in blocks that are
        smaller than order j; 0 none, 1 all
F_i(j), fragmentation index: why a request of order j fails; near 0 for lack of
        memory, near 1 for fragmentation, −1 where it does not fail
";

/// What `frag` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read this text, or - for standard input: buddyinfo, or a kernel log with reports
    ///
    /// Which of the two it is, is told from its lines. Lines of other kinds are passed over.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// Read the saved tree of a machine's files instead of this machine
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,

    /// Of several reports or readings in the text, take this one, counted from 1 [default: the last]
    #[arg(long, value_name = "N")]
    report: Option<usize>,

    /// Base page size, where the source does not say it: 4K, 16K, 64K
    #[arg(long, value_name = "SIZE")]
    page_size: Option<String>,

    /// What to print [default: table]
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Answer for blocks of 2^J pages [default: the order of the request that failed, where a report
    /// names it, else that of a PMD huge page]
    #[arg(long, value_name = "J", value_parser = order)]
    order: Option<u8>,

    /// Show the paper's form of F_i as well: 1 − (free / 2^J) / blocks
    #[arg(long)]
    paper: bool,

    /// Work the indices out line by line
    #[arg(long)]
    explain: bool,

    /// The same as --format json
    #[arg(long)]
    json: bool,
}

/// An order: blocks of 2^J pages.
fn order(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "an order is wanted, a whole number such as 9".to_owned())
}

impl Args {
    /// Whether standard input is what it reads.
    pub fn reads_stdin(&self) -> bool {
        let names = ["-", "/dev/stdin", "/dev/fd/0"];
        self.from.as_ref().is_some_and(|from| names.iter().any(|name| from.as_os_str() == *name))
    }
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Aligned columns, the answer first
    Table,
    /// Byte for byte the kernel's extfrag/unusable_index
    Unusable,
    /// Byte for byte the kernel's extfrag/extfrag_index
    Extfrag,
    /// Every number, as written down in docs/json.md
    Json,
}

/// Prints the indices.
pub fn run(args: &Args) -> Outcome {
    let plan = Plan::resolve(args)?;
    let report = load::report(&plan)?;
    let style = out::style();
    let text = match plan.view {
        View::Kernel(which) => kernel_file(&report.buddyinfo, which),
        View::Table { paper } => {
            let options = table::Options { paper, one_order: plan.order.is_some() };
            table::render(&report, options, &style)
        }
        View::Explain { paper } => explain::render(&report, paper, &style),
        View::Json => json::to_text(&json::frag::document(&report))
            .map_err(|error| Failure::new(Exit::Bug, "cannot write JSON").because(error))?,
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}
