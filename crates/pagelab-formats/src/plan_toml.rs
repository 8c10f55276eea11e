//! Huge-page plans, `plan.toml`: the parts of a program's memory that huge pages are requested for.
//! `docs/plan.md` lists every key.
//!
//! A list of addresses, one a line, is a plan too ([`region_list`]).

use std::collections::HashSet;
use std::fmt::Write;

use pagelab_model::huge_plan::{PlannedMapping, PlannedProgram, PlannedRegion, PredictedGain};
use pagelab_model::profile::{MappingIdentity, MappingKind, ProfileSource, Program};
use pagelab_model::size::{self, format_argument};
use pagelab_model::{Bytes, HugePlan, PageSize, names};

use crate::text::line_number_at;
use crate::toml_document::{TomlItem, TomlTable, TomlValue, parse_document};
use crate::{ParseError, region_list};

const FORMAT: &str = "huge-page plan";
/// The version that this build reads and writes.
const VERSION: u64 = 1;

const PLAN_KEYS: [&str; 8] =
    ["pagelab-plan", "source", "command", "predicted", "overrides-advice", "page", "addresses", "program"];
const MAPPING_KEYS: [&str; 9] =
    ["kind", "file", "mapping-bytes", "asked", "nth", "start", "bytes", "regions", "cells"];

/// Names of sources in a plan and on the command line.
const SOURCE_WORDS: [(&str, ProfileSource); 4] = [
    ("exact", ProfileSource::Exact),
    ("accessed", ProfileSource::Accessed),
    ("pmu", ProfileSource::Pmu),
    ("perf-data", ProfileSource::PerfData),
];

/// Words of kinds of mappings; a file has its path in a separate key.
const MAPPING_KIND_WORDS: [(&str, MappingKind); 5] = [
    ("anonymous", MappingKind::Anonymous),
    ("shared", MappingKind::Shared),
    ("heap", MappingKind::Heap),
    ("stack", MappingKind::Stack),
    ("placed", MappingKind::Placed),
];
/// The word of the kind that is not in [`MAPPING_KIND_WORDS`].
const FILE_KIND_WORD: &str = "file";

/// Reads a plan: TOML, or a list of addresses. `huge` is the size of a huge page where the text names none.
pub fn parse(input: &[u8], huge: Bytes) -> Result<HugePlan, ParseError> {
    if region_list::is_region_list(input) {
        let listed = region_list::parse_lines(input)?.into_iter().map(Ok);
        return Ok(from_addresses(&collect_addresses(listed, huge)?, huge));
    }
    let text = std::str::from_utf8(input).map_err(|error| {
        let line = line_number_at(input, error.valid_up_to());
        ParseError::at_line(FORMAT, line, "not valid UTF-8")
    })?;
    let document = parse_document(text).map_err(|error| {
        let message = format!("{}; a plan is TOML, see docs/plan.md", error.message);
        ParseError::at_line(FORMAT, error.line as u64, message)
    })?;
    let plan = parse_plan(&PlanTable { table: &document, first_line: 1 }, huge)?;
    if plan.programs.iter().all(|program| program.mappings.iter().all(|of| of.regions.is_empty())) {
        let wanted = "the plan is empty: no [[program.mapping]] has regions, and there are no addresses";
        return Err(ParseError::for_input(FORMAT, wanted));
    }
    Ok(plan)
}

/// A plan of addresses alone, as a person writes it: for any program, at these places.
pub fn from_addresses(addresses: &[u64], huge: Bytes) -> HugePlan {
    let regions = addresses.iter().map(|&offset| PlannedRegion { offset, page: huge, cost_ns: None });
    let mapping = PlannedMapping {
        key: MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 },
        start: 0,
        bytes: Bytes(0),
        regions: regions.collect(),
        cells: Vec::new(),
    };
    let program = PlannedProgram { program: Program::default(), mappings: vec![mapping] };
    HugePlan { programs: vec![program], ..HugePlan::default() }
}

