//! `pagelab can`: predicts whether N huge pages can be allocated: now, after compaction, after dropping
//! caches.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_command::arguments::parse_page_size;
use pagelab_contig::memory_snapshot::{SnapshotOptions, take_snapshot};
use pagelab_formats::mountinfo;
use pagelab_fragment::forecast_verification::allocate_at_each_step;
use pagelab_host::extfrag::mount_point;
use pagelab_host::guard::Knob;
use pagelab_host::machine::MachineOverrides;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::forecast::{AllocationMethod, AllocationRequest, ReclaimStep, predict};
use pagelab_model::size::{format_argument, format_exact};
use pagelab_model::{Bytes, NodeId, Order, PageSize, Snapshot, size};
use pagelab_report::forecast::render;
use pagelab_report::json;
use pagelab_report::style::format_bytes;
use pagelab_sys::scheduling::PinnedThread;

use super::{unknown_node, usage_error};
use crate::exit::{Exit, Failure, FailureKind, Outcome, absence_failure, read_failure_for};
use crate::value_parsers::{Choice, choice, choice_word};
use crate::{output, value_parsers};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Number of huge pages or contiguous blocks
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    count: u64,
    /// Size of each: 2M, 1G, any power of two [default: the PMD huge page size]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<Bytes>,
    /// Allocation method [default: thp if it supports the size, else hugetlb, else contig]
    #[arg(long, value_parser = choice(&METHODS))]
    how: Option<AllocationMethod>,
    /// Use only this NUMA node
    #[arg(long, value_name = "N", value_parser = value_parsers::parse_node)]
    node: Option<u32>,
    /// Predict for memory after this step; nothing is changed without --really
    #[arg(long, default_value = "cache", value_parser = choice(&STEPS))]
    after: ReclaimStep,
    /// Verify the prediction: allocate at each step, then release everything; compacts memory and drops the
    /// page cache
    #[arg(long, conflicts_with_all = ["root", "from"])]
    really: bool,
    /// Read a tree saved by `pagelab capture` (directory, .tar, .tar.zst) instead of this machine
    #[arg(long, value_name = "DIR|TAR", conflicts_with = "from")]
    root: Option<PathBuf>,
    /// Read a run file with a snapshot, as written by `pagelab checkup -o FILE`, instead of this machine
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Base page size, if the saved tree does not state it, for example 64K
    #[arg(long, value_name = "SIZE", requires = "root", value_parser = parse_page_size)]
    page_size: Option<PageSize>,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab can 4000                        2 MiB pages, after dropping cache
  pagelab can 4000 --after nothing        now: exit code 0 yes, 1 no
  pagelab can 4 --size 1G                 a hugetlb pool
  pagelab can 1 --size 64M --how contig   one contiguous block for a driver
  pagelab can 500 --really                allocate, measure, release, compare

Predictions for --after compaction and --after cache read page flags, which requires root. Exit code 0: \
 yes; 1: no; 4: unknown. docs/can.md describes the \
 prediction and its accuracy.";

/// Time limit of the census: a sample of the pageblocks is too inaccurate.
const CENSUS_TIME: Duration = Duration::from_secs(30);

const METHODS: [Choice<AllocationMethod>; 3] = [
    (&["thp"], "Transparent huge pages, PMD-sized or smaller (mTHP)", AllocationMethod::Thp),
    (&["hugetlb"], "A hugetlb pool", AllocationMethod::Hugetlb),
    (&["contig"], "Contiguous memory for the kernel, for example for drivers", AllocationMethod::Contig),
];

/// Steps before the allocation.
const STEPS: [Choice<ReclaimStep>; 3] = [
    (&["nothing"], "Use memory as it is now", ReclaimStep::Nothing),
    (&["compaction"], "Compaction", ReclaimStep::Compaction),
    (&["cache"], "Dropping the page cache, then compaction", ReclaimStep::DropCache),
];

/// Parses the count. A size in its place is a common mistake.
fn parse_count(text: &str) -> Result<u64, String> {
    match size::strip_grouping(text).parse() {
        Ok(0) => Err("expected a count of at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a count, for example 4000; use --size for a size".to_owned()),
    }
}

