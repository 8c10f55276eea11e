//! What a compaction came to, for people.

use pagelab_metrics::compaction::{Activity, Compaction, EarlyCause, EarlyEnd, Verdict, Worker};
use pagelab_metrics::frag::kernel_decimal;
use pagelab_metrics::supply::HugeSupply;
use pagelab_model::{Absence, Bytes, FreeAreas, Order, PageClass, Snapshot};

use crate::findings::{class_words, estimate};
use crate::quantity::duration;
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// Slab caches that are named.
const CACHES_SHOWN: usize = 4;

/// The report. `verbose`: the indices of every order.
pub fn render(
    before: &Snapshot,
    after: &Snapshot,
    compaction: &Compaction,
    verbose: bool,
    style: Style,
) -> String {
    let mut page = Page::new(style);
    let size = bytes(after.machine.page_size.block(after.pmd_order));
    page.hanging_bold("", &headline(compaction, &size));
    page.gap();
    zones(&mut page, compaction, after.pmd_order, &size);
    if verbose {
        orders(&mut page, compaction);
    }
    page.gap();
    acts(&mut page, compaction);
    blocks(&mut page, compaction);
    in_the_way(&mut page, after, compaction);
    let looks = [(before, "before"), (after, "after")];
    for (snapshot, when) in looks {
        for problem in &snapshot.problems {
            page.hanging_dim("  ", &format!("{when}: {}", problem.message));
        }
    }
    page.finish()
}

/// The answer in one sentence.
pub fn headline(compaction: &Compaction, size: &str) -> String {
    let (before, after) = (compaction.before.huge_now(), compaction.after.huge_now());
    let of = |number: u64| count(number.into());
    match compaction.verdict() {
        Verdict::Gained(gained) => {
            format!("{} huge pages ({size}) more: {} → {}", of(gained), of(before), of(after))
        }
        Verdict::NothingToDo => {
            format!("nothing to gain: {} huge pages ({size}), and no block is half full", of(after))
        }
        Verdict::NothingChanged if after == before => {
            format!("compaction did not help: {} huge pages ({size}) before and after", of(after))
        }
        Verdict::NothingChanged => {
            let (before, after) = (of(before), of(after));
            format!("compaction did not help: {before} huge pages ({size}) before, {after} after")
        }
    }
}

fn zones(page: &mut Page, compaction: &Compaction, order: Order, size: &str) {
    let style = page.style();
    let sparks = |unusable: &[f64]| unusable.iter().map(|&share| style.spark(share)).collect::<String>();
    let permille = |index: &[i64]| index.get(order.index()).map_or("–".to_owned(), |&v| kernel_decimal(v));
    let rows: Vec<Vec<String>> = compaction
        .zones()
        .map(|(before, after)| {
            let at = |zone: &[u64]| {
                zone.get(order.index()).map_or("–".to_owned(), |&v| kernel_decimal(v.cast_signed()))
            };
            vec![
                format!("{} {}", after.key.node.0, after.key.zone),
                bytes(after.free),
                format!("{} → {}", count(before.huge_now.into()), count(after.huge_now.into())),
                format!("{} → {}", at(&before.unusable_permille), at(&after.unusable_permille)),
                format!(
                    "{} → {}",
                    permille(&before.fragmentation_permille),
                    permille(&after.fragmentation_permille)
                ),
                format!("{} → {}", sparks(&before.unusable), sparks(&after.unusable)),
            ]
        })
        .collect();
    let (huge, unusable, index) =
        (format!("{size} now"), format!("F_u({})", order.0), format!("F_i({})", order.0));
    let columns = [
        Column::left("zone"),
        Column::right("free"),
        Column::right(&huge),
        Column::left(&unusable),
        Column::left(&index),
        Column::left("F_u by order"),
    ];
    // What does not fit stands in the lines of every order (-v), and in JSON.
    for columns_shown in (4..=columns.len()).rev() {
        let shown: Vec<Vec<String>> = rows.iter().map(|row| row[..columns_shown].to_vec()).collect();
        if page.table_if_it_fits(2, &columns[..columns_shown], &shown) {
            return;
        }
    }
    page.table(2, &columns[..4], &rows.iter().map(|row| row[..4].to_vec()).collect::<Vec<_>>());
}

