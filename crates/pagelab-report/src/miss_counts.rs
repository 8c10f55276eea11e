//! Numbers of misses with as many digits as are known: exact counts completely, estimates with their
//! interval.

use pagelab_model::TlbProfile;
use pagelab_model::profile::LowerBoundReason;

use crate::style::{format_count, format_percent};

/// An estimate with at least this relative uncertainty has one digit; below the second constant, it has
/// three.
const ONE_DIGIT_ERROR: f64 = 0.3;
const THREE_DIGITS_ERROR: f64 = 0.05;

/// Hint if misses are unknown.
pub const MISSES_HINT: &str = "hint: profile a longer run, or use --source exact";

/// Hint if they are known to be more.
pub const LOWER_BOUND_HINT: &str = "hint: use --source exact to count them";

/// Formats misses: `18 483 694 misses`, `about 9 000 000 misses (5 400 000 to 15 000 000)`, `misses unknown:
/// at least 5 000 000`, with the reason.
pub fn format_misses(profile: &TlbProfile) -> String {
    if let (Some(least), Some(reason)) = (profile.misses_at_least(), profile.lower_bound_reason()) {
        let least = format_count(round_down_to_digits(least.into(), 2));
        return format!("misses unknown: at least {least}, because {}", lower_bound_text(reason));
    }
    let Some(misses) = profile.total_misses() else {
        return "misses unknown: no scan of accessed bits or the zero page".to_owned();
    };
    let about = format_share_of_misses(profile, misses.into());
    match profile.misses_interval() {
        Some((low, high)) => {
            let (low, high) = (round_to_digits(low.into(), 2), round_to_digits(high.into(), 2));
            format!("about {about} misses ({} to {})", format_count(low), format_count(high))
        }
        None if profile.effort.stretches.is_some() => {
            format!("about {about} misses (unknown error)")
        }
        None => format!("{about} misses"),
    }
}

/// Explains why a number of misses is a lower bound.
pub fn lower_bound_text(reason: LowerBoundReason) -> String {
    let percent = |permille: u32| format_percent(f64::from(permille) / 1000.0);
    match reason {
        LowerBoundReason::ResetTime { permille } => format!(
            "the program spent {} of its time between clearing and scanning on setting accessed bits again",
            percent(permille)
        ),
        LowerBoundReason::SaturatedRegions { permille } => format!(
            "{} of them are in regions of which nearly all pages had their accessed bits set again before \
             the scan",
            percent(permille)
        ),
    }
}

/// Formats a part of a profile's misses, such as those of a region. If they are a lower bound, so is it.
pub fn format_share_of_misses(profile: &TlbProfile, misses: u128) -> String {
    if profile.lower_bound_reason().is_some() {
        return format_count(round_down_to_digits((misses as f64 * profile.lower_bound_factor()) as u128, 2));
    }
    format_count(match profile.misses_error() {
        None if profile.effort.stretches.is_some() => round_to_digits(misses, 1),
        None => misses,
        Some(error) if error >= ONE_DIGIT_ERROR => round_to_digits(misses, 1),
        Some(error) if error >= THREE_DIGITS_ERROR => round_to_digits(misses, 2),
        Some(_) => round_to_digits(misses, 3),
    })
}

/// Rounds to a number of significant digits.
fn round_to_digits(number: u128, digits: u32) -> u128 {
    let step = digit_step(number, digits);
    number.saturating_add(step / 2) / step * step
}

/// The same, but never above the number.
fn round_down_to_digits(number: u128, digits: u32) -> u128 {
    let step = digit_step(number, digits);
    number / step * step
}

fn digit_step(number: u128, digits: u32) -> u128 {
    let all = number.checked_ilog10().map_or(1, |power| power + 1);
    10u128.pow(all.saturating_sub(digits))
}

#[cfg(test)]
mod tests {
    use pagelab_model::profile::{
        CellCounts, ProfileSource, ProfilingCost, SampledStretches, ScanSaturation,
    };

    use super::*;

    fn profile(source: ProfileSource, misses: u64, sweeps: u64, permille: Option<u32>) -> TlbProfile {
        let mut profile = crate::profile::tests::profile(CellCounts::default(), Vec::new(), 0, 2 << 20);
        profile.source = source;
        profile.images.truncate(1);
        profile.images.iter_mut().for_each(|image| image.misses = misses);
        profile.effort = ProfilingCost {
            sweeps: Some(sweeps),
            misses_error_permille: permille,
            ..ProfilingCost::default()
        };
        profile
    }

