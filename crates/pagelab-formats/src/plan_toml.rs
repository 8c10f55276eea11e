//! `plan.toml`: which parts of a program's memory are to be on huge pages. `docs/plan.md` lists every key.
//!
//! It is written by hand and read by `toml` without serde, which keeps the place of every key and value, so
//! that a complaint names its line. A text of addresses alone, one a line, is a plan too ([`largepages`]).

mod document;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashSet;

use pagelab_model::huge_plan::{PlanGain, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::profile::{MappingKey, MappingKind, ProfileSource, Program};
use pagelab_model::{Bytes, HugePlan, PageSize};

use crate::{ParseError, largepages};
use document::{Document, Item, Table};

pub use write::write;

/// The name of the format in errors.
const FORMAT: &str = "huge-page plan";
/// The version that this build reads and writes.
const VERSION: u64 = 1;

/// The words of sources, as they stand in a plan and on the command line.
const SOURCES: [(&str, ProfileSource); 4] = [
    ("exact", ProfileSource::Exact),
    ("accessed", ProfileSource::Accessed),
    ("pmu", ProfileSource::Pmu),
    ("perf-data", ProfileSource::PerfData),
];

/// The words of kinds of mappings; a file has its path in a key of its own.
const KINDS: [(&str, MappingKind); 5] = [
    ("anonymous", MappingKind::Anonymous),
    ("shared", MappingKind::Shared),
    ("heap", MappingKind::Heap),
    ("stack", MappingKind::Stack),
    ("placed", MappingKind::Placed),
];
/// The word of the kind that is not in [`KINDS`].
const FILE: &str = "file";

/// Reads a plan: TOML, or a list of addresses. `huge` is the size of a huge page where the text names none.
pub fn parse(input: &[u8], huge: Bytes) -> Result<HugePlan, ParseError> {
    if largepages::is_one(input) {
        let mut seen = HashSet::new();
        let mut addresses = Vec::new();
        for (line, address) in largepages::parse_lines(input)? {
            begins_page(address, huge).map_err(|text| ParseError::at_line(FORMAT, line, text))?;
            addresses.extend(seen.insert(address).then_some(address));
        }
        return Ok(of_addresses(&addresses, huge));
    }
    let text = std::str::from_utf8(input).map_err(|error| {
        let line = input.iter().take(error.valid_up_to()).filter(|&&byte| byte == b'\n').count() as u64 + 1;
        ParseError::at_line(FORMAT, line, "not UTF-8")
    })?;
    let document = Document::of(text)?;
    let plan = plan(&document.table(), huge)?;
    if plan.programs.iter().all(|program| program.mappings.iter().all(|of| of.regions.is_empty())) {
        let wanted =
            "nothing is planned in it: it has neither regions of a [[program.mapping]] nor addresses";
        return Err(ParseError::whole(FORMAT, wanted));
    }
    Ok(plan)
}

/// A plan of addresses alone, as a person writes it: for any program, at these places.
pub fn of_addresses(addresses: &[u64], huge: Bytes) -> HugePlan {
    let regions = addresses.iter().map(|&offset| PlannedRegion { offset, page: huge, cost_ns: None });
    let mapping = PlannedMapping {
        key: MappingKey { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 },
        start: 0,
        bytes: Bytes(0),
        regions: regions.collect(),
        cells: Vec::new(),
    };
    let program = PlannedProgram { program: Program::default(), mappings: vec![mapping] };
    HugePlan { source: None, command: Vec::new(), predicted: None, programs: vec![program] }
}

fn plan(table: &Table<'_>, huge: Bytes) -> Result<HugePlan, ParseError> {
    table.only(&["pagelab-plan", "source", "command", "predicted", "page", "addresses", "program"])?;
    match (table.number("pagelab-plan")?, table.item("addresses")) {
        (Some(VERSION), _) | (None, Some(_)) => {}
        (Some(other), _) => {
            let text = format!("a plan of version {other}; this pagelab reads version {VERSION}");
            return Err(table.wrong("pagelab-plan", text));
        }
        (None, None) => {
            let wanted = "no plan: a line `pagelab-plan = 1`, or a list `addresses = […]`, was wanted";
            return Err(ParseError::whole(FORMAT, wanted));
        }
    }
    let source = table.text("source")?.map(|word| word_of(&SOURCES, word, table, "source")).transpose()?;
    let mut programs = Vec::new();
    if let Some(addresses) = table.list("addresses")? {
        programs.extend(addressed(&addresses, page(table, huge)?)?);
    }
    for program in table.tables("program")? {
        programs.push(planned_program(&program, huge)?);
    }
    Ok(HugePlan {
        source,
        command: table.texts("command")?,
        predicted: table.table("predicted")?.map(|gain| predicted(&gain)).transpose()?,
        programs,
    })
}

fn word_of<T: Clone>(words: &[(&str, T)], word: &str, table: &Table<'_>, key: &str) -> Result<T, ParseError> {
    let found = words.iter().find(|(known, _)| *known == word).map(|(_, value)| value.clone());
    found.ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(known, _)| *known).collect();
        table.wrong(key, format!("{key}: {word:?} is none of {}", known.join(", ")))
    })
}

