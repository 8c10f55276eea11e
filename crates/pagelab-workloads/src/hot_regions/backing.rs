//! Huge pages for the regions of a list, put in place before anything is touched.

use std::collections::BTreeSet;
use std::ops::Range;

use pagelab_formats::largepages;
use pagelab_model::Bytes;
use pagelab_sys::map::{Advice, Mapping};

use crate::Failed;
use crate::options::Options;

/// What is to be backed.
#[derive(Debug)]
pub struct Backing {
    /// Offsets of regions in the buffer, each once, ascending.
    offsets: BTreeSet<u64>,
    region: Bytes,
    /// Pages of the pool; else advice.
    is_hugetlb: bool,
}

/// A list is a line for each region; whatever is longer is another file.
const LIST_MAX: u64 = 1 << 20;

impl Backing {
    /// What the option `largepages` lists; nothing where it is empty.
    pub fn of(options: &Options, size: Bytes) -> Result<Backing, Failed> {
        let (path, base, region) =
            (options.text("largepages"), options.number("base"), options.size("region"));
        let is_hugetlb = options.text("backing") == "hugetlb";
        let mut backing = Backing { offsets: BTreeSet::new(), region, is_hugetlb };
        if path.is_empty() {
            return Ok(backing);
        }
        if base == 0 {
            let text = "base: a list of addresses means nothing in a buffer that lies anywhere; give its \
                        address, or leave the option away";
            return Err(Failed::Options(text.to_owned()));
        }
        backing.offsets = offsets(path, &text(path)?, base..base.saturating_add(size.0), region.0)?;
        Ok(backing)
    }

    /// How many regions are to be backed.
    pub fn regions(&self) -> usize {
        self.offsets.len()
    }

    /// Puts huge pages in place. With those of the pool, what a region held is gone, so nothing may have
    /// been touched yet.
    pub fn back(&self, mut mapping: Mapping) -> Result<Mapping, Failed> {
        let base = mapping.addresses().start;
        for (before, &offset) in self.offsets.iter().enumerate() {
            let part = offset..offset + self.region.0;
            let failed = |error| self.refused(before, base + offset, error);
            if self.is_hugetlb {
                mapping = mapping.with_hugetlb(part.clone(), self.region).map_err(failed)?;
                // A limit of the control group shows only when the page is taken, as a signal if it is
                // touched and as an error here. The pages of the pool are zeros either way.
                mapping.touch_for_reading(part).map_err(failed)?;
            } else {
                mapping.advise(part, Advice::HugePage).map_err(failed)?;
            }
        }
        Ok(mapping)
    }

    fn refused(&self, before: usize, address: u64, error: std::io::Error) -> Failed {
        let (all, bytes) = (self.offsets.len(), self.region.0);
        let wanted =
            format!("cannot back {address:#x} by a huge page of {bytes} bytes ({before} of {all} are)");
        let way_out = match error.kind() {
            _ if !self.is_hugetlb => "this kernel has no transparent huge pages",
            std::io::ErrorKind::OutOfMemory => {
                "the pool has no free page left: raise vm.nr_hugepages, or take --backing thp"
            }
            _ => "this kernel has no pool of pages of this size: give another --region, or --backing thp",
        };
        Failed::System(format!("{wanted}: {error}; {way_out}"))
    }
}

/// The list's text.
fn text(path: &str) -> Result<String, Failed> {
    let wanted = format!("cannot read {path}");
    let open = std::fs::File::open(path);
    let file = open.map_err(|error| Failed::Input(format!("{wanted}: {error}")))?;
    let mut text = String::new();
    let read = std::io::Read::read_to_string(&mut std::io::Read::take(file, LIST_MAX + 1), &mut text);
    match read {
        Ok(_) if text.len() as u64 <= LIST_MAX => Ok(text),
        Ok(_) => Err(Failed::Input(format!("{path}: longer than any list of regions"))),
        Err(error) => Err(Failed::Input(format!("{wanted}: {error}"))),
    }
}

/// The offsets of the regions that a list names; a region may be named twice.
fn offsets(path: &str, text: &str, buffer: Range<u64>, region: u64) -> Result<BTreeSet<u64>, Failed> {
    let lines = largepages::parse_lines(text.as_bytes());
    let mut offsets = BTreeSet::new();
    for (number, address) in lines.map_err(|error| Failed::Input(error.in_file(path)))? {
        let wrong = |what: String| Failed::Input(format!("{path}:{number}: {what}"));
        if !buffer.contains(&address) {
            let (start, end) = (buffer.start, buffer.end);
            return Err(wrong(format!(
                "{address} lies outside of the buffer, {start} to {end} ({start:#x})"
            )));
        }
        let offset = address - buffer.start;
        if !offset.is_multiple_of(region) {
            return Err(wrong(format!("{address} is not the first byte of a region of {region} bytes")));
        }
        offsets.insert(offset);
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: Range<u64> = 0x187_8000_0000..0x187_8000_0000 + (1 << 30);
    const REGION: u64 = 2 << 20;

    #[test]
    fn lists_are_those_of_the_assignment() {
        // Its own two addresses: the top region before, and the top region after.
        let text = "1682368888832\n\n# a comment\n0x187b1400000 # another\r\n1682368888832\n";
        let found = offsets("l.txt", text, BUFFER, REGION).unwrap();
        let wanted = [0x187_b140_0000u64, 0x187_b500_0000].map(|address| address - BUFFER.start);
        assert_eq!(Vec::from_iter(found), wanted);
    }

    #[test]
    fn what_is_no_list_is_refused_by_file_and_line() {
        let long = "9".repeat(500);
        for (text, line, word) in [
            ("1682368888832\nabc", "l.txt:2:", "no address"),
            ("-5", "l.txt:1:", "no address"),
            (&long, "l.txt:1:", "no address"),
            ("1", "l.txt:1:", "outside"),
            ("0x187c0000000", "l.txt:1:", "outside"),
            ("0x18780001000", "l.txt:1:", "first byte"),
            ("# nothing\n", "l.txt:", "no address in it"),
        ] {
            let Err(Failed::Input(said)) = offsets("l.txt", text, BUFFER, REGION) else { panic!("{text}") };
            assert!(said.starts_with(line) && said.contains(word) && said.len() < 200, "{said}");
        }
    }
}
