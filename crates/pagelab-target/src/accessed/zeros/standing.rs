//! What is looked at while all threads of a process stand, before entries of the page of zeros are dropped:
//! that nobody can write to its memory now.
//!
//! A page that is written between the look and the call would lose what was written. Its own threads stand,
//! which is verified here thread by thread. Who else may write for it is told by its descriptors, by
//! threads that the kernel runs in it, and by who shares its address space. What other processes write from
//! outside (process_vm_writev, `/proc/PID/mem`) nobody tells.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use pagelab_formats::process_stat;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::pagemap_scan;
use pagelab_sys::same::{Resource, have_in_common};

/// Descriptors that are looked at; a process with more would stand for too long.
const DESCRIPTORS_MAX: usize = 4000;

/// The kinds of `anon_inode:` that write to no memory but in a call.
const HARMLESS: [&str; 11] = [
    "[eventpoll]",
    "[eventfd]",
    "[timerfd]",
    "[signalfd]",
    "inotify",
    "[inotify]",
    "[fanotify]",
    "[pidfd]",
    "[perf_event]",
    "[landlock-ruleset]",
    "seccomp notify",
];

/// Devices of characters that write to no memory but in a call, by major and minor numbers
/// (Documentation/admin-guide/devices.txt): null, zero, full, random, urandom, kmsg; tty, console, ptmx;
/// tun, fuse.
const HARMLESS_DEVICES: [(u32, u32); 12] = [
    (1, 3),
    (1, 5),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 11),
    (5, 0),
    (5, 1),
    (5, 2),
    (10, 200),
    (10, 229),
    (204, 64),
];
/// Terminals: virtual ones and serial lines, those of pseudo-terminals and of hypervisors.
const TERMINALS: [std::ops::RangeInclusive<u32>; 3] = [4..=4, 136..=143, 229..=229];

/// How threads are called that the kernel runs in a process (io_uring/io-wq.c, sqpoll.c; drivers/vhost).
const KERNELS_OWN: [&str; 2] = ["iou-", "vhost-"];

/// The parts of `runs` that map the page of zeros and may be dropped, now that the process stands; `others`
/// are the processes that may share its memory, where they are known. An error is a phrase.
pub fn droppable(pid: u32, others: Option<&[u32]>, runs: &[Range<u64>]) -> Result<Vec<Range<u64>>, String> {
    let root = Root::live();
    let threads = stand(&root, pid)?;
    is_alone(&root, pid, others)?;
    let mut tables: Vec<u32> = Vec::new();
    for &tid in &threads {
        let is_known = |&known: &u32| have_in_common(Resource::Descriptors, known, tid);
        let shared = tables.iter().map(is_known).collect::<Result<Vec<bool>, _>>();
        let shared = shared.map_err(|error| format!("its descriptors cannot be told apart: {error}"))?;
        if !shared.contains(&true) {
            nobody_writes(&root, pid, tid)?;
            tables.push(tid);
        }
    }
    let pagemap = File::open(paths::process(pid, "pagemap"));
    let pagemap = pagemap.map_err(|error| format!("its page tables cannot be looked at: {error}"))?;
    let mut parts = Vec::new();
    for run in runs {
        let looked = pagemap_scan::zero_base_pages(&pagemap, run.clone(), |part| parts.push(part));
        looked.map_err(|error| format!("its page tables cannot be looked at: {error}"))?;
    }
    Ok(parts)
}

/// The threads of a process that live, all of which stand at a stop of their tracer.
fn stand(root: &Root, pid: u32) -> Result<Vec<u32>, String> {
    let mut living = Vec::new();
    for tid in threads(root, pid) {
        let path = paths::process(pid, &format!("task/{tid}/stat"));
        let Ok(stat) = Reader::new(root).parse(&path, process_stat::parse) else { continue };
        if matches!(stat.state, b'Z' | b'X' | b'x') {
            continue;
        }
        let name = root.read(&paths::process(pid, &format!("task/{tid}/comm"))).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end().to_owned();
        // They may stand too, and nobody is to rely on it.
        if KERNELS_OWN.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(format!(
                "its thread {tid} ({name}) is one that the kernel runs for an io_uring or a virtual machine"
            ));
        }
        if stat.state != b't' {
            return Err(format!("its thread {tid} ({name}) does not stop for a tracer"));
        }
        living.push(tid);
    }
    if living.is_empty() { Err("it has ended".to_owned()) } else { Ok(living) }
}

