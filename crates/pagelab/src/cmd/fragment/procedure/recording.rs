//! `-o FILE`: the scores of a procedure, beside its steps and free blocks and use over time.

use pagelab_metrics::known_scores::{Phase, scores};
use pagelab_metrics::recorded;
use pagelab_model::BuddyInfo;
use pagelab_model::run::{StreamHead, Unit};

use crate::cmd::fragment::recording::Recording;

/// F_u of each zone by order, as samples in thousandths.
pub fn score(recording: &mut Recording, phase: Phase, thp: bool, free: &BuddyInfo) {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let huge = if thp { "yes" } else { "no" };
    recording.with(|writer, at_ns| {
        for zone in &free.zones {
            for (order, permille) in scores(&zone.areas).into_iter().enumerate() {
                let stream = writer.stream(&StreamHead {
                    name: recorded::SCORES.to_owned(),
                    unit: Unit::PERMILLE.into(),
                    labels: vec![
                        label("huge pages", huge),
                        label("phase", phase.name()),
                        label("zone", &format!("{}/{}", zone.key.node.0, zone.key.zone)),
                        label(recorded::SCORES_ORDER, &order.to_string()),
                    ],
                })?;
                writer.sample(stream, at_ns, f64::from(permille))?;
            }
        }
        Ok(())
    });
}
