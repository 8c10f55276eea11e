//! What a guest says: one message a frame.

use serde::{Deserialize, Serialize};

use crate::frame::Frame;

/// One message of the agent. Order: `Hello`, then notes and steps, then files, then `Done`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first line.
    Hello(Hello),
    /// Something that could not be done, in one sentence; the job goes on.
    Note(String),
    /// A step of the job begins: its index.
    Begins(u32),
    /// The step that runs wrote this to standard output.
    Stdout(Vec<u8>),
    /// The step that runs wrote this to standard error.
    Stderr(Vec<u8>),
    /// The step that runs has ended.
    Ended(End),
    /// The next frame comes over the bulk channel, and no more over the line.
    Switch,
    /// A file or folder that is taken begins.
    File(FileHead),
    /// Bytes of the file that was begun.
    Data(Vec<u8>),
    /// The file is whole.
    FileDone,
    /// Something was not taken, or not all of it, in one sentence; a file that was begun is none.
    NotTaken(String),
    /// The job is done; the agent says no more.
    Done,
    /// The agent cannot go on, in one sentence.
    Failed(String),
}

/// Who says hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the pagelab that is PID 1.
    pub version: String,
    /// The kernel's release.
    pub release: String,
    /// Nanoseconds since the kernel started.
    pub uptime_ns: u64,
}

/// How a step of a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It returned this code.
    Code(i32),
    /// A signal of this number ended it.
    Signal(i32),
    /// It was never run, for this reason.
    NotRun(String),
}

/// What is taken next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHead {
    /// Index of the wish in the job.
    pub take: u32,
    /// Path below the place where the host puts things; its first part is the wish's own name.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
}

/// What is taken. Only a plain file has data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A plain file.
    Plain,
    /// A folder.
    Folder,
    /// A symbolic link to this.
    Link(String),
}

impl Message {
    /// Kind and payload of the frame for this message.
    pub fn to_frame(&self) -> Frame {
        let json = |value: serde_json::Result<Vec<u8>>| value.unwrap_or_default();
        let (kind, payload) = match self {
            Message::Hello(hello) => (1, json(serde_json::to_vec(hello))),
            Message::Note(text) => (2, text.clone().into_bytes()),
            Message::Begins(step) => (3, step.to_le_bytes().to_vec()),
            Message::Stdout(bytes) => (4, bytes.clone()),
            Message::Stderr(bytes) => (5, bytes.clone()),
            Message::Ended(end) => (6, json(serde_json::to_vec(end))),
            Message::Switch => (7, Vec::new()),
            Message::File(head) => (8, json(serde_json::to_vec(head))),
            Message::Data(bytes) => (9, bytes.clone()),
            Message::FileDone => (10, Vec::new()),
            Message::Done => (11, Vec::new()),
            Message::Failed(text) => (12, text.clone().into_bytes()),
            Message::NotTaken(text) => (13, text.clone().into_bytes()),
        };
        Frame { kind, payload }
    }

    /// The message in a frame, or why it is none.
    pub fn from_frame(frame: Frame) -> Result<Message, String> {
        let Frame { kind, payload } = frame;
        let empty = payload.is_empty();
        let text = || String::from_utf8_lossy(&payload).into_owned();
        Ok(match kind {
            1 => Message::Hello(serde_json::from_slice(&payload).map_err(|e| format!("hello: {e}"))?),
            2 => Message::Note(text()),
            3 => {
                Message::Begins(u32::from_le_bytes(payload.try_into().map_err(|_| "a step has four bytes")?))
            }
            4 => Message::Stdout(payload),
            5 => Message::Stderr(payload),
            6 => Message::Ended(serde_json::from_slice(&payload).map_err(|e| format!("end: {e}"))?),
            7 if empty => Message::Switch,
            8 => Message::File(serde_json::from_slice(&payload).map_err(|e| format!("file: {e}"))?),
            9 => Message::Data(payload),
            10 if empty => Message::FileDone,
            11 if empty => Message::Done,
            12 => Message::Failed(text()),
            13 => Message::NotTaken(text()),
            kind => return Err(format!("a message of kind {kind}, which this pagelab does not know")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_back_and_others_are_refused() {
        let hello = Hello { version: "1".into(), release: "6.1".into(), uptime_ns: 3 };
        let head = FileHead { take: 1, path: "a/b".into(), kind: FileKind::Link("x".into()) };
        for message in [
            Message::Hello(hello),
            Message::Note("n".into()),
            Message::Begins(7),
            Message::Stdout(b"o".to_vec()),
            Message::Stderr(b"e".to_vec()),
            Message::Ended(End::Code(3)),
            Message::Ended(End::Signal(9)),
            Message::Ended(End::NotRun("no".into())),
            Message::Switch,
            Message::File(head),
            Message::Data(vec![0, 255]),
            Message::FileDone,
            Message::Done,
            Message::Failed("f".into()),
            Message::NotTaken("t".into()),
        ] {
            assert_eq!(Message::from_frame(message.to_frame()), Ok(message));
        }
        for (kind, payload) in
            [(0, &b""[..]), (14, b""), (255, b""), (1, b"{}"), (3, b"abc"), (7, b"x"), (8, b"1")]
        {
            assert!(Message::from_frame(Frame { kind, payload: payload.to_vec() }).is_err(), "{kind}");
        }
    }
}
