//! Capture of the machine's memory files in one directory or archive, readable again as a root.
//!
//! The captured files are listed in one table ([`capture_table::TABLE`]). Nothing is changed on the machine;
//! memory use is bounded by the largest text; the target gets its name only when it is complete.

mod kernel_log;
pub(crate) mod pattern;
mod privacy;
mod processes;
mod sink;

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagelab_model::{Absence, AbsenceReason, Bytes, Failure, FailureKind};
use pagelab_sys::clock::{boottime_ns, realtime_ns};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use sink::{CompressionOutcome, Sink};

use crate::guard::stop_signals;
use crate::machine::live_page_size;
use crate::manifest::{FORMAT_VERSION, FileRecord, MANIFEST_FILE, Manifest};
use crate::paths;
use crate::paths::capture_table::{self, Privacy};
use crate::root::Root;

/// Files to capture besides the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct CaptureOptions {
    /// Names and command lines of processes, and the host's name.
    pub with_processes: bool,
    /// Omit kpageflags, one word for each page: by far the largest file.
    pub without_kpageflags: bool,
    /// Read pagetypeinfo, which costs up to 50 ms with interrupts off.
    pub with_pagetypeinfo: bool,
    /// Omit allocation failures and OOM kills in the kernel log.
    pub without_kernel_log: bool,
    /// Replace an existing capture.
    pub force: bool,
}

