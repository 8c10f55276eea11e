//! What the guest's kernel says: the end of it is kept, and the line of a panic is found in it.

pub use pagelab_packages::program::printable;

/// Bytes of the console that are kept.
pub const KEPT: usize = 256 << 10;

/// The last [`KEPT`] bytes of a console.
#[derive(Debug, Default)]
pub struct Console {
    bytes: Vec<u8>,
    /// The line of the first panic, as far as it came.
    panic: Vec<u8>,
}

/// What the kernel says first when it panics (kernel/panic.c).
const PANIC: &[u8] = b"Kernel panic - not syncing";
/// Bytes of the line of a panic that are kept.
const PANIC_KEPT: usize = 1 << 10;

impl Console {
    /// Adds what was said.
    pub fn push(&mut self, bytes: &[u8]) {
        // A console comes in small pieces: only what is new is searched.
        let new = self.bytes.len().saturating_sub(PANIC.len() - 1);
        self.bytes.extend(bytes);
        if self.panic.is_empty() {
            let new = &self.bytes[new..];
            let place = new.windows(PANIC.len()).position(|window| window == PANIC);
            self.panic.extend(place.iter().flat_map(|&place| new[place..].iter().take(PANIC_KEPT)));
        } else {
            let room = PANIC_KEPT.saturating_sub(self.panic.len());
            self.panic.extend(bytes.iter().take(room));
        }
        // Cut seldom, so that the bytes are not moved at every push.
        if self.bytes.len() > 2 * KEPT {
            self.bytes.drain(..self.bytes.len() - KEPT);
        }
    }

    /// The end of what was said.
    pub fn tail(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(KEPT)..]
    }

    /// The first line that told of a panic, without its time, safe to print.
    pub fn panic_line(&self) -> Option<String> {
        String::from_utf8_lossy(&self.panic).lines().next().map(printable)
    }

    /// The last line that says something, safe to print.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(self.tail());
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(printable(line))
    }
}

/// Whether a panic was for lack of memory: the kernel had nothing left that it could kill (mm/oom_kill.c).
pub fn is_out_of_memory(panic: &str) -> bool {
    panic.contains("deadlocked on memory")
        || panic.contains("Out of memory")
        || panic.contains("out of memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_and_cannot_write_on_the_terminal() {
        let mut console = Console::default();
        assert_eq!((console.panic_line(), console.last_line()), (None, None));
        let said: &[u8] =
            b"[    0.1] hello\r\n[    1.909] Kernel panic - not syncing: \x1b[2Jsysrq\r\n[ 2] --- end\n\n";
        for piece in [1, 7, said.len()] {
            let mut console = Console::default();
            said.chunks(piece).for_each(|piece| console.push(piece));
            assert_eq!(console.panic_line().as_deref(), Some("Kernel panic - not syncing: ?[2Jsysrq"));
        }
        console.push(said);
        // It is still known when a flood has taken its place.
        let mut flooded = Console::default();
        flooded.push(said);
        (0..100).for_each(|_| flooded.push(&[b'x'; 20_000]));
        assert!(flooded.panic_line().is_some() && flooded.panic.len() <= PANIC_KEPT);
        assert_eq!(console.panic_line().as_deref(), Some("Kernel panic - not syncing: ?[2Jsysrq"));
        assert_eq!(console.last_line().as_deref(), Some("[ 2] --- end"));
        assert!(!is_out_of_memory("Kernel panic - not syncing: sysrq triggered crash"));
        assert!(is_out_of_memory("Kernel panic - not syncing: System is deadlocked on memory"));
        assert_eq!(printable("a\u{202e}b"), "a?b");
    }

    #[test]
    fn a_console_without_end_is_held_in_bounds() {
        let mut console = Console::default();
        for _ in 0..100 {
            console.push(&[b'x'; 20_000]);
            assert!(console.bytes.len() <= 2 * KEPT);
        }
        console.push(b"\nend\n");
        assert_eq!(console.tail().len(), KEPT);
        assert_eq!(console.last_line().as_deref(), Some("end"));
        assert!(printable(&"y".repeat(1000)).chars().count() < 210);
    }
}
