//! A crossing at a glance: every variant by the measures that tell mappings apart, as multiples of the
//! baseline.

use pagelab_metrics::effect::{MeasureEffects, Verdict, WorkloadEffects};
use pagelab_model::experiment::{Plan, measures};
use pagelab_model::run::Run;

use super::super::clipped;
use crate::effects::{ratio, value};
use crate::text::{Column, Page};

/// Fewer variants are told one by one.
const VARIANTS_MIN: usize = 6;
/// Measures for columns, the most telling first: as many as fit. Of several names the first that the run has:
/// of the measured phase where it has that, of the whole process otherwise. The second is the column's title.
const COLUMNS: [(&[&str], &str); 14] = [
    (&["phase.wall", measures::WALL], "time"),
    (&["phase.cpu.system", measures::CPU_SYSTEM], "kernel"),
    (&["rusage.minflt"], "minor"),
    (&["phase.rusage.minflt", "figure.access_minor_faults"], "access"),
    (&["phase.rusage.majflt", "rusage.majflt"], "major"),
    (&["phase.counter.dTLB-load-misses", "counter.dTLB-load-misses"], "dTLB"),
    (&["phase.counter.L1-dcache-load-misses", "counter.L1-dcache-load-misses"], "L1d"),
    // Never in a counter's column.
    (&["model.tlb-misses"], "modelled"),
    (&["phase.cpu.user", measures::CPU_USER], "user"),
    (&[measures::PEAK], "peak"),
    (&["phase.rusage.nivcsw", "rusage.nivcsw"], "invol"),
    (&["phase.rusage.nvcsw", "rusage.nvcsw"], "vol"),
    (&["phase.rusage.inblock", "rusage.inblock"], "read"),
    (&["phase.rusage.oublock", "rusage.oublock"], "written"),
];
/// Columns that a value of the baseline may take with its unit.
const VALUE_MAX: usize = 9;
/// Columns that a variant's name may take.
const NAME_MAX: usize = 22;

pub(super) fn show(page: &mut Page, run: &Run, plan: &Plan, found: &WorkloadEffects) {
    if plan.variants.len() < VARIANTS_MIN {
        return;
    }
    let known = |name: &str| {
        let measure = found.measure(name).filter(|measure| measure.absent.is_none())?;
        measure.variants.iter().any(|of| of.statistics.is_some_and(|of| of.median != 0.0)).then_some(measure)
    };
    let mut columns: Vec<(&str, &MeasureEffects)> = COLUMNS
        .iter()
        .filter_map(|&(names, title)| Some((title, names.iter().copied().find_map(known)?)))
        .collect();
    while columns.len() >= 2 && !table(page, run, plan, found, &columns) {
        columns.pop();
    }
    if columns.len() < 2 {
        return;
    }
    let names: Vec<String> = columns.iter().map(|(title, of)| format!("{title} {}", of.name)).collect();
    page.hanging_dim(
        "  ",
        &format!(
            "multiples of {}, whose own values stand in its line; + where it has none; · ░ ▒ ▓ from 1.25, 2, \
             4, 16 times more or less: {}",
            page.style().one_line(&clipped(&plan.variants[plan.baseline].name, NAME_MAX)),
            names.join(", ")
        ),
    );
}

fn table(
    page: &mut Page,
    run: &Run,
    plan: &Plan,
    found: &WorkloadEffects,
    columns: &[(&str, &MeasureEffects)],
) -> bool {
    let page_size = run.manifest.machine.page_size;
    let mut heads = vec![Column::left("all variants")];
    heads.extend(columns.iter().map(|(title, _)| Column::right(title)));
    let first = std::iter::once(plan.baseline);
    let others = (0..plan.variants.len()).filter(|&at| at != plan.baseline);
    let rows: Vec<Vec<String>> = first
        .chain(others)
        .map(|at| {
            let mut row = vec![clipped(&plan.variants[at].name, NAME_MAX)];
            row.extend(columns.iter().map(|(_, measure)| match at == plan.baseline {
                true => median(measure, at).map_or("–".to_owned(), |of| {
                    let told = value(of, &measure.unit, page_size);
                    if told.chars().count() > VALUE_MAX { short(of) } else { told }
                }),
                false if is_void(found, at) => "void".to_owned(),
                false => cell(measure, plan.baseline, at),
            }));
            row
        })
        .collect();
    page.table_if_it_fits(2, &heads, &rows)
}

fn median(measure: &MeasureEffects, variant: usize) -> Option<f64> {
    Some(measure.variants.get(variant)?.statistics?.median)
}

/// Whether a variant was not what it was to be, so that nothing is a multiple because of it.
fn is_void(found: &WorkloadEffects, variant: usize) -> bool {
    let effect = found.judged().and_then(|judged| judged.variants.get(variant)?.effect.as_ref().ok());
    effect
        .is_some_and(|effect| matches!(effect.verdict, Verdict::NotHuge { .. } | Verdict::NotApplied { .. }))
}

/// A multiple with a sign for how far it is from 1.
fn cell(measure: &MeasureEffects, baseline: usize, variant: usize) -> String {
    let (Some(of), Some(base)) = (median(measure, variant), median(measure, baseline)) else {
        return "–".to_owned();
    };
    match (of, base) {
        (0.0, 0.0) => "= ".to_owned(),
        (_, 0.0) => format!("+{}▓", short(of)),
        (0.0, _) => "0▓".to_owned(),
        _ => {
            let times = of / base;
            format!("{}{}", ratio(times, None), shade(times))
        }
    }
}

/// A count in few signs.
fn short(count: f64) -> String {
    match count {
        _ if count >= 9.95e5 => format!("{:.1}M", count / 1e6),
        _ if count >= 9_950.0 => format!("{:.0}k", count / 1e3),
        _ => format!("{count:.0}"),
    }
}

fn shade(times: f64) -> char {
    match times.max(times.recip()) {
        far if far >= 16.0 => '▓',
        far if far >= 4.0 => '▒',
        far if far >= 2.0 => '░',
        far if far >= 1.25 => '·',
        _ => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shade_goes_with_the_distance_from_one_both_ways() {
        for (times, expect) in
            [(1.0, ' '), (1.3, '·'), (0.7, '·'), (3.0, '░'), (0.2, '▒'), (20.0, '▓'), (0.0, '▓')]
        {
            assert_eq!(shade(times), expect, "{times}");
        }
        assert_eq!([short(7.0), short(262_144.0), short(2_100_000.0)], ["7", "262k", "2.1M"]);
    }
}
