//! The fast snapshot: meminfo, vmstat, buddyinfo and pressure from files that are kept open.
//!
//! A sample reads all files back to back, so that they show one moment as nearly as the kernel allows, and
//! only then parses them, in place and without allocation. A file whose shape has changed, such as a
//! buddyinfo with a zone that was plugged in, is read by the full parser and goes on in its new shape. A file
//! that cannot be read is absent until it can be read again; the others go on.

mod kept;

use pagelab_formats::{ParseError, buddyinfo, meminfo, pressure, vmstat};
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsentWhy, BuddyInfo, Counters, Meminfo, Reading};

use crate::paths;
use crate::root::Root;
pub(crate) use kept::{Ends, Kept};

/// Which files a fast snapshot reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `/proc/meminfo`.
    pub meminfo: bool,
    /// `/proc/vmstat`.
    pub vmstat: bool,
    /// `/proc/buddyinfo`.
    pub buddyinfo: bool,
    /// `/proc/pressure/memory`, `io` and `cpu`.
    pub pressure: bool,
}

impl Wanted {
    /// All of them.
    pub const ALL: Wanted = Wanted { meminfo: true, vmstat: true, buddyinfo: true, pressure: true };
}

/// The resources that pressure is told of, and their files.
pub const RESOURCES: [(&str, &str); 3] =
    [("memory", paths::PRESSURE_MEMORY), ("io", paths::PRESSURE_IO), ("cpu", paths::PRESSURE_CPU)];

/// Kept-open files and what they said last.
#[derive(Debug)]
pub struct FastSnapshot {
    meminfo: FastFile<Meminfo>,
    vmstat: FastFile<Counters>,
    buddyinfo: FastFile<BuddyInfo>,
    pressure: [FastFile<Pressure>; RESOURCES.len()],
}

impl FastSnapshot {
    /// Opens the files under `root` and takes the first sample. What is not there stays absent; what
    /// failed is tried again at every sample.
    pub fn open(root: &Root, wanted: Wanted) -> FastSnapshot {
        let of_pressure = |(_, path): (&str, &'static str)| {
            let wanted = wanted.pressure;
            FastFile::open(root, path, wanted, Ends::WithShape, pressure::parse, pressure::parse_again)
        };
        FastSnapshot {
            buddyinfo: FastFile::open(
                root,
                paths::BUDDYINFO,
                wanted.buddyinfo,
                Ends::AtZero,
                buddyinfo::parse,
                buddyinfo::parse_again,
            ),
            meminfo: FastFile::open(
                root,
                paths::MEMINFO,
                wanted.meminfo,
                Ends::WithShape,
                meminfo::parse,
                meminfo::parse_again,
            ),
            vmstat: FastFile::open(
                root,
                paths::VMSTAT,
                wanted.vmstat,
                Ends::WithShape,
                vmstat::parse,
                vmstat::parse_again,
            ),
            pressure: RESOURCES.map(of_pressure),
        }
    }

    /// Reads all files again.
    pub fn sample(&mut self) {
        self.buddyinfo.read();
        self.meminfo.read();
        self.vmstat.read();
        self.pressure.iter_mut().for_each(FastFile::read);
        self.buddyinfo.update();
        self.meminfo.update();
        self.vmstat.update();
        self.pressure.iter_mut().for_each(FastFile::update);
    }

    /// `/proc/meminfo` of the last sample.
    pub fn meminfo(&self) -> Result<&Meminfo, &Absence> {
        self.meminfo.value()
    }

    /// `/proc/vmstat` of the last sample. Its counters are of one moment as long as the text fits into one
    /// page; the kernel prints a longer one in parts, each of its own moment.
    pub fn vmstat(&self) -> Result<&Counters, &Absence> {
        self.vmstat.value()
    }

    /// `/proc/buddyinfo` of the last sample.
    pub fn buddyinfo(&self) -> Result<&BuddyInfo, &Absence> {
        self.buddyinfo.value()
    }

    /// Memory pressure of the last sample, or why there is none.
    pub fn pressure(&self) -> Result<&Pressure, &Absence> {
        self.pressure[0].value()
    }

