//! The agent's messages in the order in which they may come, and what they add up to.

use crate::console::printable;
use crate::frame::Decoder;
use crate::message::{End, Hello, Message};
use crate::outcome::{OUTPUT_KEPT, StepEnd, Why};
use crate::taken::{Problem, Taker};

/// Notes of an agent that are kept; more of them tell nobody anything.
const NOTES_MAX: usize = 100;

/// What was heard so far.
#[derive(Debug)]
pub struct Talk {
    line: Decoder,
    bulk: Decoder,
    has_bulk: bool,
    on_bulk: bool,
    steps_due: usize,
    /// The agent's first message.
    pub hello: Option<Hello>,
    /// Notes of the agent.
    pub notes: Vec<String>,
    /// Steps that have ended.
    pub steps: Vec<StepEnd>,
    running: Option<StepEnd>,
    taker: Option<Taker>,
    /// What the agent could not send.
    not_taken: Vec<String>,
    /// Why taking was given up by the host.
    pub taking_failed: Option<String>,
    /// The agent has said that the job is done.
    pub done: bool,
}

/// What a message means for whoever watches.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing.
    Nothing,
    /// The first line came.
    Hello,
    /// Output of the step that runs: standard error or not, and the bytes.
    Output(bool, Vec<u8>),
    /// A note of the agent.
    Note(String),
}

impl Talk {
    /// A talk about this many steps, perhaps with a bulk channel; files go to `taker`.
    pub fn new(steps_due: usize, has_bulk: bool, taker: Option<Taker>) -> Talk {
        let (line, bulk) = (Decoder::default(), Decoder::default());
        let (hello, running, taking_failed) = (None, None, None);
        let (notes, steps, not_taken) = (Vec::new(), Vec::new(), Vec::new());
        let (on_bulk, done) = (false, false);
        Talk {
            line,
            bulk,
            has_bulk,
            on_bulk,
            steps_due,
            hello,
            notes,
            steps,
            running,
            taker,
            not_taken,
            taking_failed,
            done,
        }
    }

    /// Adds what came over the line or over the bulk channel.
    pub fn push(&mut self, is_bulk: bool, bytes: &[u8]) {
        if is_bulk { self.bulk.push(bytes) } else { self.line.push(bytes) }
    }

    /// The next message, already counted in; `None` until more is pushed.
    pub fn next(&mut self) -> Option<Result<Heard, Why>> {
        if self.done || self.taking_failed.is_some() {
            return None;
        }
        let decoder = if self.on_bulk { &mut self.bulk } else { &mut self.line };
        let frame = match decoder.next()? {
            Ok(frame) => frame,
            Err(damage) => return Some(Err(Why::Damaged(damage.to_string()))),
        };
        let message = match Message::from_frame(frame) {
            Ok(message) => message,
            Err(what) => return Some(Err(Why::Damaged(printable(&what)))),
        };
        Some(self.take(message))
    }

    /// Whether the agent has gone over to the bulk channel.
    pub fn is_on_bulk(&self) -> bool {
        self.on_bulk
    }

    /// Whether a message is cut off.
    pub fn is_within_a_message(&self) -> bool {
        if self.on_bulk { self.bulk.is_within_a_frame() } else { self.line.is_within_a_frame() }
    }

    /// What was taken, and what was not, in sentences.
    pub fn files(&mut self) -> (Vec<crate::taken::Taken>, Vec<String>) {
        let mut not_taken: Vec<String> = self.taking_failed.take().into_iter().collect();
        not_taken.append(&mut self.not_taken);
        let Some(taker) = &self.taker else { return (Vec::new(), not_taken) };
        if not_taken.is_empty() {
            let missing = taker.missing().into_iter();
            not_taken.extend(
                missing.map(|name| format!("{name} was not in the guest, or could not be read there")),
            );
        }
        (taker.taken().to_vec(), not_taken)
    }

    fn take(&mut self, message: Message) -> Result<Heard, Why> {
        let out_of_turn = |what: &str| Err(Why::Damaged(format!("{what} out of turn")));
        if self.hello.is_none() && !matches!(message, Message::Hello(_) | Message::Failed(_)) {
            return out_of_turn("a message before the first");
        }
        match message {
            Message::Hello(_) if self.hello.is_some() => return out_of_turn("a second first line"),
            Message::Hello(hello) => {
                self.hello = Some(hello);
                return Ok(Heard::Hello);
            }
            Message::Note(text) => {
                let note = printable(&text);
                if self.notes.len() < NOTES_MAX {
                    self.notes.push(note.clone());
                    return Ok(Heard::Note(note));
                }
            }
            Message::Begins(step) => {
                let due = self.steps.len();
                if self.running.is_some() || step as usize != due || due >= self.steps_due {
                    return out_of_turn("a step");
                }
                let end = End::NotRun(String::new());
                self.running = Some(StepEnd { end, stdout: vec![], stderr: vec![], is_cut: false });
            }
            Message::Stdout(bytes) => return self.output(false, bytes),
            Message::Stderr(bytes) => return self.output(true, bytes),
            Message::Ended(end) => match self.running.take() {
                Some(step) => self.steps.push(StepEnd { end, ..step }),
                None => return out_of_turn("the end of no step"),
            },
            Message::Switch if self.on_bulk || !self.has_bulk => return out_of_turn("a switch"),
            Message::Switch => self.on_bulk = true,
            Message::File(head) => return self.file(|taker| taker.begin(&head)),
            Message::Data(bytes) => return self.file(|taker| taker.data(&bytes)),
            Message::FileDone => return self.file(Taker::done),
            Message::NotTaken(text) => {
                if self.not_taken.len() < NOTES_MAX {
                    self.not_taken.push(printable(&text));
                }
                return self.file(|taker| {
                    taker.give_up();
                    Ok(())
                });
            }
            Message::Done if self.steps.len() != self.steps_due || self.running.is_some() => {
                return out_of_turn("the end of the job");
            }
            Message::Done => self.done = true,
            Message::Failed(text) => return Err(Why::Agent(printable(&text))),
        }
        Ok(Heard::Nothing)
    }