/// A line for each index, and for the free blocks, of each zone.
fn orders(page: &mut Page, compaction: &Compaction) {
    for (before, after) in compaction.zones() {
        page.heading(&format!("node {}, zone {}", after.key.node.0, after.key.zone));
        let shares =
            |values: &[u64]| values.iter().map(|&v| kernel_decimal(v.cast_signed())).collect::<Vec<_>>();
        let permille = |values: &[i64]| values.iter().map(|&v| kernel_decimal(v)).collect::<Vec<_>>();
        let blocks = |areas: &FreeAreas| areas.counts().iter().map(u64::to_string).collect::<Vec<_>>();
        let kinds = [
            ("F_u", shares(&before.unusable_permille), shares(&after.unusable_permille)),
            ("F_i", permille(&before.fragmentation_permille), permille(&after.fragmentation_permille)),
            ("free blocks", blocks(&before.areas), blocks(&after.areas)),
        ];
        // One order a line: eleven columns of six digits do not fit, and the kernel may have more orders.
        let rows: Vec<Vec<String>> = (0..after.areas.orders())
            .map(|order| {
                let mut row = vec![order.to_string()];
                for (_, before, after) in &kinds {
                    let cell = |of: &Vec<String>| of.get(order).cloned().unwrap_or_default();
                    row.push(cell(before));
                    row.push(format!("→ {}", cell(after)));
                }
                row
            })
            .collect();
        let right = Column::right;
        let columns =
            [right("order"), right("F_u"), right(""), right("F_i"), right(""), right("blocks"), right("")];
        page.table(2, &columns, &rows);
    }
}

/// What was done, how long it took, and what the kernel counted meanwhile.
fn acts(page: &mut Page, compaction: &Compaction) {
    if let Some(drop_ns) = compaction.acts.drop_ns {
        let freed = compaction.freed.map_or(String::new(), |freed| {
            let amount = |bytes_less: i128| match u64::try_from(bytes_less) {
                Ok(less) => bytes(Bytes(less)),
                Err(_) => "nothing".to_owned(),
            };
            format!(
                ": {} of page cache and {} of slab are gone",
                amount(freed.page_cache),
                amount(freed.slab)
            )
        });
        page.hanging("  ", &format!("dropping caches took {}{freed}", duration(drop_ns)));
    }
    by_kernel(page, compaction);
    by_asking(page, compaction);
    let others = |worker: Worker| {
        let counted = |activity: &&Activity| activity.by == worker && activity.rose > 0;
        let named = compaction.activity.iter().filter(counted);
        named.map(|a| format!("{} {}", a.name, count(a.rose.into()))).collect::<Vec<_>>().join(", ")
    };
    let (daemon, direct) = (others(Worker::Daemon), others(Worker::Direct));
    if !daemon.is_empty() {
        page.hanging("  ", &format!("of that by kcompactd, which ran beside it: {daemon}"));
    }
    if !direct.is_empty() {
        let who = match compaction.acts.asking {
            Some(_) => "for whoever waited for memory meanwhile, this asking among them",
            None => "for programs that waited for memory meanwhile (these never count this compaction)",
        };
        page.hanging("  ", &format!("{who}: {direct}"));
    }
}

/// What the kernel did by itself, and where it ended early.
fn by_kernel(page: &mut Page, compaction: &Compaction) {
    let Some(act) = &compaction.acts.kernel else { return };
    let rose = |name: &str| act.activity.iter().find(|activity| activity.name == name).map(|a| a.rose);
    let of = |name: &str| rose(name).map_or("?".to_owned(), |n| count(n.into()));
    let times = match act.times {
        0 | 1 => String::new(),
        times => format!(" {times} times, with dirty pages written back in between,"),
    };
    let came = act.huge_after.map_or(String::new(), |after| {
        format!("; huge pages {} → {}", count(compaction.before.huge_now().into()), count(after.into()))
    });
    page.hanging(
        "  ",
        &format!(
            "compacting{times} took {}: {} pages moved, {} could not be moved, {} taken off their lists for \
             it; {} pages looked at for moving, {} for room{came}",
            duration(act.took_ns),
            of("pgmigrate_success"),
            of("pgmigrate_fail"),
            of("compact_isolated"),
            of("compact_migrate_scanned"),
            of("compact_free_scanned"),
        ),
    );
    for early in &compaction.early {
        page.hanging("  ", &early_words(early));
    }
    if let (Err(absence), true) = (&act.runs, compaction.early.is_empty()) {
        let words =
            format!("whether the kernel ended early is not known: {}: {}", absence.source, absence.reason());
        page.hanging_dim("  ", &words);
    }
    if !compaction.early.is_empty() && compaction.acts.asking.is_none() {
        page.hanging("  ", "hint: pagelab compact --how asking has the kernel compact for each huge page");
    }
}

