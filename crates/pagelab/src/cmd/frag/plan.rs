//! From the arguments to a plan: every conflict is found before anything is opened.

use std::path::PathBuf;

use pagelab_model::{Order, PageSize};
use pagelab_report::frag::KernelFile;

use super::{Args, Format};
use crate::cmd::usage;
use crate::exit::Failure;

/// What will be done.
#[derive(Debug)]
pub struct Plan {
    /// Where the free blocks are read from.
    pub input: Input,
    /// Which reading of several, counted from 1.
    pub report: Option<usize>,
    /// The page size that was given.
    pub page_size: Option<PageSize>,
    /// The order that was asked for.
    pub order: Option<Order>,
    /// What is printed.
    pub view: View,
}

/// Where free blocks are read from.
#[derive(Debug)]
pub enum Input {
    /// This machine.
    Live,
    /// A saved tree.
    Tree(PathBuf),
    /// A text, or standard input if it is called `-`.
    Text(PathBuf),
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// One of the kernel's own files.
    Kernel(KernelFile),
    /// Columns.
    Table {
        /// With the paper's form.
        paper: bool,
    },
    /// The working-out.
    Explain {
        /// With the paper's form.
        paper: bool,
    },
    /// JSON.
    Json,
}

impl Plan {
    /// Checks the arguments against each other.
    pub fn resolve(args: &Args) -> Result<Plan, Failure> {
        let view = view(args)?;
        let input = match (&args.from, &args.root) {
            (Some(_), Some(_)) => {
                return Err(usage(
                    "--from and --root: there is one source at a time; leave one of them away",
                ));
            }
            (Some(path), None) => Input::Text(path.clone()),
            (None, Some(path)) => Input::Tree(path.clone()),
            (None, None) => Input::Live,
        };
        if args.report.is_some() && args.from.is_none() {
            let message =
                "--report chooses among the reports of a text, and no text was given; add --from FILE";
            return Err(usage(message));
        }
        if args.report == Some(0) {
            return Err(usage("--report 0: reports are counted from 1; the first is --report 1"));
        }
        let page_size = args.page_size.as_deref().map(crate::cmd::page_size).transpose()?;
        Ok(Plan { input, report: args.report, page_size, order: args.order.map(Order), view })
    }
}

fn view(args: &Args) -> Result<View, Failure> {
    let format = match args.format {
        Some(format) if args.json && format != Format::Json => {
            let name = name_of(format);
            let message = format!("--json and --format {name}: one output at a time; leave one of them away");
            return Err(usage(&message));
        }
        None if args.json => Format::Json,
        None => Format::Table,
        Some(format) => format,
    };
    let refused = |what: &str, why: &str| {
        let name = name_of(format);
        Err(usage(&format!("{what} with --format {name}: {why}; leave {what} away, or use --format table")))
    };
    let kernel = matches!(format, Format::Unusable | Format::Extfrag);
    if args.explain && format != Format::Table {
        return refused("--explain", "the working-out is a text of its own");
    }
    if args.paper && kernel {
        return refused("--paper", "the kernel's file has no paper form");
    }
    if args.order.is_some() && kernel {
        return refused("--order", "the kernel's file has every order");
    }
    Ok(match format {
        Format::Table if args.explain => View::Explain { paper: args.paper },
        Format::Table => View::Table { paper: args.paper },
        Format::Unusable => View::Kernel(KernelFile::Unusable),
        Format::Extfrag => View::Kernel(KernelFile::Extfrag),
        Format::Json => View::Json,
    })
}

fn name_of(format: Format) -> &'static str {
    match format {
        Format::Table => "table",
        Format::Unusable => "unusable",
        Format::Extfrag => "extfrag",
        Format::Json => "json",
    }
}