    fn output(&mut self, is_error: bool, bytes: Vec<u8>) -> Result<Heard, Why> {
        // A child of a step that has ended may still write; it is passed on and belongs to no step.
        if let Some(step) = self.running.as_mut() {
            let kept = if is_error { &mut step.stderr } else { &mut step.stdout };
            let room = OUTPUT_KEPT.saturating_sub(kept.len());
            step.is_cut |= bytes.len() > room;
            kept.extend(&bytes[..bytes.len().min(room)]);
        }
        Ok(Heard::Output(is_error, bytes))
    }

    fn file(&mut self, act: impl FnOnce(&mut Taker) -> Result<(), Problem>) -> Result<Heard, Why> {
        let Some(taker) = &mut self.taker else {
            return Err(Why::Damaged("a file that nobody asked for".to_owned()));
        };
        match act(taker) {
            Ok(()) => {}
            Err(Problem::Guest(what)) => return Err(Why::Damaged(what)),
            Err(Problem::Host(what)) => self.taking_failed = Some(what),
        }
        Ok(Heard::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::encode;
    use crate::message::{FileHead, FileKind};

    fn hello() -> Message {
        Message::Hello(Hello { version: "1".into(), release: "6".into(), uptime_ns: 1 })
    }

    /// How a talk goes on that consists of these messages.
    fn heard(messages: &[Message], steps: usize) -> (Talk, Option<Why>) {
        let mut talk = Talk::new(steps, false, None);
        for (number, message) in messages.iter().enumerate() {
            let frame = message.to_frame();
            talk.push(false, &encode(frame.kind, number as u32, &frame.payload));
            while let Some(next) = talk.next() {
                if let Err(why) = next {
                    return (talk, Some(why));
                }
            }
        }
        (talk, None)
    }

    #[test]
    fn a_job_of_two_steps() {
        let (talk, why) = heard(
            &[
                hello(),
                Message::Note("a\x1b[0m".into()),
                Message::Begins(0),
                Message::Stdout(b"one".to_vec()),
                Message::Ended(End::Code(3)),
                Message::Stdout(b"late".to_vec()),
                Message::Begins(1),
                Message::Stderr(b"two".to_vec()),
                Message::Ended(End::Signal(9)),
                Message::Done,
            ],
            2,
        );
        assert_eq!((why, talk.done, talk.notes), (None, true, vec!["a?[0m".to_owned()]));
        let ends: Vec<_> =
            talk.steps.iter().map(|step| (&step.end, &step.stdout[..], &step.stderr[..])).collect();
        assert_eq!(ends, [(&End::Code(3), &b"one"[..], &b""[..]), (&End::Signal(9), b"", b"two")]);
    }

    #[test]
    fn whatever_comes_out_of_turn_is_damage_and_a_done_too_early_is_no_result() {
        let begin = Message::Begins;
        let head = FileHead { take: 0, path: "a".into(), kind: FileKind::Plain };
        for messages in [
            vec![Message::Done],
            vec![begin(0)],
            vec![hello(), hello()],
            vec![hello(), Message::Done],
            vec![hello(), begin(1)],
            vec![hello(), begin(0), begin(1)],
            vec![hello(), begin(0), Message::Done],
            vec![hello(), begin(0), Message::Ended(End::Code(0)), begin(1)],
            vec![hello(), Message::Ended(End::Code(0))],
            vec![hello(), Message::Switch],
            vec![hello(), Message::File(head)],
            vec![hello(), Message::Data(vec![1])],
            vec![hello(), Message::FileDone],
            vec![hello(), Message::NotTaken("a".into())],
        ] {
            let (talk, why) = heard(&messages, 1);
            assert!(matches!(why, Some(Why::Damaged(_))) && !talk.done, "{messages:?}: {why:?}");
        }
        let (_, why) = heard(&[Message::Failed("no job".into())], 1);
        assert_eq!(why, Some(Why::Agent("no job".into())));
    }

    #[test]
    fn output_without_end_is_passed_on_and_kept_in_bounds() {
        let mut talk = Talk::new(1, false, None);
        assert_eq!(talk.take(hello()), Ok(Heard::Hello));
        assert_eq!(talk.take(Message::Begins(0)), Ok(Heard::Nothing));
        let piece = vec![7; 1 << 20];
        for _ in 0..20 {
            assert_eq!(talk.take(Message::Stdout(piece.clone())), Ok(Heard::Output(false, piece.clone())));
        }
        assert_eq!(talk.take(Message::Ended(End::Code(0))), Ok(Heard::Nothing));
        assert_eq!((talk.steps[0].stdout.len(), talk.steps[0].is_cut), (OUTPUT_KEPT, true));
        for _ in 0..1000 {
            talk.take(Message::Note("n".into())).unwrap();
        }
        assert_eq!(talk.notes.len(), NOTES_MAX);
    }
}
