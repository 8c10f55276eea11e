//! Console output of the guest's kernel: its last bytes, and the line of a panic.

use pagelab_model::kernel_panic::PANIC_START;
pub use pagelab_packages::program::printable;

/// Bytes of the console that are kept.
pub const TAIL_BYTES: usize = 256 << 10;

/// The last [`TAIL_BYTES`] bytes of a console.
#[derive(Debug, Default)]
pub struct ConsoleTail {
    bytes: Vec<u8>,
    /// Line of the first panic, as far as it was received.
    panic_bytes: Vec<u8>,
}

const PANIC_PREFIX: &[u8] = PANIC_START.as_bytes();
/// Bytes of the line of a panic that are kept.
const PANIC_LINE_BYTES: usize = 1 << 10;

impl ConsoleTail {
    /// Adds console output.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        // Console output arrives in small pieces: only new output is searched.
        let new = self.bytes.len().saturating_sub(PANIC_PREFIX.len() - 1);
        self.bytes.extend(bytes);
        if self.panic_bytes.is_empty() {
            let new = &self.bytes[new..];
            let place = new.windows(PANIC_PREFIX.len()).position(|window| window == PANIC_PREFIX);
            self.panic_bytes
                .extend(place.iter().flat_map(|&place| new[place..].iter().take(PANIC_LINE_BYTES)));
        } else {
            let room = PANIC_LINE_BYTES.saturating_sub(self.panic_bytes.len());
            self.panic_bytes.extend(bytes.iter().take(room));
        }
        // Cut seldom, so that the bytes are not moved at every push.
        if self.bytes.len() > 2 * TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - TAIL_BYTES);
        }
    }

    /// End of the console output.
    pub fn tail(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(TAIL_BYTES)..]
    }

    /// First line of a panic, without its time, safe to print.
    pub fn panic_line(&self) -> Option<String> {
        String::from_utf8_lossy(&self.panic_bytes).lines().next().map(printable)
    }

    /// The last line that is not blank, safe to print.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(self.tail());
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(printable(line))
    }
}

/// Whether a panic was for lack of memory: the kernel had nothing left that it could kill (mm/oom_kill.c).
pub fn is_oom_panic(panic: &str) -> bool {
    panic.contains("deadlocked on memory")
        || panic.contains("Out of memory")
        || panic.contains("out of memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_and_cannot_write_on_the_terminal() {
        let mut console = ConsoleTail::default();
        assert_eq!((console.panic_line(), console.last_line()), (None, None));
        let said: &[u8] =
            b"[    0.1] hello\r\n[    1.909] Kernel panic - not syncing: \x1b[2Jsysrq\r\n[ 2] --- end\n\n";
        for piece in [1, 7, said.len()] {
            let mut console = ConsoleTail::default();
            said.chunks(piece).for_each(|piece| console.push_bytes(piece));
            assert_eq!(console.panic_line().as_deref(), Some("Kernel panic - not syncing: ?[2Jsysrq"));
        }
        console.push_bytes(said);
        // It is still known when a flood has taken its place.
        let mut flooded = ConsoleTail::default();
        flooded.push_bytes(said);
        (0..100).for_each(|_| flooded.push_bytes(&[b'x'; 20_000]));
        assert!(flooded.panic_line().is_some() && flooded.panic_bytes.len() <= PANIC_LINE_BYTES);
        assert_eq!(console.panic_line().as_deref(), Some("Kernel panic - not syncing: ?[2Jsysrq"));
        assert_eq!(console.last_line().as_deref(), Some("[ 2] --- end"));
        assert!(!is_oom_panic("Kernel panic - not syncing: sysrq triggered crash"));
        assert!(is_oom_panic("Kernel panic - not syncing: System is deadlocked on memory"));
        assert_eq!(printable("a\u{202e}b"), "a?b");
    }

    #[test]
    fn a_console_without_end_is_held_in_bounds() {
        let mut console = ConsoleTail::default();
        for _ in 0..100 {
            console.push_bytes(&[b'x'; 20_000]);
            assert!(console.bytes.len() <= 2 * TAIL_BYTES);
        }
        console.push_bytes(b"\nend\n");
        assert_eq!(console.tail().len(), TAIL_BYTES);
        assert_eq!(console.last_line().as_deref(), Some("end"));
        assert!(printable(&"y".repeat(1000)).chars().count() < 210);
    }
}
