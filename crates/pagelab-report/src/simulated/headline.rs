//! First lines of a comparison: one figure by scheme and phase, and a sentence; and the meaning of figures,
//! with those of the paper.

use pagelab_metrics::effect::{
    DifferenceVerdict, ExperimentEffects, MeasureEffects, VariantEffect, WorkloadEffects,
};
use pagelab_metrics::sweep::{POLLUTED_PAGEBLOCKS, SUCCESS_FIGURE, UNUSABLE_PREFIX};
use pagelab_model::experiment::{Experiment, Fraction};
use pagelab_model::order_statistics;
use pagelab_model::published_figures::{
    FIGURE_11, HUGE_PAGES_POSSIBLE, NORMAL_ZONE_AT_REST, POOL_UNDER_LOAD, PPC64_UNUSABLE,
};
use pagelab_model::simulation::PointView;

use super::{
    NAME_MAX, column_point, common_configuration, difference_cell, figure_cell, format_number, format_value,
    found_column, median,
};
use crate::run::clip_name;
use crate::text_report::{TableColumn, TextReport};

/// Figures that are shown completely without a request, at most.
const FULL_FIGURES_MAX: usize = 8;
/// Phases shown, the last ones.
const PHASES_MAX: usize = 3;

/// Phases whose F_u is shown, the last ones.
const UNUSABLE_MAX: usize = 2;
/// Smallest difference of shares that matters: one huge page of two gigabytes.
const DIFFERENCE_MIN: f64 = 0.001;
/// Limits of the free share and of the free huge pages below which F_u has little meaning.
const LITTLE_FREE_SHARE: f64 = 0.05;
const LITTLE_FREE_BLOCKS: u64 = 32;
/// Figure with the share of free frames.
const FREE_FIGURE: &str = "pages: free";

/// Returns whether there is more than fits on a screen.
pub(super) fn is_long(experiment: &Experiment, comparison: &ExperimentEffects) -> bool {
    let figures: usize = comparison.workloads.iter().map(|group| group.measures.len()).sum();
    experiment.plan.points().len() > 1 && figures > FULL_FIGURES_MAX
}

pub(super) fn write_headlines(
    output: &mut TextReport,
    experiment: &Experiment,
    comparison: &ExperimentEffects,
) {
    let mut shown_figures: Vec<&MeasureEffects> = Vec::new();
    for group in comparison.workloads.iter().filter(|group| !group.measures.is_empty()) {
        output.add_gap();
        if let Some(cell) = column_point(experiment, group, 0) {
            output.add_bold_text(&common_configuration(cell));
        }
        for (at, rows) in pick_figures(group).into_iter().enumerate() {
            if at > 0 {
                output.add_gap();
            }
            write_table(output, experiment, group, &rows);
            if let Some(last) = rows.last() {
                let little = rows.iter().filter_map(|row| little_free_note(experiment, group, row));
                little.for_each(|text| output.add_text(&text));
                output.add_text(&headline_sentence(experiment, group, last));
            }
            shown_figures.extend(rows);
        }
    }
    write_glossary(output, shown_figures.iter().copied());
    let all: usize = comparison.workloads.iter().map(|group| group.measures.len()).sum();
    output.add_gap();
    output.add_line(format!("→ -v   all {} figures and their differences", format_number(all)));
}

/// Returns the figures to show: the success of huge pages, the unusable share of free memory at the end, and
/// the place of unmovable memory; for other loads the first of each phase.
fn pick_figures(group: &WorkloadEffects) -> Vec<Vec<&MeasureEffects>> {
    let named = |is_it: &dyn Fn(&str) -> bool| -> Vec<&MeasureEffects> {
        group.measures.iter().filter(|row| is_it(&row.name)).collect()
    };
    let unusable = named(&|name| name.starts_with(UNUSABLE_PREFIX)).pop().map_or("", |row| &row.name);
    let mut all = vec![
        last_items(named(&|name| name == SUCCESS_FIGURE), PHASES_MAX),
        last_items(named(&|name| name == unusable), UNUSABLE_MAX),
        last_items(named(&|name| name == POLLUTED_PAGEBLOCKS), 1),
    ];
    all.retain(|rows| !rows.is_empty());
    if all.is_empty() {
        let firsts = group.measures.chunk_by(|one, other| one.phase == other.phase);
        all = firsts.filter_map(|rows| rows.first().map(|row| vec![row])).collect();
        all = last_items(all, PHASES_MAX);
    }
    all
}

