//! The fast snapshot: meminfo, vmstat, buddyinfo and pressure from files that are kept open.
//!
//! A sample reads all files back to back, so that they show one moment as nearly as the kernel allows, and
//! only then parses them, in place and without allocation. A file whose shape has changed, such as a
//! buddyinfo with a zone that was plugged in, is read by the full parser, and then continues in its new
//! shape. A file that cannot be read is absent until it can be read again; the others go on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagelab_formats::{ParseError, buddyinfo, meminfo, pressure, vmstat};
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsenceReason, BuddyInfo, Counters, Meminfo, Reading};

use crate::paths;
use crate::root::{Root, TEXT_BYTES_MAX};

/// Which files a fast snapshot reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSelection {
    /// `/proc/meminfo`.
    pub meminfo: bool,
    /// `/proc/vmstat`.
    pub vmstat: bool,
    /// `/proc/buddyinfo`.
    pub buddyinfo: bool,
    /// `/proc/pressure/memory`, `io` and `cpu`.
    pub pressure: bool,
}

impl FileSelection {
    /// All of them.
    pub const ALL: FileSelection =
        FileSelection { meminfo: true, vmstat: true, buddyinfo: true, pressure: true };
}

/// Resources of pressure stall information, and their files.
pub const PRESSURE_RESOURCES: [(&str, &str); 3] =
    [("memory", paths::PRESSURE_MEMORY), ("io", paths::PRESSURE_IO), ("cpu", paths::PRESSURE_CPU)];

/// Open files and their last contents.
#[derive(Debug)]
pub struct FastSnapshot {
    meminfo: FastFile<Meminfo>,
    vmstat: FastFile<Counters>,
    buddyinfo: FastFile<BuddyInfo>,
    pressure: [FastFile<Pressure>; PRESSURE_RESOURCES.len()],
}

impl FastSnapshot {
    /// Opens the files under `root` and takes the first sample. Missing files stay absent; failed ones are
    /// retried at every sample.
    pub fn open(root: &Root, selection: FileSelection) -> FastSnapshot {
        use EndDetection::{EmptyRead, LastKnownLine};
        static BUDDYINFO: FileFormat<BuddyInfo> =
            FileFormat::new(paths::BUDDYINFO, EmptyRead, buddyinfo::parse, buddyinfo::reparse);
        static MEMINFO: FileFormat<Meminfo> =
            FileFormat::new(paths::MEMINFO, LastKnownLine, meminfo::parse, meminfo::reparse);
        static VMSTAT: FileFormat<Counters> =
            FileFormat::new(paths::VMSTAT, LastKnownLine, vmstat::parse, vmstat::reparse);
        const fn pressure_format(at: usize) -> FileFormat<Pressure> {
            FileFormat::new(PRESSURE_RESOURCES[at].1, LastKnownLine, pressure::parse, pressure::reparse)
        }
        static PRESSURE: [FileFormat<Pressure>; PRESSURE_RESOURCES.len()] =
            [pressure_format(0), pressure_format(1), pressure_format(2)];
        FastSnapshot {
            buddyinfo: FastFile::open(root, selection.buddyinfo, &BUDDYINFO),
            meminfo: FastFile::open(root, selection.meminfo, &MEMINFO),
            vmstat: FastFile::open(root, selection.vmstat, &VMSTAT),
            pressure: PRESSURE.each_ref().map(|format| FastFile::open(root, selection.pressure, format)),
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

    /// Memory pressure of the last sample, or the reason for its absence.
    pub fn pressure(&self) -> Result<&Pressure, &Absence> {
        self.pressure[0].value()
    }

    /// Pressure of the last sample by resource, in the order of [`PRESSURE_RESOURCES`].
    pub fn pressures(&self) -> [(&'static str, Result<&Pressure, &Absence>); PRESSURE_RESOURCES.len()] {
        std::array::from_fn(|at| (PRESSURE_RESOURCES[at].0, self.pressure[at].value()))
    }

    /// Numbers that change when the shape of a file does: meminfo, vmstat, buddyinfo, pressure.
    pub(crate) fn layout_versions(&self) -> [u64; 4] {
        let pressure = self.pressure.iter().map(FastFile::layout_version).sum();
        let [meminfo, vmstat] = [self.meminfo.layout_version(), self.vmstat.layout_version()];
        [meminfo, vmstat, self.buddyinfo.layout_version(), pressure]
    }
}

/// One kept-open file, or the reason for its absence.
#[derive(Debug)]
struct FastFile<T: 'static> {
    root: Root,
    format: &'static FileFormat<T>,
    file: Reading<OpenFile<T>>,
    /// Why the last sample has no value.
    last_absence: Option<Absence>,
}

impl<T: 'static> FastFile<T> {
    fn open(root: &Root, is_selected: bool, format: &'static FileFormat<T>) -> FastFile<T> {
        let file = match is_selected {
            true => OpenFile::open(root, format),
            false => Err(Absence::new(root.display_path(format.path), AbsenceReason::NotRequested, "")),
        };
        FastFile { root: root.clone(), format, file, last_absence: None }
    }

    fn read(&mut self) {
        match &mut self.file {
            Ok(kept) => self.last_absence = kept.read().err(),
            Err(absence) if is_transient(absence) => self.file = OpenFile::open(&self.root, self.format),
            Err(_) => {}
        }
    }

    fn update(&mut self) {
        if let (Ok(kept), None) = (&mut self.file, &self.last_absence) {
            self.last_absence = kept.update().err();
        }
    }

    fn value(&self) -> Result<&T, &Absence> {
        match (&self.file, &self.last_absence) {
            (Ok(kept), None) => Ok(&kept.value),
            (Ok(_), Some(absence)) | (Err(absence), _) => Err(absence),
        }
    }

    fn layout_version(&self) -> u64 {
        self.file.as_ref().map_or(0, |kept| kept.layout_version)
    }
}

/// Whether the absence may be temporary: the kernel had no memory or no descriptor for it. A value that this
/// kernel does not have, or does not show to this user, stays absent.
pub(crate) fn is_transient(absence: &Absence) -> bool {
    matches!(absence.why, AbsenceReason::Failed | AbsenceReason::Malformed)
}

/// Bytes of the first buffer of each file: more than any of them has on a machine of few nodes.
const INITIAL_BUFFER_BYTES: usize = 16 << 10;

/// How the end of a file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndDetection {
    /// A read that returns nothing: the file can get further lines while the kernel runs.
    EmptyRead,
    /// The last known line: which lines there are is fixed when the kernel is built, and the read that
    /// returns nothing, for which vmstat sums up all CPUs once more, is spared.
    LastKnownLine,
}

