//! Sizes as a person writes them: `80%`, `4G`, `512MiB`.

use pagelab_model::Bytes;

use crate::cmd::usage;
use crate::exit::Failure;

/// An amount of memory, or a share of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Of all memory, 0 to 1.
    Share(f64),
    /// As it is.
    Amount(Bytes),
}

impl Size {
    /// Reads a size; `option` is named in the error.
    pub fn parse(option: &str, text: &str) -> Result<Size, Failure> {
        let wrong = || {
            usage(&format!(
                "{option} {text}: a size was wanted, such as 80%, 4G or 512M, and more than nothing"
            ))
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            let is_share = percent > 0.0 && percent <= 100.0;
            return is_share.then_some(Size::Share(percent / 100.0)).ok_or_else(wrong);
        }
        let digits = text.trim_end_matches(|sign: char| !sign.is_ascii_digit() && sign != '.');
        let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(wrong()),
        };
        let plain = digits.starts_with(|sign: char| sign.is_ascii_digit());
        let number: f64 = digits.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
        let bytes = number * (1u64 << shift) as f64;
        let is_amount = bytes >= 1.0 && bytes < u64::MAX as f64;
        is_amount.then_some(Size::Amount(Bytes(bytes as u64))).ok_or_else(wrong)
    }

    /// In bytes, of so much memory.
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            Size::Share(share) => Bytes((total.0 as f64 * share) as u64),
            Size::Amount(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shares_or_amounts_and_never_negative() {
        let total = Bytes(1 << 30);
        let cases = [
            ("50%", Some(1 << 29)),
            ("12.5 %", Some(1 << 27)),
            ("4G", Some(4 << 30)),
            ("1.5g", Some(3 << 29)),
            ("512MiB", Some(512 << 20)),
            ("8192", Some(8192)),
            ("0", None),
            ("-1G", None),
            ("-5%", None),
            ("101%", None),
            ("0%", None),
            ("nan%", None),
            ("inf", None),
            ("4X", None),
            ("", None),
            ("%", None),
            ("1e30G", None),
        ];
        for (text, bytes) in cases {
            let found = Size::parse("--size", text).ok().map(|size| size.of(total).0);
            assert_eq!(found, bytes, "{text}");
        }
    }
}
