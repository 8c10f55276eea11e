//! Builds of kernel objects from a source tree (`pagelab guest setup --linux-source`): its extraction, its
//! list of objects, and the command that compiles them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pagelab_model::Bytes;
use pagelab_model::source_tree::{COMPILER, OBJECT_LIST, TREE_SETUP, is_plain_path};
use pagelab_sys::spawn::die_with_parent;

use crate::WorkloadError;
use crate::small_program::find_on_path;

/// Programs that a build runs, and the packages of Debian that have them.
const PROGRAMS: [(&str, &str); 3] = [("tar", "tar"), ("make", "make"), (COMPILER, COMPILER)];
/// Directories of programs, if there is no PATH.
const DEFAULT_PATH: &str = "/usr/bin:/bin";
/// Bytes of a list of objects at most.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Bytes of the archive of a tree, a file or a device, and whether everything is there that builds it.
pub fn check_tree(tree: &Path) -> Result<Bytes, WorkloadError> {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| find_on_path(name).is_none()).collect();
    if let Some((name, _)) = missing.first() {
        let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
        return Err(WorkloadError::NotAvailable(format!(
            "no {name} on PATH; hint: apt-get install {}, or pagelab guest run --tools --linux-source -- \
             workload kbuild",
            packages.join(" ")
        )));
    }
    let bytes = File::open(tree).and_then(|mut file| file.seek(SeekFrom::End(0)));
    bytes.map(Bytes).map_err(|error| {
        WorkloadError::NotAvailable(format!(
            "cannot open the source tree {}: {error}; hint: {TREE_SETUP}, then pagelab guest run --tools \
             --linux-source -- workload kbuild, or set the option tree to its tree.tar",
            tree.display()
        ))
    })
}

/// Extracts the archive of a tree into a directory that is there.
pub fn extract_tree(tree: &Path, dir: &Path) -> Result<(), WorkloadError> {
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(tree).arg("-C").arg(dir).arg("--no-same-owner").stdin(Stdio::null());
    die_with_parent(&mut tar);
    let output = tar.output().map_err(|error| WorkloadError::system_error("cannot run tar", error))?;
    check_success("extract the source tree", &output)
}

/// The objects of an extracted tree, in the order in which they are built.
pub fn read_objects(dir: &Path) -> Result<Vec<String>, WorkloadError> {
    let path = dir.join(OBJECT_LIST);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(LIST_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| WorkloadError::InvalidInput(format!("cannot read {}: {error}", path.display())))?;
    parse_objects(&text).map_err(|why| WorkloadError::InvalidInput(format!("{OBJECT_LIST}: {why}")))
}

fn parse_objects(text: &str) -> Result<Vec<String>, String> {
    let objects: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Some((line, found)) =
        (1..).zip(&objects).find(|(_, object)| !is_plain_path(object) || !object.ends_with(".o"))
    {
        return Err(format!("line {line}: expected the path of an object, found {found:?}"));
    }
    match objects.is_empty() {
        true => Err("expected objects, found none".to_owned()),
        false => Ok(objects),
    }
}

/// make in an extracted tree. Its temporary files are there, too: they are removed with the tree.
pub fn make_command(dir: &Path) -> Command {
    let mut make = Command::new("make");
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    make.env_clear().env("PATH", path).env("LC_ALL", "C").env("TMPDIR", dir).current_dir(dir);
    make.arg("--no-builtin-rules").stdin(Stdio::null());
    die_with_parent(&mut make);
    make
}

/// An error with the last words of a program that did not succeed.
pub fn check_success(action: &str, output: &Output) -> Result<(), WorkloadError> {
    match output.status.success() {
        true => Ok(()),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let why = format!("{} ({})", last_line(&stderr), output.status);
            Err(WorkloadError::system_error(format_args!("cannot {action}"), why))
        }
    }
}

fn last_line(stderr: &str) -> &str {
    stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    const MAKEFILE: &str =
        "lib/a.o:\n\t@gcc-12 -c -o lib/a.o lib/a.c\nlib/b.o:\n\t@gcc-12 -c -o lib/b.o lib/b.c\n";

    /// The archive of a small tree below `folder`, if this machine can build it.
    pub(crate) fn write_tree(folder: &Path, makefile: &str) -> Option<PathBuf> {
        if PROGRAMS.iter().any(|(name, _)| find_on_path(name).is_none()) {
            eprintln!("skipped: build-tools-absent: no tar, make or {COMPILER}");
            return None;
        }
        let source = folder.join("source");
        fs::create_dir_all(source.join("lib")).unwrap();
        fs::write(source.join("Makefile"), makefile).unwrap();
        fs::write(source.join(OBJECT_LIST), "lib/a.o\nlib/b.o\n").unwrap();
        for name in ["a", "b"] {
            fs::write(source.join(format!("lib/{name}.c")), format!("int {name}(void) {{ return 1; }}\n"))
                .unwrap();
        }
        let tree = folder.join("tree.tar");
        let tar = Command::new("tar").arg("-cf").arg(&tree).arg("-C").arg(&source).arg(".").status();
        assert!(tar.unwrap().success());
        Some(tree)
    }

    pub(crate) const GOOD_MAKEFILE: &str = MAKEFILE;

    #[test]
    fn a_list_of_objects_is_one_of_plain_paths() {
        assert_eq!(parse_objects("lib/a.o\nlib/b.o\n").unwrap(), ["lib/a.o", "lib/b.o"]);
        for (text, said) in [
            ("", "found none"),
            ("lib/a.o\n\n", "line 2"),
            ("--eval=$(shell id).o\n", "line 1"),
            ("/etc/x.o\n", "line 1"),
            ("lib/../x.o\n", "line 1"),
            ("lib/a.c\n", "line 1"),
            ("lib/a.o lib/b.o\n", "line 1"),
            ("lib/\u{7}.o", "line 1"),
        ] {
            let error = parse_objects(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    #[test]
    fn without_a_tree_the_error_names_the_way_to_one() {
        let folder = tempfile::tempdir().unwrap();
        if write_tree(folder.path(), MAKEFILE).is_none() {
            return;
        }
        let error = check_tree(Path::new("/no/such/tree")).unwrap_err();
        assert!(
            matches!(&error, WorkloadError::NotAvailable(text) if text.contains(TREE_SETUP)),
            "{error:?}"
        );
        let other = folder.path().join("other");
        fs::write(&other, "text").unwrap();
        let error = extract_tree(&other, folder.path()).unwrap_err();
        assert!(error.to_string().contains("cannot extract the source tree: "), "{error}");
    }
}