fn predicted(table: &Table<'_>) -> Result<PlanGain, ParseError> {
    table.only(&["speedup", "all", "share"])?;
    let share = table.thousandths("share")?;
    let share = u32::try_from(share).ok().filter(|share| *share <= 1000);
    Ok(PlanGain {
        speedup_permille: table.thousandths("speedup")?,
        all_speedup_permille: table.thousandths("all")?,
        share_permille: share
            .ok_or_else(|| table.wrong("share", "share: a number from 0 to 1 was wanted"))?,
    })
}

fn page(table: &Table<'_>, huge: Bytes) -> Result<Bytes, ParseError> {
    let page = table.size("page")?.unwrap_or(huge);
    if page.0.is_power_of_two() && page.0 > PageSize::USUAL.bytes() {
        return Ok(page);
    }
    let text = format!("page: {} bytes is not the size of a huge page, a power of two", page.0);
    Err(table.wrong("page", text))
}

/// Refuses an address at which no huge page begins.
fn begins_page(address: u64, page: Bytes) -> Result<(), String> {
    if address.is_multiple_of(page.0) && address.checked_add(page.0).is_some() {
        return Ok(());
    }
    Err(format!("{address:#x} is not the first byte of a huge page of {} bytes", page.0))
}

/// What a person wrote: addresses, for whatever program the plan is applied to.
fn addressed(items: &[Item<'_>], page: Bytes) -> Result<Option<PlannedProgram>, ParseError> {
    let mut addresses = Vec::with_capacity(items.len());
    let mut seen = HashSet::new();
    for item in items {
        let address = item.number()?;
        begins_page(address, page).map_err(|text| item.wrong(text))?;
        if seen.insert(address) {
            addresses.push(address);
        }
    }
    Ok(of_addresses(&addresses, page).programs.pop().filter(|_| !addresses.is_empty()))
}

fn planned_program(table: &Table<'_>, huge: Bytes) -> Result<PlannedProgram, ParseError> {
    table.only(&["path", "bytes", "identity", "mapping"])?;
    let program = Program {
        path: table.text("path")?.unwrap_or_default().to_owned(),
        bytes: table.number("bytes")?.map(Bytes),
        identity: table.text("identity")?.map(str::to_owned),
    };
    let mappings = table.tables("mapping")?;
    let mappings = mappings.iter().map(|mapping| planned_mapping(mapping, huge));
    Ok(PlannedProgram { program, mappings: mappings.collect::<Result<_, _>>()? })
}

fn planned_mapping(table: &Table<'_>, huge: Bytes) -> Result<PlannedMapping, ParseError> {
    table.only(&["kind", "file", "asked", "nth", "start", "bytes", "regions", "cells"])?;
    let kind = match table.wanted("kind", table.text("kind")?)? {
        FILE => MappingKind::File(table.wanted("file", table.text("file")?)?.to_owned()),
        word => word_of(&KINDS, word, table, "kind")?,
    };
    let nth = u32::try_from(table.number("nth")?.unwrap_or(0))
        .map_err(|_| table.wrong("nth", "nth: more mappings than a process can have"))?;
    let start = table.number("start")?.unwrap_or(0);
    let mut regions = Vec::new();
    for item in table.list("regions")?.unwrap_or_default() {
        regions.push(region(&item, start, huge)?);
    }
    apart(table, &regions)?;
    let key = MappingKey { kind, bytes: Bytes(table.number("asked")?.unwrap_or(0)), nth };
    let bytes = Bytes(table.number("bytes")?.unwrap_or(0));
    Ok(PlannedMapping { key, start, bytes, regions, cells: cells(table)? })
}

fn region(item: &Item<'_>, start: u64, huge: Bytes) -> Result<PlannedRegion, ParseError> {
    let table = item.table()?;
    table.only(&["offset", "page", "cost-ns"])?;
    let offset = table.wanted("offset", table.number("offset")?)?;
    let page = page(&table, huge)?;
    let end = offset.checked_add(page.0).and_then(|end| end.checked_add(start));
    if end.is_none() || !(start + offset).is_multiple_of(page.0) {
        let text = format!("offset: {offset:#x} is not the first byte of a huge page of {} bytes", page.0);
        return Err(table.wrong("offset", format!("{text} in a mapping that begins at {start:#x}")));
    }
    Ok(PlannedRegion { offset, page, cost_ns: table.number("cost-ns")? })
}

/// Two huge pages cannot lie in one place.
fn apart(table: &Table<'_>, regions: &[PlannedRegion]) -> Result<(), ParseError> {
    let mut by_place: Vec<_> = regions.iter().map(|region| (region.offset, region.page.0)).collect();
    by_place.sort_unstable();
    match by_place.windows(2).find(|two| two[0].0 + two[0].1 > two[1].0) {
        Some(two) => Err(table.wrong("regions", format!("regions: two of them lie at {:#x}", two[1].0))),
        None => Ok(()),
    }
}

/// `[offset, length, cost in nanoseconds]`, rising and apart.
fn cells(table: &Table<'_>) -> Result<Vec<(u64, u64, u64)>, ParseError> {
    let mut cells = Vec::new();
    let mut free = 0;
    for item in table.list("cells")?.unwrap_or_default() {
        let numbers = item.numbers()?;
        let [offset, bytes, cost] = numbers[..] else {
            return Err(item.wrong("cells: [offset, length, cost in nanoseconds] was wanted"));
        };
        let end = offset.checked_add(bytes).filter(|_| bytes > 0 && offset >= free);
        free = end.ok_or_else(|| item.wrong("cells: they rise and lie apart, and each has a length"))?;
        cells.push((offset, bytes, cost));
    }
    Ok(cells)
}
