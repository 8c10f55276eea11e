//! `pagelab can`: whether so many huge pages can be had, now, after compaction, after dropping the cache.

mod plan;
mod really;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_contig::look::{LookOptions, look};
use pagelab_formats::mountinfo;
use pagelab_host::extfrag::mount_point;
use pagelab_host::guard::Knob;
use pagelab_host::machine::Known;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::can::{Ask, Forecast, How, Step, forecast};
use pagelab_model::{AbsentWhy, Bytes, Snapshot};
use pagelab_report::can::{Got, render};
use pagelab_report::json;
use pagelab_sys::affinity::Pinned;

use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `can` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// How many huge pages, or contiguous runs
    #[arg(
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = count
    )]
    count: u64,
    /// Of which size: 2M, 1G, any power of two [default: the size that a PMD maps]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// By which way [default: thp where it has the size, else hugetlb, else contig]
    #[arg(long, value_enum)]
    how: Option<Way>,
    /// From one NUMA node instead of all
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// What may be done for a yes
    #[arg(long, value_enum, default_value_t = After::Cache)]
    after: After,
    /// Really ask, at each step, and give everything back: compacts memory and drops page cache
    #[arg(long, conflicts_with_all = ["root", "from"])]
    really: bool,
    /// Read a tree saved by `pagelab capture` (folder, .tar, .tar.zst) instead of this machine
    #[arg(long, value_name = "DIR|TAR", conflicts_with = "from")]
    root: Option<PathBuf>,
    /// Read what `pagelab checkup --run` kept in this run file
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Base page size of a saved tree that does not say, such as 64K
    #[arg(long, value_name = "SIZE", requires = "root")]
    page_size: Option<String>,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab can 4000                        2 MiB pages, whatever it takes
  pagelab can 4000 --after nothing        as memory lies: exit code 0 yes, 1 no
  pagelab can 4 --size 1G                 a hugetlb pool
  pagelab can 1 --size 64M --how contig   for a driver, in one piece
  pagelab can 500 --really                ask, time, give back, compare

Needs root for more than `now`. Exit code 0: yes; 1: no; 4: not known here. How it predicts, and how well: \
docs/can.md.";

/// The longest that reading every page may take: a sample says too little.
const CENSUS_TIME: Duration = Duration::from_secs(30);

/// By which way of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    /// Transparent huge pages, of PMD size or one of the smaller sizes (mTHP)
    Thp,
    /// A hugetlb pool
    Hugetlb,
    /// Contiguous memory for the kernel itself, such as for drivers
    Contig,
}

/// What may be done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum After {
    /// Nothing: as memory lies
    Nothing,
    /// Compaction
    Compaction,
    /// Dropping the page cache, and compaction
    Cache,
}

impl After {
    fn step(self) -> Step {
        match self {
            After::Nothing => Step::Nothing,
            After::Compaction => Step::Compaction,
            After::Cache => Step::Cache,
        }
    }
}

/// How many: a size in its place is a usual mistake.
fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("a count of at least 1 is wanted".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("a count from 1 on is wanted, such as 4000; sizes go by --size".to_owned()),
    }
}

/// Predicts, asks if that is wanted, prints.
pub fn run(args: &Args) -> Outcome {
    // From the look to the last question on one CPU, whose lists the forecast then knows.
    let pinned = if args.really { Pinned::here().ok() } else { None };
    let snapshot = snapshot(args)?;
    let ask = Ask { cpu: pinned.as_ref().map(Pinned::cpu), ..plan::ask(args, &snapshot)? };
    let mut forecast = forecast(&snapshot, ask).map_err(|absence| {
        let (source, reason) = (&absence.source, absence.reason());
        let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        let exit = if absence.why == AbsentWhy::Malformed { Exit::BadInput } else { Exit::NotAvailable };
        Failure::new(exit, format!("nothing can be predicted: {source}: {reason}{way_out}"))
    })?;
    let is_yes = forecast.is_yes(args.after.step());
    forecast.notes.extend(pool_notes(args, &snapshot, ask, is_yes));
    let got = if args.really { really::ask(&snapshot, &forecast)? } else { Vec::new() };
    print(args, &snapshot, &forecast, &got)?;
    if snapshot.problems.iter().any(|problem| problem.bad_input) {
        return Ok(Exit::BadInput);
    }
    Ok(match forecast.is_yes(args.after.step()) {
        Some(true) => Exit::Done,
        Some(false) => Exit::No,
        None => Exit::NotAvailable,
    })
}

