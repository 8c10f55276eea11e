//! Checks while all threads of a process are stopped, before zero-page entries are dropped: nothing may be
//! able to write to its memory now.
//!
//! A page that is written between the check and the call would lose its contents. That its own threads are
//! stopped is verified thread by thread. Other writers are found by its descriptors, by threads that the
//! kernel runs in it, and by processes that share its address space. Writes of other processes
//! (process_vm_writev, `/proc/PID/mem`) cannot be detected.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_sys::kcmp::{Resource, is_shared};
use pagelab_sys::pagemap_scan;

use crate::process_injection::{list_threads, live_thread_state};

/// Descriptors that are checked at most; a process with more would be stopped for too long.
const DESCRIPTORS_MAX: usize = 4000;

/// The kinds of `anon_inode:` that write to no memory but in a call.
const HARMLESS_ANON_INODES: [&str; 11] = [
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

/// Names of threads that the kernel runs in a process (io_uring/io-wq.c, sqpoll.c; drivers/vhost).
const KERNEL_THREAD_PREFIXES: [&str; 2] = ["iou-", "vhost-"];

/// The parts of `runs` that map the zero page and may be dropped, while the process is stopped; `others`
/// are the processes that may share its memory, where they are known. An error is a phrase.
pub fn find_droppable(
    pid: u32,
    others: Option<&[u32]>,
    runs: &[Range<u64>],
) -> Result<Vec<Range<u64>>, String> {
    let root = Root::live();
    let threads = check_threads_stopped(&root, pid)?;
    check_memory_unshared(&root, pid, others)?;
    let mut checked_threads: Vec<u32> = Vec::new();
    for &tid in &threads {
        let shares_table = |&known: &u32| is_shared(Resource::Descriptors, known, tid);
        let shared = checked_threads.iter().map(shares_table).collect::<Result<Vec<bool>, _>>();
        let shared = shared.map_err(|error| format!("cannot compare its file descriptors: {error}"))?;
        if !shared.contains(&true) {
            check_descriptors(&root, pid, tid)?;
            checked_threads.push(tid);
        }
    }
    let pagemap = File::open(paths::process_file(pid, "pagemap"));
    let pagemap = pagemap.map_err(|error| format!("cannot read its page tables: {error}"))?;
    let mut parts = Vec::new();
    for run in runs {
        let scan_result =
            pagemap_scan::for_each_zero_base_range(&pagemap, run.clone(), |part| parts.push(part));
        scan_result.map_err(|error| format!("cannot read its page tables: {error}"))?;
    }
    Ok(parts)
}

/// The live threads of a process, all of which are at a ptrace stop.
fn check_threads_stopped(root: &Root, pid: u32) -> Result<Vec<u32>, String> {
    let mut live_threads = Vec::new();
    for tid in list_threads(root, pid) {
        let Some(state) = live_thread_state(root, pid, tid) else { continue };
        let name = root.read(&paths::process_file(pid, &format!("task/{tid}/comm"))).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end().to_owned();
        // They may be stopped too, but that is not reliable.
        if KERNEL_THREAD_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(format!(
                "its thread {tid} ({name}) is a kernel worker thread of io_uring or a virtual machine"
            ));
        }
        if state != b't' {
            return Err(format!("its thread {tid} ({name}) does not stop for a tracer"));
        }
        live_threads.push(tid);
    }
    if live_threads.is_empty() { Err("it has exited".to_owned()) } else { Ok(live_threads) }
}

/// No other process has its address space.
fn check_memory_unshared(root: &Root, pid: u32, others: Option<&[u32]>) -> Result<(), String> {
    for other in others.map_or_else(|| root.list_processes().unwrap_or_default(), <[u32]>::to_vec) {
        if other == pid {
            continue;
        }
        match is_shared(Resource::Memory, pid, other) {
            Ok(false) => {}
            Ok(true) => return Err(format!("process {other} shares its address space")),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                return Err("this kernel does not report shared address spaces (kcmp)".to_owned());
            }
            // It ended, or is another user's: a process that changes its user in a shared address space makes
            // that inaccessible, too (mm/dumpable).
            Err(_) => {}
        }
    }
    Ok(())
}