fn last_items<T>(mut all: Vec<T>, items_max: usize) -> Vec<T> {
    all.drain(..all.len().saturating_sub(items_max));
    all
}

/// Writes a line for each scheme and a column for each phase; without intervals if they do not fit.
fn write_table(
    output: &mut TextReport,
    experiment: &Experiment,
    group: &WorkloadEffects,
    rows: &[&MeasureEffects],
) {
    let lead = common_prefix_bytes(rows);
    let header = |row: &&MeasureEffects| {
        let phase = row.phase.get(lead..).unwrap_or(&row.phase);
        let name = if rows.len() == 1 { format!("{}: {phase}", row.name) } else { phase.to_owned() };
        clip_name(&name, NAME_MAX)
    };
    let title = rows.first().filter(|_| rows.len() > 1).map_or(String::new(), |row| row.name.clone());
    let titles: Vec<String> = [title].into_iter().chain(rows.iter().map(header)).collect();
    let columns = TableColumn::list(&titles, 1);
    let lines = |show: &dyn Fn(&MeasureEffects, &VariantEffect) -> String| -> Vec<Vec<String>> {
        let line = |place: usize| {
            let cell = |row: &&MeasureEffects| {
                found_column(row, place).map_or("–".to_owned(), |found| show(row, found))
            };
            [scheme_name(experiment, group, place)].into_iter().chain(rows.iter().map(cell)).collect()
        };
        (0..group.columns.len()).map(line).collect()
    };
    let bare = |row: &MeasureEffects, found: &VariantEffect| format_value(median(found), &row.unit.0);
    if !output.add_table_if_fits(2, &columns, &lines(&figure_cell)) {
        output.add_table(2, &columns, &lines(&bare));
    }
}

/// Returns the length in bytes of the words with which all phases begin: the load's name.
fn common_prefix_bytes(rows: &[&MeasureEffects]) -> usize {
    let Some(first) = rows.first().filter(|_| rows.len() > 1) else { return 0 };
    let ends = first.phase.match_indices(' ').map(|(at, _)| at + 1);
    let is_common = |end: &usize| rows.iter().all(|row| row.phase.starts_with(&first.phase[..*end]));
    ends.take_while(is_common).last().unwrap_or(0)
}

fn scheme_name(experiment: &Experiment, group: &WorkloadEffects, scheme_index: usize) -> String {
    let point = column_point(experiment, group, scheme_index);
    point.map_or(String::new(), |point| clip_name(point.scheme, NAME_MAX))
}

/// Describes a difference: `success, at rest, against standard: list +0.092 (+0.077…+0.100), zone none seen.`
fn headline_sentence(experiment: &Experiment, group: &WorkloadEffects, row: &MeasureEffects) -> String {
    let columns = row.variants.iter().enumerate();
    let judged_schemes: Vec<(usize, &VariantEffect, DifferenceVerdict)> =
        columns.filter_map(|(at, of)| Some((at, of, of.difference()?.verdict))).collect();
    if judged_schemes.is_empty() {
        return String::new();
    }
    let parts: Vec<String> = judged_schemes
        .iter()
        .map(|(at, of, _)| {
            format!("{} {}", scheme_name(experiment, group, *at), difference_cell(row, of.difference()))
        })
        .collect();
    let is_seen =
        |says: &DifferenceVerdict| matches!(says, DifferenceVerdict::More | DifferenceVerdict::Less);
    let difference_min = if row.unit.0 == "share" { DIFFERENCE_MIN } else { 0.0 };
    let matters = |of: &VariantEffect| {
        of.difference().is_some_and(|found| found.hodges_lehmann.abs() >= difference_min)
    };
    let end = if little_free_note(experiment, group, row).is_some() {
        String::new()
    } else if judged_schemes.iter().any(|(_, of, says)| is_seen(says) && matters(of)) {
        best_scheme_text(experiment, group, row, difference_min)
    } else if judged_schemes.iter().any(|(_, _, says)| is_seen(says)) {
        format!("; differences below {DIFFERENCE_MIN} are ignored")
    } else if judged_schemes.iter().any(|(_, _, says)| *says == DifferenceVerdict::TooFew) {
        "; too few seeds for a verdict".to_owned()
    } else {
        "; no difference seen".to_owned()
    };
    format!("{} against {}: {}{end}", row.phase, scheme_name(experiment, group, 0), parts.join(", "))
}

