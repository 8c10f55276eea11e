//! ELF program without the sections that only debuggers read, to save memory in a guest.

/// The part of an ELF file that the kernel maps: everything behind the last loaded segment is cut off, and
/// with it the table of sections. A file that is not understood stays as it is.
pub fn truncate_to_loaded(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(end) = find_loaded_end(&file)
        && end < file.len()
    {
        file.truncate(end);
        // e_shoff, and e_shentsize, e_shnum, e_shstrndx: there is no table of sections any more.
        for at in (40..48).chain(58..64) {
            file[at] = 0;
        }
    }
    file
}

/// Where the last loaded segment ends in the file, for ELF files of 64 bits, little endian.
fn find_loaded_end(file: &[u8]) -> Option<usize> {
    const PT_LOAD: u64 = 1; // PT_LOAD
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: u64, bytes: u64| {
        let (at, end) = (usize::try_from(at).ok()?, usize::try_from(at.checked_add(bytes)?).ok()?);
        Some(file.get(at..end)?.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut end = table.checked_add(size.checked_mul(count)?)?.max(64);
    for index in 0..count {
        let head = table.checked_add(index * size)?;
        if number(head, 4)? == PT_LOAD {
            end = end.max(number(head + 8, 8)?.checked_add(number(head + 32, 8)?)?);
        }
    }
    usize::try_from(end).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_runs_without_the_rest() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let part = truncate_to_loaded(whole.clone());
        assert!(part.len() < whole.len(), "{} of {}", part.len(), whole.len());
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, part).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = loop {
            match std::process::Command::new(&program).arg("--list").output() {
                // A test beside this one holds it open for writing until its own child runs.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                run => break run.unwrap(),
            }
        };
        assert!(String::from_utf8_lossy(&run.stdout).contains("a_program_runs_without_the_rest"));
    }

    #[test]
    fn what_is_no_program_stays() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0xff; 200]] {
            assert_eq!(truncate_to_loaded(bytes.to_vec()), bytes);
        }
    }
}
