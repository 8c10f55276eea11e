//! PID 1 of a guest: it mounts file systems, runs the job, reports the result, and powers off.
//!
//! Nothing here ends the agent but the end of the job: what cannot be done is said in a sentence.

mod command;
mod devices;
mod files;
mod host_link;
mod setup;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pagelab_model::guest_marker::{MARKER_NAME, MARKER_VALUE, is_marked};
use pagelab_model::machine::CpuidLeaf;
use pagelab_sys::{clock, cpuid};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::system::{RebootCommand, reboot, uname};

use crate::accelerator::Accelerator;
use crate::initramfs::JOB_PATH;
use crate::job::{DISK_MOUNT, GuestJob, JobStep};
use crate::kernel_module;
use crate::message::{AgentHello, AgentMessage, StepExit};
use crate::packet::PAYLOAD_MAX;
use crate::paths;
use command::{BackgroundCommands, StepSite};
use host_link::HostLink;

/// How long the host is waited for after the last message. This ends QEMU at once, so it returns only if
/// nothing listens.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);
/// The CPUID leaf in which a hypervisor names itself, and the names of QEMU's emulator (TCG) and of KVM.
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
const TCG_SIGNATURE: &[u8] = b"TCGTCGTCGTCG";
const KVM_SIGNATURE: &[u8] = b"KVMKVMKVM\0\0\0";

/// The job, if this process is PID 1 of a guest of pagelab. PID 1 of a container is not, nor is that of an
/// unpacked initramfs that runs in a PID namespace: this code mounts file systems and loads modules.
pub fn read_job() -> Option<Result<GuestJob, String>> {
    let has_marker = std::env::var_os(MARKER_NAME).as_deref() == Some(OsStr::new(MARKER_VALUE));
    if std::process::id() != 1 || !has_marker {
        return None;
    }
    match find_accelerator(&cpuid::read_leaves())? {
        // The kernel passes words that it does not know to PID 1 as environment (init/main.c,
        // `unknown_bootoption`). Emulated machines are hardly ever hosts of containers.
        Accelerator::Tcg => {}
        // Many hosts of containers are virtual machines of KVM, and anyone can set the environment of a
        // container. Only the kernel's own command line proves that it was booted as a guest.
        Accelerator::Kvm if is_marked(&read_unmounted_command_line()?) => {}
        Accelerator::Kvm => return None,
    }
    GuestJob::from_bytes(&fs::read(JOB_PATH).ok()?)
}

/// Whether this process, PID 1 or not, runs in a guest of pagelab: the job is at the agent's path, the kernel
/// was booted as a guest, and the machine is one that QEMU can make. It can be lost without harm.
pub fn runs_in_guest() -> bool {
    let has_job = || fs::read(JOB_PATH).is_ok_and(|bytes| GuestJob::from_bytes(&bytes).is_some());
    let was_booted_as_guest =
        || fs::read_to_string(paths::KERNEL_COMMAND_LINE).is_ok_and(|line| is_marked(&line));
    has_job() && was_booted_as_guest() && find_accelerator(&cpuid::read_leaves()).is_some()
}