    #[test]
    fn an_estimate_has_its_interval_and_no_more_digits_than_are_known() {
        let said = |sweeps, permille| {
            format_misses(&profile(ProfileSource::Accessed, 8_765_432, sweeps, permille))
                .replace('\u{202f}', " ")
        };
        assert_eq!(said(4, Some(500)), "about 9 000 000 misses (3 300 000 to 23 000 000)");
        assert_eq!(said(100, Some(100)), "about 8 800 000 misses (7 200 000 to 11 000 000)");
        assert_eq!(said(9000, Some(20)), "about 8 770 000 misses (8 400 000 to 9 100 000)");
        assert_eq!(said(4, None), said(4, Some(500)), "an older file has the number of sweeps alone");
        let exact = profile(ProfileSource::Exact, 8_765_432, 0, None);
        assert_eq!(
            (format_misses(&exact), format_share_of_misses(&exact, 1234)),
            ("8\u{202f}765\u{202f}432 misses".to_owned(), "1\u{202f}234".to_owned())
        );
    }

    #[test]
    fn counts_of_a_window_have_their_interval_too() {
        let said = |error_permille| {
            let mut windowed = profile(ProfileSource::Exact, 8_765_432, 0, None);
            windowed.effort.stretches =
                Some(SampledStretches { count: 7, counted: 100, accesses: 5000, error_permille });
            format_misses(&windowed).replace('\u{202f}', " ")
        };
        assert_eq!(said(Some(100)), "about 8 800 000 misses (7 900 000 to 9 600 000)");
        assert_eq!(said(Some(1500)), "about 9 000 000 misses (0 to 22 000 000)");
        assert_eq!(said(None), "about 9 000 000 misses (unknown error)");
    }

    #[test]
    fn scans_of_the_zero_page_alone_are_a_look_too() {
        let mut scanned = profile(ProfileSource::Accessed, 8_765_432, 0, None);
        scanned.effort.zero_scans = Some(4);
        let text = format_misses(&scanned).replace('\u{202f}', " ");
        assert_eq!(text, "about 9 000 000 misses (3 300 000 to 23 000 000)");
    }

    #[test]
    fn what_nobody_looked_at_is_unknown_and_not_0() {
        let unseen = profile(ProfileSource::Accessed, 0, 0, None);
        assert!(format_misses(&unseen).starts_with("misses unknown"), "{}", format_misses(&unseen));
        assert_eq!(unseen.total_misses(), None);
        let swept = profile(ProfileSource::Accessed, 0, 4, None);
        assert!(format_misses(&swept).starts_with("about 0 misses"), "{}", format_misses(&swept));
    }

    #[test]
    fn a_lower_bound_has_its_reason_and_neither_a_total_nor_an_interval() {
        let said = |reset_permille, saturated_permille| {
            let mut found = profile(ProfileSource::Accessed, 8_765_432, 9000, Some(20));
            found.effort.saturation = Some(ScanSaturation { reset_permille, saturated_permille });
            (format_misses(&found), format_share_of_misses(&found, 4_000_000))
        };
        let plain = |text: String| text.replace('\u{202f}', " ");
        let (all, part) = said(450, 0);
        assert_eq!(
            plain(all),
            "misses unknown: at least 8 400 000, because the program spent 45 % of its time between clearing \
             and scanning on setting accessed bits again"
        );
        assert_eq!(plain(part), "3 800 000", "by the same factor, rounded down");
        let (all, _) = said(0, 600);
        assert!(all.contains("60 % of them are in regions") && !all.contains(" to "), "{all}");
        assert!(said(80, 90).0.starts_with("about"), "{}", said(80, 90).0);
    }

    #[test]
    fn digits_are_rounded_and_never_overflow() {
        for (number, digits, rounded) in
            [(0, 1, 0), (7, 2, 7), (14_500, 1, 10_000), (97_669, 2, 98_000), (99_999, 2, 100_000)]
        {
            assert_eq!(round_to_digits(number, digits), rounded, "{number} {digits}");
        }
        assert!(round_to_digits(u128::MAX, 1) > 0);
        assert_eq!((round_down_to_digits(97_669, 2), round_down_to_digits(0, 2)), (97_000, 0));
    }
}
