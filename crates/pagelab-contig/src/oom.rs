//! Whoever holds memory on purpose offers itself to the out-of-memory killer before any other process.

use std::fs;

use pagelab_host::paths::SELF_OOM_SCORE_ADJ;
use pagelab_model::{Absence, AbsentWhy, Reading};

/// The highest `oom_score_adj`. Raising it needs no privilege, and neither does going back to what it was.
const FIRST: &str = "1000";

/// This process is first in line for the OOM killer until the value is dropped.
#[derive(Debug)]
pub struct OfferedFirst {
    before: String,
}

impl OfferedFirst {
    /// Raises the score of this process.
    pub fn new() -> Reading<OfferedFirst> {
        let failed =
            |error: std::io::Error| Absence::new(SELF_OOM_SCORE_ADJ, AbsentWhy::Failed, error.to_string());
        let before = fs::read_to_string(SELF_OOM_SCORE_ADJ).map_err(failed)?.trim().to_owned();
        fs::write(SELF_OOM_SCORE_ADJ, FIRST).map_err(failed)?;
        Ok(OfferedFirst { before })
    }

    /// The score before.
    pub fn before(&self) -> &str {
        &self.before
    }
}

impl Drop for OfferedFirst {
    fn drop(&mut self) {
        // If the old score cannot be written, this process alone stays more likely to be killed, and it is
        // about to end.
        let _ = fs::write(SELF_OOM_SCORE_ADJ, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_put_back() {
        let score = || fs::read_to_string(SELF_OOM_SCORE_ADJ).unwrap();
        let before = score();
        let offered = OfferedFirst::new().unwrap();
        assert_eq!(score().trim(), FIRST);
        drop(offered);
        assert_eq!(score(), before);
    }
}
