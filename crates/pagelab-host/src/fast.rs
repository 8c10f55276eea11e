//! The fast snapshot: meminfo, vmstat, buddyinfo and memory pressure from files that are kept open.
//!
//! A sample reads all files back to back, so that they show one moment as nearly as the kernel allows, and
//! only then parses them, in place and without allocation. A file whose shape has changed, such as a
//! buddyinfo with a zone that was plugged in, is read by the full parser and goes on in its new shape.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagelab_formats::{ParseError, buddyinfo, meminfo, pressure, vmstat};
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsentWhy, BuddyInfo, Counters, Meminfo, Reading};

use crate::paths;
use crate::root::{Root, TEXT_MAX};

/// Bytes of the first buffer of each file: more than any of them has on a machine of few nodes.
const BUFFER_FIRST: usize = 16 << 10;

/// Kept-open files and what they said last.
#[derive(Debug)]
pub struct FastSnapshot {
    meminfo: Kept<Meminfo>,
    vmstat: Kept<Counters>,
    buddyinfo: Kept<BuddyInfo>,
    pressure: Reading<Kept<Pressure>>,
}

impl FastSnapshot {
    /// Opens the files under `root` and takes the first sample. Memory pressure may be absent (a kernel
    /// before 4.20, or one without PSI); the others must be there.
    pub fn open(root: &Root) -> Reading<FastSnapshot> {
        Ok(FastSnapshot {
            buddyinfo: Kept::open(
                root,
                paths::BUDDYINFO,
                Ends::AtZero,
                buddyinfo::parse,
                buddyinfo::parse_again,
            )?,
            meminfo: Kept::open(root, paths::MEMINFO, Ends::WithShape, meminfo::parse, meminfo::parse_again)?,
            vmstat: Kept::open(root, paths::VMSTAT, Ends::WithShape, vmstat::parse, vmstat::parse_again)?,
            pressure: Kept::open(
                root,
                paths::PRESSURE_MEMORY,
                Ends::WithShape,
                pressure::parse,
                pressure::parse_again,
            ),
        })
    }

    /// Reads all files again. After an error the values of the file that it names are of no one moment,
    /// until a later sample succeeds.
    pub fn sample(&mut self) -> Reading<()> {
        self.buddyinfo.read()?;
        self.meminfo.read()?;
        self.vmstat.read()?;
        if let Ok(pressure) = &mut self.pressure {
            pressure.read()?;
        }
        self.buddyinfo.update()?;
        self.meminfo.update()?;
        self.vmstat.update()?;
        self.pressure.as_mut().map_or(Ok(()), Kept::update)
    }

    /// `/proc/meminfo` of the last sample.
    pub fn meminfo(&self) -> &Meminfo {
        &self.meminfo.value
    }

    /// `/proc/vmstat` of the last sample. Its counters are of one moment as long as the text fits into one
    /// page; the kernel prints a longer one in parts, each of its own moment.
    pub fn vmstat(&self) -> &Counters {
        &self.vmstat.value
    }

    /// `/proc/buddyinfo` of the last sample.
    pub fn buddyinfo(&self) -> &BuddyInfo {
        &self.buddyinfo.value
    }

    /// Memory pressure of the last sample, or why there is none.
    pub fn pressure(&self) -> Result<&Pressure, &Absence> {
        self.pressure.as_ref().map(|kept| &kept.value)
    }
}

/// How the end of a file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// A read that returns nothing: the file can get further lines while the kernel runs.
    AtZero,
    /// The last known line: which lines there are is fixed when the kernel is built, and the read that
    /// returns nothing, for which vmstat sums up all CPUs once more, is spared.
    WithShape,
}

/// One file that is kept open, and its value.
#[derive(Debug)]
struct Kept<T> {
    file: File,
    /// The file's name for messages.
    shown: String,
    ends: Ends,
    /// The text of the last read in its first `filled` bytes.
    buffer: Vec<u8>,
    filled: usize,
    /// Whether `filled` is known to reach to the end.
    ended: bool,
    /// Reads since the start of the text that returned something.
    done: usize,
    /// The same when the file was last read to its end; at least 1.
    reads: usize,
    value: T,
    parse: fn(&[u8]) -> Result<T, ParseError>,
    parse_again: fn(&[u8], &mut T) -> bool,
}

impl<T> Kept<T> {
    fn open(
        root: &Root,
        path: &str,
        ends: Ends,
        parse: fn(&[u8]) -> Result<T, ParseError>,
        parse_again: fn(&[u8], &mut T) -> bool,
    ) -> Reading<Kept<T>> {
        let mut text = Kept {
            file: root.file(path)?,
            shown: root.show(path),
            ends,
            buffer: vec![0; BUFFER_FIRST],
            filled: 0,
            ended: false,
            done: 0,
            reads: usize::MAX,
            value: (),
            parse: |_| Ok(()),
            parse_again: |_, ()| true,
        };
        text.read()?;
        let value = parse(&text.buffer[..text.filled]).map_err(|error| text.malformed(&error))?;
        let Kept { file, shown, ends, buffer, filled, ended, done, reads, .. } = text;
        Ok(Kept { file, shown, ends, buffer, filled, ended, done, reads, value, parse, parse_again })
    }

