//! Published fragmentation scores, to compare the shape of a machine's own scores with.
//!
//! They are from a course report on fragmentation and huge pages (Ubuntu 18.04 on a machine with 62.8 GiB;
//! fragmenter of 64 GiB, scored by F_u): memory compacted, then fragmented, then compacted while the
//! fragmenter still holds its memory; without huge pages from a program that the report calls golden and from
//! its own, with huge pages from its own. Heights depend on the machine; shapes should not.

use pagelab_model::{FreeAreas, Order};

use crate::fragmentation_index;
use crate::statistics::{correlation, ranks};

/// The moments of the procedure at which memory is scored, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcedurePhase {
    /// After compaction, before anything is done.
    Compacted,
    /// Fragmented.
    Fragmented,
    /// Compacted while the fragmenter holds its memory.
    CompactedAgain,
}

impl ProcedurePhase {
    /// All three.
    pub const ALL: [ProcedurePhase; 3] =
        [ProcedurePhase::Compacted, ProcedurePhase::Fragmented, ProcedurePhase::CompactedAgain];

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            ProcedurePhase::Compacted => "compacted",
            ProcedurePhase::Fragmented => "fragmented",
            ProcedurePhase::CompactedAgain => "compacted again",
        }
    }
}

/// Orders that the published scores have: 0 to 10.
pub const ORDER_COUNT: usize = 11;

/// One published procedure: F_u of zone Normal in thousandths by order, for the three phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedScores {
    /// Authors of the measurement.
    pub authors: &'static str,
    /// Whether the fragmenter had huge pages.
    pub thp: bool,
    /// By [`ProcedurePhase::ALL`].
    pub permille: [[u16; ORDER_COUNT]; 3],
}

const COMPACTED_PERMILLE: [u16; ORDER_COUNT] = [0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 9];

/// Published scores of zone Normal.
pub const PUBLISHED: [PublishedScores; 3] = [
    PublishedScores {
        authors: "golden",
        thp: false,
        permille: [
            COMPACTED_PERMILLE,
            [0, 4, 17, 38, 65, 98, 141, 185, 243, 307, 378],
            [0, 0, 0, 1, 2, 4, 6, 9, 11, 111, 245],
        ],
    },
    PublishedScores {
        authors: "report",
        thp: false,
        permille: [
            COMPACTED_PERMILLE,
            [0, 3, 11, 30, 87, 136, 174, 186, 248, 304, 406],
            [0, 5, 16, 39, 107, 165, 209, 226, 241, 259, 272],
        ],
    },
    PublishedScores {
        authors: "report",
        thp: true,
        permille: [
            [0, 0, 0, 0, 0, 1, 2, 3, 5, 8, 18],
            [0, 7, 37, 223, 315, 560, 788, 918, 960, 1000, 1000],
            [0, 25, 54, 90, 126, 210, 315, 379, 428, 442, 442],
        ],
    },
];

/// A zone's F_u by order in thousandths, as the kernel prints it.
pub fn unusable_permille_by_order(areas: &FreeAreas) -> Vec<u16> {
    let order = |order: usize| Order(u8::try_from(order).unwrap_or(u8::MAX));
    (0..areas.orders())
        .map(|at| u16::try_from(fragmentation_index::unusable_permille(areas, order(at))).unwrap_or(1000))
        .collect()
}

/// One question about two procedures, with its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeCheck {
    /// Question of the comparison.
    pub question: String,
    /// Whether the shapes agree in this.
    pub holds: bool,
    /// The numbers behind it: ours, then theirs.
    pub numbers: String,
}

/// Rank correlation from which two curves count as alike.
const RANKS_MIN: f64 = 0.8;

/// Orders by which the knees of two curves may differ.
const KNEE_DISTANCE_MAX: usize = 2;

/// How many times larger the end of the curve is after fragmenting than before, at least.
const RISE_FACTOR_MIN: f64 = 4.0;

/// Compares the shape of three curves with published ones. Heights are not compared.
///
/// The knee of a curve is the first order at which it has half of its end value: half of the unusable free
/// memory is in blocks smaller than that.
pub fn compare_shapes(ours: &[Vec<u16>; 3], published: &PublishedScores) -> Vec<ShapeCheck> {
    let theirs = published.permille.each_ref().map(|curve| curve.to_vec());
    let is_rising = |curve: &[u16]| curve.windows(2).all(|pair| pair[0] <= pair[1]);
    let end = |curve: &[u16]| f64::from(curve.last().copied().unwrap_or(0));
    let rise = |curves: &[Vec<u16>; 3]| end(&curves[1]) / end(&curves[0]).max(1.0);
    let mut checks = vec![
        ShapeCheck {
            question: "no curve decreases with the order".to_owned(),
            holds: ours.iter().all(|curve| is_rising(curve)),
            numbers: String::new(),
        },
        ShapeCheck {
            question: format!("fragmenting raises the end of the curve at least {RISE_FACTOR_MIN:.0} times"),
            holds: rise(ours) >= RISE_FACTOR_MIN,
            numbers: format!("{:.0} and {:.0} times", rise(ours), rise(&theirs)),
        },
        check_partial_recovery(ours, &theirs, end),
    ];
    for (phase, (our, their)) in ProcedurePhase::ALL.into_iter().zip(ours.iter().zip(&theirs)).skip(1) {
        let common = our.len().min(their.len());
        // Order 0 is 0 by definition.
        let ranks = rank_correlation(&our[1.min(common)..common], &their[1.min(common)..common]);
        checks.push(ShapeCheck {
            question: format!("{}: the orders rank similarly", phase.name()),
            holds: ranks.is_some_and(|ranks| ranks >= RANKS_MIN),
            numbers: ranks.map_or("a flat curve has no ranks".to_owned(), |ranks| format!("{ranks:.2}")),
        });
        let (knee, theirs) = (half_height_order(our), half_height_order(their));
        checks.push(ShapeCheck {
            question: format!("{}: the knees differ by at most {KNEE_DISTANCE_MAX} orders", phase.name()),
            holds: knee.zip(theirs).is_some_and(|(a, b)| a.abs_diff(b) <= KNEE_DISTANCE_MAX),
            numbers: format!("order {} and {}", format_knee(knee), format_knee(theirs)),
        });
    }
    checks
}