/// No descriptor of a thread's table lets the kernel or a device write while the threads are stopped.
fn check_descriptors(root: &Root, pid: u32, tid: u32) -> Result<(), String> {
    let directory = format!("task/{tid}/fd");
    let to_message = |what: &str| format!("cannot read its file descriptors: {what}");
    let names = root
        .list_dir(&paths::process_file(pid, &directory))
        .map_err(|absence| to_message(&absence.detail))?;
    if names.len() > DESCRIPTORS_MAX {
        return Err(format!(
            "it has {} file descriptors: too many to check while it is stopped",
            names.len()
        ));
    }
    for name in names {
        let path = paths::process_file(pid, &format!("{directory}/{name}"));
        let link = root.read_link(&path).map_err(|absence| to_message(&absence.detail))?;
        let device = || {
            let metadata = std::fs::metadata(&path).ok().filter(|of| of.file_type().is_char_device());
            metadata.map(|of| (libc::major(of.rdev()), libc::minor(of.rdev())))
        };
        if let Some(writer) = describe_writer(&link, device) {
            return Err(format!(
                "it has {writer} open: the kernel or a device may write to its memory while its threads are \
                 stopped"
            ));
        }
    }
    Ok(())
}

/// The name of a descriptor that may write to memory outside of calls. `device` is called only if the name is
/// a device's: other files may be on a server that does not respond.
fn describe_writer(link: &str, device: impl FnOnce() -> Option<(u32, u32)>) -> Option<String> {
    if let Some(kind) = link.strip_prefix("anon_inode:") {
        let is_harmless = HARMLESS_ANON_INODES.contains(&kind) || kind.starts_with("bpf") || kind == "btf";
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
    (!is_harmless_device(major, minor)).then(|| format!("{link} ({major}:{minor})"))
}

/// Whether a device of characters writes to no memory but in a call (Documentation/admin-guide/devices.txt):
/// null, zero, full, random, urandom, kmsg; tty, console, ptmx; tun, fuse; and terminals: virtual ones and
/// serial lines, those of pseudo-terminals and of hypervisors.
fn is_harmless_device(major: u32, minor: u32) -> bool {
    matches!(
        (major, minor),
        (1, 3 | 5 | 7..=9 | 11) | (5, 0..=2) | (10, 200 | 229) | (204, 64) | (4 | 136..=143 | 229, _)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_write_by_themselves_are_found_and_common_ones_are_not() {
        let none = || -> Option<(u32, u32)> { panic!("no device was queried") };
        for link in ["/srv/a/file", "socket:[7]", "pipe:[8]", "/memfd:x (deleted)", "pidfd:[3]"] {
            assert_eq!(describe_writer(link, none), None, "{link}");
        }
        for kind in ["[eventpoll]", "[eventfd]", "inotify", "bpf-map", "[timerfd]"] {
            assert_eq!(describe_writer(&format!("anon_inode:{kind}"), none), None, "{kind}");
        }
        for (kind, said) in [
            ("[io_uring]", "an io_uring"),
            ("[userfaultfd]", "a userfaultfd"),
            ("kvm-vm", "kvm-vm"),
            ("kvm-vcpu:0", "kvm-vcpu:0"),
            ("[vfio-device]", "[vfio-device]"),
        ] {
            assert_eq!(describe_writer(&format!("anon_inode:{kind}"), none).as_deref(), Some(said));
        }
        for (link, numbers) in [
            ("/dev/kvm", (10, 232)),
            ("/dev/vhost-net", (10, 238)),
            ("/srv/chroot/dev/vhost-vsock", (10, 241)),
            ("/dev/nvidia-uvm", (511, 0)),
        ] {
            let said = describe_writer(link, || Some(numbers));
            assert!(said.as_ref().is_some_and(|said| said.starts_with(link)), "{said:?}");
        }
        for (link, numbers) in [("/dev/null", (1, 3)), ("/dev/pts/4", (136, 4)), ("/dev/tty", (5, 0))] {
            assert_eq!(describe_writer(link, || Some(numbers)), None, "{link}");
        }
        assert_eq!(describe_writer("/dev/shm/queue", || None), None);
    }

    #[test]
    fn a_running_process_is_not_stopped() {
        let said = find_droppable(std::process::id(), Some(&[]), &[]).unwrap_err();
        assert!(said.contains("does not stop for a tracer"), "{said}");
    }
}
