//! Protocol of the agent: the permitted order of its messages, and the outcome that follows from them.

use crate::console::printable;
use crate::file_receiver::{FileReceiver, ReceiveError};
use crate::message::{AgentHello, AgentMessage, StepExit};
use crate::outcome::{LossReason, OUTPUT_BYTES_MAX, StepEnd};
use crate::packet::PacketDecoder;

/// Maximum of stored notes of an agent; more are useless.
const NOTES_MAX: usize = 100;

/// State of the conversation.
#[derive(Debug, Default)]
pub struct ProtocolState {
    link_decoder: PacketDecoder,
    bulk_decoder: PacketDecoder,
    has_bulk: bool,
    uses_bulk: bool,
    steps_expected: usize,
    /// The agent's first message.
    pub hello: Option<AgentHello>,
    /// Notes of the agent.
    pub notes: Vec<String>,
    /// Steps that have ended.
    pub steps: Vec<StepEnd>,
    running: Option<StepEnd>,
    receiver: Option<FileReceiver>,
    /// Data that the agent could not send.
    missing_files: Vec<String>,
    /// Why taking was given up by the host.
    pub receive_error: Option<String>,
    /// The agent has reported the end of the job.
    pub is_done: bool,
}

/// Meaning of a message for the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum ProtocolEvent {
    /// Nothing.
    Handled,
    /// The hello arrived.
    Connected,
    /// Output of the step that runs: standard error or not, and the bytes.
    Output(bool, Vec<u8>),
    /// A note of the agent.
    Note(String),
    /// The step with this number began.
    StepStarted(u32),
    /// The last one of the steps ended.
    StepEnded,
}

impl ProtocolState {
    /// A talk about this many steps, perhaps with a bulk channel; files go to `receiver`.
    pub fn new(steps_due: usize, has_bulk: bool, receiver: Option<FileReceiver>) -> ProtocolState {
        ProtocolState { has_bulk, steps_expected: steps_due, receiver, ..ProtocolState::default() }
    }

    /// Adds bytes from the serial line or the bulk channel.
    pub fn push_bytes(&mut self, is_bulk: bool, bytes: &[u8]) {
        if is_bulk { self.bulk_decoder.push_bytes(bytes) } else { self.link_decoder.push_bytes(bytes) }
    }

    /// The next message, already counted in; `None` until more is pushed.
    pub fn next_event(&mut self) -> Option<Result<ProtocolEvent, LossReason>> {
        if self.is_done || self.receive_error.is_some() {
            return None;
        }
        let decoder = if self.uses_bulk { &mut self.bulk_decoder } else { &mut self.link_decoder };
        let message = decoder
            .next_packet()?
            .and_then(|packet| AgentMessage::from_packet(packet).map_err(|what| printable(&what)));
        Some(message.map_err(LossReason::ProtocolError).and_then(|message| self.handle_message(message)))
    }

    /// Whether the agent has gone over to the bulk channel.
    pub fn uses_bulk(&self) -> bool {
        self.uses_bulk
    }

    /// Whether a message is cut off.
    pub fn has_partial_message(&self) -> bool {
        let decoder = if self.uses_bulk { &self.bulk_decoder } else { &self.link_decoder };
        decoder.has_partial_packet()
    }

    /// Received files, and messages about missing ones.
    pub fn take_files(&mut self) -> (Vec<crate::file_receiver::ReceivedFile>, Vec<String>) {
        let mut missing_files: Vec<String> = self.receive_error.take().into_iter().collect();
        missing_files.append(&mut self.missing_files);
        let Some(receiver) = &self.receiver else { return (Vec::new(), missing_files) };
        if missing_files.is_empty() {
            let missing = receiver.missing_outputs().into_iter();
            missing_files
                .extend(missing.map(|name| format!("{name} does not exist in the guest or is not readable")));
        }
        (receiver.received_files().to_vec(), missing_files)
    }