/// The pool of the size: what is in it, what limits it, and the command that would make it so large, unless
/// the forecast says that none does.
fn pool_notes(args: &Args, snapshot: &Snapshot, ask: Ask, is_yes: Option<bool>) -> Vec<String> {
    let size = snapshot.machine.page_size.block(ask.order);
    let pools = snapshot.settings.hugetlb.as_ref().map_or(&[][..], |pools| pools);
    let pool = pools.iter().find(|pool| pool.page_size == size);
    let Some(pool) = pool.filter(|_| ask.how == How::Hugetlb) else { return Vec::new() };
    let mut notes = vec![format!(
        "the pool has {} pages: {} free, of which {} are reserved; {} surplus, at most {} of these",
        pool.total, pool.free, pool.reserved, pool.surplus, pool.overcommit
    )];
    let unpromised = pool.free.saturating_sub(pool.reserved);
    let wanted = pool.total.saturating_add(ask.count.saturating_sub(unpromised));
    let usual = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("Hugepagesize"));
    let knob = Knob::hugetlb(size, ask.node);
    let is_usual = usual == Some(size) && ask.node.is_none();
    notes.extend(match (ask.count <= unpromised, is_yes) {
        (true, _) => Some("the pool has as many already".to_owned()),
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
        let file = format!("{mounted}{}/{}", cgroup.path.trim_end_matches('/'), hugetlb_limit(size));
        if let Ok(text) = root.read(&file) {
            let limit = String::from_utf8_lossy(&text).trim().parse().map(Bytes);
            let limit = limit.map_or("no limit".to_owned(), pagelab_report::style::bytes);
            notes.push(format!("hugetlb limit of this control group: {limit} ({file})"));
        }
    }
    notes
}

/// The file of a control group's limit (Documentation/admin-guide/cgroup-v2.rst, HugeTLB).
fn hugetlb_limit(size: Bytes) -> String {
    let (number, unit) = match size.0 {
        bytes if bytes >= 1 << 30 => (bytes >> 30, "GB"),
        bytes if bytes >= 1 << 20 => (bytes >> 20, "MB"),
        bytes => (bytes >> 10, "KB"),
    };
    format!("hugetlb.{number}{unit}.max")
}

fn snapshot(args: &Args) -> Result<Snapshot, Failure> {
    if let Some(path) = &args.from {
        let run = pagelab_runfile::read(path)
            .map_err(|error| super::report::refusal_by(&error, "`pagelab checkup --run FILE`"))?;
        return run.snapshot.map(|snapshot| *snapshot).ok_or_else(|| {
            let message = format!(
                "{}: it holds no look at a machine; `pagelab checkup --run FILE` makes one",
                path.display()
            );
            Failure::new(Exit::BadInput, message)
        });
    }
    let root = super::root(args.root.as_deref())?;
    let page_size = args.page_size.as_deref().map(super::page_size).transpose()?;
    let page_size = page_size.map(|size| (size, "--page-size".to_owned()));
    let of_manifest = |root: &Root| Some((root.manifest()?.page_size?, "manifest".to_owned()));
    let known = Known { page_size: page_size.or_else(|| of_manifest(&root)), hypervisor: None };
    let options = LookOptions { pagetypeinfo: true, seed: 1, known, census_time: CENSUS_TIME, settle: true };
    Ok(look(&root, &options))
}

fn print(args: &Args, snapshot: &Snapshot, forecast: &Forecast, got: &[Got]) -> Result<(), Failure> {
    let mut out = out::stdout();
    let step = args.after.step();
    let text = match args.json {
        true => json::to_text(&json::can::document(snapshot, forecast, got, step))
            .map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?,
        false => render(snapshot, forecast, got, step, out::style()),
    };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The name of a way, as it is typed.
fn word(how: How) -> &'static str {
    match how {
        How::Thp => "thp",
        How::Hugetlb => "hugetlb",
        How::Contig => "contig",
    }
}
