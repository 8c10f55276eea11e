//! Numbers on the command line with their ends: what is out of them, or is no number, is told what is wanted.

use std::num::NonZero;

use pagelab_report::style::count;

/// A whole number from `LEAST` to `MOST`.
pub fn number<const LEAST: u64, const MOST: u64>(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| {
        format!("a whole number from {} to {} is wanted", count(LEAST.into()), count(MOST.into()))
    })
}

/// The same for what is kept as a `u32`; `MOST` fits in it.
pub fn small<const LEAST: u64, const MOST: u64>(text: &str) -> Result<u32, String> {
    const { assert!(MOST <= u32::MAX as u64) };
    number::<LEAST, MOST>(text).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// The largest seed: run files hold signed numbers.
const SEED_MAX: u64 = i64::MAX as u64;

/// A seed.
pub fn seed(text: &str) -> Result<u64, String> {
    number::<0, SEED_MAX>(text)
}

/// A number of threads.
pub fn threads(text: &str) -> Result<NonZero<usize>, String> {
    let number = small::<1, 1000>(text)?;
    Ok(NonZero::new(number as usize).unwrap_or(NonZero::<usize>::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_belong_to_it_and_are_named() {
        assert_eq!((small::<1, 1000>("1"), small::<1, 1000>("1000")), (Ok(1), Ok(1000)));
        for text in ["0", "1001", "-3", "", "x", "1.5", "99999999999999999999999"] {
            assert_eq!(small::<1, 1000>(text), Err("a whole number from 1 to 1 000 is wanted".to_owned()));
        }
        assert_eq!(seed("9223372036854775807"), Ok(SEED_MAX));
        assert!(seed("9223372036854775808").is_err());
        assert!(threads("0").is_err());
    }
}
