//! Tests of injection into a program that reports each interrupted call and each shortened sleep.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::ptrace;

const ROLE: &str = "PAGELAB_TEST_ATTACH_ROLE";
const ROUNDS: u32 = 25;

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Prints the error, and exits.
fn check(right: bool, what: &str) {
    if !right {
        eprintln!("{what}: errno {}", errno());
        std::process::abort();
    }
}

const SLEEP: Duration = Duration::from_millis(15);

fn sleeps() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: SLEEP.as_nanos() as i64 };
    let begun = Instant::now();
    // SAFETY: the time outlives the call. JUSTIFICATION: std continues to sleep after EINTR and hides it.
    check(unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } == 0, "nanosleep");
    check(begun.elapsed() >= SLEEP, "nanosleep was short");
    let begun = Instant::now();
    // SAFETY: no descriptors are given. JUSTIFICATION: as above.
    check(unsafe { libc::poll(std::ptr::null_mut(), 0, SLEEP.as_millis() as i32) } == 0, "poll");
    check(begun.elapsed() >= SLEEP, "poll was short");
    let word = 0u32;
    let begun = Instant::now();
    // SAFETY: the word and the time outlive the call. JUSTIFICATION: as above.
    let waited = unsafe { libc::syscall(libc::SYS_futex, &raw const word, libc::FUTEX_WAIT, 0, &time) };
    check(waited == -1 && errno() == libc::ETIMEDOUT, "futex");
    check(begun.elapsed() >= SLEEP, "futex was short");
}

fn reads_and_counts() {
    let (mut reader, mut writer) = io::pipe().unwrap();
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let stat = std::path::Path::new("/proc").join(own).join("stat");
    let feeder = std::thread::spawn(move || {
        // The read blocks, and has some time to be interrupted.
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        std::thread::sleep(SLEEP);
        writer.write_all(b"x").unwrap();
    });
    let mut byte = [0; 1];
    check(matches!(reader.read(&mut byte), Ok(1)) && &byte == b"x", "read");
    feeder.join().unwrap();
    // Floating point and integers over what a register holds between two stops.
    let (mut sum, mut root) = (1u64, 1f64);
    for round in 0..2_000_000u64 {
        sum = sum.rotate_left(7) ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        root = (root + round as f64).sqrt();
    }
    let again = (0..2_000_000u64).fold((1u64, 1f64), |(sum, root), round| {
        (sum.rotate_left(7) ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15), (root + round as f64).sqrt())
    });
    check((sum, root.to_bits()) == (again.0, again.1.to_bits()), "arithmetic");
}

/// Not a test: the tests below start it.
#[test]
fn is_the_target() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // SAFETY: gettid has no arguments. JUSTIFICATION: std has no thread ids of the kernel.
    let tid = unsafe { libc::gettid() };
    println!("tid {tid}");
    match role.as_str() {
        "calls" => {
            for _ in 0..ROUNDS {
                sleeps();
                reads_and_counts();
            }
        }
        // Until the test ends it.
        "waits" => loop {
            std::thread::park();
        },
        "signals" => signals(),
        _ => check(false, "role"),
    }
    println!("all right");
}

static SIGNALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

/// Sends itself signals and counts them.
fn signals() {
    let handler = count_signal as extern "C" fn(libc::c_int);
    // SAFETY: the handler only counts. JUSTIFICATION: std has no signal handlers.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let sent = 3000u64;
    for _ in 0..sent {
        // SAFETY: raise has one number. JUSTIFICATION: std cannot send signals.
        unsafe { libc::raise(libc::SIGUSR1) };
        std::hint::black_box((0..20_000u64).fold(0, |sum: u64, n| sum ^ n.rotate_left(5)));
    }
    check(SIGNALS.load(std::sync::atomic::Ordering::Relaxed) == sent, "signals are lost, or come twice");
}

struct Target {
    child: Child,
    tid: u32,
    site: InjectionTarget,
}