fn parse_plan(table: &PlanTable<'_>, huge: Bytes) -> Result<HugePlan, ParseError> {
    table.reject_unknown_keys(&PLAN_KEYS)?;
    match (table.number("pagelab-plan")?, table.find("addresses")) {
        (Some(VERSION), _) | (None, Some(_)) => {}
        (Some(other), _) => {
            let text = format!("unsupported plan version {other}; this pagelab reads version {VERSION}");
            return Err(table.error_at_key("pagelab-plan", text));
        }
        (None, None) => {
            let wanted = "not a plan: expected a line `pagelab-plan = 1` or a list `addresses = […]`";
            return Err(ParseError::for_input(FORMAT, wanted));
        }
    }
    let source =
        table.text("source")?.map(|word| parse_word(&SOURCE_WORDS, word, table, "source")).transpose()?;
    let mut programs = Vec::new();
    if let Some(addresses) = table.list("addresses")? {
        programs.extend(parse_addresses(&addresses, parse_page_size(table, huge)?)?);
    }
    for program in table.tables("program")? {
        programs.push(parse_program(&program, huge)?);
    }
    Ok(HugePlan {
        source,
        command: table.text_list("command")?,
        predicted: table.table("predicted")?.map(|gain| parse_gain(&gain)).transpose()?,
        overrides_advice: table.flag("overrides-advice")?,
        programs,
    })
}

fn parse_word<T: Clone>(
    words: &[(&str, T)],
    word: &str,
    table: &PlanTable<'_>,
    key: &str,
) -> Result<T, ParseError> {
    let found = words.iter().find(|(known, _)| *known == word).map(|(_, value)| value.clone());
    found.ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(known, _)| *known).collect();
        let hint = names::suggest(word, &known).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        table.error_at_key(key, format!("{key}: expected one of {}, found {word:?}{hint}", known.join(", ")))
    })
}

fn parse_gain(table: &PlanTable<'_>) -> Result<PredictedGain, ParseError> {
    table.reject_unknown_keys(&["speedup", "all", "share"])?;
    let share = table.thousandths("share")?;
    let share = u32::try_from(share).ok().filter(|share| *share <= 1000);
    Ok(PredictedGain {
        speedup_permille: table.thousandths("speedup")?,
        all_speedup_permille: table.thousandths("all")?,
        share_permille: share
            .ok_or_else(|| table.error_at_key("share", "share: expected a number from 0 to 1"))?,
    })
}

fn parse_page_size(table: &PlanTable<'_>, huge: Bytes) -> Result<Bytes, ParseError> {
    let page = table.size("page")?.unwrap_or(huge);
    if page.0.is_power_of_two() && page.0 > PageSize::DEFAULT.bytes() {
        return Ok(page);
    }
    let text = format!("page: {} bytes is not a huge page size; expected a power of two", page.0);
    Err(table.error_at_key("page", text))
}

/// These addresses, each with its line, once each; one at which no huge page begins is refused.
fn collect_addresses(
    numbered: impl Iterator<Item = Result<(u64, u64), ParseError>>,
    page: Bytes,
) -> Result<Vec<u64>, ParseError> {
    let (mut addresses, mut seen) = (Vec::new(), HashSet::new());
    for entry in numbered {
        let (line, address) = entry?;
        if !address.is_multiple_of(page.0) || address.checked_add(page.0).is_none() {
            let text = format!("{address:#x} is not aligned to a huge page of {} bytes", page.0);
            return Err(ParseError::at_line(FORMAT, line, text));
        }
        addresses.extend(seen.insert(address).then_some(address));
    }
    Ok(addresses)
}

