//! `pagelab checkup`: the state of this machine's physical memory, why it is so, and what to do.

mod hypervisor;
mod probing;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagelab_host::census::{CensusOptions, census};
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::machine::Known;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_metrics::checkup::Checkup;
use pagelab_model::machine::Tlb;
use pagelab_model::{AbsentWhy, OffLists, PageSize, Snapshot};
use pagelab_report::checkup::{View, brief, render};
use pagelab_report::json;
use pagelab_sys::cpuid;

use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `checkup` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Read-only, unless --probe is given. Ends in at most 10 seconds.")]
pub struct Args {
    /// Everything, not the summary alone
    #[arg(short, long)]
    verbose: bool,
    /// The findings alone, for cron: exit code 0 nothing, 1 findings
    #[arg(long, conflicts_with_all = ["verbose", "json"])]
    brief: bool,
    /// The whole look as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Read a tree saved by `pagelab capture` (folder, .tar, .tar.zst) instead of this machine
    #[arg(long, value_name = "DIR|TAR", conflicts_with = "probe")]
    root: Option<PathBuf>,
    /// Ask for huge pages and measure what they would buy; all is given back
    #[arg(long)]
    probe: bool,
    /// The paper's fragmentation index beside the kernel's; implies -v
    #[arg(long)]
    paper: bool,
    /// Free blocks by migratetype; implies -v (pagetypeinfo: up to 50 ms with interrupts off)
    #[arg(long)]
    migratetypes: bool,
    /// Memory eligible for huge pages, from the smaps of the largest processes; implies -v
    #[arg(long)]
    deep: bool,
    /// TLB geometry to assume, such as l1d=64x4:4K,l2=2048x16:4K+2M
    #[arg(long, value_name = "GEOMETRY")]
    tlb: Option<String>,
    /// Base page size of a saved tree that does not say, such as 64K
    #[arg(long, value_name = "SIZE", requires = "root")]
    page_size: Option<String>,
    /// Seed of everything random: the sample of pageblocks, the probe's order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Wall time after which a probe is over, counted from the start, so that a checkup ends in 10 s.
const PROBE_ENDS: Duration = Duration::from_millis(9_500);

/// Everything resolved before anything is read.
struct Plan<'a> {
    root: Root,
    tlb: Option<Tlb>,
    page_size: Option<PageSize>,
    args: &'a Args,
}

/// Looks, judges, prints.
pub fn run(args: &Args) -> Outcome {
    let plan = resolve(args)?;
    let snapshot = look(&plan);
    if is_empty(&snapshot) {
        let (exit, way_out) = match plan.root.is_live() {
            true => (Exit::NotAvailable, "is the process file system mounted?"),
            false => (
                Exit::BadInput,
                "make a tree with `pagelab capture DIR`; a single file is read by `pagelab frag --from`",
            ),
        };
        let what =
            format!("{}: none of the kernel's memory files could be read; {way_out}", plan.root.name());
        return Err(Failure::new(exit, what));
    }
    let checkup = Checkup::of(&snapshot);
    let mut out = out::stdout();
    let style = out::style();
    if args.json {
        let document = json::checkup::document(&snapshot, &checkup);
        let text =
            json::to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?;
        out.write_all(text.as_bytes())?;
    } else if args.brief {
        out.write_all(brief(&snapshot, &checkup, style).as_bytes())?;
    } else {
        // What these ask for stands in the full report alone.
        let verbose = args.verbose || args.paper || args.migratetypes || args.deep;
        let view = View { verbose, paper: args.paper, saved: false };
        out.write_all(render(&snapshot, &checkup, view, style).as_bytes())?;
    }
    out.flush()?;
    if args.brief {
        not_seen(&snapshot);
    }
    let is_bad = snapshot.problems.iter().any(|problem| problem.bad_input);
    if is_bad && args.brief {
        snapshot.problems.iter().for_each(|problem| out::complain(&format!("pagelab: {}", problem.message)));
    }
    Ok(match (is_bad, args.brief && !checkup.findings.is_empty()) {
        (true, _) => Exit::BadInput,
        (false, true) => Exit::No,
        (false, false) => Exit::Done,
    })
}

