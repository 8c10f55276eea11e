//! OOM score of a process that holds memory on purpose: the OOM killer chooses it first.

use std::fs;

use pagelab_host::paths::SELF_OOM_SCORE_ADJ;
use pagelab_model::{Absence, AbsenceReason, Reading};

/// The highest `oom_score_adj`: the score is the share of memory in thousandths plus this (mm/oom_kill.c,
/// `oom_badness`). Raising it requires no privilege, and neither does restoring it.
pub const OOM_SCORE_ADJ_MAX: &str = "1000";

/// This process is first in line for the OOM killer until the value is dropped.
#[derive(Debug)]
pub struct OomScoreGuard {
    previous_score: String,
}

impl OomScoreGuard {
    /// Raises the score of this process.
    pub fn new() -> Reading<OomScoreGuard> {
        let failed = |error: std::io::Error| {
            Absence::new(SELF_OOM_SCORE_ADJ, AbsenceReason::Failed, error.to_string())
        };
        let before = fs::read_to_string(SELF_OOM_SCORE_ADJ).map_err(failed)?.trim().to_owned();
        fs::write(SELF_OOM_SCORE_ADJ, OOM_SCORE_ADJ_MAX).map_err(failed)?;
        Ok(OomScoreGuard { previous_score: before })
    }

    /// The score before.
    pub fn previous_score(&self) -> &str {
        &self.previous_score
    }
}

impl Drop for OomScoreGuard {
    fn drop(&mut self) {
        // If the old score cannot be written, this process alone stays more likely to be killed, and it is
        // about to end.
        let _ = fs::write(SELF_OOM_SCORE_ADJ, &self.previous_score);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_put_back() {
        let score = || fs::read_to_string(SELF_OOM_SCORE_ADJ).unwrap();
        let before = score();
        let offered = OomScoreGuard::new().unwrap();
        assert_eq!(score().trim(), OOM_SCORE_ADJ_MAX);
        drop(offered);
        assert_eq!(score(), before);
    }
}
