//! Stored values as people read them: one unit for a row of numbers, three significant digits.

use pagelab_model::PageSize;
use pagelab_model::run::Unit;

use crate::style::count;

/// The unit in which a row of numbers is shown, so that they can be compared at a glance.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// `MiB`, `MiB/s`, `µs`; empty for plain numbers.
    pub unit: String,
    /// A stored value by this is a number of `unit`.
    divisor: f64,
}

/// Steps of a thousand; each divides what stands before it.
const THOUSANDS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
const BINARY: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
    ("EiB", 1_152_921_504_606_846_976.0),
];
const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// A plain number is shown as it is up to here.
const PLAIN_MAX: f64 = 99_999.5;

impl Scale {
    /// The scale for stored values of `unit` of which the one furthest from 0 is `largest`; of a counter,
    /// the values are amounts per second. Pages are shown as the memory that they are.
    pub fn of(unit: &Unit, page_size: PageSize, per_second: bool, largest: f64) -> Scale {
        let (steps, in_first): (&[(&str, f64)], f64) = match unit.0.as_str() {
            Unit::BYTES => (&BINARY, 1.0),
            Unit::PAGES => (&BINARY, page_size.bytes() as f64),
            Unit::NANOSECONDS => (&TIMES, 1.0),
            Unit::MICROSECONDS => (&TIMES, 1e3),
            Unit::PERMILLE => (&[("%", 1.0)], 0.1),
            Unit::PPM => (&[("%", 1.0)], 1e-4),
            _ => (&THOUSANDS, 1.0),
        };
        let size = (largest * in_first).abs();
        let is_plain = steps[0].0.is_empty() && size < PLAIN_MAX;
        // 999.5 would be shown with four digits, so it moves on to the next step.
        let fits = |&&(_, step): &&(&str, f64)| size >= step * 0.9995;
        let found = steps.iter().rev().find(fits).filter(|_| !is_plain).unwrap_or(&steps[0]);
        let mut shown = found.0.to_owned();
        if !matches!(unit.0.as_str(), Unit::COUNT | Unit::PERMILLE) && is_thousands(steps) {
            shown = if shown.is_empty() { unit.0.clone() } else { format!("{shown} {}", unit.0) };
        }
        if per_second {
            shown.push_str("/s");
        }
        Scale { unit: shown, divisor: found.1 / in_first }
    }

    /// A stored value in this unit, without it.
    pub fn number(&self, value: f64) -> String {
        number(value / self.divisor)
    }

    /// A stored value in this unit, with it.
    pub fn text(&self, value: f64) -> String {
        let number = self.number(value);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

fn is_thousands(steps: &[(&str, f64)]) -> bool {
    steps.len() == THOUSANDS.len()
}

/// One value by itself.
pub fn quantity(value: f64, unit: &Unit, page_size: PageSize) -> String {
    Scale::of(unit, page_size, false, value).text(value)
}

/// Three significant digits, and never a 0 for what is not 0.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e15 {
        return format!("{value:.2e}");
    }
    match size {
        _ if size == size.trunc() || size >= 99.95 => {
            let whole = count(size.round() as u128);
            if value < 0.0 { format!("-{whole}") } else { whole }
        }
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ if value > 0.0 => "<0.001".to_owned(),
        _ => ">-0.001".to_owned(),
    }
}

/// A length of time: `8.31 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => quantity(nanoseconds as f64, &Unit::NANOSECONDS.into(), PageSize::USUAL),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} d {} h", count(days.into()), hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_unit() {
        let cases: [(f64, &str, &str); 21] = [
            (254_600.0, Unit::PPM, "25.5 %"),
            (0.0, Unit::BYTES, "0 B"),
            (1536.0, Unit::BYTES, "1.50 KiB"),
            (1023.9, Unit::BYTES, "1.00 KiB"),
            (-2_097_152.0, Unit::BYTES, "-2 MiB"),
            (512.0, Unit::PAGES, "2 MiB"),
            (0.25, Unit::NANOSECONDS, "0.250 ns"),
            (52.13, Unit::NANOSECONDS, "52.1 ns"),
            (1_234_567.0, Unit::NANOSECONDS, "1.23 ms"),
            (1_234_567.0, Unit::MICROSECONDS, "1.23 s"),
            (1e13, Unit::NANOSECONDS, "10 000 s"),
            (61.0, Unit::PERMILLE, "6.10 %"),
            (12_345.0, Unit::COUNT, "12 345"),
            (1234.5, Unit::COUNT, "1 235"),
            (12_345_678.0, Unit::COUNT, "12.3 M"),
            (0.000_01, Unit::COUNT, "<0.001"),
            (-0.000_01, Unit::COUNT, ">-0.001"),
            (7.0, "furlong", "7 furlong"),
            (7e6, "furlong", "7 M furlong"),
            (1e300, Unit::COUNT, "1.00e288 T"),
            (f64::MAX, Unit::PERMILLE, "1.80e307 %"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(quantity(value, &unit.into(), PageSize::USUAL), text, "{value} {unit}");
        }
    }

    #[test]
    fn a_row_has_one_unit() {
        let scale = Scale::of(&Unit::PAGES.into(), PageSize::USUAL, true, 300_000.0);
        assert_eq!(scale.unit, "GiB/s");
        let numbers = [0.0, 1.0, 300.0, 300_000.0].map(|value| scale.number(value));
        assert_eq!(numbers, ["0", "<0.001", "0.001", "1.14"]);
        assert_eq!(Scale::of(&Unit::COUNT.into(), PageSize::USUAL, true, 3.0).unit, "/s");
    }

    #[test]
    fn lengths_of_time_are_said_as_people_do() {
        const S: u64 = 1_000_000_000;
        let cases = [
            (0, "0 ns"),
            (8_310_000_000, "8.31 s"),
            (59 * S, "59 s"),
            (725 * S, "12 min 5 s"),
            (12_000 * S, "3 h 20 min"),
            (187_200 * S, "2 d 4 h"),
            (u64::MAX, "213 503 d 23 h"),
        ];
        for (nanoseconds, text) in cases {
            assert_eq!(duration(nanoseconds), text);
        }
    }
}