    fn handle_message(&mut self, message: AgentMessage) -> Result<ProtocolEvent, LossReason> {
        let out_of_order = |what: &str| Err(LossReason::ProtocolError(format!("unexpected message: {what}")));
        if self.hello.is_none() && !matches!(message, AgentMessage::Hello(_) | AgentMessage::JobFailed(_)) {
            return out_of_order("a message before the hello");
        }
        match message {
            AgentMessage::Hello(_) if self.hello.is_some() => return out_of_order("a second hello"),
            AgentMessage::Hello(hello) => {
                self.hello = Some(hello);
                return Ok(ProtocolEvent::Connected);
            }
            AgentMessage::Note(text) => {
                let note = printable(&text);
                if self.notes.len() < NOTES_MAX {
                    self.notes.push(note.clone());
                    return Ok(ProtocolEvent::Note(note));
                }
            }
            AgentMessage::StepStarted(step) => {
                let due = self.steps.len();
                if self.running.is_some() || step as usize != due || due >= self.steps_expected {
                    return out_of_order("a step");
                }
                let end = StepExit::NotRun(String::new());
                self.running = Some(StepEnd { end, stdout: vec![], stderr: vec![], is_truncated: false });
                return Ok(ProtocolEvent::StepStarted(step));
            }
            AgentMessage::Stdout(bytes) => return self.handle_output(false, bytes),
            AgentMessage::Stderr(bytes) => return self.handle_output(true, bytes),
            AgentMessage::StepEnded(end) => match self.running.take() {
                Some(step) => {
                    self.steps.push(StepEnd { end, ..step });
                    return Ok(ProtocolEvent::StepEnded);
                }
                None => return out_of_order("the end of a step that was not started"),
            },
            AgentMessage::SwitchToBulk if self.uses_bulk || !self.has_bulk => {
                return out_of_order("a switch");
            }
            AgentMessage::SwitchToBulk => self.uses_bulk = true,
            AgentMessage::FileStart(head) => return self.handle_file(|taker| taker.begin_entry(&head)),
            AgentMessage::Data(bytes) => return self.handle_file(|taker| taker.write_data(&bytes)),
            AgentMessage::FileEnd => return self.handle_file(FileReceiver::finish_file),
            AgentMessage::FileNotSent(text) => {
                if self.missing_files.len() < NOTES_MAX {
                    self.missing_files.push(printable(&text));
                }
                return self.handle_file(|taker| {
                    taker.discard_file();
                    Ok(())
                });
            }
            AgentMessage::JobDone if self.steps.len() != self.steps_expected || self.running.is_some() => {
                return out_of_order("the end of the job");
            }
            AgentMessage::JobDone => self.is_done = true,
            AgentMessage::JobFailed(text) => return Err(LossReason::AgentError(printable(&text))),
        }
        Ok(ProtocolEvent::Handled)
    }

    fn handle_output(&mut self, is_stderr: bool, bytes: Vec<u8>) -> Result<ProtocolEvent, LossReason> {
        // A child of a step that has ended may still write; it is passed on and belongs to no step.
        if let Some(step) = self.running.as_mut() {
            let kept = if is_stderr { &mut step.stderr } else { &mut step.stdout };
            let room = OUTPUT_BYTES_MAX.saturating_sub(kept.len());
            step.is_truncated |= bytes.len() > room;
            kept.extend(&bytes[..bytes.len().min(room)]);
        }
        Ok(ProtocolEvent::Output(is_stderr, bytes))
    }