/// Result of a capture.
#[derive(Debug)]
pub struct CaptureSummary {
    /// The directory or archive.
    pub path: PathBuf,
    /// Its size: that of the archive, or the sum of the files of a directory.
    pub bytes: Bytes,
    /// Its manifest.
    pub manifest: Manifest,
    /// Missing files and the consequence of each, most important first.
    pub losses: Vec<(Absence, &'static str)>,
}

fn cannot_write(kind: FailureKind, target: &Path, reason: &str) -> Failure {
    Failure::cannot(kind, format_args!("write {}", target.display()), reason)
}

/// Captures the files of `root` into `target`: an archive if its name ends in `.tar.zst`, else a directory.
pub fn capture(root: &Root, target: &Path, options: CaptureOptions) -> Result<CaptureSummary, Failure> {
    let stop = StopSignal::watch().map_err(|error| {
        let why = format!("cannot install signal handlers: {error}");
        cannot_write(FailureKind::Partial, target, &why)
    })?;
    let sink = Sink::create(target, options.force)?;
    let mut session = CaptureSession {
        root,
        stop: stop.clone(),
        options,
        sink,
        manifest: new_manifest(root, options),
        attempted_paths: HashSet::new(),
        losses: Vec::new(),
        text_bytes: 0,
        started_ns: boottime_ns(),
    };
    match session.capture_all() {
        Ok(()) => session.finish(target),
        Err(error) => Err(match stop.signal() {
            Some(signal) => {
                let kind = FailureKind::Stopped(signal);
                cannot_write(kind, target, "stopped by a signal; nothing was kept")
            }
            None => sink::write_error(target, &error),
        }),
    }
}

/// Facts known before anything is read. A saved tree that is captured again keeps its own origin.
fn new_manifest(root: &Root, options: CaptureOptions) -> Manifest {
    let mut manifest = match root.manifest() {
        Some(origin) => Manifest { files: Vec::new(), absences: Vec::new(), ..origin.clone() },
        None => Manifest::default(),
    };
    manifest.format_version = FORMAT_VERSION;
    manifest.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    // Files omitted when the tree was saved stay absent.
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

struct CaptureSession<'a> {
    root: &'a Root,
    stop: StopSignal,
    options: CaptureOptions,
    sink: Sink,
    manifest: Manifest,
    /// Captured and attempted paths.
    attempted_paths: HashSet<String>,
    losses: Vec<(Absence, &'static str)>,
    text_bytes: u64,
    started_ns: u64,
}

/// Maximum text of a capture, so that its archive can be read again.
const TEXT_BYTES_MAX: Bytes = Bytes(500 << 20);

impl CaptureSession<'_> {
    fn capture_all(&mut self) -> io::Result<()> {
        self.capture_extfrag_indices()?;
        for row in capture_table::TABLE {
            if row.privacy == Privacy::Names && !self.options.with_processes {
                continue;
            }
            self.capture_row(row)?;
        }
        processes::capture_cgroups(self)?;
        if self.options.with_pagetypeinfo {
            self.capture_text(paths::PAGETYPEINFO, "no free pages by migratetype")?;
        } else {
            self.note_not_requested(paths::PAGETYPEINFO, "capture with --with-pagetypeinfo");
        }
        if self.options.without_kpageflags {
            self.note_not_requested(paths::KPAGEFLAGS, "capture without --without-kpageflags");
        } else {
            self.capture_compressed(paths::KPAGEFLAGS, "no count of polluted pageblocks")?;
        }
        processes::capture_processes(self)?;
        if self.options.without_kernel_log {
            self.note_not_requested(paths::KMSG, "capture without --without-kernel-log");
            return Ok(());
        }
        kernel_log::capture_kernel_log(self)
    }

    /// The kernel's indices need the buddyinfo of their computation, so both are read until buddyinfo is the
    /// same before and after.
    fn capture_extfrag_indices(&mut self) -> io::Result<()> {
        const ATTEMPTS_MAX: u32 = 20;
        let buddyinfo = capture_table::TABLE[0].pattern;
        if capture_table::EXTFRAG.iter().any(|path| self.root.entry_kind(path).is_err()) {
            return Ok(());
        }
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let start = boottime_ns();
            let mut texts = Vec::new();
            for path in [buddyinfo, capture_table::EXTFRAG[0], capture_table::EXTFRAG[1], buddyinfo] {
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
            let note =
                format!("buddyinfo changed while the index files were read, in all {ATTEMPTS_MAX} attempts");
            self.manifest.notes.push(note);
        }
        let took = boottime_ns() - start;
        for (path, text) in texts {
            self.attempted_paths.insert(path.to_owned());
            self.store_text(path, &text, None, start, took)?;
        }
        Ok(())
    }

    fn capture_row(&mut self, row: &capture_table::CaptureRow) -> io::Result<()> {
        if !row.pattern.contains('*') {
            return self.capture_text(row.pattern, row.loss);
        }
        let is_found = pattern::expand(self.root, row.pattern);
        for (path, kind) in &is_found.paths {
            match kind {
                pattern::MatchKind::File => self.capture_text(path, "")?,
                pattern::MatchKind::Link(target) if self.attempted_paths.insert(path.to_owned()) => {
                    self.sink.write_link(path, target)?;
                }
                pattern::MatchKind::Link(_) => {}
            }
        }
        if let Some(mut absence) = is_found.absence {
            if absence.why == AbsenceReason::NotThere && row.pattern.starts_with(paths::DEBUGFS) {
                absence.detail = "debugfs is not mounted".to_owned();
            }
            self.note_missing(absence, row.loss);
        }
        if is_found.is_truncated {
            self.manifest.notes.push(format!("{}: only the first {}", row.pattern, is_found.paths.len()));
        }
        Ok(())
    }

    /// Captures one text, or notes why it is missing.
    fn capture_text(&mut self, path: &str, loss: &'static str) -> io::Result<()> {
        if capture_table::TRIGGERS.contains(&path) || !self.attempted_paths.insert(path.to_owned()) {
            return Ok(());
        }
        let start = boottime_ns();
        let read = self.root.read(path);
        let took = boottime_ns() - start;
        match read {
            Ok(text) => {
                let (text, altered) = match path {
                    paths::SELF_MOUNTINFO => {
                        let kept = "only cgroup, debugfs and hugetlbfs mounts";
                        privacy::redact_text(text, kept, privacy::redact_mounts)
                    }
                    _ => (text, None),
                };
                self.store_text(path, &text, altered, start, took)
            }
            Err(absence) => {
                self.note_missing(absence, loss);
                Ok(())
            }
        }
    }

    fn store_text(
        &mut self,
        path: &str,
        text: &[u8],
        altered: Option<Alteration>,
        read_start_ns: u64,
        read_ns: u64,
    ) -> io::Result<()> {
        self.stop.check()?;
        self.text_bytes += text.len() as u64;
        if self.text_bytes > TEXT_BYTES_MAX.0 {
            self.text_bytes -= text.len() as u64;
            let detail = "omitted: more than 500 MiB of text in one capture";
            self.note_missing(Absence::new(path, AbsenceReason::Failed, detail), "");
            return Ok(());
        }
        self.sink.write_file(path, text)?;
        self.manifest.files.push(FileRecord {
            path: path.to_owned(),
            bytes: altered.as_ref().map_or(text.len() as u64, |altered| altered.original_bytes),
            stored_bytes: text.len() as u64,
            read_start_ns,
            read_ns,
            alteration: altered.map(|altered| altered.description.to_owned()),
        });
        Ok(())
    }

    /// Captures one file of any length, compressed.
    fn capture_compressed(&mut self, path: &str, loss: &'static str) -> io::Result<()> {
        let start = boottime_ns();
        let mut stream = match self.root.open_reader(path) {
            Ok(stream) => stream,
            Err(absence) => {
                self.note_missing(absence, loss);
                return Ok(());
            }
        };
        match self.sink.write_compressed(path, &mut stream)? {
            CompressionOutcome::Stored { bytes, stored_bytes } => self.manifest.files.push(FileRecord {
                path: path.to_owned(),
                bytes,
                stored_bytes,
                read_start_ns: start,
                read_ns: boottime_ns() - start,
                alteration: None,
            }),
            CompressionOutcome::Unreadable(error) => {
                let absence = self.root.absence(path, &error);
                self.note_missing(absence, loss);
            }
            CompressionOutcome::TooLarge => {
                let detail = "its compressed size exceeds the limit for archives";
                self.note_missing(
                    Absence::new(path, AbsenceReason::Failed, detail).with_hint("capture into a directory"),
                    loss,
                );
            }
        }
        Ok(())
    }

    fn note_not_requested(&mut self, path: &str, hint: &str) {
        self.manifest.absences.push(Absence::new(path, AbsenceReason::NotRequested, "").with_hint(hint));
    }

    fn note_missing(&mut self, absence: Absence, loss: &'static str) {
        if !loss.is_empty() {
            self.losses.push((absence.clone(), loss));
        }
        self.manifest.absences.push(absence);
    }

    fn finish(mut self, target: &Path) -> Result<CaptureSummary, Failure> {
        if self.manifest.files.is_empty() {
            let way = "expected a tree with proc/ and sys/, or a directory of files copied from them";
            let message = format!(
                "nothing to capture in {}: none of the expected files is there; hint: {way}",
                self.root.name()
            );
            return Err(Failure::new(FailureKind::BadInput, message));
        }
        if self.root.is_live() {
            self.manifest.duration_ns = boottime_ns() - self.started_ns;
        }
        let json = self.manifest.to_json();
        let finished =
            self.sink.write_file(&format!("/{MANIFEST_FILE}"), &json).and_then(|()| self.sink.finish());
        let bytes = finished.map_err(|error| sink::write_error(target, &error))?;
        Ok(CaptureSummary {
            path: target.to_owned(),
            bytes: Bytes(bytes),
            manifest: self.manifest,
            losses: self.losses,
        })
    }
}

/// Difference of a stored text from the text of the kernel.
struct Alteration {
    description: &'static str,
    /// Bytes of the kernel's text.
    original_bytes: u64,
}

/// Reads up to a whole buffer, in several calls if necessary.
fn read_full(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
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

/// Name of a signal that ends a run.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        SIGHUP => "SIGHUP",
        SIGINT => "SIGINT",
        SIGTERM => "SIGTERM",
        _ => "a signal",
    }
}

/// Number of the stop signal; 0 if none arrived.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<AtomicUsize>);

impl StopSignal {
    /// From now on SIGINT, SIGTERM and SIGHUP are only recorded, and a file that grows beyond the limit of
    /// this process (SIGXFSZ) is an error of the write. Signals ignored at the start stay ignored.
    pub fn watch() -> io::Result<StopSignal> {
        let stop = StopSignal(Arc::default());
        for signal in stop_signals() {
            flag::register_usize(signal, stop.0.clone(), signal.unsigned_abs() as usize)?;
        }
        flag::register(Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false)))?;
        Ok(stop)
    }

    /// Stop signal, if one arrived.
    pub fn signal(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|&signal| signal != 0)
    }

    /// Fails once a stop signal has arrived.
    pub fn check(&self) -> io::Result<()> {
        match self.signal() {
            None => Ok(()),
            Some(signal) => Err(io::Error::other(format!("stopped by signal {signal}"))),
        }
    }
}
