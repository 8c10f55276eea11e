//! Messages of a guest, one per packet.

use serde::{Deserialize, Serialize};

use crate::packet::Packet;

/// One message of the agent. Order: `AgentHello`, then notes and steps, then files, then `JobDone`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// The first line.
    Hello(AgentHello),
    /// Failed operation, in one sentence; the job continues.
    Note(String),
    /// A step of the job begins: its index.
    StepStarted(u32),
    /// The step that runs wrote this to standard output.
    Stdout(Vec<u8>),
    /// The step that runs wrote this to standard error.
    Stderr(Vec<u8>),
    /// The step that runs has ended.
    StepEnded(StepExit),
    /// The next packet comes over the bulk channel, and no more over the line.
    SwitchToBulk,
    /// A file or folder that is taken begins.
    FileStart(FileHeader),
    /// Contents of the current file.
    Data(Vec<u8>),
    /// The file is whole.
    FileEnd,
    /// Missing or incomplete file, in one sentence; the current file is discarded.
    FileNotSent(String),
    /// The job is done; no message follows.
    JobDone,
    /// The agent cannot continue, in one sentence.
    JobFailed(String),
}

/// Identity of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentHello {
    /// Version of the pagelab that is PID 1.
    pub version: String,
    /// The kernel's release.
    pub release: String,
    /// Nanoseconds since the kernel started.
    pub uptime_ns: u64,
}

/// How a step of a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepExit {
    /// It returned this code.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
    /// It was never run, for this reason.
    NotRun(String),
}

/// Header of the next file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader {
    /// Index of the wish in the job.
    pub take: u32,
    /// Path below the place where the host puts things; its first part is the wish's own name.
    pub path: String,
    /// Type of the entry.
    pub kind: EntryKind,
}

/// Type of a copied entry. Only a plain file has data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A plain file.
    Plain,
    /// A folder.
    Folder,
    /// A symbolic link to this.
    Link(String),
}

impl AgentMessage {
    /// Kind and payload of the packet for this message.
    pub fn to_packet(&self) -> Packet {
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        let (kind, payload) = match self {
            AgentMessage::Hello(hello) => (1, json(serde_json::to_vec(hello))),
            AgentMessage::Note(text) => (2, text.clone().into_bytes()),
            AgentMessage::StepStarted(step) => (3, step.to_le_bytes().to_vec()),
            AgentMessage::Stdout(bytes) => (4, bytes.clone()),
            AgentMessage::Stderr(bytes) => (5, bytes.clone()),
            AgentMessage::StepEnded(end) => (6, json(serde_json::to_vec(end))),
            AgentMessage::SwitchToBulk => (7, Vec::new()),
            AgentMessage::FileStart(head) => (8, json(serde_json::to_vec(head))),
            AgentMessage::Data(bytes) => (9, bytes.clone()),
            AgentMessage::FileEnd => (10, Vec::new()),
            AgentMessage::JobDone => (11, Vec::new()),
            AgentMessage::JobFailed(text) => (12, text.clone().into_bytes()),
            AgentMessage::FileNotSent(text) => (13, text.clone().into_bytes()),
        };
        Packet { kind, payload }
    }

    /// Message in a packet, or the reason why it is invalid.
    pub fn from_packet(packet: Packet) -> Result<AgentMessage, String> {
        let Packet { kind, payload } = packet;
        let empty = payload.is_empty();
        let text = || String::from_utf8_lossy(&payload).into_owned();
        Ok(match kind {
            1 => AgentMessage::Hello(serde_json::from_slice(&payload).map_err(|e| format!("hello: {e}"))?),
            2 => AgentMessage::Note(text()),
            3 => AgentMessage::StepStarted(u32::from_le_bytes(
                payload.try_into().map_err(|_| "a step number must have four bytes")?,
            )),
            4 => AgentMessage::Stdout(payload),
            5 => AgentMessage::Stderr(payload),
            6 => AgentMessage::StepEnded(serde_json::from_slice(&payload).map_err(|e| format!("end: {e}"))?),
            7 if empty => AgentMessage::SwitchToBulk,
            8 => AgentMessage::FileStart(serde_json::from_slice(&payload).map_err(|e| format!("file: {e}"))?),
            9 => AgentMessage::Data(payload),
            10 if empty => AgentMessage::FileEnd,
            11 if empty => AgentMessage::JobDone,
            12 => AgentMessage::JobFailed(text()),
            13 => AgentMessage::FileNotSent(text()),
            kind => return Err(format!("unknown message kind {kind}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_back_and_others_are_refused() {
        let hello = AgentHello { version: "1".into(), release: "6.1".into(), uptime_ns: 3 };
        let head = FileHeader { take: 1, path: "a/b".into(), kind: EntryKind::Link("x".into()) };
        for message in [
            AgentMessage::Hello(hello),
            AgentMessage::Note("n".into()),
            AgentMessage::StepStarted(7),
            AgentMessage::Stdout(b"o".to_vec()),
            AgentMessage::Stderr(b"e".to_vec()),
            AgentMessage::StepEnded(StepExit::Code(3)),
            AgentMessage::StepEnded(StepExit::Signal(9)),
            AgentMessage::StepEnded(StepExit::NotRun("no".into())),
            AgentMessage::SwitchToBulk,
            AgentMessage::FileStart(head),
            AgentMessage::Data(vec![0, 255]),
            AgentMessage::FileEnd,
            AgentMessage::JobDone,
            AgentMessage::JobFailed("f".into()),
            AgentMessage::FileNotSent("t".into()),
        ] {
            assert_eq!(AgentMessage::from_packet(message.to_packet()), Ok(message));
        }
        for (kind, payload) in
            [(0, &b""[..]), (14, b""), (255, b""), (1, b"{}"), (3, b"abc"), (7, b"x"), (8, b"1")]
        {
            assert!(AgentMessage::from_packet(Packet { kind, payload: payload.to_vec() }).is_err(), "{kind}");
        }
    }
}
