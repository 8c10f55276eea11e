//! `pagelab compact`: compacts memory, and shows the effect and the pages that prevented more.

use std::time::Duration;

use pagelab_contig::compaction::CacheDrop;
use pagelab_formats::duration;
use pagelab_fragment::compaction::{CompactionMethod, CompactionRequest};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_metrics::compaction::CompactionVerdict;
use pagelab_model::NodeId;
use pagelab_report::compact::{render, render_plan};
use pagelab_report::json;

use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::value_parsers::{Choice, bounded_ns, choice};
use crate::{output, value_parsers};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Compact only this NUMA node
    #[arg(long, value_name = "N", value_parser = value_parsers::parse_node)]
    node: Option<u32>,
    /// Compaction method [default: kernel, then direct if the kernel stopped early]
    #[arg(long, value_parser = choice(&METHODS))]
    how: Option<CompactionMethod>,
    /// Stop allocating huge pages after this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    deadline: Duration,
    /// Write back dirty pages and drop caches first
    #[arg(long, value_name = "WHICH", default_value = "none", value_parser = choice(&CACHES))]
    drop_caches: CacheDrop,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print both snapshots and the counter deltas as JSON (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Print indices and free blocks for every order
    #[arg(short, long)]
    verbose: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab compact                        compact all zones
  pagelab compact --drop-caches page     drop clean page cache first
  pagelab compact --how both             then allocate all huge pages
  pagelab compact --dry-run              print the planned writes

Requires root. Exit code 0: more huge pages are available, or none were missing; 1: no change, although \
 some blocks are neither free nor huge; 5: partly done.

`direct` allocates all free blocks as huge pages and releases them; it leaves a reserve (5 % of memory, at \
 least 512 MiB) and stops before the kernel would start to reclaim. Compaction moves pages without changing \
 their contents; it cannot be undone. Programs may stall while their pages are migrated. Dropped cache must \
 be read from disk again.";

const METHODS: [Choice<CompactionMethod>; 3] = [
    (&["kernel"], "Kernel compaction, through vm.compact_memory", CompactionMethod::Kernel),
    (&["direct", "asking"], "Direct compaction, by allocating huge pages", CompactionMethod::Requests),
    (&["both"], "Kernel compaction, then direct compaction", CompactionMethod::Both),
];

const CACHES: [Choice<CacheDrop>; 3] = [
    (&["none"], "Keep the caches", CacheDrop::None),
    (&["page"], "Clean, unmapped page cache", CacheDrop::PageCache),
    (&["all"], "Page cache and reclaimable slab objects: dentries, inodes", CacheDrop::All),
];

/// Takes a snapshot, compacts, takes another, and prints.
pub fn run(args: &Args) -> Outcome {
    let root = Root::live();
    let request = resolve_request(args, &root)?;
    if args.dry_run {
        let actions = request.plan(&root)?;
        match args.json {
            true => output::print_json(&json::compact::plan_document(&actions))?,
            false => output::print(&render_plan(&actions))?,
        }
        return Ok(Exit::Success);
    }
    if !rustix::process::geteuid().is_root() {
        let failure = Failure::cannot(FailureKind::NotAvailable, "compact memory", "not root");
        return Err(failure.hint("sudo pagelab compact"));
    }
    let (before, after, report) = request.run(&root)?;
    match args.json {
        true => output::print_json(&json::compact::to_document(&before, &after, &report))?,
        false => output::print(&render(&before, &after, &report, args.verbose, output::stdout_style()))?,
    }
    Ok(match report.verdict() {
        CompactionVerdict::Gained(_) | CompactionVerdict::NothingToDo => Exit::Success,
        CompactionVerdict::NothingChanged => Exit::NegativeAnswer,
    })
}

/// Checks the request; an unknown node is a usage error.
fn resolve_request(args: &Args, root: &Root) -> Result<CompactionRequest, Failure> {
    if let Some(node) = args.node
        && root.read(&format!("{}/node{node}/meminfo", paths::NODES)).is_err()
    {
        let names = root.list_dir(paths::NODES).unwrap_or_default();
        let nodes = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
        return Err(super::unknown_node(node, &nodes));
    }
    Ok(CompactionRequest {
        node: args.node.map(NodeId),
        method: args.how.unwrap_or(CompactionMethod::KernelThenRequests),
        caches: args.drop_caches,
        time_limit_ns: bounded_ns(args.deadline),
    })
}
