//! Decoder of the bytes that a terminal sends for keys.

/// A key that the view distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A printable ASCII character.
    Char(char),
    Enter,
    Tab,
    BackTab,
    Escape,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Anything else.
    Other,
}

/// The next larger step after `now` for `+`, the next smaller one for `-`; `None` if there is none.
pub(crate) fn choose_step(sign: char, steps: &[u64], now: u64) -> Option<u64> {
    match sign {
        '+' | '=' => steps.iter().find(|&&step| step > now).copied(),
        _ => steps.iter().rev().find(|&&step| step < now).copied(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyResponse {
    Quit,
    Redraw,
    Ignored,
}

const ESCAPE: u8 = 0x1b;

/// Received bytes that are not decoded yet.
#[derive(Debug, Default)]
pub struct KeyDecoder {
    pending: Vec<u8>,
}

impl KeyDecoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Returns whether the remaining bytes may be the start of a key or Escape alone, which only a timeout
    /// decides.
    pub fn is_undecided(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the next complete key. With `is_final`, the remaining bytes are decoded as they are: Escape is
    /// Escape.
    pub fn next(&mut self, is_final: bool) -> Option<Key> {
        let (key, length) = decode(&self.pending).or_else(|| {
            let first = *self.pending.first()?;
            is_final.then_some(if first == ESCAPE && self.pending.len() == 1 {
                (Key::Escape, 1)
            } else {
                (Key::Other, self.pending.len())
            })
        })?;
        self.pending.drain(..length);
        Some(key)
    }
}

/// Returns the first key and its length in bytes; `None` if more bytes may follow.
fn decode(bytes: &[u8]) -> Option<(Key, usize)> {
    /// No terminal sends a longer sequence for a key; longer ones are ignored.
    const SEQUENCE_BYTES_MAX: usize = 32;
    match bytes {
        [] | [ESCAPE] => None,
        [ESCAPE, b'O', last, ..] => Some((key_for_sequence(&[], *last), 3)),
        [ESCAPE, b'O'] => None,
        [ESCAPE, b'[', rest @ ..] => {
            let length = rest.iter().take(SEQUENCE_BYTES_MAX).position(|byte| (0x40..=0x7e).contains(byte));
            match length {
                Some(at) => Some((key_for_sequence(&rest[..at], rest[at]), at + 3)),
                None if rest.len() >= SEQUENCE_BYTES_MAX => Some((Key::Other, bytes.len())),
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

/// Decodes a control sequence from its parameters and its last byte. Modifiers are ignored.
fn key_for_sequence(parameters: &[u8], final_byte: u8) -> Key {
    let number = parameters.split(|&byte| byte == b';').next().unwrap_or_default();
    match (final_byte, number) {
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

    fn decode_all(bytes: &[u8], no_more: bool) -> Vec<Key> {
        let mut keys = KeyDecoder::default();
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
            assert_eq!(decode_all(bytes, true), wanted, "{bytes:?}");
        }
    }

    #[test]
    fn a_sequence_in_two_parts_is_waited_for() {
        let mut keys = KeyDecoder::default();
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
        assert!(decode_all(&noise, true).len() > 1000);
        assert_eq!(decode_all(&[b"\x1b[".as_slice(), &[b'0'; 100]].concat(), false).len(), 1);
    }
}