/// Predicts, allocates if requested, and prints.
pub fn run(args: &Args) -> Outcome {
    // One CPU from the snapshot to the last request, so that the forecast knows its per-CPU lists.
    let pinned = if args.really { PinnedThread::to_current_cpu().ok() } else { None };
    let snapshot = read_snapshot(args)?;
    let ask = AllocationRequest {
        cpu: pinned.as_ref().map(PinnedThread::cpu),
        ..resolve_request(args, &snapshot)?
    };
    let mut forecast = predict(&snapshot, ask).map_err(|absence| {
        let failure = absence_failure(absence);
        Failure::cannot(failure.kind(), "predict the allocation", failure)
    })?;
    let is_yes = forecast.is_met_after(args.after);
    forecast.notes.extend(hugetlb_pool_notes(args, &snapshot, ask, is_yes));
    let got = if args.really { allocate_at_each_step(&snapshot, &forecast)? } else { Vec::new() };
    match args.json {
        true => output::print_json(&json::forecast::to_document(&snapshot, &forecast, &got, args.after))?,
        false => output::print(&render(&snapshot, &forecast, &got, args.after, output::stdout_style()))?,
    }
    if snapshot.problems.iter().any(|problem| problem.is_bad_input) {
        return Ok(Exit::BadInput);
    }
    Ok(match forecast.is_met_after(args.after) {
        Some(true) => Exit::Success,
        Some(false) => Exit::NegativeAnswer,
        None => Exit::NotAvailable,
    })
}

/// Describes the hugetlb pool of the size: its pages, its limit, and the command that enlarges it, unless the
/// forecast is that no command succeeds.
fn hugetlb_pool_notes(
    args: &Args,
    snapshot: &Snapshot,
    request: AllocationRequest,
    is_yes: Option<bool>,
) -> Vec<String> {
    let size = snapshot.machine.page_size.block_bytes(request.order);
    let pools = snapshot.settings.hugetlb.as_ref().map_or(&[][..], |pools| pools);
    let pool = pools.iter().find(|pool| pool.page_size == size);
    let Some(pool) = pool.filter(|_| request.method == AllocationMethod::Hugetlb) else { return Vec::new() };
    let mut notes = vec![format!(
        "the pool has {} pages: {} free ({} of them reserved), {} surplus (at most {})",
        pool.total, pool.free, pool.reserved, pool.surplus, pool.overcommit
    )];
    let unpromised = pool.free.saturating_sub(pool.reserved);
    let wanted = pool.total.saturating_add(request.count.saturating_sub(unpromised));
    let usual = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("Hugepagesize"));
    let knob = Knob::hugetlb(size, request.node);
    let is_usual = usual == Some(size) && request.node.is_none();
    notes.extend(match (request.count <= unpromised, is_yes) {
        (true, _) => Some("the pool already has enough free pages".to_owned()),
        (false, Some(false)) => None,
        (false, _) if is_usual => {
            Some(format!("sysctl vm.nr_hugepages={wanted} makes the pool large enough"))
        }
        (false, _) => Some(format!("echo {wanted} > {} makes the pool large enough", knob.path())),
    });
    let is_live = args.root.is_none() && args.from.is_none();
    if let (true, Ok(cgroup)) = (is_live, &snapshot.machine.cgroup) {
        let root = Root::live();
        let mounts = Reader::new(&root).parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        let mounted = mount_point(&mounts, "cgroup2").unwrap_or_default();
        let file = format!("{mounted}{}/{}", cgroup.path.trim_end_matches('/'), hugetlb_limit_file(size));
        if let Ok(text) = root.read(&file) {
            let limit = String::from_utf8_lossy(&text).trim().parse().map(Bytes);
            let limit = limit.map_or("no limit".to_owned(), format_bytes);
            notes.push(format!("hugetlb limit of this cgroup: {limit} ({file})"));
        }
    }
    notes
}

/// Returns the file name of a cgroup's limit (Documentation/admin-guide/cgroup-v2.rst, HugeTLB).
fn hugetlb_limit_file(size: Bytes) -> String {
    let (number, unit) = match size.0 {
        bytes if bytes >= 1 << 30 => (bytes >> 30, "GB"),
        bytes if bytes >= 1 << 20 => (bytes >> 20, "MB"),
        bytes => (bytes >> 10, "KB"),
    };
    format!("hugetlb.{number}{unit}.max")
}

