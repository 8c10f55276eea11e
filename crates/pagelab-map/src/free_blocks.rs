//! Free blocks of this machine, a saved tree or a text, with their page size and order, for `frag`.

use std::path::{Path, PathBuf};

use pagelab_command::arguments::open_root;
use pagelab_command::atomic_file::is_run_file;
use pagelab_command::exit::{Failure, FailureKind, absence_failure, usage_error};
use pagelab_command::{input, output};
use pagelab_formats::free_text::{self, FreeBlocksText, ReadError, ReadingKind};
use pagelab_formats::{ParseError, meminfo, zoneinfo};
use pagelab_host::machine::{guess_page_size, live_page_size, reported_pmd_size, saved_page_size};
use pagelab_host::reader::Reader;
use pagelab_host::{paths, root::Root};
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::{Absence, AbsenceReason, BuddyInfo, Bytes, Meminfo, Order, PageSize, Pages, Zoneinfo};
use pagelab_report::frag::{FragReport, FreeBlockSource, KernelFile, ReadingPosition};
use pagelab_report::style::{format_argument, format_bytes};

/// Why buddyinfo has no letters of migratetypes.
const NO_MIGRATETYPES: &str = "free blocks are not listed by migratetype";

/// Why pagetypeinfo has no letters of migratetypes.
const TYPES_APART: &str = "pagetypeinfo counts blocks by migratetype: see free_by_migratetype";

type PageSizeOrigin = (PageSize, &'static str);

/// Input and output.
#[derive(Debug)]
pub struct FragPlan {
    /// Source of the free blocks.
    pub input: FragInput,
    /// Number of the reading in a text, counted from 1.
    pub report: Option<usize>,
    /// Page size of `--page-size`.
    pub page_size: Option<PageSize>,
    /// Order of `--order`.
    pub order: Option<Order>,
    /// Output.
    pub view: FragView,
}

/// Source of the free blocks.
#[derive(Debug)]
pub enum FragInput {
    /// This machine.
    Live,
    /// A saved tree.
    Tree(PathBuf),
    /// A text or a run file; `-` is standard input.
    File(PathBuf),
}

/// Output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragView {
    /// One of the kernel's files.
    Kernel(KernelFile),
    /// Columns.
    Table,
    /// The calculation.
    Explain,
    /// JSON.
    Json,
}

/// Reads the source of the plan.
pub fn load_report(plan: &FragPlan) -> Result<FragReport, Failure> {
    match &plan.input {
        FragInput::Live => from_root(plan, &Root::live()),
        FragInput::Tree(path) => from_root(plan, &open_root(Some(path))?),
        FragInput::File(path) if is_run_file(path) => from_run_file(plan, path),
        FragInput::File(path) => from_text(plan, path),
    }
}

fn from_run_file(plan: &FragPlan, path: &Path) -> Result<FragReport, Failure> {
    let name = path.display().to_string();
    if plan.report.is_some() {
        return Err(usage_error("--report cannot be used with a run file, which has only one snapshot"));
    }
    let run = pagelab_runfile::read_run_file(path)?;
    let snapshot = run.snapshot.ok_or_else(|| {
        let place = format_args!("cannot read {name}");
        Failure::expected(place, "a run file with a snapshot", "one without")
            .hint("create one with `pagelab checkup -o FILE`")
    })?;
    let info = snapshot.buddyinfo.map_err(absence_failure)?;
    let known = Some((snapshot.machine.page_size, "run file"));
    let page_size = resolve_page_size(plan, known, &name)?;
    let counters = (snapshot.meminfo.ok(), snapshot.zoneinfo.ok());
    from_buddyinfo(plan, name, page_size, snapshot.pmd_order, info, counters)
}

fn from_root(plan: &FragPlan, root: &Root) -> Result<FragReport, Failure> {
    let reader = Reader::new(root);
    let info = reader.parse(paths::BUDDYINFO, pagelab_formats::buddyinfo::parse).map_err(absence_failure)?;
    // If the setting is absent or invalid, the default order is used.
    let pmd_size = reported_pmd_size(&reader);
    let (page_size, page_size_source) = if root.is_live() {
        let known = live_page_size().map(|size| (size, "sysconf"));
        resolve_page_size(plan, known, root.name())?
    } else {
        let said = root.manifest().and_then(|manifest| manifest.page_size).map(|size| (size, "manifest"));
        // A guess does not override a given page size; `resolve_page_size` supplies the default.
        let guess = || Some(guess_page_size(&reader)).filter(|&(_, source)| source != "assumed");
        let known = said.or_else(|| saved_page_size(&reader));
        let known = known.or_else(|| guess().filter(|_| plan.page_size.is_none()));
        resolve_page_size(plan, known, root.name())?
    };
    let pmd_order = page_size.pmd_order(pmd_size);
    let counters = (
        reader.parse(paths::MEMINFO, meminfo::parse).ok(),
        reader.parse(paths::ZONEINFO, zoneinfo::parse).ok(),
    );
    from_buddyinfo(plan, root.name().to_owned(), (page_size, page_size_source), pmd_order, info, counters)
}

