//! From the plan to the values: reading, and settling page size and order.

use std::path::Path;

use pagelab_formats::free_text::{self, Failed, FreeText, Kind};
use pagelab_formats::{ParseError, meminfo, zoneinfo};
use pagelab_host::machine::{guessed_page_size, live_page_size, saved_page_size, told_pmd_size};
use pagelab_host::reader::Reader;
use pagelab_host::{paths, root::Root};
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::{Absence, AbsentWhy, BuddyInfo, Bytes, Order, PageSize, Pages};
use pagelab_report::frag::{FragReport, Place, Source};
use pagelab_report::style::bytes;

use super::plan::{Input, Plan, View};
use crate::cmd::{unread, usage};
use crate::exit::{Exit, Failure};
use crate::{input, out};

/// Why buddyinfo has no letters of migratetypes.
const NO_LETTERS: &str = "buddyinfo does not tell migratetypes apart";

/// A page size and how it was learnt.
type Learnt = (PageSize, &'static str);

/// Reads what the plan says.
pub fn report(plan: &Plan) -> Result<FragReport, Failure> {
    match &plan.input {
        Input::Live => from_root(plan, &Root::live()),
        Input::Tree(path) => from_root(plan, &crate::cmd::root(Some(path))?),
        Input::Text(path) => from_text(plan, path),
    }
}

fn from_root(plan: &Plan, root: &Root) -> Result<FragReport, Failure> {
    let reader = Reader::new(root);
    let info = reader.parse(paths::BUDDYINFO, pagelab_formats::buddyinfo::parse).map_err(unread)?;
    // The setting is a number alone; where it is absent or odd the usual order stands in.
    let pmd_size = told_pmd_size(&reader);
    let (page_size, page_size_source) = if root.is_live() {
        let known = live_page_size().map(|size| (size, "sysconf"));
        settle_page_size(plan, known, root.name())?
    } else {
        let said = root.manifest().and_then(|manifest| manifest.page_size).map(|size| (size, "manifest"));
        // A guess is no reason to refuse a given page size, and the usual size is said by `settle_page_size`.
        let guess = || Some(guessed_page_size(&reader)).filter(|&(_, source)| source != "assumed");
        let known = said.or_else(|| saved_page_size(&reader));
        let known = known.or_else(|| guess().filter(|_| plan.page_size.is_none()));
        settle_page_size(plan, known, root.name())?
    };
    let pmd_order = pmd_size.and_then(|size| page_size.order_of(size));
    let orders = info.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(1);
    let (order, order_source) = settle_order(plan, page_size, pmd_order, orders)?;
    let notes = not_on_lists(&reader, &info, page_size);
    Ok(FragReport {
        source: Source { name: root.name().to_owned(), kind: Kind::Buddyinfo.name(), place: None },
        page_size,
        page_size_source: page_size_source.to_owned(),
        order,
        order_source,
        buddyinfo: info,
        migratetypes: Err(Absence::new(paths::BUDDYINFO, AbsentWhy::NotThere, NO_LETTERS)),
        unpopulated: Vec::new(),
        notes: notes.into_iter().collect(),
    })
}

/// A note where free memory stands on no list yet: none of the numbers has it.
fn not_on_lists(reader: &Reader<'_>, info: &BuddyInfo, page_size: PageSize) -> Option<String> {
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse).ok()?;
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse).ok();
    let balance = FreeBalance::of(info, &meminfo, zoneinfo.as_ref(), page_size, Pages(0))?;
    let deferred = balance.deferred();
    (deferred > Pages(0)).then(|| {
        format!(
            "{} more are free and not initialised yet (deferred initialisation): they are on no free list \
             and in none of these numbers; MemFree counts them",
            bytes(deferred.bytes(page_size))
        )
    })
}

fn from_text(plan: &Plan, path: &Path) -> Result<FragReport, Failure> {
    let (name, content) = input::read(path, input::Reader::From)?;
    let read = free_text::read(&content, plan.report).map_err(|failed| bad_text(&name, plan, failed))?;
    say_which(&name, &read, plan.report.is_some());
    if content.last().is_some_and(|&last| last != b'\n') {
        let doubt = "the last line has no end; if the text was cut off, its last number is too small";
        out::complain(&format!("pagelab: {name}: {doubt}"));
    }
    let known = read.page_size.map(|size| (size, "from the report"));
    let (page_size, page_size_source) = settle_page_size(plan, known, &name)?;
    let orders = read.buddyinfo.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(1);
    let failed = read.trigger.as_ref().and_then(|trigger| trigger.order).map(Order);
    let failed = failed.filter(|failed| failed.index() < orders);
    let (order, order_source) = match failed {
        // A report is read for its request. Any free page serves order 0: its indices say nothing.
        Some(failed) if plan.order.is_none() && failed > Order(0) => {
            (failed, "the request that failed".to_owned())
        }
        _ => settle_order(plan, page_size, None, orders)?,
    };
    let notes = failed.filter(|&failed| failed != order && failed > Order(0)).map(order_note);
    let place = Place {
        which: read.place.which,
        of: read.place.of,
        line: read.place.line,
        trigger: read.trigger.map(|trigger| (trigger.text, trigger.line)),
    };
    Ok(FragReport {
        source: Source { name: name.clone(), kind: read.kind.name(), place: Some(place) },
        page_size,
        page_size_source: page_size_source.to_owned(),
        order,
        order_source,
        buddyinfo: read.buddyinfo,
        migratetypes: read.migratetypes.ok_or_else(|| Absence::new(name, AbsentWhy::NotThere, NO_LETTERS)),
        unpopulated: read.unpopulated,
        notes: notes.into_iter().collect(),
    })
}