/// Compaction while memory is held undoes a part of it, and not all.
fn check_partial_recovery(
    ours: &[Vec<u16>; 3],
    theirs: &[Vec<u16>; 3],
    end_of: impl Fn(&[u16]) -> f64,
) -> ShapeCheck {
    let remaining_share = |curves: &[Vec<u16>; 3]| {
        let rise = end_of(&curves[1]) - end_of(&curves[0]);
        (rise > 0.0).then(|| (end_of(&curves[2]) - end_of(&curves[0])) / rise)
    };
    let share =
        |left: Option<f64>| left.map_or("nothing".to_owned(), |left| format!("{:.0} %", left * 100.0));
    ShapeCheck {
        question: "compaction undoes only part of the fragmentation".to_owned(),
        holds: remaining_share(ours).is_some_and(|left| left > 0.02 && left < 0.98),
        numbers: format!("{} and {}", share(remaining_share(ours)), share(remaining_share(theirs))),
    }
}

fn format_knee(knee: Option<usize>) -> String {
    knee.map_or("none".to_owned(), |order| order.to_string())
}

/// The first order with at least half of the end value; `None` for a curve that is 0 everywhere.
pub fn half_height_order(curve: &[u16]) -> Option<usize> {
    let end = *curve.last().filter(|&&end| end > 0)?;
    curve.iter().position(|&value| 2 * u32::from(value) >= u32::from(end))
}

/// Spearman's rank correlation with mean ranks for ties; `None` if one curve is flat or empty.
fn rank_correlation(first: &[u16], second: &[u16]) -> Option<f64> {
    let [first, second] =
        [first, second].map(|curve| ranks(&curve.iter().map(|&value| value.into()).collect::<Vec<f64>>()));
    correlation(&first, &second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves_of(published: &PublishedScores) -> [Vec<u16>; 3] {
        published.permille.each_ref().map(|curve| curve.to_vec())
    }

    #[test]
    fn the_published_procedures_have_the_shape_that_is_asked_for() {
        for (ours, theirs) in [(1, 0), (0, 0), (2, 2)] {
            let checks = compare_shapes(&curves_of(&PUBLISHED[ours]), &PUBLISHED[theirs]);
            let failed: Vec<_> =
                checks.iter().filter(|check| !check.holds).map(|check| &check.question).collect();
            // The report's own program was compacted from below, the golden one from above.
            let known = if ours == theirs { 0 } else { 1 };
            assert_eq!(failed.len(), known, "{ours} {theirs}: {failed:?}");
        }
    }

    #[test]
    fn what_has_another_shape_is_told() {
        let holes = [vec![0; 11], [&[0][..], &[90; 10]].concat(), [&[0][..], &[90; 10]].concat()];
        let checks = compare_shapes(&holes, &PUBLISHED[0]);
        let failed: Vec<_> =
            checks.iter().filter(|check| !check.holds).map(|check| &check.question[..]).collect();
        assert_eq!(
            failed,
            [
                "compaction undoes only part of the fragmentation",
                "fragmented: the orders rank similarly",
                "fragmented: the knees differ by at most 2 orders",
                "compacted again: the orders rank similarly",
                "compacted again: the knees differ by at most 2 orders"
            ]
        );
        assert!(compare_shapes(&[vec![], vec![], vec![]], &PUBLISHED[0]).iter().any(|check| !check.holds));
    }

    #[test]
    fn ranks_and_knees() {
        // Worked by hand: ranks 1 2 3 4 and 1 2.5 2.5 4.
        assert!((rank_correlation(&[1, 2, 3, 4], &[5, 6, 6, 9]).unwrap() - 0.948_683).abs() < 1e-5);
        assert_eq!(rank_correlation(&[1, 2, 3], &[3, 2, 1]), Some(-1.0));
        assert_eq!(rank_correlation(&[1, 1], &[1, 2]), None);
        assert_eq!(
            (
                half_height_order(&PUBLISHED[0].permille[1]),
                half_height_order(&[0, 0]),
                half_height_order(&[])
            ),
            (Some(8), None, None)
        );
    }
}