    fn handle_file(
        &mut self,
        action: impl FnOnce(&mut FileReceiver) -> Result<(), ReceiveError>,
    ) -> Result<ProtocolEvent, LossReason> {
        let Some(receiver) = &mut self.receiver else {
            return Err(LossReason::ProtocolError("a file that was not requested".to_owned()));
        };
        match action(receiver) {
            Ok(()) => {}
            Err(ReceiveError::GuestFault(what)) => return Err(LossReason::ProtocolError(what)),
            Err(ReceiveError::HostFault(what)) => self.receive_error = Some(what),
        }
        Ok(ProtocolEvent::Handled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{EntryKind, FileHeader};
    use crate::packet::encode;

    fn hello() -> AgentMessage {
        AgentMessage::Hello(AgentHello { version: "1".into(), release: "6".into(), uptime_ns: 1 })
    }

    /// Continuation of a dialogue that consists of these messages.
    fn run_protocol(messages: &[AgentMessage], steps: usize) -> (ProtocolState, Option<LossReason>) {
        let mut talk = ProtocolState::new(steps, false, None);
        for (number, message) in messages.iter().enumerate() {
            let packet = message.to_packet();
            talk.push_bytes(false, &encode(packet.kind, number as u32, &packet.payload));
            while let Some(next) = talk.next_event() {
                if let Err(why) = next {
                    return (talk, Some(why));
                }
            }
        }
        (talk, None)
    }

    #[test]
    fn a_job_of_two_steps() {
        let (talk, why) = run_protocol(
            &[
                hello(),
                AgentMessage::Note("a\x1b[0m".into()),
                AgentMessage::StepStarted(0),
                AgentMessage::Stdout(b"one".to_vec()),
                AgentMessage::StepEnded(StepExit::Code(3)),
                AgentMessage::Stdout(b"late".to_vec()),
                AgentMessage::StepStarted(1),
                AgentMessage::Stderr(b"two".to_vec()),
                AgentMessage::StepEnded(StepExit::Signal(9)),
                AgentMessage::JobDone,
            ],
            2,
        );
        assert_eq!((why, talk.is_done, talk.notes), (None, true, vec!["a?[0m".to_owned()]));
        let ends: Vec<_> =
            talk.steps.iter().map(|step| (&step.end, &step.stdout[..], &step.stderr[..])).collect();
        assert_eq!(ends, [(&StepExit::Code(3), &b"one"[..], &b""[..]), (&StepExit::Signal(9), b"", b"two")]);
    }

    #[test]
    fn whatever_comes_out_of_turn_is_damage_and_a_done_too_early_is_no_result() {
        let begin = AgentMessage::StepStarted;
        let head = FileHeader { take: 0, path: "a".into(), kind: EntryKind::Plain };
        for messages in [
            vec![AgentMessage::JobDone],
            vec![begin(0)],
            vec![hello(), hello()],
            vec![hello(), AgentMessage::JobDone],
            vec![hello(), begin(1)],
            vec![hello(), begin(0), begin(1)],
            vec![hello(), begin(0), AgentMessage::JobDone],
            vec![hello(), begin(0), AgentMessage::StepEnded(StepExit::Code(0)), begin(1)],
            vec![hello(), AgentMessage::StepEnded(StepExit::Code(0))],
            vec![hello(), AgentMessage::SwitchToBulk],
            vec![hello(), AgentMessage::FileStart(head)],
            vec![hello(), AgentMessage::Data(vec![1])],
            vec![hello(), AgentMessage::FileEnd],
            vec![hello(), AgentMessage::FileNotSent("a".into())],
        ] {
            let (talk, why) = run_protocol(&messages, 1);
            assert!(
                matches!(why, Some(LossReason::ProtocolError(_))) && !talk.is_done,
                "{messages:?}: {why:?}"
            );
        }
        let (_, why) = run_protocol(&[AgentMessage::JobFailed("no job".into())], 1);
        assert_eq!(why, Some(LossReason::AgentError("no job".into())));
    }

    #[test]
    fn output_without_end_is_passed_on_and_kept_in_bounds() {
        let mut talk = ProtocolState::new(1, false, None);
        assert_eq!(talk.handle_message(hello()), Ok(ProtocolEvent::Connected));
        assert_eq!(talk.handle_message(AgentMessage::StepStarted(0)), Ok(ProtocolEvent::StepStarted(0)));
        let piece = vec![7; 1 << 20];
        for _ in 0..20 {
            assert_eq!(
                talk.handle_message(AgentMessage::Stdout(piece.clone())),
                Ok(ProtocolEvent::Output(false, piece.clone()))
            );
        }
        assert_eq!(
            talk.handle_message(AgentMessage::StepEnded(StepExit::Code(0))),
            Ok(ProtocolEvent::StepEnded)
        );
        assert_eq!((talk.steps[0].stdout.len(), talk.steps[0].is_truncated), (OUTPUT_BYTES_MAX, true));
        for _ in 0..1000 {
            talk.handle_message(AgentMessage::Note("n".into())).unwrap();
        }
        assert_eq!(talk.notes.len(), NOTES_MAX);
    }
}
