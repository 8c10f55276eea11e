//! TLB geometry as a line of text, as `--tlb` takes it: `l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M`.
//!
//! TLBs are separated by commas. Each is `ENTRIES[xWAYS]:SIZE[+SIZE…]`; WAYS may be `full`, and without WAYS
//! they are unknown. The first of each kind carries its name, and the name holds for those that follow it:
//! `l1d` data, `l1s` stores only, `l1i` instructions, `l1` both; `l2…` and so on up to level 7. Sizes are
//! powers of two from 1K. Spaces are allowed between the parts.

use std::error::Error;
use std::fmt;

use pagelab_model::Bytes;
use pagelab_model::machine::{Tlb, TlbContent, TlbLevel, TlbSource};
use pagelab_model::size;

/// More entries than this in one TLB are a slip of the keyboard.
const ENTRIES_MAX: u32 = 1 << 20;

/// Error in a geometry text, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Character at which the wrong part begins, from 1.
    pub column: usize,
    /// The invalid part, and the expected text.
    message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl Error for SyntaxError {}

/// Reads a geometry. Its source is [`TlbSource::UserSupplied`].
pub fn parse(text: &str) -> Result<Tlb, SyntaxError> {
    let mut levels = Vec::new();
    let mut kind = None;
    let mut column = 1;
    for part in text.split(',') {
        let syntax_error =
            |message: String| SyntaxError { column: column + part.len() - part.trim_start().len(), message };
        let item = part.trim();
        let (name, rest) = match item.split_once('=') {
            Some((name, rest)) => (Some(name.trim()), rest.trim()),
            None => (None, item),
        };
        if let Some(name) = name {
            let expected = || format!("unknown TLB `{name}`; expected l1d, l1s, l1i, l1, l2, …");
            kind = Some(parse_name(name).ok_or_else(|| syntax_error(expected()))?);
        }
        let (level, holds) = kind
            .ok_or_else(|| syntax_error(format!("`{item}` has no TLB name; write for example l1d={item}")))?;
        levels.push(parse_tlb(rest, level, holds).map_err(syntax_error)?);
        column += part.chars().count() + 1;
    }
    Ok(Tlb { source: TlbSource::UserSupplied, levels })
}

/// `l1d` → level 1, data.
fn parse_name(name: &str) -> Option<(u32, TlbContent)> {
    let mut letters = name.chars();
    let l = letters.next()?.eq_ignore_ascii_case(&'l');
    let level = letters.next()?.to_digit(8).filter(|&level| l && level > 0)?;
    let holds = match letters.as_str().to_ascii_lowercase().as_str() {
        "d" => TlbContent::Data,
        "s" => TlbContent::Stores,
        "i" => TlbContent::Instruction,
        "" => TlbContent::Unified,
        _ => return None,
    };
    Some((level, holds))
}

