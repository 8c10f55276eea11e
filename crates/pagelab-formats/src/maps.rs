//! `/proc/PID/maps`: the mapped files of a program (fs/proc/task_mmu.c, `show_map_vma`).

use crate::ParseError;
use crate::text::{RECORDS_MAX, filled_lines, parse_hex, split_once, to_printable, words};

const FORMAT: &str = "maps";

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsEntry {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Permissions, and whether it is shared, as printed: `rw-p`.
    pub mode: String,
    /// Whether code in it may run.
    pub is_executable: bool,
    /// Bytes from the file's start.
    pub offset: u64,
    /// The file or the kernel's name for it (`[stack]`), as printed; empty if there is none.
    pub name: String,
}

/// Reads a whole maps text. An empty one is that of a kernel thread.
pub fn parse(text: &[u8]) -> Result<Vec<MapsEntry>, ParseError> {
    let mut maps = Vec::new();
    for (line_number, line) in filled_lines(text) {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        if maps.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} mappings")));
        }
        maps.push(parse_entry(line).ok_or_else(|| {
            fail(format!(
                "expected `start-end rwxp offset device inode name`, found `{}`",
                to_printable(line)
            ))
        })?);
    }
    Ok(maps)
}

/// The file's offset of a code address, and the mapping that it is in.
pub fn find_code_offset(maps: &[MapsEntry], address: u64) -> Option<(&MapsEntry, u64)> {
    let behind = maps.partition_point(|map| map.start <= address);
    let map = maps[..behind].last().filter(|map| address < map.end)?;
    Some((map, (address - map.start).checked_add(map.offset)?))
}

fn parse_entry(line: &[u8]) -> Option<MapsEntry> {
    let mut parts = words(line);
    let (start, end) = split_once(parts.next()?, b'-')?;
    let (start, end) = (parse_hex(start)?, parse_hex(end)?);
    let permissions = parts.next()?;
    let offset = parse_hex(parts.next()?)?;
    let (_device, _inode) = (parts.next()?, parts.next()?);
    // The name may have blanks in it, so it is all that is left.
    let name = parts.next().map_or(&b""[..], |first| {
        let at = first.as_ptr().addr() - line.as_ptr().addr();
        line[at..].trim_ascii_end()
    });
    let name = String::from_utf8_lossy(name).into_owned();
    let is_executable = permissions.get(2) == Some(&b'x');
    let mode = String::from_utf8_lossy(permissions).into_owned();
    (start < end).then_some(MapsEntry { start, end, mode, is_executable, offset, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_file_and_offset() {
        let text = b"00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/a b\n\
                     00452000-00453000 rw-p 00000000 00:00 0 \n7fff0000-7fff2000 rw-p 0 00:00 0   [stack]\n";
        let maps = parse(text).unwrap();
        let of = |address| find_code_offset(&maps, address).map(|(map, offset)| (map.name.as_str(), offset));
        assert_eq!(of(0x40_0010), Some(("/usr/bin/a b", 0x1010)));
        assert_eq!(of(0x45_2000), Some(("", 0)));
        assert_eq!(of(0x7fff_1fff), Some(("[stack]", 0x1fff)));
        assert_eq!((of(0x3f_ffff), of(0x45_3000), of(u64::MAX)), (None, None, None));
        assert!(maps[0].is_executable && !maps[1].is_executable && maps[1].mode == "rw-p");
        assert!(parse(b"").unwrap().is_empty());
        let error = parse(b"1-1 r 0 0 0\n").unwrap_err().message_in_file("f");
        assert!(
            error.starts_with("f:1: expected `start-end rwxp offset device inode name`, found `1-1 r 0 0 0`"),
            "{error}"
        );
    }
}