    /// Reads the text into the buffer: to its end, or as many times as gave something when it was last read
    /// to its end.
    fn read(&mut self) -> Reading<()> {
        (self.filled, self.done, self.ended) = (0, 0, false);
        let reads = match self.ends {
            Ends::AtZero => usize::MAX,
            Ends::WithShape => self.reads,
        };
        self.read_on(reads)
    }

    /// More reads, until `reads` have given something since the start of the text, or its end.
    fn read_on(&mut self, reads: usize) -> Reading<()> {
        while self.done < reads && !self.ended {
            if self.filled == self.buffer.len() {
                self.buffer.resize((2 * self.filled).min(TEXT_MAX.0 as usize + 1), 0);
            }
            match self.file.read_at(&mut self.buffer[self.filled..], self.filled as u64) {
                Ok(0) => {
                    self.ended = true;
                    self.reads = self.done.max(1);
                }
                Ok(count) => {
                    self.filled += count;
                    self.done += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Absence::new(&self.shown, AbsentWhy::Failed, error.to_string()));
                }
            }
            if self.filled as u64 > TEXT_MAX.0 {
                let detail = "larger than 64 MiB, which no kernel prints";
                return Err(Absence::new(&self.shown, AbsentWhy::Malformed, detail));
            }
        }
        Ok(())
    }

    /// Brings the value up to the text that was read.
    fn update(&mut self) -> Reading<()> {
        let full = self.filled == self.buffer.len() && !self.ended;
        if !full && (self.parse_again)(&self.buffer[..self.filled], &mut self.value) {
            return Ok(());
        }
        if !self.ended {
            // Either the shape is another, or the kernel cut the text at other places than last time.
            self.read_on(usize::MAX)?;
            if (self.parse_again)(&self.buffer[..self.filled], &mut self.value) {
                return Ok(());
            }
        }
        self.value = (self.parse)(&self.buffer[..self.filled]).map_err(|error| self.malformed(&error))?;
        Ok(())
    }

    fn malformed(&self, error: &ParseError) -> Absence {
        Absence::new(&self.shown, AbsentWhy::Malformed, error.in_file(&self.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
        let mut fast = FastSnapshot::open(&tree.root).unwrap();
        assert_eq!(fast.meminfo().bytes("MemFree").unwrap().0, 4 << 10);
        assert_eq!(fast.pressure().unwrap_err().why, AbsentWhy::NotSaved);
        tree.write("meminfo", "MemTotal: 8 kB\nMemFree: 2 kB\n");
        tree.write("vmstat", "nr_free_pages 7\npgfault 1000000\n");
        tree.write("buddyinfo", "Node 0, zone Normal 1 3\n");
        fast.sample().unwrap();
        assert_eq!(fast.meminfo().bytes("MemFree").unwrap().0, 2 << 10);
        assert_eq!(fast.vmstat().values(), [7, 1_000_000]);
        assert_eq!(fast.buddyinfo().free_pages(), 7);
    }

    #[test]
    fn a_changed_shape_or_length_is_followed() {
        let tree = Tree::new();
        let psi = |total: u64| format!("some avg10=0.10 avg60=0.00 avg300=0.00 total={total}\n");
        tree.write("pressure/memory", &psi(1));
        let mut fast = FastSnapshot::open(&tree.root).unwrap();
        tree.write("pressure/memory", &(psi(5) + &psi(2).replace("some", "full")));
        tree.write("buddyinfo", "Node 0, zone Normal 1 3\nNode 1, zone Movable 0 1\n");
        fast.sample().unwrap();
        assert_eq!(fast.pressure().unwrap().some.total_us, 5);
        assert_eq!(fast.pressure().unwrap().full.unwrap().total_us, 2);
        assert_eq!((fast.buddyinfo().zones.len(), fast.buddyinfo().free_pages()), (2, 9));
        // The known lines alone would satisfy the reader if it did not look behind its full buffer.
        for counters in [BUFFER_FIRST / 8, 3, 8 * BUFFER_FIRST, 1] {
            let text = |value: u64| (0..counters).map(|n| format!("c{n:05} {value}\n")).collect::<String>();
            for value in [1, 2, 10, 3] {
                tree.write("vmstat", &text(value));
                fast.sample().unwrap();
                assert_eq!(fast.vmstat().len(), counters);
                assert!(fast.vmstat().values().iter().all(|&v| v == value));
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_named_and_may_come_back() {
        let tree = Tree::new();
        let mut fast = FastSnapshot::open(&tree.root).unwrap();
        for (text, problem) in [
            ("nr_free_pages 1\npgfault\n", "vmstat:2: `pgfault` is not `name number` (read as vmstat)"),
            ("", "vmstat: no counter in it (read as vmstat)"),
        ] {
            tree.write("vmstat", text);
            let absence = fast.sample().unwrap_err();
            assert_eq!(absence.why, AbsentWhy::Malformed);
            assert!(absence.reason().ends_with(problem), "{absence:?}");
            tree.write("vmstat", "nr_free_pages 9\npgfault 1\n");
            fast.sample().unwrap();
            assert_eq!(fast.vmstat().values(), [9, 1]);
        }
        File::options().write(true).open(tree.path("meminfo")).unwrap().set_len(TEXT_MAX.0 + 1).unwrap();
        assert_eq!(fast.sample().unwrap_err().detail, "larger than 64 MiB, which no kernel prints");
        fs::remove_file(tree.path("buddyinfo")).unwrap();
        assert_eq!(FastSnapshot::open(&tree.root).unwrap_err().why, AbsentWhy::NotSaved);
    }
}