/// `64x4:4K+2M`.
fn parse_tlb(text: &str, level: u32, holds: TlbContent) -> Result<TlbLevel, String> {
    let (shape, sizes) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` has no page size; write ENTRIES[xWAYS]:SIZE"))?;
    let (entries, ways) = match shape.split_once(['x', 'X']) {
        Some((entries, ways)) => (entries.trim(), Some(ways.trim())),
        None => (shape.trim(), None),
    };
    let number = |what: &str, text: &str| {
        let number = text.parse::<u32>().ok().filter(|number| (1..=ENTRIES_MAX).contains(number));
        number.ok_or_else(|| format!("`{text}`: expected a number of {what} from 1 to {ENTRIES_MAX}"))
    };
    let entries = number("entries", entries)?;
    let ways = match ways {
        Some(full) if full.eq_ignore_ascii_case("full") => Some(entries),
        Some(ways) => Some(number("ways", ways)?),
        None => None,
    };
    if let Some(ways) = ways.filter(|&ways| !entries.is_multiple_of(ways)) {
        return Err(format!("{entries} entries are not divisible by {ways} ways"));
    }
    let mut page_sizes =
        sizes.split('+').map(|text| parse_page_size(text.trim())).collect::<Result<Vec<_>, _>>()?;
    page_sizes.sort();
    page_sizes.dedup();
    Ok(TlbLevel { level, holds, page_sizes, entries, ways })
}

/// `4K` → 4 096.
fn parse_page_size(text: &str) -> Result<Bytes, String> {
    let size = size::parse(text).ok().filter(|size| size.0.is_power_of_two() && size.0 >= 1 << 10);
    size.ok_or_else(|| format!("`{text}`: expected a page size, for example 4K"))
}

#[cfg(test)]
pub(crate) mod tests {
    use pagelab_model::size::format_argument;

    use super::*;

    /// A geometry written in the same syntax; [`parse`] reads it back.
    pub(crate) struct DisplayTlb<'a>(pub(crate) &'a Tlb);

    impl fmt::Display for DisplayTlb<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut kind = None;
            for (index, tlb) in self.0.levels.iter().enumerate() {
                if index > 0 {
                    f.write_str(",")?;
                }
                if kind.replace((tlb.level, tlb.holds)) != Some((tlb.level, tlb.holds)) {
                    let letter = match tlb.holds {
                        TlbContent::Data => "d",
                        TlbContent::Stores => "s",
                        TlbContent::Instruction => "i",
                        TlbContent::Unified => "",
                    };
                    write!(f, "l{}{letter}=", tlb.level)?;
                }
                write!(f, "{}", tlb.entries)?;
                match tlb.ways {
                    Some(ways) if ways == tlb.entries => f.write_str("xfull")?,
                    Some(ways) => write!(f, "x{ways}")?,
                    None => {}
                }
                for (at, size) in tlb.page_sizes.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { ":" } else { "+" }, format_argument(*size))?;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn texts_are_read_and_written_back() {
        let cases = [
            ("l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M", "l1d=64x4:4K,32x4:2M,l2=2048x16:4K+2M"),
            (" L1D = 48xfull : 4K , L2=1280x5:64K ", "l1d=48xfull:4K,l2=1280x5:64K"),
            ("l1=100:2m+4k", "l1=100:4K+2M"),
            ("l1s=16x16:1G,l1i=8X8:4M", "l1s=16xfull:1G,l1i=8xfull:4M"),
        ];
        for (given, shown) in cases {
            let tlb = parse(given).unwrap();
            assert_eq!(DisplayTlb(&tlb).to_string(), shown, "{given}");
            assert_eq!(parse(shown).unwrap(), tlb, "{shown}");
        }
    }

    #[test]
    fn errors_name_the_column_and_the_remedy() {
        let cases = [
            ("", "column 1: `` has no TLB name; write for example l1d="),
            ("64x4:4K", "column 1: `64x4:4K` has no TLB name; write for example l1d=64x4:4K"),
            ("l1d=64x4", "column 1: `64x4` has no page size; write ENTRIES[xWAYS]:SIZE"),
            ("l1d=64x4:4K, l9=3:4K", "column 14: unknown TLB `l9`; expected l1d, l1s, l1i, l1, l2, …"),
            ("l1d=64x4:4K,x4:4K", "column 13: ``: expected a number of entries from 1 to 1048576"),
            ("l1d=64x5:4K", "column 1: 64 entries are not divisible by 5 ways"),
            ("l1d=0:4K", "column 1: `0`: expected a number of entries from 1 to 1048576"),
            ("l1d=64:4", "column 1: `4`: expected a page size, for example 4K"),
            ("l1d=64:3K", "column 1: `3K`: expected a page size, for example 4K"),
            ("l1d=64:é", "column 1: `é`: expected a page size, for example 4K"),
            ("l1d=99999999999:4K", "column 1: `99999999999`: expected a number of entries from 1 to 1048576"),
        ];
        for (given, message) in cases {
            assert_eq!(parse(given).unwrap_err().to_string(), message, "{given}");
        }
    }
}
