//! The knee of a curve over a falling limit: Kneedle (Satopaa, Albrecht, Irwin and Raghavan 2011, "Finding a
//! 'Kneedle' in a Haystack") over points that are few and already smooth, by the monotone fit.

use super::Place;
use crate::effect::PAIRS_MIN;

/// Limits under which it lived that a knee needs: two ends, and two to choose from.
const PLACES_MIN: usize = 4;
/// The least distance from the straight line, as a part of the picture: less is a line with noise.
const DISTANCE_MIN: f64 = 0.1;

/// Why there is no knee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKnee {
    /// Fewer rounds than a verdict needs.
    TooFewRounds,
    /// Fewer than four limits under which it lived.
    TooFewLimits,
    /// It never loses more than the loss that is asked for.
    NoLoss,
    /// It loses evenly: each step as much as the one before, or less.
    Straight,
}

/// The place that lies furthest below the straight line from the smallest limit under which it lives to the
/// largest, in a picture in which both logarithms, of the limit and of the time, go from 0 to 1.
pub(super) fn of(places: &[Place], loss: f64, rounds: usize) -> Result<usize, NoKnee> {
    if rounds < PAIRS_MIN {
        return Err(NoKnee::TooFewRounds);
    }
    let point = |(at, place): (usize, &Place)| Some((at, (place.limit?.0 as f64).ln(), place.fitted?.ln()));
    // Below a limit under which it died a time says nothing of the curve.
    let from = places.iter().rposition(|place| place.dead > 0).map_or(0, |at| at + 1);
    let points: Vec<(usize, f64, f64)> = places.iter().enumerate().skip(from).filter_map(point).collect();
    let (Some(&(_, left, top)), Some(&(_, right, bottom))) = (points.first(), points.last()) else {
        return Err(NoKnee::TooFewLimits);
    };
    if points.len() < PLACES_MIN {
        return Err(NoKnee::TooFewLimits);
    }
    if top - bottom <= loss.ln_1p() {
        return Err(NoKnee::NoLoss);
    }
    let distance = |&(_, x, y): &(usize, f64, f64)| {
        let (across, up) = ((x - left) / (right - left), (y - bottom) / (top - bottom));
        1.0 - across - up
    };
    let furthest = points.iter().max_by(|one, other| distance(one).total_cmp(&distance(other)));
    furthest.filter(|point| distance(point) >= DISTANCE_MIN).map(|point| point.0).ok_or(NoKnee::Straight)
}
