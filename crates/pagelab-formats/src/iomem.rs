//! `/proc/iomem`: the layout of the physical address space.
//!
//! A reader without CAP_SYS_ADMIN gets every address as 0 (kernel/resource.c, since 4.6): ask
//! [`Iomem::is_hidden`] before believing a range.

use crate::ParseError;
use crate::text::{collect_at_most, filled_lines, to_printable};

const FORMAT: &str = "iomem";
/// Large servers have some thousands.
const RESOURCES_MAX: usize = 1 << 17;

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// First address.
    pub start: u64,
    /// Last address: inclusive, as printed.
    pub last: u64,
    /// The owner's name: `System RAM`, `Kernel code` …
    pub name: String,
}

/// All resources in address order, parents before children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iomem {
    /// The resources.
    pub resources: Vec<Resource>,
}

impl Iomem {
    /// Whether the kernel printed zeros in place of addresses.
    pub fn is_hidden(&self) -> bool {
        !self.resources.is_empty() && self.resources.iter().all(|r| r.start == 0 && r.last == 0)
    }

    /// First and last address of each range of memory, hot-plugged memory (`System RAM (kmem)`) included.
    pub fn system_ram(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.resources
            .iter()
            .filter(|r| r.name == "System RAM" || r.name.starts_with("System RAM ("))
            .map(|r| (r.start, r.last))
    }
}

/// Reads a whole iomem: `  01000000-02209987 : Kernel code`.
pub fn parse(text: &[u8]) -> Result<Iomem, ParseError> {
    let resources = filled_lines(text).map(|(at, line)| parse_resource(at, line));
    Ok(Iomem { resources: collect_at_most(FORMAT, RESOURCES_MAX, resources)? })
}

fn parse_resource(line_number: u64, line: &[u8]) -> Result<Resource, ParseError> {
    let fail = |problem: &str| {
        ParseError::at_line(FORMAT, line_number, format!("`{}` {problem}", to_printable(line)))
    };
    let text = String::from_utf8_lossy(line.trim_ascii_start());
    let parts = text.split_once(" : ").and_then(|(range, name)| {
        let (start, last) = range.split_once('-')?;
        // ioports has four digits (kernel/resource.c, `r_show`).
        let address = |word: &str| u64::from_str_radix(word, 16).ok().filter(|_| word.len() >= 8);
        Some((address(start)?, address(last)?, name))
    });
    let (start, last, name) = parts.ok_or_else(|| fail("is not `first-last : name`"))?;
    if last < start {
        return Err(fail("ends before it starts"));
    }
    Ok(Resource { start, last, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_memory_and_hidden_addresses() {
        let text = "00001000-0009fbff : System RAM\n  00002000-00002fff : Kernel code\n\
                    c0000000-cfffffff : PCI Bus 0000:00\n100000000-1ffffffff : System RAM (kmem)\n";
        let iomem = parse(text.as_bytes()).unwrap();
        assert!(!iomem.is_hidden());
        assert_eq!(iomem.resources[1].name, "Kernel code");
        let ram: Vec<_> = iomem.system_ram().collect();
        assert_eq!(ram, [(0x1000, 0x9fbff), (0x1_0000_0000, 0x1_ffff_ffff)]);
        assert!(parse(b"00000000-00000000 : System RAM\n").unwrap().is_hidden());
        assert!(!parse(b"").unwrap().is_hidden());
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, problem) in [
            ("rubbish\n", "`rubbish` is not `first-last : name`"),
            ("1-zz : x\n", "`1-zz : x` is not `first-last : name`"),
            ("00000002-00000001 : x\n", "`00000002-00000001 : x` ends before it starts"),
            ("0000-001f : dma1\n", "`0000-001f : dma1` is not `first-last : name`"),
        ] {
            let message = format!("f:1: {problem} (read as iomem)");
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }
}
