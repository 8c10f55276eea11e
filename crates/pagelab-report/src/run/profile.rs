//! Where TLB misses cost time, in the report of a run.

use pagelab_model::run::Run;

use super::View;
use crate::profile;
use crate::style::Style;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let Some(of) = &run.profile else { return String::new() };
    // A tuning shows its regions before and under the plan.
    if run.tune.is_some() && !view.verbose {
        return String::new();
    }
    let shown = profile::View { verbose: view.verbose, by_cell: false };
    profile::render(of, &run.name, shown, style)
}