/// Where and why the kernel ended early.
fn early_words(early: &EarlyEnd) -> String {
    let place = match &early.zone {
        Some(zone) => format!("in {} {}", zone.node.0, zone.zone),
        None => "in some zone, by its counters".to_owned(),
    };
    let left =
        early.unscanned.map_or(String::new(), |share| format!(", {} of it not scanned", percent(share)));
    let why = match early.cause {
        EarlyCause::NoPlace => {
            "folios are moved whole, no free piece that it had found was as large as the next folio, and \
             that could not be split (dirty page cache cannot)"
        }
        EarlyCause::Interrupted => "it was interrupted, by a signal or by others at work on the same lists",
        EarlyCause::Unknown => "it does not say why",
    };
    format!("the kernel ended early {place}{left}: {why}")
}

/// What asking for huge pages took and brought.
fn by_asking(page: &mut Page, compaction: &Compaction) {
    let Some(act) = &compaction.acts.asking else { return };
    let before = compaction.acts.kernel.as_ref().and_then(|act| act.huge_after);
    let before = before.unwrap_or_else(|| compaction.before.huge_now());
    let rounds = match act.rounds {
        0 | 1 => String::new(),
        rounds => format!(" {rounds} times, with compaction after each,"),
    };
    page.hanging(
        "  ",
        &format!(
            "asking{rounds} took {}: {} huge pages ({}) taken and given back, {} compacted for; it ended \
             since {}; huge pages {} → {}",
            duration(act.took_ns),
            count(act.got.into()),
            bytes(act.taken),
            count(act.by_collapse.into()),
            act.stopped,
            count(before.into()),
            count(compaction.after.huge_now().into()),
        ),
    );
    match compaction.early_at_end.as_deref() {
        Some([]) => page.hanging("  ", "compacting again, the kernel went through all zones"),
        Some(early) => {
            page.hanging("  ", "compacting again:");
            early.iter().for_each(|early| page.hanging("  ", &early_words(early)));
        }
        None => {}
    }
}

fn blocks(page: &mut Page, compaction: &Compaction) {
    let (before, after) = match (&compaction.before.supply, &compaction.after.supply) {
        (Ok(before), Ok(after)) => (&before.total, &after.total),
        (_, Err(absence)) | (Err(absence), _) => return unseen(page, absence),
    };
    let pair =
        |of: fn(&HugeSupply) -> u64| format!("{} → {}", count(of(before).into()), count(of(after).into()));
    page.facts(
        "  ",
        &[
            // How many are whole and free is said above, from the free lists: a census taken at another
            // moment would say another number.
            format!("of {} blocks: spoiled {}", estimate(after.units), pair(|s| s.spoiled.low.value)),
            format!(
                "with pages that do not say what they are {}",
                pair(|s| s.spoiled.high.value - s.spoiled.low.value)
            ),
        ],
        ", ",
    );
}

fn unseen(page: &mut Page, absence: &Absence) {
    let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!(" ({way_out})"));
    let reason = absence.reason();
    page.hanging("  ", &format!("pageblocks were not looked at: {}: {reason}{way_out}", absence.source));
}

/// What keeps blocks from becoming huge pages after all that.
fn in_the_way(page: &mut Page, after: &Snapshot, compaction: &Compaction) {
    let Ok(supply) = &compaction.after.supply else { return };
    let mut culprits: Vec<_> = supply.total.culprits.iter().filter(|c| c.holding.value > 0).collect();
    if culprits.is_empty() {
        return;
    }
    culprits.sort_by_key(|culprit| std::cmp::Reverse(culprit.holding.value));
    let words = culprits.iter().map(|c| format!("{} {}", class_words(c.class), estimate(c.holding)));
    page.hanging(
        "  ",
        &format!("in the way, by blocks that hold it: {}", words.collect::<Vec<_>>().join(", ")),
    );
    let has_slab = culprits.iter().any(|culprit| culprit.class == PageClass::Slab);
    if let (true, Some(caches)) = (has_slab, slab_caches(after)) {
        page.hanging("  ", &format!("largest slab caches: {caches}"));
    }
}

