//! Program files: lookup by the name on a command line, with the same errors for all commands, and identity
//! (path, length, and build ID or checksum).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pagelab_formats::text::format_hex_bytes;
use pagelab_model::Bytes;
use pagelab_model::failure::describe_io_error;
use pagelab_model::profile::Program;
use pagelab_packages::program::{find_executable, is_executable};
use pagelab_tlb::engine::account_layout;

use pagelab_model::Failure;

/// Directories of programs without PATH, as in shells.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The file that a shell would run for this name: itself if there is a slash in it, else the first that may
/// be run of the folders in PATH. The error lists the searched directories.
pub fn find_program(name: &OsStr) -> Result<PathBuf, Failure> {
    find_program_in(name, std::env::var_os("PATH").as_deref())
}

/// The same with the folders of `path`, parted by colons.
fn find_program_in(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = name.display();
    let why = if name.as_bytes().contains(&b'/') {
        let file = Path::new(name);
        match file.metadata() {
            Err(error) => {
                let reason = describe_io_error(&error);
                format!("{reason}; hint: give the path of a program, or a name in PATH")
            }
            Ok(found) if found.is_dir() => "it is a directory; expected a program".to_owned(),
            Ok(_) if !is_executable(file) => format!("it is not executable; hint: chmod +x {shown}"),
            Ok(_) => return Ok(file.to_owned()),
        }
    } else {
        let folders = path.unwrap_or(OsStr::new(DEFAULT_PATH));
        if let Some(found) = find_executable(Path::new(name), std::env::split_paths(folders)) {
            return Ok(found);
        }
        let folders = folders.display();
        format!("no such executable in PATH ({folders}); hint: give its full path")
    };
    Err(Failure::bad_input(format!("cannot start {shown}: {why}")))
}

/// Bytes of a file that are read for its identity.
const READ_MAX: u64 = 64 << 20;
/// Build ids are near the start; the rest is read only if there is none.
const READ_HEAD: u64 = 64 << 10;

/// Reads the identity of the program at `path`; parts that cannot be read are absent.
pub fn identify_program(path: &Path) -> Program {
    let read_identity = || -> io::Result<(Bytes, String)> {
        let mut file = File::open(path)?;
        let bytes = Bytes(file.metadata()?.len());
        let mut contents = Vec::new();
        file.by_ref().take(READ_HEAD).read_to_end(&mut contents)?;
        if let Some(identity) = build_id(&contents) {
            return Ok((bytes, identity));
        }
        file.by_ref().take(READ_MAX - READ_HEAD).read_to_end(&mut contents)?;
        Ok((bytes, build_id(&contents).unwrap_or_else(|| checksum(&contents))))
    };
    let (bytes, identity) = read_identity().ok().unzip();
    Program { path: path.display().to_string(), bytes, identity }
}

/// The descriptor of the note `GNU`, type 3 (NT_GNU_BUILD_ID), anywhere in the first part of the
/// file: name length 4, descriptor length up to 64, type 3, then the name.
fn build_id(contents: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"\x03\0\0\0GNU\0";
    if !contents.starts_with(b"\x7fELF") {
        return None;
    }
    let at = contents.windows(NAME.len()).position(|window| window == NAME)?;
    let length = contents.get(at.checked_sub(4)?..at)?.try_into().ok().map(u32::from_le_bytes)? as usize;
    let descriptor = contents.get(at + NAME.len()..)?.get(..length)?;
    (8..=64).contains(&length).then(|| format_hex_bytes(descriptor))
}

/// FNV-1a of 64 bits: distinguishes files that were not made to collide.
fn checksum(contents: &[u8]) -> String {
    format!("fnv1a-{:016x}", account_layout::fnv1a(contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_path_or_the_first_that_may_be_run() {
        let lab = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = lab.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (_, second) = (file("one/p", 0o644), file("two/p", 0o755));
        let folders = std::env::join_paths(["none", "one", "two"].map(|name| lab.path().join(name))).unwrap();
        let found = |name: &OsStr| find_program_in(name, Some(&folders)).map_err(|error| error.to_string());
        assert_eq!(found("p".as_ref()), Ok(second.clone()));
        assert_eq!(found(second.as_os_str()), Ok(second));
        for (name, said) in [
            ("q", "cannot start q: no such executable in PATH ("),
            ("q", "/two); hint: give its full path"),
            ("", "no such executable in PATH"),
            ("./q", "cannot start ./q: no such file; hint: give the path"),
            ("one/..", "cannot start one/..: no such file"),
            ("/", "cannot start /: it is a directory"),
        ] {
            let why = found(name.as_ref()).unwrap_err();
            assert!(why.contains(said), "{name}: {why}");
        }
        let why = found(lab.path().join("one/p").as_os_str()).unwrap_err();
        assert!(why.contains("it is not executable; hint: chmod +x"), "{why}");
        // execvp(3) has default directories if PATH is not set.
        assert!(find_program_in("sh".as_ref(), None).is_ok_and(|sh| sh.ends_with("sh")));
    }

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
        let program = identify_program(&path);
        assert_eq!(
            (program.bytes, program.identity.as_deref()),
            (Some(Bytes(1)), Some("fnv1a-af63dc4c8601ec8c"))
        );
        assert_eq!(identify_program(&folder.path().join("none")).identity, None);
    }
}