/// The threads of a process as the kernel lists them.
pub fn threads(root: &Root, pid: u32) -> Vec<u32> {
    let names = root.list(&paths::process(pid, "task")).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// The threads that have not ended.
pub fn living_threads(root: &Root, pid: u32) -> Vec<u32> {
    let lives = |tid: &u32| {
        let path = paths::process(pid, &format!("task/{tid}/stat"));
        let stat = Reader::new(root).parse(&path, process_stat::parse);
        stat.is_ok_and(|stat| !matches!(stat.state, b'Z' | b'X' | b'x'))
    };
    threads(root, pid).into_iter().filter(lives).collect()
}

/// No other process has its address space.
fn is_alone(root: &Root, pid: u32, others: Option<&[u32]>) -> Result<(), String> {
    let listed = || -> Vec<u32> {
        let names = root.list(paths::PROC).unwrap_or_default();
        names.iter().filter_map(|name| name.parse().ok()).collect()
    };
    for other in others.map_or_else(listed, <[u32]>::to_vec) {
        if other == pid {
            continue;
        }
        match have_in_common(Resource::Memory, pid, other) {
            Ok(false) => {}
            Ok(true) => return Err(format!("process {other} shares its address space")),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                return Err("this kernel does not tell who shares its address space (kcmp)".to_owned());
            }
            // It ended, or is another user's: who changes its user in a shared address space takes that out
            // of our reach, too (mm/dumpable).
            Err(_) => {}
        }
    }
    Ok(())
}

/// No descriptor of a thread's table lets the kernel or a device write while the threads stand.
fn nobody_writes(root: &Root, pid: u32, tid: u32) -> Result<(), String> {
    let folder = format!("task/{tid}/fd");
    let unread = |what: &str| format!("its descriptors cannot be looked at: {what}");
    let names = root.list(&paths::process(pid, &folder)).map_err(|absence| unread(&absence.detail))?;
    if names.len() > DESCRIPTORS_MAX {
        return Err(format!(
            "it has {} descriptors, and each has to be looked at while it stands",
            names.len()
        ));
    }
    for name in names {
        let path = paths::process(pid, &format!("{folder}/{name}"));
        let link = root.link(&path).map_err(|absence| unread(&absence.detail))?;
        let device = || {
            let metadata = std::fs::metadata(&path).ok().filter(|of| of.file_type().is_char_device());
            metadata.map(|of| (libc::major(of.rdev()), libc::minor(of.rdev())))
        };
        if let Some(writer) = writer(&link, device) {
            return Err(format!(
                "it has {writer} open, for which the kernel or a device may write to its memory while its \
                 threads stand"
            ));
        }
    }
    Ok(())
}

/// What a descriptor is, if it may write to memory outside of calls. A device is asked for only where its
/// name is a device's: other files may lie on a server that does not answer.
fn writer(link: &str, device: impl FnOnce() -> Option<(u32, u32)>) -> Option<String> {
    if let Some(kind) = link.strip_prefix("anon_inode:") {
        let is_harmless = HARMLESS.contains(&kind) || kind.starts_with("bpf") || kind == "btf";
        return (!is_harmless).then(|| match kind {
            "[io_uring]" => "an io_uring".to_owned(),
            "[userfaultfd]" => "a userfaultfd".to_owned(),
            kind => kind.to_owned(),
        });
    }
    if !link.contains("/dev/") {
        return None;
    }
    let (major, minor) = device()?;
    let is_harmless =
        HARMLESS_DEVICES.contains(&(major, minor)) || TERMINALS.iter().any(|range| range.contains(&major));
    (!is_harmless).then(|| format!("{link} ({major}:{minor})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_write_by_themselves_are_told_and_those_of_every_program_are_not() {
        let none = || -> Option<(u32, u32)> { panic!("no device is asked for") };
        for link in ["/srv/a/file", "socket:[7]", "pipe:[8]", "/memfd:x (deleted)", "pidfd:[3]"] {
            assert_eq!(writer(link, none), None, "{link}");
        }
        for kind in ["[eventpoll]", "[eventfd]", "inotify", "bpf-map", "[timerfd]"] {
            assert_eq!(writer(&format!("anon_inode:{kind}"), none), None, "{kind}");
        }
        for (kind, said) in [
            ("[io_uring]", "an io_uring"),
            ("[userfaultfd]", "a userfaultfd"),
            ("kvm-vm", "kvm-vm"),
            ("kvm-vcpu:0", "kvm-vcpu:0"),
            ("[vfio-device]", "[vfio-device]"),
        ] {
            assert_eq!(writer(&format!("anon_inode:{kind}"), none).as_deref(), Some(said));
        }
        for (link, numbers) in [
            ("/dev/kvm", (10, 232)),
            ("/dev/vhost-net", (10, 238)),
            ("/srv/chroot/dev/vhost-vsock", (10, 241)),
            ("/dev/nvidia-uvm", (511, 0)),
        ] {
            let said = writer(link, || Some(numbers));
            assert!(said.as_ref().is_some_and(|said| said.starts_with(link)), "{said:?}");
        }
        for (link, numbers) in [("/dev/null", (1, 3)), ("/dev/pts/4", (136, 4)), ("/dev/tty", (5, 0))] {
            assert_eq!(writer(link, || Some(numbers)), None, "{link}");
        }
        assert_eq!(writer("/dev/shm/queue", || None), None);
    }

    #[test]
    fn a_process_that_runs_does_not_stand() {
        let said = droppable(std::process::id(), Some(&[]), &[]).unwrap_err();
        assert!(said.contains("does not stop for a tracer"), "{said}");
    }
}
