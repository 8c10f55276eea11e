//! Link from the agent to the host: the second serial port, and a bulk channel for large transfers.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use super::devices;
use crate::message::AgentMessage;
use crate::packet::encode;

const SERIAL_PORT: &str = "/dev/ttyS1";

/// Bytes sent over the serial port before the bulk channel is used. The port passes some 180 kB a second;
/// loading the modules takes as long as a few 10 kB.
const SERIAL_BYTES_BEFORE_BULK: usize = 128 << 10;

/// The line. Several threads may speak.
#[derive(Debug)]
pub struct HostLink {
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    file: File,
    next_packet_number: u32,
    is_serial: bool,
    bytes_sent: usize,
    /// Modules of the bulk channel, while it is there and not in use.
    bulk_modules: Option<Vec<String>>,
}

impl HostLink {
    /// Opens the serial port, and sees to it that bytes pass as they are.
    pub fn open() -> Result<HostLink, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot use {SERIAL_PORT}: {error}");
        let file =
            File::options().read(true).write(true).open(SERIAL_PORT).map_err(|error| failed(&error))?;
        let mut settings = tcgetattr(&file).map_err(|error| failed(&error))?;
        settings.make_raw();
        tcsetattr(&file, OptionalActions::Now, &settings).map_err(|error| failed(&error))?;
        let state =
            LinkState { file, next_packet_number: 0, is_serial: true, bytes_sent: 0, bulk_modules: None };
        Ok(HostLink { state: Mutex::new(state) })
    }

    /// There is a bulk channel, and these are its modules.
    pub fn offer_bulk(&self, modules: Vec<String>) {
        self.lock_state().bulk_modules = Some(modules);
    }

    /// Says something. If the line fails, the failure cannot be reported.
    pub fn send(&self, message: &AgentMessage) {
        let mut state = self.lock_state();
        if state.bytes_sent > SERIAL_BYTES_BEFORE_BULK {
            state.switch_to_bulk();
        }
        state.send(message);
    }

    /// Says what could not be done.
    pub fn send_note(&self, sentence: impl Into<String>) {
        self.send(&AgentMessage::Note(sentence.into()));
    }

    /// Goes over to the bulk channel, if there is one that is not in use.
    pub fn switch_to_bulk(&self) {
        self.lock_state().switch_to_bulk();
    }

    /// Waits until everything has left the serial port.
    pub fn drain(&self) {
        self.lock_state().drain();
    }

    fn lock_state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkState {
    fn send(&mut self, message: &AgentMessage) {
        let packet = message.to_packet();
        let bytes = encode(packet.kind, self.next_packet_number, &packet.payload);
        self.next_packet_number = self.next_packet_number.wrapping_add(1);
        self.bytes_sent = self.bytes_sent.saturating_add(bytes.len());
        let _ = self.file.write_all(&bytes);
    }

    /// Packets on the bulk channel have numbers of their own.
    fn switch_to_bulk(&mut self) {
        let Some(modules) = self.bulk_modules.take() else { return };
        match devices::open_bulk_port(&modules) {
            Ok(port) => {
                self.send(&AgentMessage::SwitchToBulk);
                self.drain();
                (self.file, self.next_packet_number, self.is_serial) = (port, 0, false);
            }
            Err(why) => {
                self.send(&AgentMessage::Note(format!("falling back to the slow serial line: {why}")))
            }
        }
    }

    fn drain(&self) {
        if self.is_serial {
            let _ = tcdrain(&self.file);
        }
    }
}
