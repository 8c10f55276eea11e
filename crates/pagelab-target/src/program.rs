//! The file of a program that a command line names, or why there is none: one answer for all commands.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::error::{Error, ErrorKind};

/// Where programs are looked for without PATH, as shells do.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";

/// The file that a shell would run for this name: itself if there is a slash in it, else the first that may
/// be run of the folders in PATH. The error says where it was looked for.
pub fn find(name: &OsStr) -> Result<PathBuf, Error> {
    find_in(name, std::env::var_os("PATH").as_deref())
}

/// The same with the folders of `path`, parted by colons.
fn find_in(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let shown = name.display();
    let cannot =
        |why: String| Err(Error::new(ErrorKind::CannotStart, format!("cannot start {shown}: {why}")));
    if name.as_bytes().contains(&b'/') {
        let file = Path::new(name);
        return match file.metadata() {
            Err(error) => {
                cannot(format!("{error}; give the path of a program, or the name of one that is in PATH"))
            }
            Ok(found) if found.is_dir() => {
                cannot("it is a folder; give the name of a program in it".to_owned())
            }
            Ok(_) if !may_be_run(file) => cannot(format!("it may not be run; `chmod +x {shown}` lets it be")),
            Ok(_) => Ok(file.to_owned()),
        };
    }
    let folders = path.unwrap_or(OsStr::new(USUAL));
    let found = std::env::split_paths(folders).map(|folder| folder.join(name)).find(|file| may_be_run(file));
    found.map_or_else(
        || {
            let folders = folders.display();
            cannot(format!("no folder of PATH ({folders}) has such a program that may be run; give its path"))
        },
        Ok,
    )
}

fn may_be_run(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
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
        let found = |name: &OsStr| find_in(name, Some(&folders)).map_err(|error| error.to_string());
        assert_eq!(found("p".as_ref()), Ok(second.clone()));
        assert_eq!(found(second.as_os_str()), Ok(second));
        for (name, said) in [
            ("q", "cannot start q: no folder of PATH ("),
            ("q", "/two) has such a program that may be run; give its path"),
            ("", "no folder of PATH"),
            ("./q", "cannot start ./q: No such file or directory (os error 2); give the path"),
            ("one/..", "cannot start one/..: No such file"),
            ("/", "cannot start /: it is a folder; give the name"),
        ] {
            let why = found(name.as_ref()).unwrap_err();
            assert!(why.contains(said), "{name}: {why}");
        }
        let why = found(lab.path().join("one/p").as_os_str()).unwrap_err();
        assert!(why.contains("it may not be run; `chmod +x"), "{why}");
        // execvp(3) has folders of its own where there is no PATH.
        assert!(find_in("sh".as_ref(), None).is_ok_and(|sh| sh.ends_with("sh")));
    }
}
