//! Bytes that a terminal sends into keys.

/// A key, as far as the view has a use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A printable ASCII character.
    Char(char),
    /// Enter.
    Enter,
    /// Tab.
    Tab,
    /// Shift and Tab.
    BackTab,
    /// Escape alone.
    Escape,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow to the left.
    Left,
    /// Arrow to the right.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
    /// Anything else.
    Other,
}

const ESCAPE: u8 = 0x1b;

/// Bytes that were sent and not yet understood.
#[derive(Debug, Default)]
pub struct Keys {
    pending: Vec<u8>,
}

impl Keys {
    /// Adds bytes as they were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Whether the bytes left may be the beginning of a key or Escape alone: only time can tell.
    pub fn is_undecided(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next whole key. With `no_more`, what is left is not waited for: Escape is Escape.
    pub fn next(&mut self, no_more: bool) -> Option<Key> {
        let (key, length) = decode(&self.pending).or_else(|| {
            let first = *self.pending.first()?;
            no_more.then_some(if first == ESCAPE && self.pending.len() == 1 {
                (Key::Escape, 1)
            } else {
                (Key::Other, self.pending.len())
            })
        })?;
        self.pending.drain(..length);
        Some(key)
    }
}

/// The first key and how many bytes it has; `None` where more may follow.
fn decode(bytes: &[u8]) -> Option<(Key, usize)> {
    /// No terminal sends a longer sequence for a key; a longer one is noise.
    const LONGEST: usize = 32;
    match bytes {
        [] | [ESCAPE] => None,
        [ESCAPE, b'O', last, ..] => Some((named(&[], *last), 3)),
        [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', rest @ ..] => {
            let length = rest.iter().take(LONGEST).position(|byte| (0x40..=0x7e).contains(byte));
            match length {
                Some(at) => Some((named(&rest[..at], rest[at]), at + 3)),
                None if rest.len() >= LONGEST => Some((Key::Other, bytes.len())),
                None => None,
            }
        }
        [ESCAPE, ESCAPE, ..] => Some((Key::Escape, 1)),
        // Alt and a key.
        [ESCAPE, _, ..] => Some((Key::Other, 2)),
        [b'\t', ..] => Some((Key::Tab, 1)),
        [b'\r' | b'\n', ..] => Some((Key::Enter, 1)),
        [byte @ b' '..=b'~', ..] => Some((Key::Char(char::from(*byte)), 1)),
        _ => Some((Key::Other, 1)),
    }
}

/// A control sequence by its parameters and its last byte. Modifiers are passed over.
fn named(parameters: &[u8], last: u8) -> Key {
    let number = parameters.split(|&byte| byte == b';').next().unwrap_or_default();
    match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'Z', _) => Key::BackTab,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], no_more: bool) -> Vec<Key> {
        let mut keys = Keys::default();
        keys.feed(bytes);
        std::iter::from_fn(|| keys.next(no_more)).collect()
    }

    #[test]
    fn sequences_become_keys() {
        let cases: [(&[u8], &[Key]); 12] = [
            (b"q?", &[Key::Char('q'), Key::Char('?')]),
            (b"\t\x1b[Z", &[Key::Tab, Key::BackTab]),
            (b"\x1b[A\x1bOB\x1b[1;5C\x1b[D", &[Key::Up, Key::Down, Key::Right, Key::Left]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (
                b"\x1b[H\x1bOF\x1b[1~\x1b[4~\x1b[7~\x1b[8~",
                &[Key::Home, Key::End, Key::Home, Key::End, Key::Home, Key::End],
            ),
            (b"\x1b", &[Key::Escape]),
            (b"\x1b\x1b[A", &[Key::Escape, Key::Up]),
            (b"\x1bq", &[Key::Other]),
            (b"\x1b[200~", &[Key::Other]),
            (b"\x1b[5", &[Key::Other]),
            ("é\r".as_bytes(), &[Key::Other, Key::Other, Key::Enter]),
            (b"\x03 +", &[Key::Other, Key::Char(' '), Key::Char('+')]),
        ];
        for (bytes, wanted) in cases {
            assert_eq!(all(bytes, true), wanted, "{bytes:?}");
        }
    }

    #[test]
    fn a_sequence_in_two_parts_is_waited_for() {
        let mut keys = Keys::default();
        for part in [&b"\x1b"[..], b"[", b"5"] {
            keys.feed(part);
            assert_eq!(keys.next(false), None);
            assert!(keys.is_undecided());
        }
        keys.feed(b"~");
        assert_eq!(keys.next(false), Some(Key::PageUp));
        assert!(!keys.is_undecided());
    }

    #[test]
    fn noise_ends() {
        let noise: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        assert!(all(&noise, true).len() > 1000);
        assert_eq!(all(&[b"\x1b[".as_slice(), &[b'0'; 100]].concat(), false).len(), 1);
    }
}