/// Addresses written by a person, for any program to which the plan is applied.
fn parse_addresses(items: &[PlanItem<'_>], page: Bytes) -> Result<Option<PlannedProgram>, ParseError> {
    let numbered = items.iter().map(|item| item.number().map(|address| (item.0.line as u64, address)));
    let addresses = collect_addresses(numbered, page)?;
    Ok(from_addresses(&addresses, page).programs.pop().filter(|_| !addresses.is_empty()))
}

fn parse_program(table: &PlanTable<'_>, huge: Bytes) -> Result<PlannedProgram, ParseError> {
    table.reject_unknown_keys(&["path", "bytes", "identity", "mapping"])?;
    let program = Program {
        path: table.text("path")?.unwrap_or_default().to_owned(),
        bytes: table.number("bytes")?.map(Bytes),
        identity: table.text("identity")?.map(str::to_owned),
    };
    let mappings = table.tables("mapping")?;
    let mappings = mappings.iter().map(|mapping| parse_mapping(mapping, huge));
    Ok(PlannedProgram { program, mappings: mappings.collect::<Result<_, _>>()? })
}

fn parse_mapping(table: &PlanTable<'_>, huge: Bytes) -> Result<PlannedMapping, ParseError> {
    table.reject_unknown_keys(&MAPPING_KEYS)?;
    let kind = match table.require("kind", table.text("kind")?)? {
        FILE_KIND_WORD => MappingKind::File(table.require("file", table.text("file")?)?.to_owned()),
        word => parse_word(&MAPPING_KIND_WORDS, word, table, "kind")?,
    };
    let nth = u32::try_from(table.number("nth")?.unwrap_or(0))
        .map_err(|_| table.error_at_key("nth", "nth: exceeds the number of mappings of any process"))?;
    let start = table.number("start")?.unwrap_or(0);
    let regions = table.list("regions")?.unwrap_or_default();
    let regions =
        regions.iter().map(|item| parse_region(item, start, huge)).collect::<Result<Vec<_>, _>>()?;
    check_no_overlap(table, &regions)?;
    // Plans of earlier versions call it `asked`.
    let mapping_bytes = table.number("mapping-bytes")?.or(table.number("asked")?).unwrap_or(0);
    let key = MappingIdentity { kind, bytes: Bytes(mapping_bytes), nth };
    let bytes = Bytes(table.number("bytes")?.unwrap_or(0));
    Ok(PlannedMapping { key, start, bytes, regions, cells: parse_cost_cells(table)? })
}

fn parse_region(item: &PlanItem<'_>, start: u64, huge: Bytes) -> Result<PlannedRegion, ParseError> {
    let table = item.table()?;
    table.reject_unknown_keys(&["offset", "page", "cost-ns"])?;
    let offset = table.require("offset", table.number("offset")?)?;
    let page = parse_page_size(&table, huge)?;
    let end = offset.checked_add(page.0).and_then(|end| end.checked_add(start));
    if end.is_none() || !(start + offset).is_multiple_of(page.0) {
        let text = format!("offset: {offset:#x} is not aligned to a huge page of {} bytes", page.0);
        return Err(table.error_at_key("offset", format!("{text} in a mapping that starts at {start:#x}")));
    }
    Ok(PlannedRegion { offset, page, cost_ns: table.number("cost-ns")? })
}

/// Two huge pages cannot have one position.
fn check_no_overlap(table: &PlanTable<'_>, regions: &[PlannedRegion]) -> Result<(), ParseError> {
    let mut by_place: Vec<_> = regions.iter().map(|region| (region.offset, region.page.0)).collect();
    by_place.sort_unstable();
    match by_place.windows(2).find(|two| two[0].0 + two[0].1 > two[1].0) {
        Some(two) => {
            Err(table.error_at_key("regions", format!("regions: overlapping regions at {:#x}", two[1].0)))
        }
        None => Ok(()),
    }
}

/// `[offset, length, cost in nanoseconds]`, rising and apart.
fn parse_cost_cells(table: &PlanTable<'_>) -> Result<Vec<(u64, u64, u64)>, ParseError> {
    let mut cells = Vec::new();
    let mut free = 0;
    for item in table.list("cells")?.unwrap_or_default() {
        let numbers: Vec<u64> = item.list()?.iter().map(PlanItem::number).collect::<Result<_, _>>()?;
        let [offset, bytes, cost] = numbers[..] else {
            return Err(item.error("cells: expected [offset, length, cost in nanoseconds]"));
        };
        let end = offset.checked_add(bytes).filter(|_| bytes > 0 && offset >= free);
        free = end.ok_or_else(|| {
            item.error("cells: expected ascending, non-overlapping cells of nonzero length")
        })?;
        cells.push((offset, bytes, cost));
    }
    Ok(cells)
}

struct PlanTable<'d> {
    table: &'d TomlTable,
    first_line: usize,
}

struct PlanItem<'d>(&'d TomlItem);

impl<'d> PlanTable<'d> {
    /// Returns an error for the first key that is not among these.
    pub fn reject_unknown_keys(&self, known: &[&str]) -> Result<(), ParseError> {
        let unknown = self.table.unknown_keys(known).next();
        unknown.map_or(Ok(()), |(line, text)| Err(ParseError::at_line(FORMAT, line as u64, text)))
    }

