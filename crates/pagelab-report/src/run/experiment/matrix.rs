//! A factorial experiment at a glance: every variant by the measures that distinguish mappings, as multiples
//! of the baseline.

use pagelab_metrics::effect::{MeasureEffects, WorkloadEffects};
use pagelab_model::experiment::{Plan, measures};
use pagelab_model::run::Run;

use super::super::clip_name;
use crate::effect_text::format_ratio;
use crate::quantity_format::format_quantity;
use crate::text_report::{RowTable, TextReport};

/// With fewer variants there is a line for each instead.
const VARIANTS_MIN: usize = 6;
/// Measures for columns, the most informative first, as many as fit. Of several names, the first that the run
/// has: of the measured phase if possible, of the process otherwise. The second element is the column's
/// title.
const COLUMN_MEASURES: [(&[&str], &str); 14] = [
    (&["phase.wall", measures::WALL], "time"),
    (&["phase.cpu.system", measures::CPU_SYSTEM], "kernel"),
    (&["rusage.minflt"], "minor"),
    (&["phase.rusage.minflt", "figure.access_minor_faults"], "access"),
    (&["phase.rusage.majflt", "rusage.majflt"], "major"),
    (&["phase.counter.dTLB-load-misses", "counter.dTLB-load-misses"], "dTLB"),
    (&["phase.counter.L1-dcache-load-misses", "counter.L1-dcache-load-misses"], "L1d"),
    // Never in the column of a counter.
    (&["model.tlb-misses"], "modelled"),
    (&["phase.cpu.user", measures::CPU_USER], "user"),
    (&[measures::PEAK_MEMORY], "peak"),
    (&["phase.rusage.nivcsw", "rusage.nivcsw"], "invol"),
    (&["phase.rusage.nvcsw", "rusage.nvcsw"], "vol"),
    (&["phase.rusage.inblock", "rusage.inblock"], "read"),
    (&["phase.rusage.oublock", "rusage.oublock"], "written"),
];
/// Columns of a value of the baseline with its unit, at most.
const VALUE_MAX: usize = 9;
/// Columns of a variant's name, at most.
const NAME_MAX: usize = 22;

pub(super) fn write_matrix(output: &mut TextReport, run: &Run, plan: &Plan, effects: &WorkloadEffects) {
    if plan.variants.len() < VARIANTS_MIN {
        return;
    }
    let known = |name: &str| {
        let measure = effects.measure(name).filter(|measure| measure.absent.is_none())?;
        measure.variants.iter().any(|of| of.statistics.is_some_and(|of| of.median != 0.0)).then_some(measure)
    };
    let mut columns: Vec<(&str, &MeasureEffects)> = COLUMN_MEASURES
        .iter()
        .filter_map(|&(names, title)| Some((title, names.iter().copied().find_map(known)?)))
        .collect();
    while columns.len() >= 2 && !write_table(output, run, plan, effects, &columns) {
        columns.pop();
    }
    if columns.len() < 2 {
        return;
    }
    let names: Vec<String> = columns.iter().map(|(title, of)| format!("{title} {}", of.name)).collect();
    output.add_dim_indented(&format!(
        "relative to {}, whose row shows its values; + where its value is zero; · ░ ▒ ▓: at least 1.25, 2, \
         4, 16 times more or less; columns: {}",
        output
            .style()
            .clip_name(plan.baseline.map_or("", |baseline| &plan.variants[baseline].name), NAME_MAX),
        names.join(", ")
    ));
}

fn write_table(
    output: &mut TextReport,
    run: &Run,
    plan: &Plan,
    effects: &WorkloadEffects,
    columns: &[(&str, &MeasureEffects)],
) -> bool {
    let page_size = run.manifest.machine.page_size;
    let mut table =
        RowTable::<usize>::new().left("all variants", |&at| clip_name(&plan.variants[at].name, NAME_MAX));
    for &(title, measure) in columns {
        table = table.right(title, move |&at| match plan.baseline {
            Some(baseline) if at == baseline => measure.median(at).map_or("–".to_owned(), |of| {
                let told = format_quantity(of, &measure.unit, page_size);
                if told.chars().count() > VALUE_MAX { format_short(of) } else { told }
            }),
            _ if is_variant_void(effects, at) => "void".to_owned(),
            baseline => baseline.map_or(String::new(), |of| ratio_cell(measure, of, at)),
        });
    }
    let others = (0..plan.variants.len()).filter(|&at| Some(at) != plan.baseline);
    let rows = table.rows(plan.baseline.into_iter().chain(others));
    output.add_table_if_fits(2, &table.columns(), &rows)
}

/// Returns whether a variant's settings were not applied, so that its multiples are invalid.
fn is_variant_void(effects: &WorkloadEffects, variant: usize) -> bool {
    let effect = effects.primary_measure().and_then(|judged| judged.effect(variant));
    effect.is_some_and(|effect| effect.verdict.is_void())
}

/// Formats a multiple with a sign for its distance from 1.
fn ratio_cell(measure: &MeasureEffects, baseline: usize, variant: usize) -> String {
    let (Some(value), Some(base)) = (measure.median(variant), measure.median(baseline)) else {
        return "–".to_owned();
    };
    match (value, base) {
        (0.0, 0.0) => "= ".to_owned(),
        (_, 0.0) => format!("+{}▓", format_short(value)),
        (0.0, _) => "0▓".to_owned(),
        _ => {
            let ratio = value / base;
            format!("{}{}", format_ratio(ratio, None), ratio_shade(ratio))
        }
    }
}

fn format_short(count: f64) -> String {
    match count {
        _ if count >= 9.95e5 => format!("{:.1}M", count / 1e6),
        _ if count >= 9_950.0 => format!("{:.0}k", count / 1e3),
        _ => format!("{count:.0}"),
    }
}

fn ratio_shade(ratio: f64) -> char {
    match ratio.max(ratio.recip()) {
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
        for (ratio, expect) in
            [(1.0, ' '), (1.3, '·'), (0.7, '·'), (3.0, '░'), (0.2, '▒'), (20.0, '▓'), (0.0, '▓')]
        {
            assert_eq!(ratio_shade(ratio), expect, "{ratio}");
        }
        assert_eq!(
            [format_short(7.0), format_short(262_144.0), format_short(2_100_000.0)],
            ["7", "262k", "2.1M"]
        );
    }
}