    /// Pressure of the last sample by resource, in the order of [`RESOURCES`].
    pub fn pressures(&self) -> [(&'static str, Result<&Pressure, &Absence>); RESOURCES.len()] {
        std::array::from_fn(|at| (RESOURCES[at].0, self.pressure[at].value()))
    }

    /// Numbers that change when the shape of a file does: meminfo, vmstat, buddyinfo, pressure.
    pub(crate) fn shapes(&self) -> [u64; 4] {
        let pressure = self.pressure.iter().map(FastFile::shape).sum();
        [self.meminfo.shape(), self.vmstat.shape(), self.buddyinfo.shape(), pressure]
    }
}

/// One kept-open file, or why there is none.
#[derive(Debug)]
struct FastFile<T> {
    root: Root,
    path: &'static str,
    ends: Ends,
    parse: fn(&[u8]) -> Result<T, ParseError>,
    parse_again: fn(&[u8], &mut T) -> bool,
    kept: Reading<Kept<T>>,
    /// Why the last sample has no value.
    failed: Option<Absence>,
}

impl<T> FastFile<T> {
    fn open(
        root: &Root,
        path: &'static str,
        wanted: bool,
        ends: Ends,
        parse: fn(&[u8]) -> Result<T, ParseError>,
        parse_again: fn(&[u8], &mut T) -> bool,
    ) -> FastFile<T> {
        let kept = match wanted {
            true => Kept::open(root, path, ends, parse, parse_again),
            false => Err(Absence::new(root.show(path), AbsentWhy::NotAsked, "")),
        };
        FastFile { root: root.clone(), path, ends, parse, parse_again, kept, failed: None }
    }

    fn read(&mut self) {
        match &mut self.kept {
            Ok(kept) => self.failed = kept.read().err(),
            Err(absence) if may_pass(absence) => {
                self.kept = Kept::open(&self.root, self.path, self.ends, self.parse, self.parse_again);
            }
            Err(_) => {}
        }
    }

    fn update(&mut self) {
        if let (Ok(kept), None) = (&mut self.kept, &self.failed) {
            self.failed = kept.update().err();
        }
    }

    fn value(&self) -> Result<&T, &Absence> {
        match (&self.kept, &self.failed) {
            (Ok(kept), None) => Ok(&kept.value),
            (Ok(_), Some(absence)) | (Err(absence), _) => Err(absence),
        }
    }

    fn shape(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.shape)
    }
}

/// Whether what is absent may be there at the next sample, without anybody's doing: the kernel had no memory
/// or no descriptor for it. What this kernel does not have, or does not show to this user, stays absent.
pub(crate) fn may_pass(absence: &Absence) -> bool {
    matches!(absence.why, AbsentWhy::Failed | AbsentWhy::Malformed)
}

#[cfg(test)]
mod tests {
    use super::kept::BUFFER_FIRST;
    use super::*;
    use crate::root::TEXT_MAX;
    use std::fs::{self, File};
    use std::path::PathBuf;

    /// A saved tree whose files the tests write over, as the kernel's change under a reader.
    struct Tree {
        folder: tempfile::TempDir,
        root: Root,
    }

    impl Tree {
        fn new() -> Tree {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("proc/pressure")).unwrap();
            let tree = Tree { root: Root::open(folder.path()).unwrap(), folder };
            tree.write("meminfo", "MemTotal: 8 kB\nMemFree: 4 kB\n");
            tree.write("vmstat", "nr_free_pages 1\npgfault 10\n");
            tree.write("buddyinfo", "Node 0, zone Normal 1 0\n");
            tree
        }