/// Nothing found is not the same as nothing there: cron's reader is told what this user could not see.
fn not_seen(snapshot: &Snapshot) {
    let mut hidden = Vec::new();
    if let Err(absence) = &snapshot.census
        && absence.why == AbsentWhy::NotPermitted
    {
        hidden.push("pageblocks".to_owned());
    }
    if let Ok(processes) = &snapshot.processes
        && let Some((count, _)) = &processes.unreadable
    {
        hidden.push(format!("{count} processes"));
    }
    if !hidden.is_empty() && snapshot.taken.euid.is_some_and(|euid| euid != 0) {
        out::complain(&format!("pagelab: not seen without root: {}", hidden.join(", ")));
    }
    let unjudged = snapshot.unread_files();
    if !unjudged.is_empty() {
        out::complain(&format!("pagelab: not judged, since it could not be read: {}", unjudged.join(", ")));
    }
}

fn resolve(args: &Args) -> Result<Plan<'_>, Failure> {
    let tlb = args.tlb.as_deref().map(pagelab_tlb::syntax::parse).transpose().map_err(|error| {
        let message = format!("--tlb {}: {error}", args.tlb.as_deref().unwrap_or_default());
        Failure::new(Exit::Usage, message)
    })?;
    let page_size = args.page_size.as_deref().map(super::page_size).transpose()?;
    Ok(Plan { root: super::root(args.root.as_deref())?, tlb, page_size, args })
}

/// Without any of these there is nothing to say.
fn is_empty(snapshot: &Snapshot) -> bool {
    snapshot.buddyinfo.is_err()
        && snapshot.meminfo.is_err()
        && snapshot.vmstat.is_err()
        && snapshot.zoneinfo.is_err()
        && snapshot.problems.is_empty()
}

/// Reads everything that was asked for, from the files to the probe.
fn look(plan: &Plan<'_>) -> Snapshot {
    let started = Instant::now();
    let reader = Reader::new(&plan.root);
    let leaves = if plan.root.is_live() { cpuid::leaves() } else { Vec::new() };
    let manifest = plan.root.manifest();
    let page_size = plan
        .page_size
        .map(|size| (size, "--page-size".to_owned()))
        .or_else(|| Some((manifest?.page_size?, "manifest".to_owned())));
    let mut options = CollectOptions {
        pagetypeinfo: plan.args.migratetypes,
        known: Known { page_size, hypervisor: hypervisor::from_cpuid(&leaves) },
        taken_realtime_ns: manifest.and_then(|manifest| manifest.realtime_ns),
        ..CollectOptions::default()
    };
    options.processes.deep = plan.args.deep;
    let mut snapshot = collect(&reader, &options);
    if let Ok(cpu) = &snapshot.machine.cpu {
        snapshot.machine.tlb = pagelab_tlb::choose(cpu, &leaves, plan.tlb.clone());
    } else if let Some(tlb) = &plan.tlb {
        snapshot.machine.tlb = Ok(tlb.clone());
    }
    snapshot.census = match &snapshot.zoneinfo {
        Ok(zoneinfo) => {
            let options = census_options(&snapshot, plan.args.seed);
            reader.noted(census(&plan.root, &reader, zoneinfo, &options))
        }
        Err(absence) => Err(absence.clone()),
    };
    if let Some(absence) = plan.root.manifest_absence() {
        let _ = reader.noted::<()>(Err(absence.clone()));
    }
    snapshot.problems = reader.into_problems();
    if plan.args.probe {
        probing::probe(&mut snapshot, plan.args.seed, PROBE_ENDS.saturating_sub(started.elapsed()));
    }
    snapshot
}

fn census_options(snapshot: &Snapshot, seed: u64) -> CensusOptions {
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let orders = zones.iter().map(|zone| zone.areas.orders()).max();
    // Without buddyinfo the largest order is not known; one above the pageblock's is what most kernels have.
    let orders = orders.unwrap_or(snapshot.pageblock_order.index() + 2);
    let page_size = snapshot.machine.page_size;
    let options = CensusOptions::new(page_size, snapshot.pageblock_order, snapshot.pmd_order, orders);
    let balance = FreeBalance::of_snapshot(snapshot);
    let off_lists = balance.map_or(OffLists::CannotTell, |balance| balance.off_lists());
    CensusOptions { seed, off_lists, ..options }
}
