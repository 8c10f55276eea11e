//! What a variant would change on this machine, asked of the guard without changing anything.

use pagelab_host::guard::{Guard, Knob, Options, Site, Watched};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::recipe::{Hog, HogKind, PageCache, Supervised, Thp, Variant, short};

/// What would be changed while a trial of the variant runs, in words; empty where nothing is.
pub fn of(site: &Result<Site, String>, variant: &Variant) -> Vec<String> {
    let mut changes = settings(site, variant);
    match variant.thp {
        Some(Thp::NeverPrctl) => {
            changes.push("huge pages are switched off for the process (prctl)".to_owned())
        }
        Some(Thp::AdvisedOnly) => {
            changes.push("huge pages only where the process advises (prctl, Linux 6.18)".to_owned());
        }
        _ => {}
    }
    match &variant.plan {
        Some(Supervised::Nothing) => changes.push(
            "the program runs under the supervisor of `pagelab apply`, huge pages only where it asks"
                .to_owned(),
        ),
        Some(plan) => changes.push(format!(
            "the program runs under the supervisor of `pagelab apply`, huge pages where {} says",
            plan.word()
        )),
        None => {}
    }
    if let Some(limit) = variant.memory_limit {
        changes.push(format!("the trial's control group is limited to {}", short(limit)));
    }
    match variant.swap {
        Some(size) if size.0 > 0 => changes.push(format!(
            "the trial's control group may swap {} to a file that is made for the experiment",
            short(size)
        )),
        Some(_) => changes.push("the trial's control group may not swap".to_owned()),
        None => {}
    }
    if let Some(fragmentation) = &variant.fragmentation {
        let order = fragmentation.order.map_or("of a huge page".to_owned(), |order| order.to_string());
        changes.push(format!(
            "memory is compacted where it is too broken up, and fragmented to F_u = {} for blocks of order \
             {order}",
            fragmentation.target
        ));
    }
    changes.extend(variant.hog.map(competitor));
    if variant.pin.is_some() {
        changes.push("everybody else is moved off one CPU, unless one is isolated".to_owned());
    }
    match variant.page_cache {
        Some(PageCache::Cold) => {
            changes
                .push("the workload's files are dropped from the page cache, or all clean pages".to_owned());
        }
        Some(PageCache::Warm) => changes.push("the workload's files are read into the page cache".to_owned()),
        None => {}
    }
    if variant.evict {
        changes.push("data cache and TLB are filled with something else".to_owned());
    }
    changes
}

/// What a competitor does.
fn competitor(hog: Hog) -> String {
    let size = short(hog.size);
    match (hog.leaves, hog.how) {
        (Some(leaves), _) => format!(
            "a process takes {size} of the limit, which it shares with the workload, and writes it again and \
             again: {} are left",
            short(leaves)
        ),
        (None, HogKind::Process) => format!("a process takes {size} and writes it again and again"),
        (None, HogKind::Thread) => {
            format!("a thread of the workload takes {size} and writes it again and again")
        }
    }
}

/// Settings of the machine, with the value in force and the value to come.
fn settings(site: &Result<Site, String>, variant: &Variant) -> Vec<String> {
    let whole = variant.thp.and_then(Thp::machine_mode).map(|mode| (Knob::thp_enabled(), mode));
    let sizes = variant.mthp.iter().map(|(size, mode)| (Knob::thp_size_enabled(*size), mode.as_str()));
    let wanted: Vec<(Knob, &str)> = whole.into_iter().chain(sizes).collect();
    let options = Options { dry_run: true, ..Options::default() };
    let guard = match site {
        Ok(site) => {
            Guard::begin(site, Watched::left_to_restore(), options).map_err(|error| error.to_string())
        }
        Err(why) => Err(why.clone()),
    };
    let change = |(knob, mode): (Knob, &str)| {
        let label = knob.label();
        let before = guard.as_ref().map_err(Clone::clone);
        match before.and_then(|guard| guard.set(&knob, mode).map_err(|error| error.to_string())) {
            Ok(applied) if applied.old == mode => None,
            Ok(applied) if !may_be_written(knob.path()) => {
                Some(format!("{label} {} → {mode}, which needs root", applied.old))
            }
            Ok(applied) => Some(format!("{label} {} → {mode}", applied.old)),
            Err(why) => Some(format!("{label} → {mode}, which cannot be: {why}")),
        }
    };
    wanted.into_iter().filter_map(change).collect()
}

/// False where the kernel would refuse: a dry run reads a setting, and asks nobody whether it may be written.
fn may_be_written(path: &str) -> bool {
    !matches!(access(path, Access::WRITE_OK), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}
