//! The octal escapes of `/proc/self/mountinfo` and `/proc/swaps`: `\040` for a blank (fs/seq_file.c,
//! `mangle_path`).

/// Bytes with every `\ooo` undone; anything else behind a backslash stays as it is.
pub fn unescape(word: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, more)) = rest.split_first() {
        match (first, octal(more)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            _ => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = digits.get(..3)?;
    digits.iter().try_fold(0u8, |sum, &digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 8).then(|| sum.checked_mul(8)?.checked_add(digit)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_other_backslashes_stay() {
        for (escaped, plain) in [
            ("/mnt/a\\040b", "/mnt/a b"),
            ("\\134040", "\\040"),
            ("a\\", "a\\"),
            ("\\04", "\\04"),
            ("\\777", "\\777"),
            ("\\303\\244", "ä"),
        ] {
            assert_eq!(unescape(escaped.as_bytes()), plain);
        }
    }
}