fn target(role: &str) -> Target {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "injection::tests::is_the_target", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let tid = loop {
        let line = lines.next().unwrap().unwrap();
        if let Some((_, tid)) = line.split_once("tid ") {
            break tid.trim().parse().unwrap();
        }
    };
    drop(lines);
    let maps = std::fs::read_to_string(format!("/proc/{tid}/maps")).unwrap();
    let vdso = maps.lines().find(|line| line.contains("[vdso]")).unwrap();
    let (start, rest) = vdso.split_once('-').unwrap();
    let end = rest.split_once(' ').unwrap().0;
    let address = |text| u64::from_str_radix(text, 16).unwrap();
    let code = std::iter::once(address(start)..address(end)).collect();
    Target {
        child,
        tid,
        site: InjectionTarget { tid, code_ranges: code, stop_timeout: Duration::from_secs(20) },
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls in its name until it ends: how many calls were made.
fn inject_repeatedly(target: &mut Target) -> u64 {
    let pid = i64::from(target.child.id());
    let mut calls = 0;
    while target.child.try_wait().unwrap().is_none() {
        let done = inject(&target.site, move |injector| {
            for _ in 0..3 {
                assert_eq!(injector.call(libc::SYS_getpid, [0; 6])?, pid);
            }
            injector.call(libc::SYS_madvise, [0, 0, 12345, 0, 0, 0])
        });
        match done {
            Ok((answer, injected)) => {
                assert_eq!(answer, -i64::from(libc::EINVAL));
                assert_eq!(injected.calls, 4);
                calls += injected.calls;
            }
            Err(InjectionError::ThreadExited) => {}
            // No process traces a child that was not waited for yet.
            Err(InjectionError::NotPermitted) => assert!(ptrace::peek_pending_stop(target.tid).is_ok()),
            Err(refusal) => panic!("{refusal}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    calls
}

#[test]
fn calls_that_are_interrupted_begin_again_and_sleeps_are_as_long_as_they_were() {
    let mut target = target("calls");
    let calls = inject_repeatedly(&mut target);
    assert!(target.child.wait().unwrap().success(), "after {calls} calls");
    assert!(calls >= 40, "{calls}");
}

#[test]
fn signals_are_delivered_once_each() {
    let mut target = target("signals");
    let calls = inject_repeatedly(&mut target);
    assert!(target.child.wait().unwrap().success(), "after {calls} calls");
}

#[test]
fn a_stopped_process_stays_stopped_and_goes_on_later() {
    let mut target = target("waits");
    let pid = target.child.id();
    let send = |signal| {
        // SAFETY: the child has not been waited for. JUSTIFICATION: std sends SIGKILL alone.
        assert_eq!(unsafe { libc::kill(pid as libc::pid_t, signal) }, 0);
    };
    let state = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("State:\t")).unwrap().chars().next().unwrap()
    };
    let becomes = |wanted: &[char]| {
        let until = Instant::now() + Duration::from_secs(20);
        while !wanted.contains(&state()) {
            assert!(Instant::now() < until, "{} is not one of {wanted:?}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    send(libc::SIGSTOP);
    becomes(&['T']);
    let (answer, _) = inject(&target.site, |injector| injector.call(libc::SYS_getpid, [0; 6])).unwrap();
    assert_eq!(answer, i64::from(pid));
    becomes(&['T']);
    assert!(target.child.try_wait().unwrap().is_none());
    send(libc::SIGCONT);
    becomes(&['S', 'R']);
}

#[test]
fn a_call_that_is_late_is_refused_and_the_thread_is_let_go_as_it_was_when_it_comes_back() {
    let mut target = target("waits");
    let site = InjectionTarget { stop_timeout: Duration::from_millis(200), ..target.site.clone() };
    let late = loop {
        let late = inject(&site, |injector| {
            // The stack below a thread that waits in the kernel is unused.
            let at = injector.saved_registers.rsp - 8192;
            let seconds = [6i64.to_ne_bytes(), 0i64.to_ne_bytes()].concat();
            assert_eq!(ptrace::write_memory(injector.tid, at, &seconds)?, seconds.len());
            injector.call(libc::SYS_nanosleep, [at, 0, 0, 0, 0, 0])
        });
        // On a machine that is busy.
        if !matches!(late, Err(InjectionError::StopTimeout)) {
            break late;
        }
    };
    assert!(matches!(late, Err(InjectionError::CallTimeout)), "{late:?}");
    assert!(wait_all_released(Duration::from_secs(120)));
    assert!(target.child.try_wait().unwrap().is_none());
    let pid = i64::from(target.child.id());
    assert_eq!(inject(&target.site, |injector| injector.call(libc::SYS_getpid, [0; 6])).unwrap().0, pid);
}

#[test]
fn what_is_traced_or_gone_or_has_no_instruction_is_refused_and_left() {
    let mut target = target("waits");
    let none = InjectionTarget { code_ranges: Vec::new(), ..target.site.clone() };
    assert!(matches!(inject(&none, |_| Ok(())), Err(InjectionError::NoSyscallInstruction)));
    let site = target.site.clone();
    let inner = inject(&target.site, move |_| Ok(inject(&site, |_| Ok(())).is_err())).unwrap();
    assert!(inner.0, "two tracers at once");
    assert!(target.child.try_wait().unwrap().is_none());
    let failed = inject(&target.site, |injector| -> Result<(), InjectionError> {
        injector.call(libc::SYS_getpid, [0; 6])?;
        Err(InjectionError::ThreadBusy)
    });
    assert!(matches!(failed, Err(InjectionError::ThreadBusy)));
    // Its last breath: a call that does not return.
    let last = inject(&target.site, |injector| injector.call(libc::SYS_exit_group, [7, 0, 0, 0, 0, 0]));
    assert!(matches!(last, Err(InjectionError::ThreadExited)), "{last:?}");
    assert_eq!(target.child.wait().unwrap().code(), Some(7));
    assert!(matches!(inject(&target.site, |_| Ok(())), Err(InjectionError::ThreadExited)));
}
