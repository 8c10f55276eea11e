//! Hardware and software counters without huge pages and with the plan, side by side.

use pagelab_metrics::effect::{Effects, MeasureEffects};
use pagelab_model::experiment::{Experiment, measures};
use pagelab_model::run::Run;
use pagelab_model::tune::{On, Tune};

use super::super::{View, clipped};
use super::NAME_MAX;
use crate::effects::{fewer, value};
use crate::text::{Column, Page};

/// Counters that the summary shows.
const SHOWN: usize = 8;

pub(super) fn show(page: &mut Page, run: &Run, experiment: &Experiment, tune: &Tune, view: View) {
    let (Some(none), Some(plan)) = (tune.arm(On::Nothing), tune.arm(On::Plan)) else { return };
    let effects = Effects::of(experiment);
    let Some(found) = effects.workloads.first() else { return };
    let median = |of: &MeasureEffects, at: usize| Some(of.variants.get(at)?.statistics?.median);
    let row = |of: &MeasureEffects| {
        let (before, after) = (median(of, none)?, median(of, plan)?);
        if before == 0.0 && after == 0.0 {
            return None;
        }
        let told = |number: f64| value(number, &of.unit, run.manifest.machine.page_size);
        let change = if before > 0.0 { fewer(after / before) } else { String::new() };
        let name = of.name.strip_prefix(measures::COUNTER).unwrap_or(&of.name);
        Some(vec![clipped(name, 2 * NAME_MAX), told(before), told(after), change])
    };
    let counters = found.measures.iter().filter(|of| of.name.starts_with(measures::COUNTER));
    let mut rows: Vec<Vec<String>> = counters.filter_map(row).collect();
    if rows.is_empty() {
        return;
    }
    let left_out = if view.verbose { 0 } else { rows.len().saturating_sub(SHOWN) };
    rows.truncate(rows.len() - left_out);
    page.gap();
    let columns =
        [Column::left("counter"), Column::right("before"), Column::right("with the plan"), Column::left("")];
    if !page.table_if_it_fits(2, &columns, &rows) {
        let narrow: Vec<Vec<String>> = rows.iter().map(|row| row[..3].to_vec()).collect();
        page.table(2, &columns[..3], &narrow);
    }
    if left_out > 0 {
        page.hanging_dim("  ", &format!("{left_out} more with -v"));
    }
}
