//! A simulated study, in the report of a run.

use pagelab_model::run::Run;

use super::View;
use crate::style::Style;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    run.study.as_deref().map_or(String::new(), |study| crate::study::render(study, view.verbose, style))
}