/// Names the best scheme: `; list2 has the most`, with all whose difference to it is too small to matter; of
/// bad figures, the least.
fn best_scheme_text(
    experiment: &Experiment,
    group: &WorkloadEffects,
    row: &MeasureEffects,
    difference_min: f64,
) -> String {
    let is_bad = row.name.starts_with(UNUSABLE_PREFIX) || row.name == POLLUTED_PAGEBLOCKS;
    let ends = || (0..row.variants.len()).filter_map(|at| Some((at, median(found_column(row, at)?))));
    let better = |one: f64, other: f64| if is_bad { one < other } else { one > other };
    let Some(best) =
        ends().map(|(_, end)| end).reduce(|one, next| if better(next, one) { next } else { one })
    else {
        return String::new();
    };
    let near = ends().filter(|(_, end)| *end == best || (end - best).abs() < difference_min);
    let names: Vec<String> = near.map(|(at, _)| scheme_name(experiment, group, at)).collect();
    let have = if names.len() == 1 { "has" } else { "have" };
    format!("; {} {have} the {}", names.join(" and "), if is_bad { "least" } else { "most" })
}

/// Warns if so little memory was free that F_u has little meaning.
fn little_free_note(
    experiment: &Experiment,
    group: &WorkloadEffects,
    row: &MeasureEffects,
) -> Option<String> {
    let order: u32 = row.name.strip_prefix(UNUSABLE_PREFIX)?.split_once(')')?.0.parse().ok()?;
    let is_in =
        |slot: usize| experiment.plan.schedule.get(slot).is_some_and(|slot| slot.workload == group.workload);
    let trials = experiment.trials.iter().filter(|trial| is_in(trial.slot));
    let figures = trials.flat_map(|trial| &trial.measures);
    let free = figures.filter(|of| of.phase == row.phase && of.name == FREE_FIGURE);
    let mut free: Vec<Fraction> = free.filter_map(|of| of.exact).collect();
    free.sort_by(|one, other| one.to_f64().total_cmp(&other.to_f64()));
    let blocks = |of: &Fraction| of.numerator.checked_shr(order).unwrap_or(0);
    let (difference_min, items_max) = (free.first()?, free.last()?);
    let median_share =
        order_statistics::median(&mut free.iter().map(|of| of.to_f64()).collect::<Vec<f64>>())?;
    let median_blocks = order_statistics::median(&mut free.iter().map(blocks).collect::<Vec<u64>>())?;
    let is_little = median_share < LITTLE_FREE_SHARE || median_blocks < LITTLE_FREE_BLOCKS;
    is_little.then(|| {
        let percent = |of: &Fraction| format!("{:.1}", of.to_f64() * 100.0);
        let span = |low: String, high: String| if low == high { low } else { format!("{low} to {high}") };
        format!(
            "{}: only {} % of memory is free, the size of {} huge pages: F_u is not meaningful",
            row.phase,
            span(percent(difference_min), percent(items_max)),
            span(
                super::format_count(blocks(difference_min).into()),
                super::format_count(blocks(items_max).into())
            )
        )
    })
}

// Meaning of the figures of an experiment, and figures without information because every run has the same
// value.

/// Prefixes of figures whose names need an explanation, with the explanation.
const FIGURE_TERMS: [(&str, &str); 8] = [
    ("success", "share of the requested huge pages that were allocated"),
    ("F_u(", "share of free memory unusable for a block of this order"),
    ("polluted pageblocks", "share of all pageblocks that are polluted"),
    ("F_i(", "cause of a failure: 0 lack of memory, 1 fragmentation"),
    ("fallbacks", "blocks taken from the list of another migratetype"),
    ("read again", "refaults: reclaimed pages that were accessed again"),
    ("failed allocations", "pages whose allocation failed"),
    ("compilations", "programs of the load that exited"),
];

