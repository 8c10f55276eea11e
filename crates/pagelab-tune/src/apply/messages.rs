//! Messages between the front end of `apply` and the supervisor process: one job, then reports.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::PathBuf;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_target::remote_collapse::RemoteCollapse;
use pagelab_target::supervisor::{HugePageChoice, Summary, SupervisorConfig, ThpMode};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::{ApplyRequest, ApplySubject};

/// Job of the supervisor process: a resolved request, with its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SupervisorJob {
    pub request: ApplyRequest,
    /// The file of a program to start.
    pub program: OsString,
    /// Which memory is to be on huge pages.
    pub choice: HugePageChoice,
    /// Whether huge pages are disabled, also where the program requests them.
    pub disables_thp: bool,
    /// Base page size, in bytes.
    pub page: u64,
    /// Huge page size, in bytes.
    pub huge: u64,
}

/// A report of the supervisor process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SupervisorMessage {
    /// The program runs, as this process.
    Started(u32),
    /// A region of a running process is collapsed next.
    RegionStarted,
    /// Something to print.
    Note(String),
    Failed {
        kind: FailureKind,
        message: String,
    },
    /// The first process has ended, or all regions have been tried.
    Ended {
        exit: u8,
        summary: Summary,
    },
}

impl SupervisorJob {
    /// Writes the job to an anonymous file, to be read from its begin.
    pub fn to_memfd(&self) -> io::Result<File> {
        let mut file = File::from(memfd_create("pagelab-job", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file)
    }

    pub fn read(mut file: File) -> io::Result<SupervisorJob> {
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Opens a process, to collapse its memory.
    pub fn open_process(&self, pid: u32) -> Result<RemoteCollapse, Failure> {
        RemoteCollapse::open(pid, self.choice.clone(), self.request.allow_stale, self.huge)
    }

    /// Returns the specification of the program to start.
    pub fn into_spec(self) -> Result<SupervisorConfig, Failure> {
        let ApplySubject::Launch(arguments) = self.request.subject else {
            return Err(Failure::new(FailureKind::Bug, "the job has no program to start"));
        };
        Ok(SupervisorConfig {
            program: PathBuf::from(self.program),
            arguments,
            choice: self.choice,
            overrides: self.request.overrides,
            hugetlb: self.request.uses_hugetlb,
            allow_stale: self.request.allow_stale,
            thp: if self.disables_thp { ThpMode::Off } else { ThpMode::OnlyAdvised },
            traces_all_mappings: false,
            page: self.page,
            huge: self.huge,
        })
    }
}

impl SupervisorMessage {
    pub fn from_failure(failure: &Failure) -> SupervisorMessage {
        SupervisorMessage::Failed { kind: failure.kind(), message: failure.to_string() }
    }

    /// Writes the message as one line of JSON.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)
    }
}

/// Reads messages until the pipe ends. A last line without its newline, cut off by the writer's death, ends
/// them too; an entire line that is not a message is an error, and so is a pipe that cannot be read.
pub fn read_messages(pipe: impl Read) -> impl Iterator<Item = io::Result<SupervisorMessage>> {
    let mut pipe = BufReader::new(pipe);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        match pipe.read_until(b'\n', &mut line) {
            Err(error) => Some(Err(error)),
            Ok(_) => line.strip_suffix(b"\n").map(parse_message),
        }
    })
}

fn parse_message(line: &[u8]) -> io::Result<SupervisorMessage> {
    serde_json::from_slice(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::time::Duration;

    use pagelab_model::HugePlan;
    use pagelab_target::supervisor::{FailedRegion, ProgramExit};

    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let plan = HugePlan::default();
        let not_utf8 = OsString::from_vec(vec![b'/', 0xff, b' ', b'"']);
        let request = ApplyRequest {
            plan: not_utf8.clone(),
            subject: ApplySubject::Launch(vec![not_utf8.clone()]),
            overrides: true,
            allow_stale: false,
            summary: Some(not_utf8.clone()),
            is_untraced: false,
            uses_hugetlb: true,
            region_deadline: Duration::from_millis(1_500),
        };
        let job = SupervisorJob {
            request: request.clone(),
            program: not_utf8,
            choice: HugePageChoice::Plan(plan),
            disables_thp: true,
            page: 4096,
            huge: 2 << 20,
        };
        assert_eq!(SupervisorJob::read(job.to_memfd().unwrap()).unwrap(), job);
        let request = ApplyRequest { subject: ApplySubject::Process(7), ..request };
        let process = SupervisorJob { request, choice: HugePageChoice::All, ..job };
        assert_eq!(SupervisorJob::read(process.to_memfd().unwrap()).unwrap(), process);
        assert!(process.into_spec().is_err());
    }

    #[test]
    fn messages_arrive_in_order_and_end_with_a_cut_line() {
        let failed = FailedRegion {
            mapping: "heap".to_owned(),
            offset: 0,
            regions: 2,
            reason: "two\nlines".to_owned(),
        };
        let exit = Some(ProgramExit::Signal(9));
        let summary = Summary { requested: 2, failed: vec![failed], exit, ..Summary::default() };
        let sent = [
            SupervisorMessage::Started(12),
            SupervisorMessage::RegionStarted,
            SupervisorMessage::Note("a\nb".to_owned()),
            SupervisorMessage::Failed { kind: FailureKind::NotAvailable, message: "why".to_owned() },
            SupervisorMessage::Ended { exit: 137, summary },
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|message| message.write_to(&mut bytes).unwrap());
        let read = |bytes: &[u8]| read_messages(bytes).collect::<io::Result<Vec<_>>>();
        assert_eq!(read(&bytes).unwrap(), sent);
        assert_eq!(read(&bytes[..bytes.len() - 9]).unwrap(), sent[..4]);
    }

    #[test]
    fn a_damaged_line_is_an_error_and_not_the_end() {
        for damaged in [&b"{\"Started\": -1}\n"[..], b"\n", b"\xff\n", b"{\"RegionSt\n"] {
            let mut bytes = Vec::new();
            SupervisorMessage::Started(12).write_to(&mut bytes).unwrap();
            bytes.extend_from_slice(damaged);
            SupervisorMessage::RegionStarted.write_to(&mut bytes).unwrap();
            let read: Vec<_> = read_messages(&bytes[..]).collect();
            assert_eq!(read[0].as_ref().unwrap(), &SupervisorMessage::Started(12));
            assert_eq!(read[1].as_ref().unwrap_err().kind(), io::ErrorKind::InvalidData, "{damaged:?}");
        }
    }
}