fn read_snapshot(args: &Args) -> Result<Snapshot, Failure> {
    if let Some(path) = &args.from {
        let run = pagelab_runfile::read_run_file(path)
            .map_err(|error| read_failure_for(&error, "`pagelab checkup -o FILE`"))?;
        return run.snapshot.map(|snapshot| *snapshot).ok_or_else(|| {
            Failure::expected(path.display(), "a run file with a snapshot", "none")
                .hint("create one with `pagelab checkup -o FILE`")
        });
    }
    let root = super::open_root(args.root.as_deref())?;
    let page_size = args.page_size.map(|size| (size, "--page-size".to_owned()));
    let of_manifest = |root: &Root| Some((root.manifest()?.page_size?, "manifest".to_owned()));
    let known = MachineOverrides { page_size: page_size.or_else(|| of_manifest(&root)), hypervisor: None };
    let options = SnapshotOptions {
        pagetypeinfo: true,
        seed: 1,
        known_machine: known,
        census_time_budget: CENSUS_TIME,
        drain_pcp: true,
    };
    Ok(take_snapshot(&root, &options))
}

/// Builds the request and checks it against the machine.
fn resolve_request(args: &Args, snapshot: &Snapshot) -> Result<AllocationRequest, Failure> {
    let page_size = snapshot.machine.page_size;
    let pmd_size = page_size.block_bytes(snapshot.pmd_order);
    let size = args.size.unwrap_or(pmd_size);
    let wrong = |why: &str| Err(usage_error(&format!("--size {}: {why}", format_argument(size))));
    let memory = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let Some(order) = page_size.order_for_size(size) else {
        if !size.0.is_power_of_two() {
            return wrong("expected a power of two, for example 64K, 2M, 1G");
        }
        let page = format_exact(Bytes(page_size.bytes()));
        return wrong(&format!("smaller than a base page ({page})"));
    };
    if order == Order(0) {
        return wrong("a single base page; expected at least 2 pages");
    }
    if let Some(memory) = memory.filter(|&memory| size > memory) {
        return wrong(&format!("this machine has only {} of memory", format_bytes(memory)));
    }
    let method = resolve_method(args, snapshot, size)?;
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let nodes: BTreeSet<u32> = zones.iter().map(|zone| zone.key.node.0).collect();
    if let Some(node) = args.node.filter(|node| !nodes.is_empty() && !nodes.contains(node)) {
        return Err(unknown_node(node, &nodes));
    }
    Ok(AllocationRequest { count: args.count, order, method, node: args.node.map(NodeId), cpu: None })
}

/// Returns the method of `--how`, or the first that supports the size.
fn resolve_method(args: &Args, snapshot: &Snapshot, size: Bytes) -> Result<AllocationMethod, Failure> {
    let thp = snapshot.settings.thp.as_ref();
    let pmd_size = snapshot.machine.page_size.block_bytes(snapshot.pmd_order);
    let mut thp_sizes: Vec<Bytes> =
        thp.map_or(&[][..], |thp| &thp.sizes).iter().map(|size| size.size).collect();
    if thp.is_ok() && !thp_sizes.contains(&pmd_size) {
        thp_sizes.push(pmd_size);
    }
    let pools = snapshot.settings.hugetlb.as_ref().map_or(&[][..], |pools| pools);
    let pool_sizes: Vec<Bytes> = pools.iter().map(|pool| pool.page_size).collect();
    let list =
        |sizes: &[Bytes]| sizes.iter().map(|&size| format_argument(size)).collect::<Vec<_>>().join(", ");
    let (how, sizes, absence) = match args.how {
        None if thp_sizes.contains(&size) => return Ok(AllocationMethod::Thp),
        None if pool_sizes.contains(&size) => return Ok(AllocationMethod::Hugetlb),
        None | Some(AllocationMethod::Contig) => return Ok(AllocationMethod::Contig),
        Some(AllocationMethod::Thp) => (AllocationMethod::Thp, &thp_sizes, thp.err()),
        Some(AllocationMethod::Hugetlb) => {
            (AllocationMethod::Hugetlb, &pool_sizes, snapshot.settings.hugetlb.as_ref().err())
        }
    };
    if let Some(absence) = absence {
        let action = format_args!("allocate with --how {}", choice_word(&METHODS, &how));
        let (source, reason) = (&absence.source, absence.reason());
        let reason = format_args!("not supported by this kernel: {source}: {reason}");
        return Err(Failure::cannot(FailureKind::NotAvailable, action, reason).hint("use --how contig"));
    }
    if sizes.contains(&size) {
        return Ok(how);
    }
    let message = format!(
        "--how {} --size {}: this kernel supports {}; hint: use one of these sizes, or --how contig",
        choice_word(&METHODS, &how),
        format_argument(size),
        if sizes.is_empty() { "none".to_owned() } else { list(sizes) }
    );
    Err(usage_error(&message))
}
