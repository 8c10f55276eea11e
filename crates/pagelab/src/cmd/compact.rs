//! `pagelab compact`: compacts memory, and says what that changed and what is in the way.

use std::io::Write;

use pagelab_contig::asking::{Asked, MISSED_COLLAPSES_EARLY_MAX, Wanted, available};
use pagelab_contig::compact::{Caches, Scope, compact, drop_caches};
use pagelab_contig::finish::{Runs, compact_on};
use pagelab_contig::look::{LookOptions, look};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::truth::{Rounds, ask_and_compact, ask_to_compact};
use pagelab_formats::duration;
use pagelab_host::guard::{Fate, Guard, Options, Planned, Site, Watched};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::compaction::{Acts, AskingAct, Compaction, KernelAct, Verdict, activity, ended_early};
use pagelab_model::{Bytes, NodeId, Order, Snapshot};
use pagelab_report::compact::render;
use pagelab_report::json;
use pagelab_sys::clock;
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
    /// Who compacts [default: kernel, and asking where the kernel ended early]
    #[arg(long, value_enum)]
    how: Option<How>,
    /// Ask for no more huge pages after this time
    #[arg(long, value_name = "TIME", default_value = "60s")]
    deadline: String,
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
  pagelab compact --how both             then asks until no huge page comes
  pagelab compact --dry-run              what would be written where

Needs root. Exit code 0: huge pages were gained, or none was missing; 1: nothing changed although blocks \
are neither free nor huge; 5: only a part was done.

Asking takes every free block first and gives all back: it keeps a reserve (5 % of memory, 512 MiB at \
least), and stops where the kernel would reclaim. Compaction moves pages and changes no contents; it \
cannot be undone. Programs that use the memory may wait meanwhile. Dropped caches are read from disk again.";

/// Who compacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// The kernel, told by vm.compact_memory
    Kernel,
    /// The kernel, for each huge page that is asked for
    Asking,
    /// Both, one after the other
    Both,
}

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
    let deadline = duration::parse(&args.deadline);
    let deadline = deadline.map_err(|error| super::usage(&format!("--deadline {error}")))?;
    let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
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
        if args.how != Some(How::Asking) {
            compact(&guard, scope).map_err(restore::failure)?;
        }
        return print_plan(&guard.planned(), asking_plan(args, &root), args.json);
    }
    let before = look(&root, &looking());
    let mut acts =
        Acts { drop_ns: drop_caches(&guard, caches).map_err(restore::failure)?, ..Acts::default() };
    // Caches are gone by now: a part is done.
    let partly = |failure: Failure| match acts.drop_ns {
        Some(_) => Failure::new(Exit::Partial, failure.to_string()),
        None => failure,
    };
    if args.how != Some(How::Asking) {
        let until_ns = clock::monotonic_ns().saturating_add(deadline_ns);
        let block = before.pageblock_order;
        acts.kernel = Some(by_kernel(&guard, &root, scope, block, until_ns).map_err(partly)?);
    }
    let is_early = acts.kernel.as_ref().is_some_and(|act| !ended_early(&before, act).is_empty());
    if matches!(args.how, Some(How::Asking | How::Both)) || args.how.is_none() && is_early {
        match by_asking(&guard, &root, &before, args.node, deadline_ns, args.how != Some(How::Asking)) {
            Ok(act) => acts.asking = Some(act),
            // What the kernel did by itself stays, and is told.
            Err(failure) if acts.kernel.is_some() => out::complain(&failure.to_string()),
            Err(failure) => return Err(partly(failure)),
        }
    }
    let after = look(&root, &looking());
    let compaction = Compaction::of(&before, &after, acts);
    for outcome in guard.finish().iter().filter(|o| matches!(o.fate, Fate::LeftAlone | Fate::Failed)) {
        out::complain(&format!("pagelab: {} is not as it was: {}", outcome.what, outcome.detail));
    }
    print(args, &before, &after, &compaction)?;
    Ok(match compaction.verdict() {
        Verdict::Gained(_) | Verdict::NothingToDo => Exit::Done,
        Verdict::NothingChanged => Exit::No,
    })
}

/// Both looks wait until the per-CPU lists have shrunk: what waits there is in no free block.
fn looking() -> LookOptions {
    LookOptions { settle: true, ..LookOptions::default() }
}