/// Report of the buddyinfo of a machine, with a note from its counters.
fn from_buddyinfo(
    plan: &FragPlan,
    name: String,
    (page_size, page_size_source): PageSizeOrigin,
    pmd_order: Order,
    buddyinfo: BuddyInfo,
    (meminfo, zoneinfo): (Option<Meminfo>, Option<Zoneinfo>),
) -> Result<FragReport, Failure> {
    let orders = buddyinfo.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(1);
    let (order, order_source) = resolve_order(plan, page_size, pmd_order, orders)?;
    let notes = meminfo.and_then(|meminfo| off_list_note(&meminfo, zoneinfo.as_ref(), &buddyinfo, page_size));
    Ok(FragReport {
        source: FreeBlockSource { name, kind: ReadingKind::Buddyinfo.name(), position: None },
        page_size,
        page_size_source: page_size_source.to_owned(),
        order,
        order_source,
        buddyinfo,
        pagetypeinfo: None,
        request: None,
        watermarks: Vec::new(),
        migratetypes: Err(Absence::new(paths::BUDDYINFO, AbsenceReason::NotThere, NO_MIGRATETYPES)),
        unpopulated: Vec::new(),
        notes: notes.into_iter().collect(),
    })
}

/// Returns a note if some free memory is on no free list yet, and thus in no number.
fn off_list_note(
    meminfo: &Meminfo,
    zoneinfo: Option<&Zoneinfo>,
    info: &BuddyInfo,
    page_size: PageSize,
) -> Option<String> {
    let balance = FreeBalance::from_counts(info, meminfo, zoneinfo, page_size, Some(Pages(0)))?;
    let deferred = balance.deferred_pages();
    (deferred > Pages(0)).then(|| {
        format!(
            "{} more are free but not yet initialised (deferred initialisation): on no free list \
             and not included here, but counted in MemFree",
            format_bytes(deferred.to_bytes(page_size))
        )
    })
}

fn from_text(plan: &FragPlan, path: &Path) -> Result<FragReport, Failure> {
    let (name, content) = input::read_bounded_input(path, input::InputConsumer::Frag)?;
    let read =
        free_text::parse(&content, plan.report).map_err(|failed| parse_failure(&name, plan, failed))?;
    print_reading_notes(&name, &read, plan);
    if content.last().is_some_and(|&last| last != b'\n') {
        let doubt =
            "the last line has no newline; if the input is truncated, its last number may be too small";
        output::warn(&format!("warning: {name}: {doubt}"));
    }
    let known = read.page_size.map(|size| (size, "from the report"));
    let (page_size, page_size_source) = resolve_page_size(plan, known, &name)?;
    let orders = read.buddyinfo.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(1);
    let failed = read.trigger.as_ref().and_then(|trigger| trigger.order).map(Order);
    let failed = failed.filter(|failed| failed.index() < orders);
    let (order, order_source) = match failed {
        // The failed request determines the order. Any free page serves order 0, so its indices are useless.
        Some(failed) if plan.order.is_none() && failed > Order(0) => {
            (failed, "the request that failed".to_owned())
        }
        _ => resolve_order(plan, page_size, page_size.pmd_order(None), orders)?,
    };
    let notes = failed
        .filter(|&failed| failed != order && failed > Order(0))
        .map(|Order(failed)| format!("the failed request had order {failed}: see --order {failed}"));
    let request = read.trigger.as_ref().and_then(|trigger| trigger.request);
    let place = ReadingPosition {
        index: read.position.number,
        total: read.position.count,
        line: read.position.line,
        trigger: read.trigger.map(|trigger| (trigger.text, trigger.line)),
    };
    Ok(FragReport {
        source: FreeBlockSource { name: name.clone(), kind: read.kind.name(), position: Some(place) },
        page_size,
        page_size_source: page_size_source.to_owned(),
        order,
        order_source,
        buddyinfo: read.buddyinfo,
        pagetypeinfo: read.pagetypeinfo,
        request,
        watermarks: read.watermarks,
        migratetypes: read.migratetypes.ok_or_else(|| {
            let why = match read.kind {
                ReadingKind::Pagetypeinfo => TYPES_APART,
                ReadingKind::Buddyinfo | ReadingKind::ShowMem => NO_MIGRATETYPES,
            };
            Absence::new(name, AbsenceReason::NotThere, why)
        }),
        unpopulated: read.unpopulated,
        notes: notes.into_iter().collect(),
    })
}

