//! With `-v`: the measures of every variant by what gives them, what is absent once each with its reason, and
//! what ran. Measures that no variant changes are counted, and shown with `-vv`.

mod groups;

use pagelab_metrics::effect::{Effects, MeasureEffects, WorkloadEffects};
use pagelab_model::PageSize;
use pagelab_model::experiment::{Experiment, Plan, measures};
use pagelab_model::run::Run;

use super::super::clipped;
use super::{NAME_MAX, TEXT_MAX};
use crate::effects::{interval_or_none, measure_name, ratio, value, verdict_of};
use crate::style::percent;
use crate::text::{Column, Page};

pub(super) fn show(page: &mut Page, run: &Run, experiment: &Experiment, effects: &Effects, all: bool) {
    let page_size = run.manifest.machine.page_size;
    let plan = &experiment.plan;
    for found in &effects.workloads {
        let Some(head) = plan.workloads.get(found.workload) else { continue };
        page.heading(&format!("{}: all measures", clipped(&head.name, NAME_MAX)));
        let shown = Shown::of(plan, found, all);
        baseline(page, plan, &shown, page_size);
        for variant in (0..plan.variants.len()).filter(|&variant| variant != plan.baseline) {
            self::variant(page, plan, &shown, variant, page_size);
        }
        if shown.same > 0 {
            let text = match shown.same {
                1 => "1 measure that no variant changes is not shown: -vv".to_owned(),
                same => format!("{same} measures that no variant changes are not shown: -vv"),
            };
            page.hanging_dim("  ", &text);
        }
        absent(page, found);
    }
    what_ran(page, plan);
}

/// So many measures need no names of groups between them.
const UNGROUPED_MAX: usize = 12;

/// The measures that are shown, those that belong together side by side.
struct Shown<'a> {
    groups: Vec<(&'static str, Vec<&'a MeasureEffects>)>,
    /// Measures that are left out because no variant changes them.
    same: usize,
}

impl<'a> Shown<'a> {
    fn of(plan: &Plan, found: &'a WorkloadEffects, all: bool) -> Shown<'a> {
        let mut shown = Shown { groups: Vec::new(), same: 0 };
        let judged = found.judged().map(|judged| judged.name.as_str());
        for measure in found.measures.iter().filter(|measure| measure.absent.is_none()) {
            let is_judged = judged == Some(measure.name.as_str());
            if !all && !is_judged && groups::is_same(measure, plan.baseline) {
                shown.same += 1;
                continue;
            }
            let group = groups::of(&measure.name);
            match shown.groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, members)) => members.push(measure),
                None => shown.groups.push((group, vec![measure])),
            }
        }
        shown
    }

    /// A row for each measure that has one, below the name of its group.
    fn rows(&self, row: impl Fn(&MeasureEffects) -> Option<Vec<String>>) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (group, members) in &self.groups {
            let told: Vec<Vec<String>> = members.iter().filter_map(|measure| row(measure)).collect();
            let Some(cells) = told.first().map(Vec::len) else { continue };
            let mut head = vec![String::new(); cells];
            head[0] = format!("— {group}");
            if self.groups.iter().map(|(_, members)| members.len()).sum::<usize>() > UNGROUPED_MAX {
                rows.push(head);
            }
            rows.extend(told);
        }
        rows
    }
}

fn name(measure: &MeasureEffects) -> String {
    clipped(&measure_name(&measure.name), NAME_MAX)
}

fn baseline(page: &mut Page, plan: &Plan, shown: &Shown<'_>, page_size: PageSize) {
    let of = plan.baseline;
    let head = &plan.variants[of].name;
    page.hanging("  ", &format!("{} (baseline)", page.style().one_line(&clipped(head, NAME_MAX))));
    let rows = shown.rows(|measure| {
        let statistics = measure.variants.get(of)?.statistics?;
        let spread = statistics.relative_spread().map_or("–".to_owned(), percent);
        let number = |number: f64| value(number, &measure.unit, page_size);
        let numbers = [statistics.median, statistics.min, statistics.max].map(number);
        Some([&[name(measure), statistics.count.to_string()][..], &numbers, &[spread]].concat())
    });
    let columns = [
        Column::left("measure"),
        Column::right("n"),
        Column::right("median"),
        Column::right("min"),
        Column::right("max"),
        Column::right("spread"),
    ];
    table(page, &columns, &rows, &[3, 4]);
}

