//! Variants that differ in the limit of memory alone.

use std::collections::BTreeMap;

use pagelab_model::Bytes;
use pagelab_model::experiment::VariantHead;

/// The key of the limit.
pub const LIMIT: &str = "memory_limit";
/// The key of a variant in which nothing is set.
const NOTHING: &str = "nothing";

/// Variants with the same other settings.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    /// The other settings, by key.
    pub common: Vec<(String, String)>,
    /// Variant and limit, ascending; without a limit is the most.
    pub places: Places,
}

/// Variants and their limits.
type Places = Vec<(usize, Option<Bytes>)>;

/// The axes of an experiment: sets of two limits or more, and a single one where there is nothing else.
pub(super) fn axes(variants: &[VariantHead]) -> Vec<Axis> {
    let mut found: BTreeMap<Vec<(String, String)>, Places> = BTreeMap::new();
    for (variant, head) in variants.iter().enumerate() {
        let text = head.settings.iter().find(|(key, _)| key == LIMIT).map(|(_, value)| value);
        let limit = match text.map(|text| size(text)) {
            None => None,
            Some(Some(limit)) => Some(limit),
            // A limit that nobody can read stands nowhere on an axis.
            Some(None) => continue,
        };
        let others = head.settings.iter().filter(|(key, _)| key != LIMIT && key != NOTHING);
        let mut common: Vec<(String, String)> = others.cloned().collect();
        common.sort();
        let places = found.entry(common).or_default();
        // Of two variants that say the same, the first one counts.
        if !places.iter().any(|(_, known)| *known == limit) {
            places.push((variant, limit));
        }
    }
    let is_limited = |places: &Places| places.iter().any(|(_, limit)| limit.is_some());
    let mut all: Vec<Axis> = found
        .into_iter()
        .filter(|(_, places)| is_limited(places))
        .map(|(common, places)| Axis { common, places })
        .collect();
    if all.iter().any(|axis| axis.places.len() > 1) || variants.len() > 1 {
        all.retain(|axis| axis.places.len() > 1);
    }
    for axis in &mut all {
        axis.places.sort_by_key(|(_, limit)| limit.map_or(u64::MAX, |limit| limit.0));
    }
    // As they stand in the recipe.
    all.sort_by_key(|axis| axis.places.iter().map(|(variant, _)| *variant).min());
    all
}

/// `512M`, as a plan has sizes: bytes, or whole K, M, G, T.
fn size(text: &str) -> Option<Bytes> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(settings: &[&[(&str, &str)]]) -> Vec<VariantHead> {
        let head = |(at, of): (usize, &&[(&str, &str)])| VariantHead {
            name: at.to_string(),
            settings: of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            asks_for_huge_pages: false,
        };
        settings.iter().enumerate().map(head).collect()
    }

    fn limits(settings: &[&[(&str, &str)]]) -> Vec<Vec<(usize, Option<u64>)>> {
        let of = |axis: Axis| axis.places.iter().map(|(at, limit)| (*at, limit.map(|of| of.0))).collect();
        axes(&heads(settings)).into_iter().map(of).collect()
    }

    #[test]
    fn variants_that_differ_in_the_limit_alone_are_an_axis_each() {
        let found = limits(&[
            &[("nothing", "the machine as it is")],
            &[(LIMIT, "1G")],
            &[(LIMIT, "512M")],
            &[(LIMIT, "512M"), ("swap", "2G")],
            &[("swap", "2G"), (LIMIT, "256M")],
            &[(LIMIT, "1G"), ("thp", "always")],
        ]);
        let (half, quarter) = (512 << 20, 256 << 20);
        assert_eq!(
            found,
            [vec![(2, Some(half)), (1, Some(1 << 30)), (0, None)], vec![(4, Some(quarter)), (3, Some(half))]]
        );
    }

    #[test]
    fn without_two_limits_there_is_no_axis_unless_it_is_all_there_is() {
        assert!(limits(&[&[("thp", "always")], &[("thp", "never")]]).is_empty());
        assert!(limits(&[&[(LIMIT, "1G"), ("thp", "always")], &[(LIMIT, "1G")]]).is_empty());
        assert_eq!(limits(&[&[(LIMIT, "1G")]]), [[(0, Some(1 << 30))]]);
        assert!(limits(&[&[(LIMIT, "much")], &[(LIMIT, "0")], &[(LIMIT, "99999999999G")]]).is_empty());
    }
}
