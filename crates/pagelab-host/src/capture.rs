//! The machine's memory files in one folder or archive, readable again as a root.
//!
//! What is taken stands in one table ([`captured::TABLE`]). Nothing is changed on the machine; memory in
//! use is bounded by the largest text; the target's name appears only when everything is in it.

mod groups;
mod kernel_log;
pub(crate) mod pattern;
mod privacy;
mod processes;
mod sink;
mod stop;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pagelab_model::{Absence, AbsentWhy, Bytes};
use pagelab_sys::clock::{boottime_ns, realtime_ns};

use crate::machine::live_page_size;
use crate::manifest::{FORMAT_VERSION, FileRecord, MANIFEST_FILE, Manifest};
use crate::paths;
use crate::paths::captured::{self, Privacy};
use crate::root::Root;
use sink::{Packed, Sink};
pub use stop::Stop;

/// What to take beside the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Names and command lines of processes, and the host's name.
    pub with_processes: bool,
    /// Leave out one word for each page: the largest file by far.
    pub without_kpageflags: bool,
    /// Read pagetypeinfo, which costs up to 50 ms with interrupts off.
    pub with_pagetypeinfo: bool,
    /// Leave out what the kernel's log says about failed allocations and kills for lack of memory.
    pub without_kernel_log: bool,
    /// Replace an existing capture.
    pub force: bool,
}

/// What was captured.
#[derive(Debug)]
pub struct Summary {
    /// The folder or archive.
    pub path: PathBuf,
    /// Its size: of an archive its own, of a folder the sum of its files.
    pub bytes: Bytes,
    /// What it says about itself.
    pub manifest: Manifest,
    /// What is missing and what cannot be told without it, most important first.
    pub losses: Vec<(Absence, &'static str)>,
}

/// Why nothing was captured.
#[derive(Debug)]
pub struct CaptureError {
    /// The kind of reason, for an exit code.
    pub refusal: Refusal,
    message: String,
}

/// Kinds of reasons for which nothing was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The target cannot be what was meant: it exists, or its name asks for an unknown format.
    Target,
    /// The saved tree to take the files from has none of them.
    Input,
    /// The target may not be written.
    NotPermitted,
    /// Writing failed.
    Machine,
    /// A signal of this number asked to stop.
    Stopped(i32),
}