/// Returns an explanation of those of these figures that need one.
pub(super) fn write_glossary<'r>(
    output: &mut TextReport,
    rows: impl Iterator<Item = &'r MeasureEffects> + Clone,
) {
    let there = FIGURE_TERMS.iter().filter(|(begin, _)| rows.clone().any(|row| row.name.starts_with(begin)));
    let mut explanations: Vec<String> = there
        .map(|(begin, meaning)| match begin.strip_suffix('(') {
            Some(name) => format!("{name}: {meaning}"),
            None => format!("{begin}: {meaning}"),
        })
        .collect();
    if rows.clone().any(|row| row.name.starts_with("F_u(") && row.name.ends_with(" at the end")) {
        explanations.push("F_u at the end: after the attempts, counting their pages as free".to_owned());
    }
    if !explanations.is_empty() {
        output.add_gap();
        output.add_dim_text(&explanations.join("; "));
    }
}

/// Figure with the same value in every run: its name and value.
pub(super) struct UnchangedFigure {
    name: String,
    value: String,
}

/// Removes figures with one value in all of several runs; in a single run nothing varies.
pub(super) fn take_unchanged(
    experiment: &Experiment,
    comparison: &mut ExperimentEffects,
) -> Vec<UnchangedFigure> {
    let mut unchanged_figures: Vec<UnchangedFigure> = Vec::new();
    if experiment.trials.len() < 2 {
        return unchanged_figures;
    }
    let groups = comparison.workloads.iter_mut();
    for row in groups.flat_map(|group| group.measures.extract_if(.., |row| is_unchanged(row))) {
        let first = row.variants.iter().find_map(|column| column.values.first());
        let value = first.map_or(String::new(), |number| format_value(*number, &row.unit.0));
        let name = row.key();
        if !unchanged_figures.iter().any(|known| known.name == name && known.value == value) {
            unchanged_figures.push(UnchangedFigure { name, value });
        }
    }
    unchanged_figures
}

fn is_unchanged(row: &MeasureEffects) -> bool {
    let all = || row.variants.iter().flat_map(|column| &column.values).copied();
    let first = all().next();
    row.variants.iter().all(|column| !column.values.is_empty()) && all().all(|value| Some(value) == first)
}

pub(super) fn write_unchanged(output: &mut TextReport, same: &[UnchangedFigure]) {
    if same.is_empty() {
        return;
    }
    let explanations: Vec<String> = same.iter().map(|of| format!("{} {}", of.name, of.value)).collect();
    output.add_gap();
    output.add_dim_paragraph("the same in every run: ", &explanations.join(", "));
}

const MIB: u64 = 1 << 20;
const REST_PHASE: &str = "highalloc at rest";
const COMPILE_PHASE: &str = "hugetlb during compile";

/// Note on a page with such figures.
pub const PAPER_NOTE: &str = "\u{201c}In the paper\u{201d}: Gorman and Whitcroft, Ottawa Linux Symposium \
                              2006, Figure 11 and sections 8.2 and 10, one run each; its two identical \
                              kernels differ by as much as 72 versus 20 huge pages";

/// Returns the paper's value for a figure of a configuration, in the figure's unit; `None`: the paper has no
/// value, or did not test the configuration.
pub fn paper_value(point: PointView<'_>, phase: &str, name: &str) -> Option<f64> {
    let (cell, scheme) = (point.workload, point.scheme);
    if !cell.parameters.is_empty() {
        return None;
    }
    let load = cell.load.as_str();
    match cell.machine.as_str() {
        "x86" if load == "hugetlb-capability" && (phase, name) == (COMPILE_PHASE, "huge pages") => {
            // Section 10: one test more than in Figure 11, and other figures.
            let column = ["standard", "zone", "zone+linear"].iter().position(|of| *of == scheme)?;
            let is_usual = column == 0 || cell.kernelcore.is_none_or(|core| core == 1024 * MIB);
            is_usual.then(|| POOL_UNDER_LOAD[column] as f64)
        }
        "x86" if matches!(scheme, "list" | "list2") => {
            let column = ["paper-light", "paper"].iter().position(|of| *of == load)?;
            ((phase, name) == (REST_PHASE, "from Normal")).then(|| NORMAL_ZONE_AT_REST[column] as f64)
        }
        "x86" if matches!(load, "paper" | "highalloc" | "hugetlb-capability") => {
            let column = figure_11_column(scheme, cell.kernelcore)?;
            let of = |name: &str| FIGURE_11.iter().find(|row| (row.phase, row.name) == (phase, name));
            match name {
                "success" => Some(of("huge pages")?.cells[column] as f64 / HUGE_PAGES_POSSIBLE as f64),
                _ => Some(of(name)?.cells[column] as f64),
            }
        }
        "ppc64" if load == "paper" && scheme == "zone" => {
            let is_half = cell.kernelcore.is_none_or(|core| core == 2048 * MIB);
            let is_it = is_half && (phase, name) == (REST_PHASE, "F_u(12) at the end");
            is_it.then(|| PPC64_UNUSABLE as f64 / 100.0)
        }
        _ => None,
    }
}

