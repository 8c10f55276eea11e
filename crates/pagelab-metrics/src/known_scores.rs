//! Fragmentation scores that others published, to compare a machine's own with by shape.
//!
//! They are of a course report on fragmentation and huge pages (Ubuntu 18.04 on a machine with 62.8 GiB;
//! fragmenter of 64 GiB, scored by F_u): memory compacted, then fragmented, then compacted while the
//! fragmenter still holds its memory; without huge pages from a program that the report calls golden and from
//! its own, with huge pages from its own. Heights depend on the machine; shapes should not.

use pagelab_model::{FreeAreas, Order};

use crate::frag;

/// The moments of the procedure at which memory is scored, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// After compaction, before anything is done.
    Compacted,
    /// Fragmented.
    Fragmented,
    /// Compacted while the fragmenter holds its memory.
    CompactedAgain,
}

impl Phase {
    /// All three.
    pub const ALL: [Phase; 3] = [Phase::Compacted, Phase::Fragmented, Phase::CompactedAgain];

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Compacted => "compacted",
            Phase::Fragmented => "fragmented",
            Phase::CompactedAgain => "compacted again",
        }
    }
}

/// Orders that the published scores have: 0 to 10.
pub const ORDERS: usize = 11;

/// One published procedure: F_u of zone Normal in thousandths by order, for the three phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Who measured it.
    pub who: &'static str,
    /// Whether the fragmenter had huge pages.
    pub thp: bool,
    /// By [`Phase::ALL`].
    pub permille: [[u16; ORDERS]; 3],
}

const COMPACTED: [u16; ORDERS] = [0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 9];

/// What was published of zone Normal.
pub const PUBLISHED: [Published; 3] = [
    Published {
        who: "golden",
        thp: false,
        permille: [
            COMPACTED,
            [0, 4, 17, 38, 65, 98, 141, 185, 243, 307, 378],
            [0, 0, 0, 1, 2, 4, 6, 9, 11, 111, 245],
        ],
    },
    Published {
        who: "report",
        thp: false,
        permille: [
            COMPACTED,
            [0, 3, 11, 30, 87, 136, 174, 186, 248, 304, 406],
            [0, 5, 16, 39, 107, 165, 209, 226, 241, 259, 272],
        ],
    },
    Published {
        who: "report",
        thp: true,
        permille: [
            [0, 0, 0, 0, 0, 1, 2, 3, 5, 8, 18],
            [0, 7, 37, 223, 315, 560, 788, 918, 960, 1000, 1000],
            [0, 25, 54, 90, 126, 210, 315, 379, 428, 442, 442],
        ],
    },
];

/// A zone's F_u by order in thousandths, as the kernel prints it.
pub fn scores(areas: &FreeAreas) -> Vec<u16> {
    let order = |order: usize| Order(u8::try_from(order).unwrap_or(u8::MAX));
    (0..areas.orders())
        .map(|at| u16::try_from(frag::unusable_permille(areas, order(at))).unwrap_or(1000))
        .collect()
}

/// One question about two procedures, with its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What is compared, in words.
    pub what: String,
    /// Whether the shapes agree in this.
    pub holds: bool,
    /// The numbers behind it: ours, then theirs.
    pub numbers: String,
}

/// Rank correlation from which two curves count as alike.
const RANKS_MIN: f64 = 0.8;

/// Orders by which the knees of two curves may differ.
const KNEES_MAX: usize = 2;

/// How many times larger the end of the curve is after fragmenting than before, at least.
const RISE_MIN: f64 = 4.0;

/// Compares the shape of three curves with published ones. Heights are not compared.
///
/// The knee of a curve is the first order at which it has half of its end value: half of the unusable free
/// memory is in blocks smaller than that.
pub fn compare(ours: &[Vec<u16>; 3], published: &Published) -> Vec<Check> {
    let theirs = published.permille.each_ref().map(|curve| curve.to_vec());
    let rises = |curve: &[u16]| curve.windows(2).all(|pair| pair[0] <= pair[1]);
    let end = |curve: &[u16]| f64::from(curve.last().copied().unwrap_or(0));
    let rise = |curves: &[Vec<u16>; 3]| end(&curves[1]) / end(&curves[0]).max(1.0);
    let mut checks = vec![
        Check {
            what: "no curve falls with the order".to_owned(),
            holds: ours.iter().all(|curve| rises(curve)),
            numbers: String::new(),
        },
        Check {
            what: format!("fragmenting raises the end at least {RISE_MIN:.0} times"),
            holds: rise(ours) >= RISE_MIN,
            numbers: format!("{:.0} and {:.0} times", rise(ours), rise(&theirs)),
        },
        between(ours, &theirs, end),
    ];
    for (phase, (our, their)) in Phase::ALL.into_iter().zip(ours.iter().zip(&theirs)).skip(1) {
        let common = our.len().min(their.len());
        // Order 0 is 0 by definition.
        let ranks = spearman(&our[1.min(common)..common], &their[1.min(common)..common]);
        checks.push(Check {
            what: format!("{}: the orders rank alike", phase.name()),
            holds: ranks.is_some_and(|ranks| ranks >= RANKS_MIN),
            numbers: ranks.map_or("a flat curve has no ranks".to_owned(), |ranks| format!("{ranks:.2}")),
        });
        let (knee, theirs) = (knee(our), knee(their));
        checks.push(Check {
            what: format!("{}: the knee is within {KNEES_MAX} orders", phase.name()),
            holds: knee.zip(theirs).is_some_and(|(a, b)| a.abs_diff(b) <= KNEES_MAX),
            numbers: format!("order {} and {}", shown(knee), shown(theirs)),
        });
    }
    checks
}

