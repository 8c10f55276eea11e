//! One look at a machine: the very text of `pagelab checkup`, from the same judgement.

use pagelab_metrics::checkup::Checkup;
use pagelab_model::run::Run;

use super::View;
use crate::checkup;
use crate::style::Style;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let Some(snapshot) = &run.snapshot else { return String::new() };
    let view = checkup::View { verbose: view.verbose, paper: false, saved: true };
    checkup::render(snapshot, &Checkup::of(snapshot), view, style)
}