fn variant(page: &mut Page, plan: &Plan, shown: &Shown<'_>, of: usize, page_size: PageSize) {
    let names =
        [of, plan.baseline].map(|at| page.style().one_line(&clipped(&plan.variants[at].name, NAME_MAX)));
    page.hanging("  ", &format!("{} against {}", names[0], names[1]));
    let rows = shown.rows(|measure| {
        let variant = measure.variants.get(of)?;
        let median = variant.statistics.map(|found| value(found.median, &measure.unit, page_size));
        let [times, within, says] = match &variant.effect {
            Ok(effect) => [
                ratio(effect.ratio, effect.interval),
                interval_or_none(effect.interval),
                match measure.name.starts_with(measures::MODEL) {
                    true => "modelled once, no interval".to_owned(),
                    false => verdict_of(effect.verdict, effect.better, effect.ratio),
                },
            ],
            Err(absence) => ["–".to_owned(), "–".to_owned(), clipped(absence.reason(), NAME_MAX)],
        };
        Some(vec![name(measure), median.unwrap_or("–".to_owned()), times, within, says])
    });
    let columns = [
        Column::left("measure"),
        Column::right("median"),
        Column::right("ratio"),
        Column::right("95 % interval"),
        Column::left("verdict"),
    ];
    table(page, &columns, &rows, &[3]);
}

/// The table, with fewer columns where it is too wide, or facts in a row.
fn table(page: &mut Page, columns: &[Column<'_>], rows: &[Vec<String>], dropped: &[usize]) {
    if rows.is_empty() {
        page.hanging_dim("    ", "nothing was measured");
        return;
    }
    for drop in 0..=dropped.len() {
        let kept: Vec<usize> = (0..columns.len()).filter(|at| !dropped[..drop].contains(at)).collect();
        let heads: Vec<Column<'_>> = kept.iter().map(|&at| columns[at]).collect();
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| kept.iter().map(|&at| row[at].clone()).collect()).collect();
        if page.table_if_it_fits(4, &heads, &cells) {
            return;
        }
    }
    rows.iter().for_each(|row| page.facts("    ", row, "  "));
}

/// Measures that no trial has, those of one reason together.
fn absent(page: &mut Page, found: &WorkloadEffects) {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for measure in &found.measures {
        let Some(absence) = &measure.absent else { continue };
        let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
        let why = format!("{}: {}{way_out}", absence.source, absence.reason());
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name(measure)),
            None => reasons.push((why, vec![name(measure)])),
        }
    }
    for (why, names) in reasons {
        let text = format!("{} ({})", names.join(", "), clipped(&why, TEXT_MAX));
        page.hanging("  not available: ", &page.style().one_line(&text));
    }
}

fn what_ran(page: &mut Page, plan: &Plan) {
    page.heading("what ran");
    for head in &plan.workloads {
        let command = head.command.join(" ");
        let first = format!("  {}  ", page.style().one_line(&clipped(&head.name, NAME_MAX)));
        page.hanging(&first, &page.style().one_line(&clipped(&command, TEXT_MAX)));
        if !head.generator.is_empty() {
            page.hanging_dim("    ", &page.style().one_line(&clipped(&head.generator, TEXT_MAX)));
        }
    }
    for variant in &plan.variants {
        let settings: Vec<String> =
            variant.settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let text = if settings.is_empty() { "nothing is set".to_owned() } else { settings.join(", ") };
        let first = format!("  {}  ", page.style().one_line(&clipped(&variant.name, NAME_MAX)));
        page.hanging(&first, &page.style().one_line(&clipped(&text, TEXT_MAX)));
    }
}