    /// The value of a key.
    pub fn find(&self, key: &str) -> Option<PlanItem<'d>> {
        self.table.find(key).map(PlanItem)
    }

    /// An error at the line of this key's value, or else of the table.
    pub fn error_at_key(&self, key: &str, text: impl Into<String>) -> ParseError {
        let line = self.table.find(key).map_or(self.first_line, |item| item.line);
        ParseError::at_line(FORMAT, line as u64, text)
    }

    /// The value, or an error that names the missing key.
    pub fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, ParseError> {
        value.ok_or_else(|| ParseError::at_line(FORMAT, self.first_line as u64, format!("{key} is missing")))
    }

    pub fn number(&self, key: &str) -> Result<Option<u64>, ParseError> {
        self.find(key).map(|item| item.number()).transpose()
    }

    pub fn text(&self, key: &str) -> Result<Option<&'d str>, ParseError> {
        self.find(key).map(|item| item.text()).transpose()
    }

    /// A size such as `2M`, or a number of bytes.
    pub fn size(&self, key: &str) -> Result<Option<Bytes>, ParseError> {
        let Some(item) = self.find(key) else { return Ok(None) };
        let size = match &item.0.node {
            TomlValue::Text(text) => size::parse_nonzero(text).ok(),
            _ => item.number().ok().map(Bytes).filter(|size| size.0 > 0),
        };
        size.map(Some).ok_or_else(|| item.error(format!("{key}: expected a size, for example \"2M\"")))
    }

    /// A decimal number with at most three decimals, in thousandths.
    pub fn thousandths(&self, key: &str) -> Result<u64, ParseError> {
        let item = self.require(key, self.find(key))?;
        let written = match &item.0.node {
            TomlValue::Number(number) => number,
            _ => "",
        };
        let (whole, decimals) = written.split_once('.').unwrap_or((written, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let value = || {
            let decimals = (decimals.len() <= 3 && digits(decimals)).then(|| format!("{decimals:0<3}"))?;
            let whole: u64 = digits(whole).then(|| whole.parse().ok())??;
            whole.checked_mul(1000)?.checked_add(decimals.parse().ok()?)
        };
        value().ok_or_else(|| {
            let expected = "expected a number with at most three decimals, for example 1.25";
            item.error(format!("{key}: {expected}"))
        })
    }

    /// `true` or `false`; false if the key is absent.
    pub fn flag(&self, key: &str) -> Result<bool, ParseError> {
        let Some(item) = self.find(key) else { return Ok(false) };
        match item.0.node {
            TomlValue::Boolean(flag) => Ok(flag),
            _ => Err(item.error(format!("{key}: expected true or false"))),
        }
    }

    pub fn list(&self, key: &str) -> Result<Option<Vec<PlanItem<'d>>>, ParseError> {
        self.find(key).map(|item| item.list()).transpose()
    }

    /// A list of strings; empty if the key is absent.
    pub fn text_list(&self, key: &str) -> Result<Vec<String>, ParseError> {
        let items = self.list(key)?.unwrap_or_default();
        items.iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    pub fn table(&self, key: &str) -> Result<Option<PlanTable<'d>>, ParseError> {
        self.find(key).map(|item| item.table()).transpose()
    }

    /// The tables `[[key]]`; empty if the key is absent.
    pub fn tables(&self, key: &str) -> Result<Vec<PlanTable<'d>>, ParseError> {
        self.list(key)?.unwrap_or_default().iter().map(PlanItem::table).collect()
    }
}

impl<'d> PlanItem<'d> {
    /// An error at the line of this value.
    pub fn error(&self, text: impl Into<String>) -> ParseError {
        ParseError::at_line(FORMAT, self.0.line as u64, text)
    }

    /// An integer that is not negative, in any radix.
    pub fn number(&self) -> Result<u64, ParseError> {
        let number = match &self.0.node {
            TomlValue::Number(digits) => digits.parse().ok(),
            TomlValue::Radix { digits, radix } => u64::from_str_radix(digits, *radix).ok(),
            _ => None,
        };
        number.ok_or_else(|| self.error("expected an integer, decimal or hexadecimal with 0x"))
    }

    fn text(&self) -> Result<&'d str, ParseError> {
        match &self.0.node {
            TomlValue::Text(text) => Ok(text),
            _ => Err(self.error("expected a string")),
        }
    }

    fn list(&self) -> Result<Vec<PlanItem<'d>>, ParseError> {
        match &self.0.node {
            TomlValue::List(items) => Ok(items.iter().map(PlanItem).collect()),
            _ => Err(self.error("expected a list")),
        }
    }

    pub fn table(&self) -> Result<PlanTable<'d>, ParseError> {
        match &self.0.node {
            TomlValue::Table(table) => Ok(PlanTable { table, first_line: self.0.line }),
            _ => Err(self.error("expected a table")),
        }
    }
}