        fn path(&self, file: &str) -> PathBuf {
            self.folder.path().join("proc").join(file)
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.path(file), text).unwrap();
        }
    }

    #[test]
    fn a_sample_shows_what_the_files_say_now() {
        let tree = Tree::new();
        let mut fast = FastSnapshot::open(&tree.root, Wanted::ALL);
        assert_eq!(fast.meminfo().unwrap().bytes("MemFree").unwrap().0, 4 << 10);
        assert_eq!(fast.pressure().unwrap_err().why, AbsentWhy::NotSaved);
        tree.write("meminfo", "MemTotal: 8 kB\nMemFree: 2 kB\n");
        tree.write("vmstat", "nr_free_pages 7\npgfault 1000000\n");
        tree.write("buddyinfo", "Node 0, zone Normal 1 3\n");
        fast.sample();
        assert_eq!(fast.meminfo().unwrap().bytes("MemFree").unwrap().0, 2 << 10);
        assert_eq!(fast.vmstat().unwrap().values(), [7, 1_000_000]);
        assert_eq!(fast.buddyinfo().unwrap().free_pages(), 7);
    }

    #[test]
    fn a_changed_shape_or_length_is_followed() {
        let tree = Tree::new();
        let psi = |total: u64| format!("some avg10=0.10 avg60=0.00 avg300=0.00 total={total}\n");
        tree.write("pressure/memory", &psi(1));
        let mut fast = FastSnapshot::open(&tree.root, Wanted::ALL);
        tree.write("pressure/memory", &(psi(5) + &psi(2).replace("some", "full")));
        tree.write("buddyinfo", "Node 0, zone Normal 1 3\nNode 1, zone Movable 0 1\n");
        fast.sample();
        assert_eq!(fast.pressure().unwrap().some.total_us, 5);
        assert_eq!(fast.pressure().unwrap().full.unwrap().total_us, 2);
        assert_eq!((fast.buddyinfo().unwrap().zones.len(), fast.buddyinfo().unwrap().free_pages()), (2, 9));
        // The known lines alone would satisfy the reader if it did not look behind its full buffer.
        for counters in [BUFFER_FIRST / 8, 3, 8 * BUFFER_FIRST, 1] {
            let text = |value: u64| (0..counters).map(|n| format!("c{n:05} {value}\n")).collect::<String>();
            for value in [1, 2, 10, 3] {
                tree.write("vmstat", &text(value));
                fast.sample();
                assert_eq!(fast.vmstat().unwrap().len(), counters);
                assert!(fast.vmstat().unwrap().values().iter().all(|&v| v == value));
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_named_and_may_come_back() {
        let tree = Tree::new();
        let mut fast = FastSnapshot::open(&tree.root, Wanted::ALL);
        for (text, problem) in [
            ("nr_free_pages 1\npgfault\n", "vmstat:2: `pgfault` is not `name number` (read as vmstat)"),
            ("", "vmstat: no counter in it (read as vmstat)"),
        ] {
            tree.write("vmstat", text);
            fast.sample();
            let absence = fast.vmstat().unwrap_err();
            assert!(fast.meminfo().is_ok(), "the others go on");
            assert_eq!(absence.why, AbsentWhy::Malformed);
            assert!(absence.reason().ends_with(problem), "{absence:?}");
            tree.write("vmstat", "nr_free_pages 9\npgfault 1\n");
            fast.sample();
            assert_eq!(fast.vmstat().unwrap().values(), [9, 1]);
        }
        tree.write("vmstat", "nr_free_pages\n");
        let mut late = FastSnapshot::open(&tree.root, Wanted::ALL);
        assert_eq!(late.vmstat().unwrap_err().why, AbsentWhy::Malformed);
        tree.write("vmstat", "nr_free_pages 8\n");
        late.sample();
        assert_eq!(late.vmstat().unwrap().values(), [8], "also one that failed when it was opened");
        File::options().write(true).open(tree.path("meminfo")).unwrap().set_len(TEXT_MAX.0 + 1).unwrap();
        fast.sample();
        assert_eq!(fast.meminfo().unwrap_err().detail, "larger than 64 MiB, which no kernel prints");
        fs::remove_file(tree.path("buddyinfo")).unwrap();
        let fast = FastSnapshot::open(&tree.root, Wanted::ALL);
        assert_eq!(fast.buddyinfo().unwrap_err().why, AbsentWhy::NotSaved);
    }
}