/// Has the kernel compact, again where it ended early and gained something, and tells where its scanners
/// stopped.
fn by_kernel(
    guard: &Guard,
    root: &Root,
    scope: Scope,
    block: Order,
    until_ns: u64,
) -> Result<KernelAct, Failure> {
    let counters = || Reader::new(root).parse(paths::VMSTAT, pagelab_formats::vmstat::parse);
    let first = counters();
    let Runs { count: times, took_ns, last: runs, .. } =
        compact_on(guard, root, scope, block, until_ns).map_err(restore::failure)?;
    let activity = match (&first, &counters()) {
        (Ok(first), Ok(last)) => activity(first, last),
        _ => Vec::new(),
    };
    let huge_after = Some(Checkup::of(&look(root, &looking())).huge_now());
    Ok(KernelAct { took_ns, times, runs, activity, huge_after })
}

/// Asks for as many huge pages as the reserve allows, and gives them back.
fn by_asking(
    guard: &Guard,
    root: &Root,
    before: &Snapshot,
    node: Option<u32>,
    deadline_ns: u64,
    by_kernel_too: bool,
) -> Result<AskingAct, Failure> {
    let size = before.machine.page_size.block(before.pmd_order);
    let wanted = Wanted {
        count: room(root).0 / size.0.max(1),
        size,
        page_size: before.machine.page_size,
        reserve: reserve(root),
        deadline_ns: clock::monotonic_ns().saturating_add(deadline_ns),
        misses_max: MISSED_COLLAPSES_EARLY_MAX,
    };
    let began_ns = clock::monotonic_ns();
    let node = node.map(NodeId);
    let rounds = match by_kernel_too {
        true => ask_and_compact(guard, root, &before.settings, wanted, node),
        false => ask_to_compact(guard, root, &before.settings, wanted, node).map(|asked| Rounds {
            count: 1,
            asked,
            kernel: None,
        }),
    };
    let rounds = rounds.map_err(restore::failure)?;
    let asked: Asked = rounds.asked.map_err(|absence| {
        let way_out =
            absence.way_out.as_ref().map_or(String::new(), |way_out| format!("\n  hint: {way_out}"));
        let message = format!("cannot ask for huge pages: {}{way_out}", absence.reason());
        Failure::new(Exit::NotAvailable, message)
    })?;
    Ok(AskingAct {
        rounds: rounds.count,
        took_ns: clock::monotonic_ns().saturating_sub(began_ns),
        taken: Bytes(asked.got.saturating_mul(size.0)),
        got: asked.got,
        by_collapse: asked.by_collapse,
        stopped: asked.stopped.words(),
        runs: rounds.kernel.map(|runs| runs.last),
    })
}

fn reserve(root: &Root) -> Reserve {
    let total = Reader::new(root).parse(paths::MEMINFO, pagelab_formats::meminfo::parse);
    Reserve::of(total.ok().and_then(|info| info.bytes("MemTotal")).unwrap_or_default())
}

/// What may be taken for a moment.
fn room(root: &Root) -> Bytes {
    available(root).map_or(Bytes(0), |available| reserve(root).room(available))
}

/// What asking would do, in words; `None` where it is not wanted.
fn asking_plan(args: &Args, root: &Root) -> Option<String> {
    let when = match args.how {
        Some(How::Kernel) => return None,
        Some(How::Asking | How::Both) => "",
        None => "where the kernel ends early: ",
    };
    let (most, kept) = (room(root), reserve(root).0);
    Some(format!(
        "{when}ask for huge pages by faults and MADV_COLLAPSE, at most {} MiB at once and {}, {} MiB left \
         available, all given back; THP settings are changed meanwhile",
        most.0 >> 20,
        args.deadline,
        kept.0 >> 20
    ))
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

fn print_plan(planned: &[Planned], asking: Option<String>, as_json: bool) -> Outcome {
    let mut out = out::stdout();
    if as_json {
        let acts = planned.iter().map(|planned| planned.what.as_str()).chain(asking.as_deref());
        let acts = acts.collect::<Vec<_>>();
        let document = json!({
            "pagelab_json": json::VERSION, "kind": "compact", "dry_run": true, "acts": acts,
        });
        out.write_all(json_text(&document)?.as_bytes())?;
    } else {
        writeln!(out, "would do, in this order; none of it can be undone:")?;
        for planned in planned {
            writeln!(out, "  {}", planned.what)?;
        }
        if let Some(asking) = asking {
            writeln!(out, "  {asking}")?;
        }
    }
    out.flush()?;
    Ok(Exit::Done)
}
