//! `--really`: asks for what was predicted, under the guard, and gives everything back.

use pagelab_contig::asking::{Asked, MISSED_COLLAPSES_MAX, Wanted, available};
use pagelab_contig::compact::{Caches, Scope, compact, drop_caches};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::truth::{all_came, truth};
use pagelab_contig::warm::warm;
use pagelab_host::guard::{Fate, Guard, Knob, Options, Site, Watched};
use pagelab_host::page_reporting;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::can::{Forecast, How, Step};
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading, Snapshot};
use pagelab_report::can::{Came, Got};
use pagelab_report::style::bytes;
use pagelab_sys::clock;

use crate::cmd::restore;
use crate::exit::{Exit, Failure};
use crate::out;

/// The longest that asking may take.
const DEADLINE_NS: u64 = 600_000_000_000;

/// Asks at each step.
pub(super) fn ask(snapshot: &Snapshot, forecast: &Forecast) -> Result<Vec<Got>, Failure> {
    let ask = forecast.ask;
    let size = snapshot.machine.page_size.block(ask.order);
    match ask.how {
        How::Contig => {
            let why = "--really: contiguous memory without a huge page's size can be asked for by the kernel \
                       alone (drivers, CMA); user space has hugetlb and THP sizes: --how thp or hugetlb";
            return Err(Failure::new(Exit::NotAvailable, why));
        }
        How::Thp if ask.order != snapshot.pmd_order => {
            let why = "--really: only huge pages of PMD size can be read back reliably; smaller sizes are \
                       predicted only";
            return Err(Failure::new(Exit::NotAvailable, why));
        }
        How::Thp | How::Hugetlb => {}
    }
    if !rustix::process::geteuid().is_root() {
        let message = "--really needs root: it changes settings of huge pages, compacts memory and drops \
                       page cache; a way out: sudo, or without --really";
        return Err(Failure::new(Exit::NotAvailable, message));
    }
    let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let reserve = Reserve::of(total.unwrap_or_default());
    let wanted = Wanted {
        count: ask.count,
        size,
        page_size: snapshot.machine.page_size,
        reserve,
        deadline_ns: clock::monotonic_ns().saturating_add(DEADLINE_NS),
        misses_max: MISSED_COLLAPSES_MAX,
    };
    let watched = Watched::signals(Box::new(|code, outcomes| out::signalled(code, "", outcomes)));
    let site = Site::live().map_err(restore::failure)?;
    let guard = Guard::begin(&site, watched.map_err(restore::failure)?, Options::default())
        .map_err(restore::failure)?;
    let root = Root::live();
    if page_reporting::read(&Reader::new(&root), wanted.page_size, 0).is_some() {
        let wanted = bytes(Bytes(wanted.count.saturating_mul(wanted.size.0)));
        out::note(&format!(
            "the host takes free memory back: up to {wanted} are touched and given back before each step, so \
             that latencies are the kernel's"
        ));
    }
    let got = match ask.how {
        How::Thp => {
            let found =
                truth(&guard, &root, &snapshot.settings, wanted, ask.node).map_err(restore::failure)?;
            let steps = [found.now, found.after_compaction, found.after_dropping_cache];
            Step::ALL
                .into_iter()
                .zip(steps)
                .map(|(step, asked)| Got { step, came: asked.map(came) })
                .collect()
        }
        How::Hugetlb | How::Contig => hugetlb(&guard, &root, forecast, wanted)?,
    };
    for outcome in guard.finish().iter().filter(|o| matches!(o.fate, Fate::LeftAlone | Fate::Failed)) {
        out::complain(&format!("pagelab: {} is not as it was: {}", outcome.what, outcome.detail));
    }
    Ok(got)
}

fn came(asked: Asked) -> Came {
    let latency_ns = asked.fault_ns.iter().chain(&asked.collapse_ns).copied().collect();
    Came {
        asked: asked.asked,
        got: asked.got,
        by_collapse: Some(asked.by_collapse),
        latency_ns,
        read_back_by: asked.read_back_by,
        stopped: asked.stopped.words().to_owned(),
    }
}

/// A pool grows by what comes; the kernel compacts and reclaims for it by itself, so there is no `now`.
fn hugetlb(guard: &Guard, root: &Root, forecast: &Forecast, wanted: Wanted) -> Result<Vec<Got>, Failure> {
    let node = forecast.ask.node;
    let scope = node.map_or(Scope::Machine, Scope::Node);
    let why = "for a pool the kernel compacts and reclaims by itself";
    let absence = Absence::new("hugetlb", AbsentWhy::Undefined, why);
    let mut got = vec![Got { step: Step::Nothing, came: Err(absence) }];
    for step in [Step::Compaction, Step::Cache] {
        if step == Step::Cache {
            let enough = |got: &Got| got.came.as_ref().is_ok_and(|came| came.got >= wanted.count);
            if got.last().is_some_and(enough) {
                got.push(Got { step, came: Err(all_came()) });
                break;
            }
            drop_caches(guard, Caches::Page).map_err(restore::failure)?;
        }
        compact(guard, scope).map_err(restore::failure)?;
        got.push(Got { step, came: grow(root, wanted, &Knob::hugetlb(wanted.size, node))? });
    }
    Ok(got)
}

fn grow(root: &Root, wanted: Wanted, pool: &Knob) -> Result<Reading<Came>, Failure> {
    let room = match available(root) {
        Ok(available) => wanted.reserve.room(available),
        Err(absence) => return Ok(Err(absence)),
    };
    let count = wanted.count.min(room.0 / wanted.size.0.max(1));
    if count == 0 {
        let Bytes(kept) = wanted.reserve.0;
        let detail = format!("it would hurt the reserve of {} MiB", kept >> 20);
        return Ok(Err(Absence::new("hugetlb", AbsentWhy::NotPermitted, detail)));
    }
    // A guard of its own: the pool shrinks before the next step.
    let watched = Watched::signals(Box::new(|code, outcomes| out::signalled(code, "", outcomes)));
    let site = Site::live().map_err(restore::failure)?;
    let guard = Guard::begin(&site, watched.map_err(restore::failure)?, Options::default())
        .map_err(restore::failure)?;
    // Where the host takes free memory back, the time would be the host's.
    if page_reporting::read(&Reader::new(root), wanted.page_size, 0).is_some() {
        drop(warm(root, Bytes(count.saturating_mul(wanted.size.0)), &|| false));
    }
    let before: u64 = root
        .read(pool.path())
        .ok()
        .and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok())
        .unwrap_or(0);
    let began_ns = clock::monotonic_ns();
    let applied = guard.set(pool, &before.saturating_add(count).to_string()).map_err(restore::failure)?;
    let took_ns = clock::monotonic_ns().saturating_sub(began_ns);
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let came = number(&applied.got).saturating_sub(number(&applied.old));
    let each_ns = took_ns / came.max(1);
    drop(guard);
    Ok(Ok(Came {
        asked: count,
        got: came,
        by_collapse: None,
        latency_ns: vec![each_ns],
        read_back_by: pool.path().to_owned(),
        stopped: if count < wanted.count { "more would have hurt the reserve" } else { "asked at once" }
            .to_owned(),
    }))
}