const TITLE_COMMENT: &str = "Parts of a program's memory to back with huge pages, for `pagelab apply`.";
const CELLS_PER_LINE: usize = 4;

/// The text of a plan, which [`parse`] reads back as it was. `remarks` are put in front as comments.
pub fn write_plan(plan: &HugePlan, remarks: &[String]) -> String {
    let mut text = format!("# {TITLE_COMMENT}\n");
    for line in remarks.iter().flat_map(|remark| remark.lines()) {
        let seen: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(text, "# {seen}");
    }
    let _ = writeln!(text, "pagelab-plan = {VERSION}");
    if let Some((word, _)) = SOURCE_WORDS.iter().find(|(_, source)| Some(*source) == plan.source) {
        let _ = writeln!(text, "source = \"{word}\"");
    }
    if !plan.command.is_empty() {
        let words: Vec<_> = plan.command.iter().map(|word| quote_string(word)).collect();
        let _ = writeln!(text, "command = [{}]", words.join(", "));
    }
    if let Some(PredictedGain { speedup_permille, all_speedup_permille, share_permille }) = plan.predicted {
        let (speedup, all) = (format_permille(speedup_permille), format_permille(all_speedup_permille));
        let share = format_permille(u64::from(share_permille));
        let _ = writeln!(text, "predicted = {{ speedup = {speedup}, all = {all}, share = {share} }}");
    }
    if plan.overrides_advice {
        text.push_str("# The program refuses huge pages: `pagelab apply --override` is required.\n");
        text.push_str("overrides-advice = true\n");
    }
    plan.programs.iter().for_each(|program| write_program(&mut text, program));
    text
}

fn write_program(text: &mut String, program: &PlannedProgram) {
    text.push_str("\n[[program]]\n");
    if !program.program.path.is_empty() {
        let _ = writeln!(text, "path = {}", quote_string(&program.program.path));
    }
    if let Some(Bytes(bytes)) = program.program.bytes {
        let _ = writeln!(text, "bytes = {bytes}");
    }
    if let Some(identity) = &program.program.identity {
        let _ = writeln!(text, "identity = {}", quote_string(identity));
    }
    program.mappings.iter().for_each(|mapping| write_mapping(text, mapping));
}

fn write_mapping(text: &mut String, mapping: &PlannedMapping) {
    text.push_str("\n[[program.mapping]]\n");
    let word = MAPPING_KIND_WORDS.iter().find(|(_, kind)| *kind == mapping.key.kind);
    let word = word.map_or(FILE_KIND_WORD, |(word, _)| word);
    let _ = writeln!(text, "kind = \"{word}\"");
    if let MappingKind::File(path) = &mapping.key.kind {
        let _ = writeln!(text, "file = {}", quote_string(path));
    }
    let _ = writeln!(text, "mapping-bytes = {}\nnth = {}", mapping.key.bytes.0, mapping.key.nth);
    let _ = writeln!(text, "start = {:#x}\nbytes = {}", mapping.start, mapping.bytes.0);
    text.push_str("regions = [\n");
    for region in &mapping.regions {
        let cost = region.cost_ns.map(|cost| format!(", cost-ns = {cost}")).unwrap_or_default();
        let (offset, page) = (region.offset, format_argument(region.page));
        let _ = writeln!(text, "  {{ offset = {offset:#x}, page = \"{page}\"{cost} }},");
    }
    text.push_str("]\n");
    if mapping.cells.is_empty() {
        return;
    }
    text.push_str("cells = [\n");
    for line in mapping.cells.chunks(CELLS_PER_LINE) {
        let cells: Vec<_> =
            line.iter().map(|(offset, bytes, cost)| format!("[{offset:#x}, {bytes:#x}, {cost}],")).collect();
        let _ = writeln!(text, "  {}", cells.join(" "));
    }
    text.push_str("]\n");
}

/// Thousandths as a decimal number.
fn format_permille(permille: u64) -> String {
    format!("{}.{:03}", permille / 1000, permille % 1000)
}

/// A basic string of TOML, always on one line.
fn quote_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
