//! Unknown names: the text of the error, with the known names and the nearest one.

/// Most characters that a misspelt name differs by.
const DISTANCE_MAX: usize = 2;

/// Describes a name that is none of the known ones:
/// ``unknown load `churm`; expected one of churn, server; hint: did you mean `churn`?``
pub fn describe_unknown<S: AsRef<str>>(kind: &str, name: &str, known: &[S]) -> String {
    let names: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    let hint = suggest(name, &names).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    format!("unknown {kind} `{}`; expected one of {}{hint}", name.escape_debug(), names.join(", "))
}

/// The question after the nearest known name, if one is near: ``did you mean `churn`?``
pub fn suggest<S: AsRef<str>>(name: &str, known: &[S]) -> Option<String> {
    find_nearest(name, known).map(|nearest| format!("did you mean `{nearest}`?"))
}

/// The known name nearest to a misspelt one: at most two edits away, and at most one for each three
/// characters.
fn find_nearest<'n, S: AsRef<str>>(name: &str, known: &'n [S]) -> Option<&'n str> {
    let distances = known.iter().map(|known| (edit_distance(name, known.as_ref()), known.as_ref()));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    let length = nearest.chars().count();
    (distance <= DISTANCE_MAX && distance * 3 <= length).then_some(nearest)
}

/// Fewest edits that turn one name into the other, upper and lower case alike: a character more, less or
/// changed, or two neighbours swapped (Damerau 1964; no part is edited twice).
fn edit_distance(one: &str, other: &str) -> usize {
    let [one, other]: [Vec<char>; 2] =
        [one, other].map(|name| name.to_lowercase().chars().take(64).collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (at, &sign) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (column, &second) in other.iter().enumerate() {
            let above = &rows[at];
            let changed = above[column] + usize::from(sign != second);
            let mut least = changed.min(above[column + 1] + 1).min(row[column] + 1);
            let are_swapped =
                at > 0 && column > 0 && sign == other[column - 1] && one[at - 1] == second && sign != second;
            if are_swapped {
                least = least.min(rows[at - 1][column - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (one, other, distance) in [
            ("", "", 0),
            ("chase", "chase", 0),
            ("chse", "chase", 1),
            ("chsae", "chase", 1),
            ("Chase", "chase", 0),
            ("highaloc", "highalloc", 1),
            ("thpp", "thp", 1),
            ("", "abc", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!(edit_distance(one, other), distance, "{one} {other}");
            assert_eq!(edit_distance(other, one), distance, "{other} {one}");
        }
    }

    #[test]
    fn the_nearest_name_is_suggested_if_it_is_near() {
        let known = ["bfs", "chase", "stream", "streamcluster"];
        for (name, nearest) in [
            ("chse", Some("chase")),
            ("steram", Some("stream")),
            ("streamclutser", Some("streamcluster")),
            ("gcc", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(find_nearest(name, &known), nearest, "{name}");
        }
        assert_eq!(
            describe_unknown("workload", "bsf", &known[..2]),
            "unknown workload `bsf`; expected one of bfs, chase; hint: did you mean `bfs`?"
        );
        assert_eq!(
            describe_unknown("load", "x\u{7}", &["a", "b"]),
            "unknown load `x\\u{7}`; expected one of a, b"
        );
        assert_eq!(find_nearest::<&str>("x", &[]), None);
    }
}