/// Compaction while memory is held undoes a part of it, and not all.
fn between(ours: &[Vec<u16>; 3], theirs: &[Vec<u16>; 3], end: impl Fn(&[u16]) -> f64) -> Check {
    let left = |curves: &[Vec<u16>; 3]| {
        let made = end(&curves[1]) - end(&curves[0]);
        (made > 0.0).then(|| (end(&curves[2]) - end(&curves[0])) / made)
    };
    let share =
        |left: Option<f64>| left.map_or("nothing".to_owned(), |left| format!("{:.0} %", left * 100.0));
    Check {
        what: "compaction leaves a part of what fragmenting made".to_owned(),
        holds: left(ours).is_some_and(|left| left > 0.02 && left < 0.98),
        numbers: format!("{} and {}", share(left(ours)), share(left(theirs))),
    }
}

fn shown(knee: Option<usize>) -> String {
    knee.map_or("none".to_owned(), |order| order.to_string())
}

/// The first order with at least half of the end value; `None` for a curve that is 0 everywhere.
pub fn knee(curve: &[u16]) -> Option<usize> {
    let end = *curve.last().filter(|&&end| end > 0)?;
    curve.iter().position(|&value| 2 * u32::from(value) >= u32::from(end))
}

/// Spearman's rank correlation with mean ranks for ties; `None` where one curve is flat or empty.
pub fn spearman(one: &[u16], other: &[u16]) -> Option<f64> {
    let ranks = |curve: &[u16]| -> Vec<f64> {
        let rank = |value: &u16| {
            let below = curve.iter().filter(|other| *other < value).count() as f64;
            let equal = curve.iter().filter(|other| *other == value).count() as f64;
            below + (equal + 1.0) / 2.0
        };
        curve.iter().map(rank).collect()
    };
    let (one, other) = (ranks(one), ranks(other));
    let mean = (one.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let spread = (product(&one, &one) * product(&other, &other)).sqrt();
    (spread > 0.0).then(|| product(&one, &other) / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(published: &Published) -> [Vec<u16>; 3] {
        published.permille.each_ref().map(|curve| curve.to_vec())
    }

    #[test]
    fn the_published_procedures_have_the_shape_that_is_asked_for() {
        for (ours, theirs) in [(1, 0), (0, 0), (2, 2)] {
            let checks = compare(&of(&PUBLISHED[ours]), &PUBLISHED[theirs]);
            let failed: Vec<_> =
                checks.iter().filter(|check| !check.holds).map(|check| &check.what).collect();
            // The report's own program was compacted from below, the golden one from above.
            let known = if ours == theirs { 0 } else { 1 };
            assert_eq!(failed.len(), known, "{ours} {theirs}: {failed:?}");
        }
    }

    #[test]
    fn what_has_another_shape_is_told() {
        let holes = [vec![0; 11], [&[0][..], &[90; 10]].concat(), [&[0][..], &[90; 10]].concat()];
        let checks = compare(&holes, &PUBLISHED[0]);
        let failed: Vec<_> =
            checks.iter().filter(|check| !check.holds).map(|check| &check.what[..]).collect();
        assert_eq!(
            failed,
            [
                "compaction leaves a part of what fragmenting made",
                "fragmented: the orders rank alike",
                "fragmented: the knee is within 2 orders",
                "compacted again: the orders rank alike",
                "compacted again: the knee is within 2 orders"
            ]
        );
        assert!(compare(&[vec![], vec![], vec![]], &PUBLISHED[0]).iter().any(|check| !check.holds));
    }

    #[test]
    fn ranks_and_knees() {
        // Worked by hand: ranks 1 2 3 4 and 1 2.5 2.5 4.
        assert!((spearman(&[1, 2, 3, 4], &[5, 6, 6, 9]).unwrap() - 0.948_683).abs() < 1e-5);
        assert_eq!(spearman(&[1, 2, 3], &[3, 2, 1]), Some(-1.0));
        assert_eq!(spearman(&[1, 1], &[1, 2]), None);
        assert_eq!((knee(&PUBLISHED[0].permille[1]), knee(&[0, 0]), knee(&[])), (Some(8), None, None));
    }
}
