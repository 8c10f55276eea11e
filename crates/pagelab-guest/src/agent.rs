//! PID 1 of a guest: mounts what programs expect, carries out the job, says how it went, and goes off.
//!
//! Nothing here ends the agent but the end of the job: what cannot be done is said in a sentence.

mod command;
mod files;
mod line;
mod setup;

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pagelab_model::machine::CpuidLeaf;
use pagelab_sys::{clock, cpuid};
use rustix::system::{RebootCommand, reboot, uname};

use crate::initramfs::JOB;
use crate::job::{Job, Step};
use crate::message::{End, Hello, Message};
use crate::shape::{VALUE, WORD};
use line::Line;

/// How long the host is waited for after the last message. It ends QEMU at once, so that this passes only
/// when nobody listens.
const LAST_WORD: Duration = Duration::from_secs(10);
/// The CPUID leaf in which a hypervisor names itself, and the name of QEMU's emulator (TCG).
const HYPERVISOR: u32 = 0x4000_0000;
const EMULATOR: &[u8] = b"TCGTCGTCGTCG";

/// The job, if this process is PID 1 of a guest of ours. PID 1 of a container is not, nor is that of an
/// unpacked initramfs that somebody runs with a PID namespace of its own: this mounts and loads modules.
pub fn job() -> Option<Result<Job, String>> {
    if std::process::id() != 1 || !is_in_guest(std::env::var_os(WORD).as_deref(), &cpuid::leaves()) {
        return None;
    }
    Job::from_bytes(&fs::read(JOB).ok()?)
}

/// Whether this process, PID 1 or not, runs in a guest of ours: the job lies where the agent found it, and
/// the processor is one that QEMU emulates. A machine that can be lost without harm.
pub fn is_here() -> bool {
    let is_ours = fs::read(JOB).is_ok_and(|bytes| Job::from_bytes(&bytes).is_some());
    is_ours && is_emulated(&cpuid::leaves())
}

/// Whether the kernel was told so on its command line, whose unknown words it hands to PID 1 alone as
/// environment (init/main.c, `unknown_bootoption`), and the processor is one that QEMU emulates.
fn is_in_guest(word: Option<&OsStr>, leaves: &[CpuidLeaf]) -> bool {
    word == Some(OsStr::new(VALUE)) && is_emulated(leaves)
}

fn is_emulated(leaves: &[CpuidLeaf]) -> bool {
    let mut hypervisors = leaves.iter().filter(|leaf| leaf.leaf == HYPERVISOR);
    hypervisors.any(|leaf| [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == EMULATOR)
}

/// Carries out the job and switches the guest off. It returns only when that is refused.
pub fn run(job: Result<Job, String>) {
    let line = setup::devices().and_then(|()| Line::open());
    match line {
        Ok(line) => {
            let line = Arc::new(line);
            carry_out(job, &line);
            line.drain();
            std::thread::sleep(LAST_WORD);
        }
        // Without a line there is the console, which is our standard error.
        Err(why) => setup::on_the_console(&why),
    }
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
}

fn carry_out(job: Result<Job, String>, line: &Arc<Line>) {
    let release = uname().release().to_string_lossy().into_owned();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    line.say(&Message::Hello(Hello { version, release, uptime_ns: clock::boottime_ns() }));
    let job = match job {
        Ok(job) => job,
        Err(why) => {
            line.say(&Message::Failed(format!("the job cannot be read: {why}")));
            return;
        }
    };
    if let Some(modules) = job.bulk.clone() {
        line.offer_bulk(modules);
    }
    let machine = setup::everything(&job, line);
    for (step, number) in job.steps.iter().zip(0..) {
        line.say(&Message::Begins(number));
        let end = match step {
            Step::Pagelab(words) => match &machine {
                Ok(group) => command::run(words, group.as_deref(), line),
                Err(lacks) => End::NotRun(lacks.clone()),
            },
            Step::Write { path, text } => match fs::write(path, text) {
                Ok(()) => End::Code(0),
                Err(error) => End::NotRun(format!("cannot write {path}: {error}")),
            },
        };
        line.say(&Message::Ended(end));
    }
    if !job.takes.is_empty() {
        line.go_over();
    }
    files::send(&job, line);
    line.say(&Message::Done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_of_ours_is_one() {
        let leaf = |name: &[u8; 12]| {
            let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
            let (ebx, ecx, edx) = (word(0), word(4), word(8));
            CpuidLeaf { leaf: HYPERVISOR, sub_leaf: 0, eax: HYPERVISOR, ebx, ecx, edx }
        };
        let word = Some(OsStr::new(VALUE));
        for (word, leaves, is) in [
            (word, vec![leaf(b"TCGTCGTCGTCG")], true),
            (word, vec![leaf(b"KVMKVMKVM\0\0\0")], false),
            (word, vec![], false),
            (None, vec![leaf(b"TCGTCGTCGTCG")], false),
            (Some(OsStr::new("2")), vec![leaf(b"TCGTCGTCGTCG")], false),
        ] {
            assert_eq!(is_in_guest(word, &leaves), is, "{word:?} {leaves:?}");
        }
    }
}