/// A file that is read again and again.
#[derive(Debug)]
pub(crate) struct FileFormat<T> {
    pub path: &'static str,
    end_detection: EndDetection,
    parse: fn(&[u8]) -> Result<T, ParseError>,
    /// Updates a value in place; `false` if the text is of another shape.
    reparse: fn(&[u8], &mut T) -> bool,
}

impl<T> FileFormat<T> {
    pub const fn new(
        path: &'static str,
        end_detection: EndDetection,
        parse: fn(&[u8]) -> Result<T, ParseError>,
        reparse: fn(&[u8], &mut T) -> bool,
    ) -> FileFormat<T> {
        FileFormat { path, end_detection, parse, reparse }
    }
}

/// Text of a file that is kept open.
#[derive(Debug)]
struct OpenText {
    file: File,
    /// The file's name for messages.
    display_path: String,
    end_detection: EndDetection,
    /// The text of the last read in its first `filled` bytes.
    buffer: Vec<u8>,
    filled: usize,
    /// Whether `filled` is known to reach to the end.
    is_complete: bool,
    /// Reads since the start of the text that returned something.
    reads_done: usize,
    /// The same when the file was last read to its end; at least 1.
    reads_to_end: usize,
}

/// One file that is kept open, and its value.
#[derive(Debug)]
pub(crate) struct OpenFile<T: 'static> {
    text: OpenText,
    pub value: T,
    /// Grows with every text that was not of the known shape.
    pub layout_version: u64,
    pub format: &'static FileFormat<T>,
}

impl<T: 'static> OpenFile<T> {
    pub fn open(root: &Root, format: &'static FileFormat<T>) -> Reading<OpenFile<T>> {
        let mut text = OpenText {
            file: root.open_regular_file(format.path)?,
            display_path: root.display_path(format.path),
            end_detection: format.end_detection,
            buffer: vec![0; INITIAL_BUFFER_BYTES],
            filled: 0,
            is_complete: false,
            reads_done: 0,
            reads_to_end: usize::MAX,
        };
        text.read()?;
        let value = text.parse(format.parse)?;
        Ok(OpenFile { text, value, layout_version: 0, format })
    }

    /// Reads the text; [`OpenFile::update`] parses it.
    pub fn read(&mut self) -> Reading<()> {
        self.text.read()
    }

    /// Brings the value up to the text that was read.
    pub fn update(&mut self) -> Reading<()> {
        let full = self.text.filled == self.text.buffer.len() && !self.text.is_complete;
        if !full && (self.format.reparse)(self.text.bytes(), &mut self.value) {
            return Ok(());
        }
        if !self.text.is_complete {
            // Either the shape is another, or the kernel cut the text at other places than last time.
            self.text.read_until(usize::MAX)?;
            if (self.format.reparse)(self.text.bytes(), &mut self.value) {
                return Ok(());
            }
        }
        self.value = self.text.parse(self.format.parse)?;
        self.layout_version += 1;
        Ok(())
    }
}

