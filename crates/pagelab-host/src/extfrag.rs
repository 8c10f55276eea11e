//! The kernel's own fragmentation indices, if debugfs is mounted; it is never mounted here.

use pagelab_formats::buddyinfo;
use pagelab_formats::mountinfo::Mount;
use pagelab_model::snapshot::ExtfragFiles;
use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::paths;
use crate::reader::Reader;

/// Maximum of attempts until nothing changed between the first and the last reading.
const READ_ATTEMPTS_MAX: u32 = 20;

/// Mount point of the root of a file system of `fs_type`, as this process sees it.
pub fn mount_point<'m>(mounts: &'m Reading<Vec<Mount>>, fs_type: &str) -> Option<&'m str> {
    let mounted = mounts.as_ref().ok()?.iter().rfind(|m| m.fs_type == fs_type && m.root == "/");
    mounted.map(|mount| mount.mount_point.trim_end_matches('/'))
}

/// Reads both index files between two equal readings of buddyinfo.
pub fn read(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>) -> Reading<ExtfragFiles> {
    let root = reader.root();
    let debugfs = match mount_point(mounts, "debugfs") {
        Some(debugfs) => debugfs,
        // A saved tree may lack the list of mounts.
        None if !root.is_live() => paths::DEBUGFS,
        None => {
            let source = format!("{}/extfrag", paths::DEBUGFS);
            return Err(Absence::new(source, AbsenceReason::NotThere, "debugfs is not mounted")
                .with_hint(format!("mount -t debugfs none {}, as root", paths::DEBUGFS)));
        }
    };
    let at = |file: &str| format!("{debugfs}/extfrag/{file}");
    let text = |path: &str| reader.read_text(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    for tries in 1..=READ_ATTEMPTS_MAX {
        let before = root.read(paths::BUDDYINFO)?;
        let (unusable, extfrag) = (text(&at("unusable_index"))?, text(&at("extfrag_index"))?);
        let after = root.read(paths::BUDDYINFO)?;
        if before == after {
            let buddyinfo = reader.parse(paths::BUDDYINFO, |_| buddyinfo::parse(&before))?;
            return Ok(ExtfragFiles { unusable, extfrag, buddyinfo, tries });
        }
    }
    let detail = format!("free memory changed during all {READ_ATTEMPTS_MAX} attempts; not compared");
    Err(Absence::new(root.display_path(&at("extfrag_index")), AbsenceReason::Changing, detail)
        .with_hint("try again on a quieter machine"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    fn read_fake(files: &[(&str, &str)]) -> Reading<ExtfragFiles> {
        FakeTree::read_with(files, read)
    }

    #[test]
    fn both_files_beside_an_unmoved_buddyinfo() {
        let mounts = ("/proc/self/mountinfo", "1 1 0:7 / /debug rw - debugfs none rw\n");
        let buddy = ("/proc/buddyinfo", "Node 0, zone DMA 1 2\n");
        let files = read_fake(&[
            mounts,
            buddy,
            ("/debug/extfrag/unusable_index", "u"),
            ("/debug/extfrag/extfrag_index", "e"),
        ])
        .unwrap();
        assert_eq!((files.unusable.as_str(), files.extfrag.as_str(), files.tries), ("u", "e", 1));
        assert_eq!(files.buddyinfo.free_pages(), 5);
        assert_eq!(read_fake(&[mounts, buddy]).unwrap_err().why, AbsenceReason::NotSaved);
        assert_eq!(read_fake(&[]).unwrap_err().why, AbsenceReason::NotSaved);
    }

    #[test]
    fn debugfs_that_is_not_mounted_is_not_mounted_for_the_reader() {
        let root = crate::root::Root::live();
        let reader = Reader::new(&root);
        let absence = read(&reader, &Ok(Vec::new())).unwrap_err();
        assert_eq!(absence.reason(), "debugfs is not mounted");
        assert_eq!(absence.hint.as_deref(), Some("mount -t debugfs none /sys/kernel/debug, as root"));
    }
}
