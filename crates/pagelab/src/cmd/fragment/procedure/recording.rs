//! `-o FILE`: the scores of a procedure, its steps, and free blocks and use over time.

use std::path::Path;

use pagelab_host::fast::FastSnapshot;
use pagelab_metrics::known_scores::{Phase, scores};
use pagelab_model::run::{Event, StreamHead, Unit};
use pagelab_model::{BuddyInfo, Snapshot};

use crate::cmd::fragment::recording::Recording as Series;
use crate::exit::Failure;

/// A run file with series, and beside them events and scores.
pub struct Recording(Series);

impl Recording {
    /// Makes the file.
    pub fn begin(
        path: &Path,
        seed: u64,
        snapshot: &Snapshot,
        fast: &FastSnapshot,
    ) -> Result<Recording, Failure> {
        Series::begin(path, seed, snapshot, fast).map(Recording)
    }

    /// A row of the series.
    pub fn sample(&mut self, fast: &FastSnapshot) {
        self.0.sample(fast);
    }

    /// A step.
    pub fn event(&mut self, text: &str) {
        self.0.with(|writer, at_ns| {
            writer.event(&Event { at_ns, kind: "procedure".to_owned(), text: text.to_owned() })
        });
    }

    /// F_u of each zone by order, as samples in thousandths.
    pub fn score(&mut self, phase: Phase, thp: bool, free: &BuddyInfo) {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let huge = if thp { "yes" } else { "no" };
        self.0.with(|writer, at_ns| {
            for zone in &free.zones {
                for (order, permille) in scores(&zone.areas).into_iter().enumerate() {
                    let stream = writer.stream(&StreamHead {
                        name: "unusable index".to_owned(),
                        unit: Unit::PERMILLE.into(),
                        labels: vec![
                            label("huge pages", huge),
                            label("phase", phase.name()),
                            label("zone", &format!("{}/{}", zone.key.node.0, zone.key.zone)),
                            label("order", &order.to_string()),
                        ],
                    })?;
                    writer.sample(stream, at_ns, f64::from(permille))?;
                }
            }
            Ok(())
        });
    }

    /// Closes the file.
    pub fn finish(self, stopped_by: Option<&str>) {
        self.0.finish(stopped_by);
    }
}
