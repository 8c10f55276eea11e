//! Numbers of misses with no more digits than are known: counted ones whole, estimated ones with their
//! interval.

use pagelab_model::Profile;

use crate::style::count;

/// An estimate that may be off by this part of itself or more has one digit, and below the other one three.
const ONE_DIGIT: f64 = 0.3;
const THREE_DIGITS: f64 = 0.05;

/// What is to be done where misses are unknown.
pub const KNOWN_BY: &str = "a longer run is swept, and --source exact sees every access";

/// `18 483 694 misses`, `about 9 000 000 misses (5 400 000 to 15 000 000)`, `misses unknown: …`.
pub fn all(profile: &Profile) -> String {
    let Some(misses) = profile.misses() else {
        return "misses unknown: accessed bits were not swept, and no scan was made of the zero page"
            .to_owned();
    };
    let about = some(profile, misses.into());
    match profile.misses_interval() {
        Some((low, high)) => {
            let (low, high) = (digits(low.into(), 2), digits(high.into(), 2));
            format!("about {about} misses ({} to {})", count(low), count(high))
        }
        None if profile.effort.stretches.is_some() => {
            format!("about {about} misses (how far off is not known)")
        }
        None => format!("{about} misses"),
    }
}

/// Some of a profile's misses, such as those of a region.
pub fn some(profile: &Profile, misses: u128) -> String {
    count(match profile.misses_error() {
        None if profile.effort.stretches.is_some() => digits(misses, 1),
        None => misses,
        Some(error) if error >= ONE_DIGIT => digits(misses, 1),
        Some(error) if error >= THREE_DIGITS => digits(misses, 2),
        Some(_) => digits(misses, 3),
    })
}

/// Rounded to so many digits that are not 0.
fn digits(number: u128, known: u32) -> u128 {
    let all = number.checked_ilog10().map_or(1, |power| power + 1);
    let step = 10u128.pow(all.saturating_sub(known));
    number.saturating_add(step / 2) / step * step
}

#[cfg(test)]
mod tests {
    use pagelab_model::profile::{Cells, Effort, ProfileSource, Stretches};

    use super::*;

    fn profile(source: ProfileSource, misses: u64, sweeps: u64, permille: Option<u32>) -> Profile {
        let mut profile = crate::profile::tests::profile(Cells::default(), Vec::new(), 0, 2 << 20);
        profile.source = source;
        profile.images.truncate(1);
        profile.images.iter_mut().for_each(|image| image.misses = misses);
        profile.effort =
            Effort { sweeps: Some(sweeps), misses_error_permille: permille, ..Effort::default() };
        profile
    }

    #[test]
    fn an_estimate_has_its_interval_and_no_more_digits_than_are_known() {
        let said = |sweeps, permille| all(&profile(ProfileSource::Accessed, 8_765_432, sweeps, permille));
        assert_eq!(said(4, Some(500)), "about 9 000 000 misses (3 300 000 to 23 000 000)");
        assert_eq!(said(100, Some(100)), "about 8 800 000 misses (7 200 000 to 11 000 000)");
        assert_eq!(said(9000, Some(20)), "about 8 770 000 misses (8 400 000 to 9 100 000)");
        assert_eq!(said(4, None), said(4, Some(500)), "an older file has the number of sweeps alone");
        let exact = profile(ProfileSource::Exact, 8_765_432, 0, None);
        assert_eq!((all(&exact), some(&exact, 1234)), ("8 765 432 misses".to_owned(), "1 234".to_owned()));
    }

    #[test]
    fn counts_of_a_window_have_their_interval_too() {
        let said = |error_permille| {
            let mut windowed = profile(ProfileSource::Exact, 8_765_432, 0, None);
            windowed.effort.stretches =
                Some(Stretches { count: 7, counted: 100, accesses: 5000, error_permille });
            all(&windowed)
        };
        assert_eq!(said(Some(100)), "about 8 800 000 misses (7 900 000 to 9 600 000)");
        assert_eq!(said(Some(1500)), "about 9 000 000 misses (0 to 22 000 000)");
        assert_eq!(said(None), "about 9 000 000 misses (how far off is not known)");
    }

    #[test]
    fn scans_of_the_zero_page_alone_are_a_look_too() {
        let mut scanned = profile(ProfileSource::Accessed, 8_765_432, 0, None);
        scanned.effort.zero_scans = Some(4);
        assert_eq!(all(&scanned), "about 9 000 000 misses (3 300 000 to 23 000 000)");
    }

    #[test]
    fn what_nobody_looked_at_is_unknown_and_not_0() {
        let unseen = profile(ProfileSource::Accessed, 0, 0, None);
        assert!(all(&unseen).starts_with("misses unknown"), "{}", all(&unseen));
        assert_eq!(unseen.misses(), None);
        let swept = profile(ProfileSource::Accessed, 0, 4, None);
        assert!(all(&swept).starts_with("about 0 misses"), "{}", all(&swept));
    }

    #[test]
    fn digits_are_rounded_and_never_overflow() {
        for (number, known, rounded) in
            [(0, 1, 0), (7, 2, 7), (14_500, 1, 10_000), (97_669, 2, 98_000), (99_999, 2, 100_000)]
        {
            assert_eq!(digits(number, known), rounded, "{number} {known}");
        }
        assert!(digits(u128::MAX, 1) > 0);
    }
}
