//! Activity of the host while a trial runs in a guest: other programs make the trial slower, and the guest
//! cannot see them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelab_experiment::trial::ActivitySample;
use pagelab_model::experiment::{Flag, Trial};

/// The processes of the guests that run now: their work is ours, in whatever lane.
#[derive(Debug, Default)]
pub struct GuestProcesses(Mutex<BTreeSet<u32>>);

impl GuestProcesses {
    /// Adds a QEMU.
    pub fn add(&self, qemu: u32) {
        self.lock().insert(qemu);
    }

    /// Removes a QEMU that was waited for.
    pub fn remove(&self, qemu: u32) {
        self.lock().remove(&qemu);
    }

    /// Reads the activity of the host.
    pub fn read_activity(&self) -> ActivitySample {
        ActivitySample::read_with_children(self.lock().iter().copied())
    }

    /// Flags a trial during which others were busy, unless it was flagged in its guest.
    pub fn flag_busy_host(&self, trial: &mut Trial, before: &ActivitySample) {
        let share = self.read_activity().busy_share_since(before, 0);
        if let Some(share) = share.filter(|_| !trial.flags.iter().any(|flag| flag.kind == Flag::NOT_QUIET)) {
            let text = format!("other processes of the host used {:.0} % of a CPU meanwhile", share * 100.0);
            trial.flags.push(Flag { kind: Flag::NOT_QUIET.to_owned(), text });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
