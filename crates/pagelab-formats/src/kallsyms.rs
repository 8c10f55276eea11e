//! `/proc/kallsyms`: the kernel's symbols by address (kernel/kallsyms.c, `s_show`).
//!
//! ```text
//! ffffffff81000000 T _text
//! ffffffffa0000000 t load_table   [dm_mod]
//! ```
//! With `kernel.kptr_restrict`, or without the privilege, every address is printed as zeros;
//! [`Symbols::is_hidden`] reports that, and zeros are never taken for addresses.

use crate::ParseError;
use crate::text::{RECORDS_MAX, lines, parse_hex, to_printable, words};

const FORMAT: &str = "kallsyms";

/// Maximum distance from the last symbol before an address to attribute the address to it, in bytes.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// All symbols, by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Ascending by address.
    entries: Vec<Entry>,
    /// All names, one behind the other.
    names: String,
    is_hidden: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    name_start: u32,
    name_len: u16,
    module_len: u16,
    is_text: bool,
}

/// The function that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Where it begins.
    pub address: u64,
    /// Its name.
    pub name: &'a str,
    /// The module that it belongs to, where it is one's.
    pub module: Option<&'a str>,
}

impl Symbols {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the kernel hid the addresses.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// The function that `address` is in; `None` if the last symbol before it is data, or far away.
    pub fn find(&self, address: u64) -> Option<Symbol<'_>> {
        if self.is_hidden {
            return None;
        }
        let behind = self.entries.partition_point(|entry| entry.address <= address);
        let last = self.entries[..behind].last()?;
        let first = self.entries.partition_point(|entry| entry.address < last.address);
        let entry = self.entries[first..behind].iter().find(|entry| entry.is_text)?;
        if address - entry.address > FUNCTION_BYTES_MAX {
            return None;
        }
        let start = entry.name_start as usize;
        let (name, rest) = self.names.get(start..)?.split_at_checked(usize::from(entry.name_len))?;
        let module = rest.get(..usize::from(entry.module_len)).filter(|module| !module.is_empty());
        Some(Symbol { address: entry.address, name, module })
    }
}

/// Reads a whole kallsyms text.
pub fn parse(text: &[u8]) -> Result<Symbols, ParseError> {
    let mut symbols = Symbols::default();
    let mut is_sorted = true;
    for (line_number, line) in lines(text) {
        let mut words = words(line);
        let Some(address) = words.next() else { continue };
        let fail = || {
            let problem = format!("expected `address type name`, found `{}`", to_printable(line));
            ParseError::at_line(FORMAT, line_number, problem)
        };
        let address = parse_hex(address).ok_or_else(fail)?;
        let (Some(kind), Some(name)) = (words.next(), words.next()) else { return Err(fail()) };
        let &[kind] = kind else { return Err(fail()) };
        if !kind.is_ascii_alphabetic() && kind != b'?' {
            return Err(fail());
        }
        let module = words.next().map(|word| word.trim_ascii()).unwrap_or_default();
        let module = module.strip_prefix(b"[").and_then(|word| word.strip_suffix(b"]")).unwrap_or_default();
        if symbols.entries.len() == RECORDS_MAX {
            return Err(ParseError::at_line(FORMAT, line_number, format!("more than {RECORDS_MAX} symbols")));
        }
        is_sorted &= symbols.entries.last().is_none_or(|last| last.address <= address);
        let name_start = u32::try_from(symbols.names.len()).map_err(|_| fail())?;
        let mut add = |word: &[u8]| {
            let before = symbols.names.len();
            symbols.names.push_str(&String::from_utf8_lossy(word));
            u16::try_from(symbols.names.len() - before).map_err(|_| fail())
        };
        let (name_len, module_len) = (add(name)?, add(module)?);
        let is_text = matches!(kind.to_ascii_lowercase(), b't' | b'w');
        symbols.entries.push(Entry { address, name_start, name_len, module_len, is_text });
    }
    if symbols.entries.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no symbols found"));
    }
    if !is_sorted {
        symbols.entries.sort_by_key(|entry| entry.address);
    }
    symbols.is_hidden = symbols.entries.iter().all(|entry| entry.address == 0);
    Ok(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ffffffff81000000 T _text\nffffffff81000100 t slow\nffffffff81000200 D table\n\
                        ffffffffa0000040 t unload\t[dm_mod]\nffffffffa0000000 t load\t[dm_mod]\n";

    #[test]
    fn an_address_is_in_the_last_function_before_it() {
        let symbols = parse(TEXT.as_bytes()).unwrap();
        let name = |address| symbols.find(address).map(|symbol| (symbol.name, symbol.module));
        let cases = [
            (0xffff_ffff_80ff_ffff, None),
            (0xffff_ffff_8100_0000, Some(("_text", None))),
            (0xffff_ffff_8100_00ff, Some(("_text", None))),
            (0xffff_ffff_8100_0100, Some(("slow", None))),
            (0xffff_ffff_8100_0200, None),
            (0xffff_ffff_a000_003f, Some(("load", Some("dm_mod")))),
            (0xffff_ffff_a000_0041, Some(("unload", Some("dm_mod")))),
            (0xffff_ffff_ffff_ffff, None),
        ];
        for (address, expected) in cases {
            assert_eq!(name(address), expected, "{address:x}");
        }
    }

    #[test]
    fn hidden_addresses_are_told_and_not_used() {
        let hidden = parse(b"0000000000000000 T _text\n0000000000000000 t slow\n").unwrap();
        assert!(hidden.is_hidden() && hidden.find(0x10).is_none() && hidden.len() == 2);
        let error = |text: &str| parse(text.as_bytes()).unwrap_err().message_in_file("f");
        assert_eq!(error("x T a\n"), "f:1: expected `address type name`, found `x T a` (read as kallsyms)");
        assert_eq!(error("\n"), "f: no symbols found (read as kallsyms)");
    }
}
