//! Job of a guest: the record that the host writes into the initramfs and PID 1 reads.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// Magic of the record, so that PID 1 of a container does not mistake another file for a job.
pub const JOB_MAGIC: &str = "pagelab guest job 1";

/// The whole job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestJob {
    /// [`JOB_MAGIC`].
    pub magic: String,
    /// Modules to load, in this order: paths in the initramfs.
    pub modules: Vec<String>,
    /// Cgroup version to mount, and the limit to run steps under.
    pub cgroup: Option<CgroupConfig>,
    /// Whether there is a disk with the serial number [`SWAP_SERIAL`] to swap to.
    pub swap: bool,
    /// Whether there is an ext4 disk with the serial number [`DISK_SERIAL`].
    pub disk: bool,
    /// Whether there is a tool disk, with the serial number [`TOOLS_SERIAL`]. Its root is that of all
    /// commands of the steps: those of pagelab find its programs, too.
    #[serde(default)]
    pub tools: bool,
    /// Whether there is the archive of a source tree, with the serial number [`TREE_SERIAL`].
    #[serde(default)]
    pub tree: bool,
    /// Modules for the bulk channel, in order, where there is one.
    pub bulk: Option<Vec<String>>,
    /// Lines for the control file of pagelab's own module: if one is rejected, no command is run.
    #[serde(default)]
    pub module_lines: Vec<String>,
    /// Steps to run in order, regardless of the results of earlier ones.
    pub steps: Vec<JobStep>,
    /// Files and folders to send at the end: paths in the guest.
    pub output_paths: Vec<String>,
    /// Bytes to send at most.
    pub output_bytes_max: u64,
}

/// Serial number of the disk to swap to.
pub const SWAP_SERIAL: &str = "swap";
/// Serial number of the disk with a file system.
pub const DISK_SERIAL: &str = "disk";
/// Serial number of the tool disk.
pub const TOOLS_SERIAL: &str = "tools";
/// Serial number of the archive of a source tree.
pub const TREE_SERIAL: &str = "tree";
/// Where the tool disk is mounted, and the root of programs on it.
pub const TOOLS_MOUNT: &str = "/tools";
/// Name of the bulk channel's port.
pub const BULK_PORT: &str = "pagelab.bulk";
/// Working directory of steps, with the given files.
pub const WORK_DIR: &str = "/data";
/// Where the disk is mounted.
pub const DISK_MOUNT: &str = "/disk";

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobStep {
    /// A command line of pagelab, without the program's name.
    Pagelab(Vec<OsString>),
    /// A command line of pagelab that runs while later steps do. Its output is discarded.
    StartBackground(Vec<OsString>),
    /// Kills the commands in the background (SIGKILL), and waits for their ends.
    KillBackground,
    /// A command of the shell of the tool disk, in the root of that disk.
    Script(OsString),
    /// An interactive shell of the tool disk, on the terminal channel.
    Shell(TerminalSize),
    /// A text that is written to a file of the guest by PID 1 itself, such as a setting of the kernel.
    Write {
        /// The file.
        path: String,
        /// The text.
        text: String,
    },
    /// A file of the guest that PID 1 itself reads: what is in it is the output of the step.
    Read {
        /// The file.
        path: String,
    },
    /// pagelab's own module, which PID 1 loads again with other parameters.
    LoadModule {
        /// Parameters, as on the command line of insmod.
        parameters: String,
    },
    /// A module that PID 1 itself unloads.
    UnloadModule {
        /// Its name.
        name: String,
    },
}

/// The terminal of a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Its type, as `TERM` has it.
    pub term: String,
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// Control groups of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupConfig {
    /// Which version has the memory controller.
    pub version: CgroupVersion,
    /// The memory limit in bytes under which steps run.
    pub limit_bytes: Option<u64>,
}

/// The version of control groups that has the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy.
    V2,
}

impl GuestJob {
    /// The record as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Job in a record; `None` for another file.
    pub fn from_bytes(bytes: &[u8]) -> Option<Result<GuestJob, String>> {
        let head = format!("{{\"magic\":\"{JOB_MAGIC}\"");
        bytes.starts_with(head.as_bytes()).then(|| serde_json::from_slice(bytes).map_err(|e| e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_job_comes_back_whatever_bytes_its_words_are_of() {
        let words = vec!["frag".into(), OsString::from_vec(vec![0xff, b'\n', 0x80])];
        let job = GuestJob {
            magic: JOB_MAGIC.to_owned(),
            modules: vec!["/modules/a.ko".to_owned()],
            cgroup: Some(CgroupConfig { version: CgroupVersion::V2, limit_bytes: Some(1 << 20) }),
            swap: true,
            disk: false,
            tools: true,
            tree: true,
            bulk: Some(vec!["/modules/b.ko.xz".to_owned()]),
            module_lines: vec!["a off".to_owned()],
            steps: vec![
                JobStep::Pagelab(words.clone()),
                JobStep::StartBackground(words),
                JobStep::KillBackground,
                JobStep::Script("a && b".into()),
                JobStep::Shell(TerminalSize { term: "vt100".into(), rows: 24, columns: 80 }),
                JobStep::Write { path: "/a".into(), text: "b".into() },
                JobStep::Read { path: "/a".into() },
                JobStep::LoadModule { parameters: "without=a,b".into() },
                JobStep::UnloadModule { name: "c".into() },
            ],
            output_paths: vec!["saved".to_owned()],
            output_bytes_max: 5,
        };
        assert_eq!(GuestJob::from_bytes(&job.to_bytes()), Some(Ok(job.clone())));
        let bytes = job.to_bytes();
        assert!(GuestJob::from_bytes(&bytes[..bytes.len() - 1]).unwrap().is_err());
        assert_eq!(GuestJob::from_bytes(b"#!/bin/sh"), None);
    }
}
