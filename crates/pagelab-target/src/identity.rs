//! Which program a file is: its path, length, and build id or checksum.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pagelab_model::Bytes;
use pagelab_model::profile::Program;
use pagelab_tlb::engine::layout;

/// Bytes of a file that are read for its identity.
const READ_MAX: u64 = 64 << 20;
/// Build ids stand near the start; the rest is read only if there is none.
const READ_FIRST: u64 = 64 << 10;

/// The identity of the program at `path`, as far as it can be read.
pub fn of(path: &Path) -> Program {
    let known = || -> io::Result<(u64, String)> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut contents = Vec::new();
        file.by_ref().take(READ_FIRST).read_to_end(&mut contents)?;
        if let Some(identity) = build_id(&contents) {
            return Ok((bytes, identity));
        }
        file.by_ref().take(READ_MAX - READ_FIRST).read_to_end(&mut contents)?;
        Ok((bytes, build_id(&contents).unwrap_or_else(|| checksum(&contents))))
    };
    let path = path.display().to_string();
    match known() {
        Ok((bytes, identity)) => Program { path, bytes: Some(Bytes(bytes)), identity: Some(identity) },
        Err(_) => Program { path, bytes: None, identity: None },
    }
}

/// The descriptor of the note `GNU`, type 3 (NT_GNU_BUILD_ID), wherever it stands in the first part of the
/// file: name length 4, descriptor length up to 64, type 3, then the name.
fn build_id(contents: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\x03\0\0\0GNU\0";
    if !contents.starts_with(b"\x7fELF") {
        return None;
    }
    let at = contents.windows(NAME.len()).position(|window| window == NAME)?;
    let length = contents.get(at.checked_sub(4)?..at)?.try_into().ok().map(u32::from_le_bytes)? as usize;
    let descriptor = contents.get(at + NAME.len()..)?.get(..length)?;
    (8..=64).contains(&length).then(|| hex(descriptor))
}

/// FNV-1a of 64 bits: tells files apart that nobody made alike on purpose.
fn checksum(contents: &[u8]) -> String {
    format!("fnv1a-{:016x}", layout::hash(contents))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_what_the_linker_wrote_and_a_script_has_a_checksum() {
        let mut elf = b"\x7fELF and so on".to_vec();
        elf.extend([8, 0, 0, 0]);
        elf.extend(b"\x03\0\0\0GNU\0\x01\x02\x03\x04\x05\x06\x07\xff rest");
        assert_eq!(build_id(&elf).as_deref(), Some("01020304050607ff"));
        assert_eq!(build_id(b"#!/bin/sh\n"), None);
        assert_eq!(checksum(b"a"), "fnv1a-af63dc4c8601ec8c");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        std::fs::write(&path, "a").unwrap();
        let program = of(&path);
        assert_eq!(
            (program.bytes, program.identity.as_deref()),
            (Some(Bytes(1)), Some("fnv1a-af63dc4c8601ec8c"))
        );
        assert_eq!(of(&folder.path().join("none")).identity, None);
    }
}