impl CaptureError {
    fn new(refusal: Refusal, message: impl Into<String>) -> CaptureError {
        CaptureError { refusal, message: message.into() }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CaptureError {}

/// Captures what `root` has into `target`: an archive if its name ends in `.tar.zst`, else a folder.
pub fn capture(root: &Root, target: &Path, options: Options) -> Result<Summary, CaptureError> {
    let stop = Stop::watch().map_err(|error| {
        CaptureError::new(
            Refusal::Machine,
            format!("{}: cannot watch for signals: {error}", target.display()),
        )
    })?;
    let sink = Sink::create(target, options.force)?;
    let mut taking = Taking {
        root,
        stop: stop.clone(),
        options,
        sink,
        manifest: opening_manifest(root, options),
        seen: HashSet::new(),
        losses: Vec::new(),
        text_bytes: 0,
        started_ns: boottime_ns(),
    };
    match taking.everything() {
        Ok(()) => taking.finish(target),
        Err(error) => Err(match stop.signal() {
            Some(signal) => {
                let message = format!("{}: stopped; nothing of it is left", target.display());
                CaptureError::new(Refusal::Stopped(signal), message)
            }
            None => sink::write_failed(target, &error),
        }),
    }
}

/// What is known before anything is read. A saved tree that is captured again keeps its own origin.
fn opening_manifest(root: &Root, options: Options) -> Manifest {
    let mut manifest = match root.manifest() {
        Some(origin) => Manifest { files: Vec::new(), absent: Vec::new(), ..origin.clone() },
        None => Manifest::default(),
    };
    manifest.format_version = FORMAT_VERSION;
    manifest.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    // What was left out when the tree was saved cannot come back.
    manifest.with_processes = options.with_processes && (root.is_live() || manifest.with_processes);
    if root.is_live() {
        let uname = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_str().ok().map(str::to_owned);
        manifest.page_size = live_page_size();
        manifest.kernel_release = text(uname.release());
        manifest.architecture = text(uname.machine());
        manifest.host_name = text(uname.nodename());
        manifest.euid = Some(rustix::process::geteuid().as_raw());
        manifest.realtime_ns = Some(realtime_ns());
        manifest.boottime_ns = Some(boottime_ns());
    }
    if !options.with_processes {
        manifest.host_name = None;
        manifest.redactions = privacy::REDACTIONS.map(str::to_owned).to_vec();
    }
    manifest
}

/// A capture on its way.
struct Taking<'a> {
    root: &'a Root,
    stop: Stop,
    options: Options,
    sink: Sink,
    manifest: Manifest,
    /// Paths that were taken or tried.
    seen: HashSet<String>,
    losses: Vec<(Absence, &'static str)>,
    text_bytes: u64,
    started_ns: u64,
}

/// All text of a capture, so that its archive can be read again.
const TEXTS_MAX: Bytes = Bytes(500 << 20);

impl Taking<'_> {
    fn everything(&mut self) -> io::Result<()> {
        self.indices_with_their_buddyinfo()?;
        for row in captured::TABLE {
            if row.privacy == Privacy::Names && !self.options.with_processes {
                continue;
            }
            self.row(row)?;
        }
        groups::take(self)?;
        if self.options.with_pagetypeinfo {
            self.text(paths::PAGETYPEINFO, "no free pages by migrate type")?;
        } else {
            self.not_asked(paths::PAGETYPEINFO, "capture with --with-pagetypeinfo");
        }
        if self.options.without_kpageflags {
            self.not_asked(paths::KPAGEFLAGS, "capture without --without-kpageflags");
        } else {
            self.packed(paths::KPAGEFLAGS, "no count of spoiled pageblocks")?;
        }
        processes::take(self)?;
        if self.options.without_kernel_log {
            self.not_asked(paths::KMSG, "capture without --without-kernel-log");
            return Ok(());
        }
        kernel_log::take(self)
    }

    /// The kernel's indices are of use beside the buddyinfo that they were computed from, so both are
    /// read until buddyinfo is the same before and after.
    fn indices_with_their_buddyinfo(&mut self) -> io::Result<()> {
        const TRIES: u32 = 20;
        let buddyinfo = captured::TABLE[0].pattern;
        if captured::EXTFRAG.iter().any(|path| self.root.kind(path).is_err()) {
            return Ok(());
        }
        let mut last = None;
        for _ in 0..TRIES {
            let start = boottime_ns();
            let mut texts = Vec::new();
            for path in [buddyinfo, captured::EXTFRAG[0], captured::EXTFRAG[1], buddyinfo] {
                match self.root.read(path) {
                    Ok(text) => texts.push((path, text)),
                    Err(_) => return Ok(()),
                }
            }
            let unmoved = texts.pop().is_some_and(|(_, after)| after == texts[0].1);
            last = Some((start, texts, unmoved));
            if unmoved {
                break;
            }
        }
        let Some((start, texts, unmoved)) = last else { return Ok(()) };
        if !unmoved {
            let note = format!("buddyinfo and the kernel's own indices moved apart in all {TRIES} tries");
            self.manifest.notes.push(note);
        }
        let took = boottime_ns() - start;
        for (path, text) in texts {
            self.seen.insert(path.to_owned());
            self.store(path, &text, None, start, took)?;
        }
        Ok(())
    }

    fn row(&mut self, row: &captured::Row) -> io::Result<()> {
        if !row.pattern.contains('*') {
            return self.text(row.pattern, row.loss);
        }
        let found = pattern::expand(self.root, row.pattern);
        for (path, kind) in &found.paths {
            match kind {
                pattern::Found::File => self.text(path, "")?,
                pattern::Found::Link(target) => self.link(path, target)?,
            }
        }
        if let Some(mut absence) = found.absence {
            if absence.why == AbsentWhy::NotThere && !row.otherwise.is_empty() {
                absence.detail = row.otherwise.to_owned();
            }
            self.missing(absence, row.loss);
        }
        if found.cut {
            self.manifest.notes.push(format!("{}: only the first {}", row.pattern, found.paths.len()));
        }
        Ok(())
    }

    /// Takes one text, or notes why it is missing.
    fn text(&mut self, path: &str, loss: &'static str) -> io::Result<()> {
        if captured::TRIGGERS.contains(&path) || !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        let start = boottime_ns();
        let read = self.root.read(path);
        let took = boottime_ns() - start;
        match read {
            Ok(text) => {
                let (text, altered) = self.redacted(path, text);
                self.store(path, &text, altered, start, took)
            }
            Err(absence) => {
                self.missing(absence, loss);
                Ok(())
            }
        }
    }

    /// The text as it may be stored; with the length that the kernel gave if it was changed.
    fn redacted(&self, path: &str, text: Vec<u8>) -> (Vec<u8>, Option<Altered>) {
        if path == paths::SELF_MOUNTINFO {
            return privacy::altered(
                text,
                "only the mounts of cgroup, debugfs and hugetlbfs",
                privacy::mounts,
            );
        }
        (text, None)
    }

    fn store(
        &mut self,
        path: &str,
        text: &[u8],
        altered: Option<Altered>,
        start: u64,
        took: u64,
    ) -> io::Result<()> {
        self.stop.check()?;
        self.text_bytes += text.len() as u64;
        if self.text_bytes > TEXTS_MAX.0 {
            self.text_bytes -= text.len() as u64;
            let detail = "left out: more than 500 MiB of text in one capture";
            self.missing(Absence::new(path, AbsentWhy::Failed, detail), "");
            return Ok(());
        }
        self.sink.file(path, text)?;
        self.manifest.files.push(FileRecord {
            path: path.to_owned(),
            bytes: altered.as_ref().map_or(text.len() as u64, |altered| altered.bytes),
            stored_bytes: text.len() as u64,
            read_start_ns: start,
            read_ns: took,
            altered: altered.map(|altered| altered.how.to_owned()),
        });
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        if self.seen.insert(path.to_owned()) { self.sink.link(path, target) } else { Ok(()) }
    }

    /// Takes one file of any length, compressed on the way.
    fn packed(&mut self, path: &str, loss: &'static str) -> io::Result<()> {
        let start = boottime_ns();
        let mut stream = match self.root.stream(path) {
            Ok(stream) => stream,
            Err(absence) => {
                self.missing(absence, loss);
                return Ok(());
            }
        };
        match self.sink.packed(path, &mut stream)? {
            Packed::Stored { bytes, stored_bytes } => self.manifest.files.push(FileRecord {
                path: path.to_owned(),
                bytes,
                stored_bytes,
                read_start_ns: start,
                read_ns: boottime_ns() - start,
                altered: None,
            }),
            Packed::Unreadable(error) => {
                let absence = self.root.absence(path, &error);
                self.missing(absence, loss);
            }
            Packed::TooLarge => {
                let detail = "compresses to more than an archive may hold";
                self.missing(Absence::new(path, AbsentWhy::Failed, detail).or("capture into a folder"), loss);
            }
        }
        Ok(())
    }

    fn not_asked(&mut self, path: &str, way_out: &str) {
        self.manifest.absent.push(Absence::new(path, AbsentWhy::NotAsked, "").or(way_out));
    }

    fn missing(&mut self, absence: Absence, loss: &'static str) {
        if !loss.is_empty() {
            self.losses.push((absence.clone(), loss));
        }
        self.manifest.absent.push(absence);
    }

    fn finish(mut self, target: &Path) -> Result<Summary, CaptureError> {
        if self.manifest.files.is_empty() {
            let way = "a saved tree has proc/ and sys/ in it, or is a folder of files from there";
            let message = format!("{}: nothing in it that a capture takes; {way}", self.root.name());
            return Err(CaptureError::new(Refusal::Input, message));
        }
        if self.root.is_live() {
            self.manifest.duration_ns = boottime_ns() - self.started_ns;
        }
        let json = self.manifest.to_json();
        let finished = self.sink.file(&format!("/{MANIFEST_FILE}"), &json).and_then(|()| self.sink.finish());
        let bytes = finished.map_err(|error| sink::write_failed(target, &error))?;
        Ok(Summary {
            path: target.to_owned(),
            bytes: Bytes(bytes),
            manifest: self.manifest,
            losses: self.losses,
        })
    }
}

/// How a stored text differs from what the kernel gave.
struct Altered {
    how: &'static str,
    /// Bytes that the kernel gave.
    bytes: u64,
}

/// Reads up to a whole buffer, however many calls that takes.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