/// The kernel's command line before anything is mounted, from a procfs that is attached nowhere. That needs
/// `fsopen` (Linux 5.2) and CAP_SYS_ADMIN; without them there is no answer.
fn read_unmounted_command_line() -> Option<String> {
    let (kind, file) = paths::KERNEL_COMMAND_LINE_SOURCE;
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(&context).ok()?;
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()?;
    let file = openat(&tree, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    io::read_to_string(File::from(file)).ok()
}

/// What runs this machine, by the name of the hypervisor; `None` for all others and for real hardware.
fn find_accelerator(leaves: &[CpuidLeaf]) -> Option<Accelerator> {
    leaves.iter().filter(|leaf| leaf.leaf == HYPERVISOR_LEAF).find_map(|leaf| {
        match [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat().as_slice() {
            TCG_SIGNATURE => Some(Accelerator::Tcg),
            KVM_SIGNATURE => Some(Accelerator::Kvm),
            _ => None,
        }
    })
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
    let temp_dir = job.disk.then_some(DISK_MOUNT);
    let at_site = |run: &mut dyn FnMut(StepSite<'_>) -> StepExit| match &machine {
        Ok(group) => run(StepSite { cgroup_dir: group.as_deref(), temp_dir, has_tools: job.tools }),
        Err(lacks) => StepExit::NotRun(lacks.clone()),
    };
    let mut background = BackgroundCommands::default();
    for (step, number) in job.steps.iter().zip(0..) {
        link.send(&AgentMessage::StepStarted(number));
        let end = match step {
            JobStep::Pagelab(words) => at_site(&mut |site| command::run_pagelab(words, site, link)),
            JobStep::Script(text) => at_site(&mut |site| command::run_script(text, site, link)),
            JobStep::Shell(size) => at_site(&mut |site| command::run_shell(size, site)),
            JobStep::StartBackground(words) => {
                at_site(&mut |site| background.start(words, StepSite { cgroup_dir: None, ..site }))
            }
            JobStep::KillBackground => background.kill(),
            JobStep::Write { path, text } => match fs::write(path, text) {
                Ok(()) => StepExit::Code(0),
                Err(error) => StepExit::NotRun(format!("cannot write {path}: {error}")),
            },
            JobStep::Read { path } => match files::read_bounded(path) {
                Ok(bytes) => {
                    bytes
                        .chunks(PAYLOAD_MAX)
                        .for_each(|part| link.send(&AgentMessage::Stdout(part.to_vec())));
                    StepExit::Code(0)
                }
                Err(error) => StepExit::NotRun(format!("cannot read {path}: {error}")),
            },
            JobStep::LoadModule { parameters } => match load_own_module(&job, parameters) {
                Ok(()) => StepExit::Code(0),
                Err(why) => StepExit::NotRun(why),
            },
            JobStep::UnloadModule { name } => match devices::unload_module(name) {
                Ok(()) => StepExit::Code(0),
                Err(why) => StepExit::NotRun(why),
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

/// Loads pagelab's module, which is the last of the job's modules if the guest has it.
fn load_own_module(job: &GuestJob, parameters: &str) -> Result<(), String> {
    let is_own = |module: &&String| module.ends_with(kernel_module::MODULE_FILE);
    let module = job.modules.last().filter(is_own).ok_or("the guest has no module of pagelab")?;
    devices::load_module_with(module, parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accelerator_is_known_by_the_name_of_the_hypervisor() {
        let leaf = |name: &[u8; 12]| {
            let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
            let (ebx, ecx, edx) = (word(0), word(4), word(8));
            CpuidLeaf { leaf: HYPERVISOR_LEAF, sub_leaf: 0, eax: HYPERVISOR_LEAF, ebx, ecx, edx }
        };
        let elsewhere = CpuidLeaf { leaf: 1, ..leaf(b"TCGTCGTCGTCG") };
        for (leaves, accelerator) in [
            (vec![leaf(b"TCGTCGTCGTCG")], Some(Accelerator::Tcg)),
            (vec![elsewhere, leaf(b"KVMKVMKVM\0\0\0")], Some(Accelerator::Kvm)),
            (vec![leaf(b"Microsoft Hv")], None),
            (vec![leaf(b"XenVMMXenVMM")], None),
            (vec![elsewhere], None),
            (vec![], None),
        ] {
            assert_eq!(find_accelerator(&leaves), accelerator, "{leaves:?}");
        }
    }

    #[test]
    fn this_machine_is_no_guest() {
        // The tests run on no guest of pagelab, whatever the machine is.
        assert!(!runs_in_guest());
        // Without privileges there is no answer; with them it is that of the mounted procfs.
        if let Some(line) = read_unmounted_command_line() {
            assert_eq!(line, fs::read_to_string(paths::KERNEL_COMMAND_LINE).unwrap());
            assert!(!is_marked(&line), "{line}");
        }
    }
}