impl OpenText {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    fn parse<T>(&self, parse: fn(&[u8]) -> Result<T, ParseError>) -> Reading<T> {
        parse(self.bytes()).map_err(|error| {
            let detail = error.message_in_file(&self.display_path);
            Absence::new(&self.display_path, AbsenceReason::Malformed, detail)
        })
    }

    /// Reads the text into the buffer: to its end, or as many times as gave something when it was last read
    /// to its end.
    fn read(&mut self) -> Reading<()> {
        (self.filled, self.reads_done, self.is_complete) = (0, 0, false);
        let reads = match self.end_detection {
            EndDetection::EmptyRead => usize::MAX,
            EndDetection::LastKnownLine => self.reads_to_end,
        };
        self.read_until(reads)
    }

    /// More reads, until `reads` have given something since the start of the text, or its end.
    fn read_until(&mut self, reads: usize) -> Reading<()> {
        while self.reads_done < reads && !self.is_complete {
            if self.filled == self.buffer.len() {
                self.buffer.resize((2 * self.filled).min(TEXT_BYTES_MAX.0 as usize + 1), 0);
            }
            match self.file.read_at(&mut self.buffer[self.filled..], self.filled as u64) {
                Ok(0) => {
                    self.is_complete = true;
                    self.reads_to_end = self.reads_done.max(1);
                }
                Ok(count) => {
                    self.filled += count;
                    self.reads_done += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Absence::new(&self.display_path, AbsenceReason::Failed, error.to_string()));
                }
            }
            if self.filled as u64 > TEXT_BYTES_MAX.0 {
                let detail = "larger than 64 MiB: no kernel prints that much";
                return Err(Absence::new(&self.display_path, AbsenceReason::Malformed, detail));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

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
        let mut fast = FastSnapshot::open(&tree.root, FileSelection::ALL);
        assert_eq!(fast.meminfo().unwrap().bytes("MemFree").unwrap().0, 4 << 10);
        assert_eq!(fast.pressure().unwrap_err().why, AbsenceReason::NotSaved);
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
        let mut fast = FastSnapshot::open(&tree.root, FileSelection::ALL);
        tree.write("pressure/memory", &(psi(5) + &psi(2).replace("some", "full")));
        tree.write("buddyinfo", "Node 0, zone Normal 1 3\nNode 1, zone Movable 0 1\n");
        fast.sample();
        assert_eq!(fast.pressure().unwrap().some.total_us, 5);
        assert_eq!(fast.pressure().unwrap().full.unwrap().total_us, 2);
        assert_eq!((fast.buddyinfo().unwrap().zones.len(), fast.buddyinfo().unwrap().free_pages()), (2, 9));
        // The known lines alone would satisfy the reader if it did not look behind its full buffer.
        for counters in [INITIAL_BUFFER_BYTES / 8, 3, 8 * INITIAL_BUFFER_BYTES, 1] {
            let name = |at: usize| if at == 0 { "nr_dirty".to_owned() } else { format!("c{at:05}") };
            let text =
                |value: u64| (0..counters).map(|at| format!("{} {value}\n", name(at))).collect::<String>();
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
        let mut fast = FastSnapshot::open(&tree.root, FileSelection::ALL);
        for (text, problem) in [
            (
                "nr_free_pages 1\npgfault\n",
                "vmstat:2: expected `name number`, found `pgfault` (read as vmstat)",
            ),
            ("", "vmstat: no counters found (read as vmstat)"),
        ] {
            tree.write("vmstat", text);
            fast.sample();
            let absence = fast.vmstat().unwrap_err();
            assert!(fast.meminfo().is_ok(), "the others go on");
            assert_eq!(absence.why, AbsenceReason::Malformed);
            assert!(absence.reason().ends_with(problem), "{absence:?}");
            tree.write("vmstat", "nr_free_pages 9\npgfault 1\n");
            fast.sample();
            assert_eq!(fast.vmstat().unwrap().values(), [9, 1]);
        }
        tree.write("vmstat", "nr_free_pages\n");
        let mut late = FastSnapshot::open(&tree.root, FileSelection::ALL);
        assert_eq!(late.vmstat().unwrap_err().why, AbsenceReason::Malformed);
        tree.write("vmstat", "nr_free_pages 8\n");
        late.sample();
        assert_eq!(late.vmstat().unwrap().values(), [8], "also one that failed when it was opened");
        File::options()
            .write(true)
            .open(tree.path("meminfo"))
            .unwrap()
            .set_len(TEXT_BYTES_MAX.0 + 1)
            .unwrap();
        fast.sample();
        assert_eq!(fast.meminfo().unwrap_err().detail, "larger than 64 MiB: no kernel prints that much");
        fs::remove_file(tree.path("buddyinfo")).unwrap();
        let fast = FastSnapshot::open(&tree.root, FileSelection::ALL);
        assert_eq!(fast.buddyinfo().unwrap_err().why, AbsenceReason::NotSaved);
    }
}
