//! A plan as text.

use std::fmt::Write;

use pagelab_model::huge_plan::{PlanGain, PlannedMapping, PlannedProgram};
use pagelab_model::profile::MappingKind;
use pagelab_model::{Bytes, HugePlan};

use super::{FILE, KINDS, SOURCES, VERSION};

/// The first line.
const TITLE: &str = "Which parts of a program's memory are to be on huge pages, for `pagelab apply`.";
/// Cells on one line.
const CELLS: usize = 4;

/// The text of a plan, which [`super::parse`] reads back as it was. `remarks` are put in front as comments.
pub fn write(plan: &HugePlan, remarks: &[String]) -> String {
    let mut text = format!("# {TITLE}\n");
    for line in remarks.iter().flat_map(|remark| remark.lines()) {
        let seen: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(text, "# {seen}");
    }
    let _ = writeln!(text, "pagelab-plan = {VERSION}");
    if let Some((word, _)) = SOURCES.iter().find(|(_, source)| Some(*source) == plan.source) {
        let _ = writeln!(text, "source = \"{word}\"");
    }
    if !plan.command.is_empty() {
        let words: Vec<_> = plan.command.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(text, "command = [{}]", words.join(", "));
    }
    if let Some(PlanGain { speedup_permille, all_speedup_permille, share_permille }) = plan.predicted {
        let (speedup, all) = (decimal(speedup_permille), decimal(all_speedup_permille));
        let share = decimal(u64::from(share_permille));
        let _ = writeln!(text, "predicted = {{ speedup = {speedup}, all = {all}, share = {share} }}");
    }
    plan.programs.iter().for_each(|program| write_program(&mut text, program));
    text
}

fn write_program(text: &mut String, program: &PlannedProgram) {
    text.push_str("\n[[program]]\n");
    if !program.program.path.is_empty() {
        let _ = writeln!(text, "path = {}", quoted(&program.program.path));
    }
    if let Some(Bytes(bytes)) = program.program.bytes {
        let _ = writeln!(text, "bytes = {bytes}");
    }
    if let Some(identity) = &program.program.identity {
        let _ = writeln!(text, "identity = {}", quoted(identity));
    }
    program.mappings.iter().for_each(|mapping| write_mapping(text, mapping));
}

fn write_mapping(text: &mut String, mapping: &PlannedMapping) {
    text.push_str("\n[[program.mapping]]\n");
    let word = KINDS.iter().find(|(_, kind)| *kind == mapping.key.kind).map_or(FILE, |(word, _)| word);
    let _ = writeln!(text, "kind = \"{word}\"");
    if let MappingKind::File(path) = &mapping.key.kind {
        let _ = writeln!(text, "file = {}", quoted(path));
    }
    let _ = writeln!(text, "asked = {}\nnth = {}", mapping.key.bytes.0, mapping.key.nth);
    let _ = writeln!(text, "start = {:#x}\nbytes = {}", mapping.start, mapping.bytes.0);
    text.push_str("regions = [\n");
    for region in &mapping.regions {
        let cost = region.cost_ns.map(|cost| format!(", cost-ns = {cost}")).unwrap_or_default();
        let (offset, page) = (region.offset, size(region.page));
        let _ = writeln!(text, "  {{ offset = {offset:#x}, page = {page}{cost} }},");
    }
    text.push_str("]\n");
    if mapping.cells.is_empty() {
        return;
    }
    text.push_str("cells = [\n");
    for line in mapping.cells.chunks(CELLS) {
        let cells: Vec<_> =
            line.iter().map(|(offset, bytes, cost)| format!("[{offset:#x}, {bytes:#x}, {cost}],")).collect();
        let _ = writeln!(text, "  {}", cells.join(" "));
    }
    text.push_str("]\n");
}

/// `"2M"`, or bytes where no suffix fits.
fn size(bytes: Bytes) -> String {
    let suffixes = [(30, "G"), (20, "M"), (10, "K")];
    let fits = suffixes.iter().find(|(shift, _)| bytes.0 > 0 && bytes.0.trailing_zeros() >= *shift);
    match fits {
        Some((shift, suffix)) => format!("\"{}{suffix}\"", bytes.0 >> shift),
        None => bytes.0.to_string(),
    }
}

/// Thousandths as a decimal number.
fn decimal(permille: u64) -> String {
    format!("{}.{:03}", permille / 1000, permille % 1000)
}

/// A basic string of TOML: whatever is in it, the line stays one.
fn quoted(text: &str) -> String {
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
