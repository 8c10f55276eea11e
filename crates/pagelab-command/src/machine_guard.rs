//! The guard of a command that changes this machine, and the report of changes that were not undone.

use pagelab_host::guard::{
    ChangeOutcome, Guard, GuardError, GuardOptions, GuardSite, SignalWatch, UndoOutcome,
};

use crate::output;

/// Opens a guard on this machine. A signal undoes its changes and ends the process.
pub fn open_guard(options: GuardOptions) -> Result<Guard, GuardError> {
    let end = |code, outcomes: &[ChangeOutcome]| output::exit_after_signal(code, "", outcomes);
    let watched = SignalWatch::install(Box::new(end))?;
    Guard::new(&GuardSite::live()?, watched, options)
}

/// Opens a guard on this machine without a handler of signals: its user records them, and ends by itself.
pub fn open_unwatched_guard() -> Result<Guard, GuardError> {
    Guard::new(&GuardSite::live()?, SignalWatch::without_handler(), GuardOptions::default())
}

/// Undoes the changes, and warns about those that could not be undone.
pub fn finish_guard(guard: Guard) {
    for outcome in
        guard.finish().iter().filter(|of| matches!(of.undo, UndoOutcome::LeftUnchanged | UndoOutcome::Failed))
    {
        output::warn(&format!("warning: {} was not restored: {}", outcome.label, outcome.detail));
    }
}
