//! `pagelab compact`: compacts memory, and says what that changed and what is in the way.

use std::io::Write;

use pagelab_contig::compact::{Caches, Scope, compact, drop_caches};
use pagelab_contig::look::{LookOptions, look};
use pagelab_host::guard::{Guard, Options, Planned, Site, Watched};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_metrics::compaction::{Compaction, Verdict};
use pagelab_model::{NodeId, Snapshot};
use pagelab_report::compact::render;
use pagelab_report::json;
use serde_json::{Value, json};

use super::restore;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `compact` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Compact one NUMA node instead of all
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Write back and drop caches before
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Which::None)]
    drop_caches: Which,
    /// Change nothing; say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Both looks and everything counted between them as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
    /// The indices and free blocks of every order
    #[arg(short, long)]
    verbose: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab compact                        moves what can be moved together
  pagelab compact --drop-caches page     after dropping page cache that is clean
  pagelab compact --dry-run              what would be written where

Needs root. Exit code 0: huge pages were gained, or none was missing; 1: nothing changed although blocks \
are neither free nor huge; 5: only a part was done.

Compaction moves pages and changes no contents; it cannot be undone. Programs that use the memory may \
wait meanwhile. Dropped caches are read from disk again.";

/// Which caches are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// None
    None,
    /// The page cache, where it is clean and not mapped
    Page,
    /// The page cache, and slab objects that can be reclaimed, such as dentries and inodes
    All,
}

/// Looks, compacts, looks again, prints.
pub fn run(args: &Args) -> Outcome {
    let root = Root::live();
    let scope = scope(&root, args.node)?;
    let caches = match args.drop_caches {
        Which::None => Caches::Keep,
        Which::Page => Caches::Page,
        Which::All => Caches::All,
    };
    if !args.dry_run && !rustix::process::geteuid().is_root() {
        let message = "compacting memory needs root (it writes a setting of the kernel), and this is another \
                       user; a way out: sudo pagelab compact";
        return Err(Failure::new(Exit::NotAvailable, message));
    }
    let watched = Watched::signals(Box::new(|code, outcomes| out::signalled(code, "", outcomes)));
    let site = Site::live().map_err(restore::failure)?;
    let options = Options { dry_run: args.dry_run, ..Options::default() };
    let guard = Guard::begin(&site, watched.map_err(restore::failure)?, options).map_err(restore::failure)?;
    if args.dry_run {
        drop_caches(&guard, caches).map_err(restore::failure)?;
        compact(&guard, scope).map_err(restore::failure)?;
        return print_plan(&guard.planned(), args.json);
    }
    let before = look(&root, &LookOptions::default());
    let dropped = drop_caches(&guard, caches).map_err(restore::failure)?;
    let compacted = compact(&guard, scope).map_err(|error| {
        let failure = restore::failure(error);
        // Caches are gone by now: a part is done.
        if dropped.is_some() { Failure::new(Exit::Partial, failure.to_string()) } else { failure }
    })?;
    let after = look(&root, &LookOptions::default());
    let compaction = Compaction::of(&before, &after, dropped, compacted);
    print(args, &before, &after, &compaction)?;
    Ok(match compaction.verdict() {
        Verdict::Gained(_) | Verdict::NothingToDo => Exit::Done,
        Verdict::NothingChanged => Exit::No,
    })
}

/// The memory that is meant; a node that is not there is a wrong command line.
fn scope(root: &Root, node: Option<u32>) -> Result<Scope, Failure> {
    let Some(node) = node else { return Ok(Scope::Machine) };
    let folder = format!("{}/node{node}", paths::NODES);
    if root.read(&format!("{folder}/meminfo")).is_err() {
        let message =
            format!("--node {node}: there is no such node; `pagelab frag` lists those that there are");
        return Err(super::usage(&message));
    }
    Ok(Scope::Node(NodeId(node)))
}

fn print(args: &Args, before: &Snapshot, after: &Snapshot, compaction: &Compaction) -> Result<(), Failure> {
    let mut out = out::stdout();
    let text = match args.json {
        true => json_text(&json::compact::document(before, after, compaction))?,
        false => render(before, after, compaction, args.verbose, out::style()),
    };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn json_text(document: &Value) -> Result<String, Failure> {
    json::to_text(document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}

fn print_plan(planned: &[Planned], as_json: bool) -> Outcome {
    let mut out = out::stdout();
    if as_json {
        let acts = planned.iter().map(|planned| planned.what.as_str()).collect::<Vec<_>>();
        let document = json!({
            "pagelab_json": json::VERSION, "kind": "compact", "dry_run": true, "acts": acts,
        });
        out.write_all(json_text(&document)?.as_bytes())?;
    } else {
        writeln!(out, "would do, in this order; none of it can be undone:")?;
        for planned in planned {
            writeln!(out, "  {}", planned.what)?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}