/// The largest slab caches with what they hold; `None` where slabinfo could not be read.
pub(crate) fn slab_caches(snapshot: &Snapshot) -> Option<String> {
    let mut caches: Vec<_> = snapshot.slabs.as_ref().ok()?.iter().filter(|c| c.pages().0 > 0).collect();
    caches.sort_by_key(|cache| std::cmp::Reverse(cache.pages()));
    let size = snapshot.machine.page_size;
    let named = caches.iter().take(CACHES_SHOWN).map(|c| format!("{} {}", c.name, bytes(c.bytes(size))));
    let named = named.collect::<Vec<_>>().join(", ");
    (!named.is_empty()).then_some(named)
}

#[cfg(test)]
mod tests {
    use pagelab_metrics::compaction::{Acts, AskingAct, CONTENDED, KernelAct, ScannerRun};
    use pagelab_model::free_areas::{ZoneFree, ZoneKey};
    use pagelab_model::zoneinfo::ZoneInfo;
    use pagelab_model::{AbsentWhy, BuddyInfo, NodeId, PageSize, Pfn, Zoneinfo};

    use super::*;

    fn snapshot(whole: u64) -> Snapshot {
        let mut snapshot = Snapshot::unread("a test", PageSize::USUAL);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        // F_u(9) of 1023 loose pages beside 28 blocks is 0.0666: the kernel cuts off what it does not print.
        let areas = FreeAreas::new(vec![1023, 0, 0, 0, 0, 0, 0, 0, 0, whole]).unwrap();
        snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFree { key: key.clone(), areas }] });
        let mut zone = ZoneInfo::empty(key);
        zone.start = Some(Pfn(0));
        snapshot.zoneinfo = Ok(Zoneinfo { nodes: Vec::new(), zones: vec![zone] });
        snapshot
    }

    fn text(runs: Result<Vec<ScannerRun>, Absence>, asking: Option<AskingAct>) -> String {
        let kernel =
            KernelAct { took_ns: 9_700_000, times: 1, runs, activity: Vec::new(), huge_after: Some(28) };
        let acts = Acts { drop_ns: None, kernel: Some(kernel), asking };
        let (before, after) = (snapshot(28), snapshot(30));
        let compaction = Compaction::of(&before, &after, acts);
        let text = render(&before, &after, &compaction, false, Style::PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_early_end_and_what_asking_brought_are_told_with_the_kernels_rounding() {
        let run = ScannerRun {
            first: Pfn(0),
            end: Pfn(1 << 20),
            migrate: Pfn(0),
            free: Pfn((1 << 20) - 512),
            status: CONTENDED,
            failed: 31,
        };
        let alone = text(Ok(vec![run]), None);
        assert!(
            alone.contains(
                "ended early in 0 Normal, more than 99.9 % of it not scanned: folios are moved whole"
            ),
            "{alone}"
        );
        assert!(alone.contains("hint: pagelab compact --how asking"), "{alone}");
        assert!(alone.contains("0.066 → 0.062"), "{alone}");
        assert!(!alone.contains("whole and free"), "one number, of one look: {alone}");
        let (got, taken) = (5_400, Bytes(5_400 << 21));
        let stopped = "nothing came any more";
        let met = ScannerRun { migrate: run.free, status: 5, ..run };
        let runs = Some(Ok(vec![met]));
        let asking = AskingAct { rounds: 2, took_ns: 1, taken, got, by_collapse: 5_372, stopped, runs };
        let both = text(Ok(vec![run]), Some(asking.clone()));
        assert!(both.contains("asking 2 times, with compaction after each, took"), "{both}");
        assert!(both.contains("5 400 huge pages (10.5 GiB) taken and given back, 5 372 comp"), "{both}");
        assert!(both.contains("the kernel went through all zones"), "{both}");
        let still = text(Ok(vec![run]), Some(AskingAct { runs: Some(Ok(vec![run])), ..asking }));
        assert!(still.contains("compacting again: the kernel ended early in 0 Normal"), "{still}");
        assert!(both.contains("huge pages 28 → 28") && both.contains("huge pages 28 → 30"), "{both}");
        assert!(!text(Ok(vec![met]), None).contains("early"));
        let unseen = text(Err(Absence::new("tracefs", AbsentWhy::NotPermitted, "lockdown")), None);
        assert!(unseen.contains("whether the kernel ended early is not known"), "{unseen}");
    }
}