/// Column of Figure 11: clean, zone-0MB, zone-1024MB.
fn figure_11_column(scheme: &str, kernelcore: Option<u64>) -> Option<usize> {
    match (scheme, kernelcore) {
        ("standard", _) => Some(0),
        ("zone", Some(core)) if core == 1536 * MIB => Some(1),
        ("zone", None) => Some(2),
        ("zone", Some(core)) if core == 1024 * MIB => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::simulation::SimulatedWorkload;

    use super::*;

    fn workload(machine: &str, load: &str, kernelcore: Option<u64>) -> SimulatedWorkload {
        SimulatedWorkload {
            machine: machine.to_owned(),
            kernelcore: kernelcore.map(|mib| mib * MIB),
            load: load.to_owned(),
            parameters: Vec::new(),
        }
    }

    fn point<'p>(workload: &'p SimulatedWorkload, scheme: &'p str) -> PointView<'p> {
        PointView { workload, scheme, values: &[], lists: &[], zones: &[] }
    }

    #[test]
    fn the_papers_cells_are_found_where_the_configuration_is_its_own() {
        const FIRST: &str = "highalloc under load, pass 1";
        for (machine, scheme, load, core, phase, name, expected) in [
            ("x86", "standard", "highalloc", None, FIRST, "huge pages", Some(72.0)),
            ("x86", "standard", "paper", Some(1024), FIRST, "from HighMem", Some(66.0)),
            ("x86", "zone", "highalloc", None, FIRST, "huge pages", Some(82.0)),
            ("x86", "zone", "highalloc", Some(1536), FIRST, "huge pages", Some(20.0)),
            ("x86", "zone", "highalloc", Some(768), FIRST, "huge pages", None),
            ("x86", "zone", "highalloc-light", None, FIRST, "huge pages", None),
            ("x86", "zone+linear", "highalloc", None, FIRST, "huge pages", None),
            ("x86", "zone+linear", "hugetlb-capability", None, COMPILE_PHASE, "huge pages", Some(41.0)),
            ("x86", "standard", "hugetlb-capability", None, COMPILE_PHASE, "huge pages", Some(6.0)),
            ("x86", "standard", "paper", None, COMPILE_PHASE, "huge pages", Some(5.0)),
            ("x86", "list", "paper-light", None, REST_PHASE, "from Normal", Some(119.0)),
            ("x86", "list", "paper", None, REST_PHASE, "from Normal", Some(77.0)),
            ("x86", "list2", "paper", None, REST_PHASE, "from Normal", Some(77.0)),
            ("x86", "list3", "paper", None, REST_PHASE, "from Normal", None),
            ("x86", "list", "paper", None, REST_PHASE, "huge pages", None),
            ("ppc64", "zone", "paper", None, REST_PHASE, "F_u(12) at the end", Some(0.66)),
            ("ppc64", "standard", "paper", None, REST_PHASE, "F_u(12) at the end", None),
            ("16G", "standard", "highalloc", None, FIRST, "huge pages", None),
        ] {
            let workload = workload(machine, load, core);
            assert_eq!(
                paper_value(point(&workload, scheme), phase, name),
                expected,
                "{machine} {scheme} {load} {phase}/{name}"
            );
        }
        let usual = workload("x86", "highalloc", None);
        let share = paper_value(point(&usual, "standard"), REST_PHASE, "success").unwrap();
        // The paper gives 29 %.
        assert_eq!((share * 100.0).round(), 29.0);
        let changed = SimulatedWorkload { parameters: vec![("builds".to_owned(), 7)], ..usual };
        assert_eq!(paper_value(point(&changed, "standard"), FIRST, "huge pages"), None);
    }
}
