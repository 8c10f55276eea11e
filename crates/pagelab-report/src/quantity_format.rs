//! Display of stored values: one unit for a row of numbers, three significant digits.

use pagelab_model::PageSize;
use pagelab_model::run::Unit;

use crate::style::format_count;

/// Common display unit of a row of numbers, so that they are easy to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitScale {
    /// `MiB`, `MiB/s`, `µs`; empty for plain numbers.
    pub unit: String,
    /// Divisor that converts a stored value into `unit`.
    divisor: f64,
}

/// Steps of a thousand; each divides the one before it.
const DECIMAL_STEPS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
const BINARY_STEPS: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
    ("EiB", 1_152_921_504_606_846_976.0),
];
const TIME_STEPS: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Largest plain number without a prefix.
const UNSCALED_MAX: f64 = 99_999.5;

impl UnitScale {
    /// Returns the scale for stored values of `unit` whose largest absolute value is `largest`; for a
    /// counter, the values are amounts per second. Pages are displayed as memory.
    pub fn for_values(unit: &Unit, page_size: PageSize, per_second: bool, largest: f64) -> UnitScale {
        let (steps, first_divisor): (&[(&str, f64)], f64) = match unit.0.as_str() {
            Unit::BYTES => (&BINARY_STEPS, 1.0),
            Unit::PAGES => (&BINARY_STEPS, page_size.bytes() as f64),
            Unit::NANOSECONDS => (&TIME_STEPS, 1.0),
            Unit::MICROSECONDS => (&TIME_STEPS, 1e3),
            Unit::PERMILLE => (&[("%", 1.0)], 0.1),
            Unit::PPM => (&[("%", 1.0)], 1e-4),
            _ => (&DECIMAL_STEPS, 1.0),
        };
        let size = (largest * first_divisor).abs();
        let is_plain = steps[0].0.is_empty() && size < UNSCALED_MAX;
        // 999.5 would be displayed with four digits, so it uses the next step.
        let fits = |&&(_, step): &&(&str, f64)| size >= step * 0.9995;
        let unit_step = steps.iter().rev().find(fits).filter(|_| !is_plain).unwrap_or(&steps[0]);
        let mut shown = unit_step.0.to_owned();
        if !matches!(unit.0.as_str(), Unit::COUNT | Unit::PERMILLE) && steps.len() == DECIMAL_STEPS.len() {
            shown = if shown.is_empty() { unit.0.clone() } else { format!("{shown} {}", unit.0) };
        }
        if per_second {
            shown.push_str("/s");
        }
        UnitScale { unit: shown, divisor: unit_step.1 / first_divisor }
    }

    /// Formats a stored value in this unit, without the unit.
    pub fn format_number(&self, value: f64) -> String {
        format_three_digits(value / self.divisor)
    }

    /// Formats a stored value in this unit, with the unit.
    pub fn format_with_unit(&self, value: f64) -> String {
        let number = self.format_number(value);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

/// Formats a single value.
pub fn format_quantity(value: f64, unit: &Unit, page_size: PageSize) -> String {
    UnitScale::for_values(unit, page_size, false, value).format_with_unit(value)
}

/// Formats three significant digits, and a value other than 0 never as 0.
fn format_three_digits(value: f64) -> String {
    let size = value.abs();
    if size >= 1e15 {
        return format!("{value:.2e}");
    }
    match size {
        _ if size == size.trunc() || size >= 99.95 => {
            let whole = format_count(size.round() as u128);
            if value < 0.0 { format!("-{whole}") } else { whole }
        }
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ if value > 0.0 => "<0.001".to_owned(),
        _ => ">-0.001".to_owned(),
    }
}

/// Formats a duration: `8.31 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`.
pub fn format_duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format_quantity(nanoseconds as f64, &Unit::NANOSECONDS.into(), PageSize::DEFAULT),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} d {} h", format_count(days.into()), hours % 24),
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
            (1e13, Unit::NANOSECONDS, "10\u{202f}000 s"),
            (61.0, Unit::PERMILLE, "6.10 %"),
            (12_345.0, Unit::COUNT, "12\u{202f}345"),
            (1234.5, Unit::COUNT, "1\u{202f}235"),
            (12_345_678.0, Unit::COUNT, "12.3 M"),
            (0.000_01, Unit::COUNT, "<0.001"),
            (-0.000_01, Unit::COUNT, ">-0.001"),
            (7.0, "furlong", "7 furlong"),
            (7e6, "furlong", "7 M furlong"),
            (1e300, Unit::COUNT, "1.00e288 T"),
            (f64::MAX, Unit::PERMILLE, "1.80e307 %"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(format_quantity(value, &unit.into(), PageSize::DEFAULT), text, "{value} {unit}");
        }
    }

    #[test]
    fn a_row_has_one_unit() {
        let scale = UnitScale::for_values(&Unit::PAGES.into(), PageSize::DEFAULT, true, 300_000.0);
        assert_eq!(scale.unit, "GiB/s");
        let numbers = [0.0, 1.0, 300.0, 300_000.0].map(|value| scale.format_number(value));
        assert_eq!(numbers, ["0", "<0.001", "0.001", "1.14"]);
        assert_eq!(UnitScale::for_values(&Unit::COUNT.into(), PageSize::DEFAULT, true, 3.0).unit, "/s");
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
            (u64::MAX, "213\u{202f}503 d 23 h"),
        ];
        for (nanoseconds, text) in cases {
            assert_eq!(format_duration(nanoseconds), text);
        }
    }
}
