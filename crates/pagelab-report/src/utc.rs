//! Formatting of a time as date and time of day in UTC.

const DAY_SECONDS: u64 = 86_400;

/// Formats nanoseconds since 1970 as `2026-02-03 14:05:06 UTC`.
pub fn format_utc(realtime_ns: u64) -> String {
    let seconds = realtime_ns / 1_000_000_000;
    let (year, month, day) = civil_date(seconds / DAY_SECONDS);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Computes year, month and day of a day counted from 1970-01-01 in the Gregorian calendar. Years are counted
/// from March, so that the leap day is the last of its year, and in eras of 400 years, which all have the
/// same number of days.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    /// From 0000-03-01 to 1970-01-01.
    const EPOCH_DAYS: u64 = 719_468;
    let day = days + EPOCH_DAYS;
    let (era, of_era) = (day / ERA_DAYS, day % ERA_DAYS);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // From March on, every five months have 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date() {
        // date --utc --date=@N
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_770_127_506, "2026-02-03 14:05:06 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ];
        for (seconds, text) in cases {
            assert_eq!(format_utc(seconds * 1_000_000_000), text);
        }
        assert_eq!(format_utc(u64::MAX), "2554-07-21 23:34:33 UTC");
    }

    #[test]
    fn every_day_of_eight_centuries_follows_the_one_before() {
        let mut before = civil_date(0);
        for day in 1..ERA_CHECKED {
            let (year, month, date) = civil_date(day);
            let in_year = |of: u64| before.0.is_multiple_of(of);
            let leap = in_year(4) && (!in_year(100) || in_year(400));
            let last = match before.1 {
                2 if leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let next = match before {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, date) if date == last => (year, month + 1, 1),
                (year, month, date) => (year, month, date + 1),
            };
            assert_eq!((year, month, date), next);
            before = next;
        }
    }

    const ERA_CHECKED: u64 = 2 * 146_097;
}
