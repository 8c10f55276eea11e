//! PID 1 of a guest: it mounts file systems, runs the job, reports the result, and powers off.
//!
//! Nothing here ends the agent but the end of the job: what cannot be done is said in a sentence.

mod command;
mod devices;
mod files;
mod host_link;
mod setup;

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pagelab_model::machine::CpuidLeaf;
use pagelab_sys::{clock, cpuid};
use rustix::system::{RebootCommand, reboot, uname};

use crate::config::{MARKER_NAME, MARKER_VALUE};
use crate::initramfs::JOB_PATH;
use crate::job::{DISK_MOUNT, GuestJob, JobStep};
use crate::message::{AgentHello, AgentMessage, StepExit};
use command::StepSite;
use host_link::HostLink;

/// How long the host is waited for after the last message. This ends QEMU at once, so it returns only if
/// nothing listens.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);
/// The CPUID leaf in which a hypervisor names itself, and the name of QEMU's emulator (TCG).
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
const TCG_SIGNATURE: &[u8] = b"TCGTCGTCGTCG";

/// The job, if this process is PID 1 of a guest of pagelab. PID 1 of a container is not, nor is that of an
/// unpacked initramfs that runs in a PID namespace: this code mounts file systems and loads modules.
pub fn read_job() -> Option<Result<GuestJob, String>> {
    if std::process::id() != 1
        || !has_guest_marker(std::env::var_os(MARKER_NAME).as_deref(), &cpuid::read_leaves())
    {
        return None;
    }
    GuestJob::from_bytes(&fs::read(JOB_PATH).ok()?)
}

/// Whether this process, PID 1 or not, runs in a guest of pagelab: the job is at the agent's path, and QEMU
/// emulates the processor. A machine that can be lost without harm.
pub fn runs_in_guest() -> bool {
    let has_job = fs::read(JOB_PATH).is_ok_and(|bytes| GuestJob::from_bytes(&bytes).is_some());
    has_job && is_emulated(&cpuid::read_leaves())
}

/// Whether the kernel command line contains the marker, whose unknown words the kernel passes only to PID 1
/// as environment (init/main.c, `unknown_bootoption`), and QEMU emulates the processor.
fn has_guest_marker(word: Option<&OsStr>, leaves: &[CpuidLeaf]) -> bool {
    word == Some(OsStr::new(MARKER_VALUE)) && is_emulated(leaves)
}

fn is_emulated(leaves: &[CpuidLeaf]) -> bool {
    let mut hypervisors = leaves.iter().filter(|leaf| leaf.leaf == HYPERVISOR_LEAF);
    hypervisors.any(|leaf| [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == TCG_SIGNATURE)
}

/// Carries out the job and switches the guest off. It returns only when that is refused.
pub fn run_job(job: Result<GuestJob, String>) {
    let link = setup::mount_devtmpfs().and_then(|()| HostLink::open());
    match link {
        Ok(line) => {
            let line = Arc::new(line);
            execute_job(job, &line);
            line.drain();
            std::thread::sleep(SHUTDOWN_WAIT);
        }
        // Without a line there is the console, which is our standard error.
        Err(why) => setup::print_to_console(&why),
    }
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
}

fn execute_job(job: Result<GuestJob, String>, link: &Arc<HostLink>) {
    let release = uname().release().to_string_lossy().into_owned();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    link.send(&AgentMessage::Hello(AgentHello { version, release, uptime_ns: clock::boottime_ns() }));
    let job = match job {
        Ok(job) => job,
        Err(why) => {
            link.send(&AgentMessage::JobFailed(format!("cannot read the job: {why}")));
            return;
        }
    };
    if let Some(modules) = job.bulk.clone() {
        link.offer_bulk(modules);
    }
    let machine = setup::set_up_guest(&job, link);
    for (step, number) in job.steps.iter().zip(0..) {
        link.send(&AgentMessage::StepStarted(number));
        let end = match step {
            JobStep::Pagelab(words) => match &machine {
                Ok(group) => {
                    let temp_dir = job.disk.then_some(DISK_MOUNT);
                    let site = StepSite { cgroup_dir: group.as_deref(), temp_dir };
                    command::run_step(words, site, link)
                }
                Err(lacks) => StepExit::NotRun(lacks.clone()),
            },
            JobStep::Write { path, text } => match fs::write(path, text) {
                Ok(()) => StepExit::Code(0),
                Err(error) => StepExit::NotRun(format!("cannot write {path}: {error}")),
            },
        };
        link.send(&AgentMessage::StepEnded(end));
    }
    if !job.output_paths.is_empty() {
        link.switch_to_bulk();
    }
    files::send_files(&job, link);
    link.send(&AgentMessage::JobDone);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_of_pagelab_is_one() {
        let leaf = |name: &[u8; 12]| {
            let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
            let (ebx, ecx, edx) = (word(0), word(4), word(8));
            CpuidLeaf { leaf: HYPERVISOR_LEAF, sub_leaf: 0, eax: HYPERVISOR_LEAF, ebx, ecx, edx }
        };
        let word = Some(OsStr::new(MARKER_VALUE));
        for (word, leaves, is) in [
            (word, vec![leaf(b"TCGTCGTCGTCG")], true),
            (word, vec![leaf(b"KVMKVMKVM\0\0\0")], false),
            (word, vec![], false),
            (None, vec![leaf(b"TCGTCGTCGTCG")], false),
            (Some(OsStr::new("2")), vec![leaf(b"TCGTCGTCGTCG")], false),
        ] {
            assert_eq!(has_guest_marker(word, &leaves), is, "{word:?} {leaves:?}");
        }
    }
}