/// A note where another order than that of the request that failed was asked for.
fn order_note(failed: Order) -> String {
    let failed = failed.0;
    format!("the request that failed was of order {failed}: --order {failed} answers for it")
}

/// Says which reading of several is used, and what else is worth knowing about it.
fn say_which(name: &str, read: &FreeText, chosen: bool) {
    let (place, what) = (&read.place, what_is_read(read.kind));
    if place.of > 1 && !chosen {
        out::complain(&format!(
            "{name}: the last of {} {what}s is used, from line {}; --report N takes another",
            place.of, place.line
        ));
    }
    let zones = read.buddyinfo.zones.len() + read.unpopulated.len();
    if zones < place.zones_most {
        out::complain(&format!(
            "{name}: {what} {} names fewer zones than another one ({zones}, not {}): it may be cut off",
            place.which, place.zones_most
        ));
    }
    if place.reports_unread > 0 {
        out::complain(&format!(
            "{name}: there are {} allocation-failure reports as well, which are not used: give them alone",
            place.reports_unread
        ));
    }
}

fn what_is_read(kind: Kind) -> &'static str {
    match kind {
        Kind::Buddyinfo => "reading",
        Kind::ShowMem => "report",
    }
}

fn bad_text(name: &str, plan: &Plan, failed: Failed) -> Failure {
    const SHOWN: usize = 3;
    let (problems, place) = match failed {
        Failed::NoSuchReading(of) => {
            let wanted = plan.report.unwrap_or(of);
            return usage(&match of {
                1 => format!("--report {wanted}: {name} has only one; leave --report away"),
                _ => format!("--report {wanted}: {name} has {of}; use --report 1 to {of}"),
            });
        }
        Failed::Bad { problems, place } => (problems, place),
    };
    let lines = problems.iter().take(SHOWN).map(|problem: &ParseError| problem.in_file(name));
    let mut message = lines.collect::<Vec<_>>().join("\n");
    if problems.len() > SHOWN {
        message.push_str(&format!("\n  and {} more lines that are bad", problems.len() - SHOWN));
    }
    message.push_str("\n  nothing was computed");
    if let Some(place) = place.filter(|place| place.of > 1) {
        message
            .push_str(&format!("; this is report {} of {}, --report N takes another", place.which, place.of));
    }
    Failure::new(Exit::BadInput, message)
}

/// The page size: the source's own, else the given one, else the usual one, said to be assumed.
fn settle_page_size(plan: &Plan, known: Option<Learnt>, name: &str) -> Result<Learnt, Failure> {
    match (known, plan.page_size) {
        (Some((size, source)), Some(given)) if size != given => Err(usage(&format!(
            "--page-size {}: {name} has pages of {} ({source}); leave --page-size away",
            bytes(Bytes(given.bytes())),
            bytes(Bytes(size.bytes()))
        ))),
        (Some(known), _) => Ok(known),
        (None, Some(given)) => Ok((given, "as given")),
        (None, None) => Ok((PageSize::USUAL, "assumed; see --page-size")),
    }
}

/// The order: the one asked for, else that of a PMD huge page, or the largest if that is smaller.
fn settle_order(
    plan: &Plan,
    page_size: PageSize,
    pmd_order: Option<Order>,
    orders: usize,
) -> Result<(Order, String), Failure> {
    let largest = Order(orders.saturating_sub(1) as u8);
    let size = |order: Order| bytes(page_size.block(order));
    let pmd = pmd_order.unwrap_or_else(|| page_size.usual_pmd_order());
    match plan.order {
        Some(order) if order > largest => Err(usage(&format!(
            "--order {}: the largest order here is {} (blocks of {}); use --order 0 to {}",
            order.0,
            largest.0,
            size(largest),
            largest.0
        ))),
        Some(order) => Ok((order, "as asked".to_owned())),
        None if pmd > largest => {
            if !matches!(plan.view, View::Kernel(_)) {
                out::complain(&format!(
                    "a PMD huge page would be order {} ({}); the largest order here, {} ({}), is used",
                    pmd.0,
                    size(pmd),
                    largest.0,
                    size(largest)
                ));
            }
            Ok((largest, format!("the largest here, a PMD huge page is order {}", pmd.0)))
        }
        None => Ok((pmd, "a PMD huge page".to_owned())),
    }
}
