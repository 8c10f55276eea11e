//! The agent's line to the host: the second serial port, and the bulk channel once there is much to say.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use super::setup;
use crate::frame::encode;
use crate::message::Message;

const PORT: &str = "/dev/ttyS1";

/// Bytes that are said over the serial port before the bulk channel is taken into use. The port passes some
/// 180 kB a second; loading the modules takes as long as a few 10 kB.
const SERIAL_BYTES: usize = 128 << 10;

/// The line. Several threads may speak.
#[derive(Debug)]
pub struct Line {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    number: u32,
    is_serial: bool,
    said_bytes: usize,
    /// Modules of the bulk channel, while it is there and not in use.
    bulk: Option<Vec<String>>,
}

impl Line {
    /// Opens the serial port, and sees to it that bytes pass as they are.
    pub fn open() -> Result<Line, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot speak on {PORT}: {error}");
        let file = File::options().read(true).write(true).open(PORT).map_err(|error| failed(&error))?;
        let mut settings = tcgetattr(&file).map_err(|error| failed(&error))?;
        settings.make_raw();
        tcsetattr(&file, OptionalActions::Now, &settings).map_err(|error| failed(&error))?;
        let state = State { file, number: 0, is_serial: true, said_bytes: 0, bulk: None };
        Ok(Line { state: Mutex::new(state) })
    }

    /// There is a bulk channel, and these are its modules.
    pub fn offer_bulk(&self, modules: Vec<String>) {
        self.state().bulk = Some(modules);
    }

    /// Says something. If the line fails there is nobody to tell.
    pub fn say(&self, message: &Message) {
        let mut state = self.state();
        if state.said_bytes > SERIAL_BYTES {
            state.go_over();
        }
        state.say(message);
    }

    /// Says what could not be done.
    pub fn note(&self, sentence: impl Into<String>) {
        self.say(&Message::Note(sentence.into()));
    }

    /// Goes over to the bulk channel, if there is one that is not in use.
    pub fn go_over(&self) {
        self.state().go_over();
    }

    /// Waits until everything has left the serial port.
    pub fn drain(&self) {
        self.state().drain();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn say(&mut self, message: &Message) {
        let frame = message.to_frame();
        let bytes = encode(frame.kind, self.number, &frame.payload);
        self.number = self.number.wrapping_add(1);
        self.said_bytes = self.said_bytes.saturating_add(bytes.len());
        let _ = self.file.write_all(&bytes);
    }

    /// Frames on the bulk channel have numbers of their own.
    fn go_over(&mut self) {
        let Some(modules) = self.bulk.take() else { return };
        match setup::bulk_port(&modules) {
            Ok(port) => {
                self.say(&Message::Switch);
                self.drain();
                (self.file, self.number, self.is_serial) = (port, 0, false);
            }
            Err(why) => self.say(&Message::Note(format!("all comes over the slow line: {why}"))),
        }
    }

    fn drain(&self) {
        if self.is_serial {
            let _ = tcdrain(&self.file);
        }
    }
}