/// Prints warnings about the reading. Which one it is stands in each output but the kernel's files.
fn print_reading_notes(name: &str, read: &FreeBlocksText, plan: &FragPlan) {
    let (place, what) = (&read.position, kind_description(read.kind));
    if place.count > 1 && plan.report.is_none() && matches!(plan.view, FragView::Kernel(_)) {
        output::warn(&format!(
            "note: {name}: using the last of {} {what}s, from line {}; --report N selects another",
            place.count, place.line
        ));
    }
    let zones = read.buddyinfo.zones.len() + read.unpopulated.len();
    if zones < place.zones_max {
        output::warn(&format!(
            "warning: {name}: {what} {} has fewer zones than another ({zones}, not {}) and may be truncated",
            place.number, place.zones_max
        ));
    }
    if place.unread_reports > 0 {
        output::warn(&format!(
            "warning: {name}: ignoring {} allocation failure reports; hint: move them to a separate file",
            place.unread_reports
        ));
    }
}

fn kind_description(kind: ReadingKind) -> &'static str {
    match kind {
        ReadingKind::Buddyinfo | ReadingKind::Pagetypeinfo => "reading",
        ReadingKind::ShowMem => "report",
    }
}

fn parse_failure(name: &str, plan: &FragPlan, error: ReadError) -> Failure {
    const SHOWN_MAX: usize = 3;
    let (problems, place) = match error {
        ReadError::NoSuchReading(of) => {
            let wanted = plan.report.unwrap_or(of);
            return usage_error(&match of {
                1 => format!("--report {wanted}: {name} has only one report"),
                _ => format!("--report {wanted}: expected 1 to {of}"),
            });
        }
        ReadError::Malformed { problems, position: place } => (problems, place),
    };
    let lines = problems.iter().take(SHOWN_MAX).map(|problem: &ParseError| problem.message_in_file(name));
    let mut message = lines.collect::<Vec<_>>().join("\n");
    if problems.len() > SHOWN_MAX {
        message.push_str(&format!("\n  and {} more malformed lines", problems.len() - SHOWN_MAX));
    }
    message.push_str("\n  no index was computed");
    if let Some(place) = place.filter(|place| place.count > 1) {
        message.push_str(&format!(
            "; this is report {} of {}; --report N selects another",
            place.number, place.count
        ));
    }
    Failure::new(FailureKind::BadInput, message)
}

/// Returns the page size: that of the source, else the given one, else the default, marked as assumed.
fn resolve_page_size(
    plan: &FragPlan,
    known: Option<PageSizeOrigin>,
    name: &str,
) -> Result<PageSizeOrigin, Failure> {
    match (known, plan.page_size) {
        (Some((size, source)), Some(given)) if size != given => Err(usage_error(&format!(
            "--page-size {}: the page size of {name} is {} ({source}); hint: remove --page-size",
            format_argument(Bytes(given.bytes())),
            format_bytes(Bytes(size.bytes()))
        ))),
        (Some(known), _) => Ok(known),
        (None, Some(given)) => Ok((given, "from --page-size")),
        (None, None) => Ok((PageSize::DEFAULT, "assumed; see --page-size")),
    }
}

/// Returns the order: the given one, else that of a PMD huge page, or the largest if that is smaller.
fn resolve_order(
    plan: &FragPlan,
    page_size: PageSize,
    pmd_order: Order,
    orders: usize,
) -> Result<(Order, String), Failure> {
    let largest = Order(orders.saturating_sub(1) as u8);
    match plan.order {
        Some(order) if order > largest => Err(usage_error(&format!(
            "--order {}: the largest order is {} (blocks of {}); expected 0 to {}",
            order.0,
            largest.0,
            format_bytes(page_size.block_bytes(largest)),
            largest.0
        ))),
        Some(order) => Ok((order, "as requested".to_owned())),
        None if pmd_order > largest => {
            Ok((largest, format!("the largest; a PMD huge page is order {}", pmd_order.0)))
        }
        None => Ok((pmd_order, "a PMD huge page".to_owned())),
    }
}
