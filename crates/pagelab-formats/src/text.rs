//! Lines, words and escapes of untrusted kernel text.

use std::ops::Range;

use pagelab_model::NodeId;

use crate::ParseError;

/// More records than this (mappings, caches, allocation sites, counters) are refused, so that a hostile text
/// of tiny lines takes no more memory than a large real one.
pub const RECORDS_MAX: usize = 1 << 20;

/// Lines of a text with their numbers, counted from 1. A missing last newline is no error; a carriage
/// return before the newline is taken off.
pub fn lines(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let whole = (!body.is_empty()).then_some(body);
    whole
        .into_iter()
        .flat_map(|body| body.split(|&b| b == b'\n'))
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .zip(1..)
        .map(|(line, number)| (number, line))
}

/// Text up to the first zero byte.
pub(crate) fn text_to_nul(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Lines as [`lines`] has them, each with its byte range in the text, newline included.
pub fn lines_with_ranges(text: &[u8]) -> impl Iterator<Item = (Range<usize>, u64, &[u8])> {
    let mut start = 0;
    text.split_inclusive(|&b| b == b'\n').zip(1..).map(move |(raw, number)| {
        let bytes = start..start + raw.len();
        start = bytes.end;
        let line = raw.strip_suffix(b"\n").unwrap_or(raw);
        (bytes, number, line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// Words between spaces and tabs.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

/// The lines of [`lines`] that are not blank.
pub fn filled_lines(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    lines(text).filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// The parts before and after the first `mark`.
#[inline]
pub fn split_once(text: &[u8], mark: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == mark)?;
    Some((&text[..at], &text[at + 1..]))
}

/// A decimal number that fills the whole word: no sign, no blank, nothing behind it, at most 2^64 − 1.
pub fn parse_number(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 20 {
        return None;
    }
    word.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 10).then(|| sum.checked_mul(10)?.checked_add(u64::from(digit))).flatten()
    })
}

/// A counter as the kernel prints it, with a minus sign or without. A negative number is kept as the two's
/// complement that a kernel prints where it prints the same counter unsigned, so that both spellings give one
/// value and a difference of two readings is correct when it wraps.
pub fn parse_counter(word: &[u8]) -> Option<u64> {
    match word.strip_prefix(b"-") {
        None => parse_number(word),
        Some(digits) => parse_number(digits).filter(|&n| n <= 1 << 63).map(u64::wrapping_neg),
    }
}

/// An amount that cannot be below zero, from a counter that can: the kernel's counters drift below zero
/// for moments, since each CPU keeps a part of them, and the kernel itself then reads 0.
pub fn parse_amount(word: &[u8]) -> Option<u64> {
    parse_counter(word).map(|n| if n >> 63 == 0 { n } else { 0 })
}

/// The number at the start of a text, up to the first byte that is no digit, and the rest.
#[inline]
pub fn split_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut length = 0;
    while let Some(digit) = text.get(length).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        length += 1;
    }
    let (word, rest) = text.split_at(length);
    // Nineteen digits always fit; a longer number is checked for having wrapped.
    Some((if (1..=19).contains(&length) { value } else { parse_number(word)? }, rest))
}

/// Like [`split_number`], with the minus sign of [`parse_counter`].
#[inline]
pub fn split_counter(text: &[u8]) -> Option<(u64, &[u8])> {
    if text.first() != Some(&b'-') {
        return split_number(text);
    }
    let (_, rest) = split_number(&text[1..])?;
    Some((parse_counter(&text[..text.len() - rest.len()])?, rest))
}

/// Text after `name` and `mark` at the start of a text.
#[inline]
pub fn strip_name<'a>(text: &'a [u8], name: &str, mark: u8) -> Option<&'a [u8]> {
    let (front, rest) = text.split_at_checked(name.len())?;
    (rest.first() == Some(&mark) && front == name.as_bytes()).then(|| &rest[1..])
}

/// A text without the spaces that it begins with.
#[inline]
pub fn skip_blanks(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Whether a text is at its end or continues with the next line.
#[inline]
pub fn is_at_line_end(text: &[u8]) -> bool {
    matches!(text.first(), None | Some(b'\n'))
}

/// A number in base 16 without prefix that fills the whole word.
pub fn parse_hex(word: &[u8]) -> Option<u64> {
    if word.is_empty() || word.len() > 16 {
        return None;
    }
    word.iter().try_fold(0u64, |sum, &digit| Some(sum << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

/// Offset of the first occurrence of `needle`, which is not empty.
pub fn find_bytes(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

/// The line of a byte, from 1.
pub fn line_number_at(text: &[u8], offset: usize) -> u64 {
    text.iter().take(offset).filter(|&&byte| byte == b'\n').count() as u64 + 1
}

/// Bytes as hexadecimal digits, for example a build id.
pub fn format_hex_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `Label:  rest` as label and rest, both without the blanks around them.
pub fn split_label(line: &[u8]) -> Option<(&[u8], &[u8])> {
    split_once(line, b':').map(|(label, rest)| (label.trim_ascii(), rest.trim_ascii()))
}

/// Node and rest of `Node 0, zone …`: the rest begins with the zone's name.
pub fn parse_node(line: &[u8]) -> Option<(NodeId, &[u8])> {
    let line = line.trim_ascii_start().strip_prefix(b"Node")?.trim_ascii_start();
    let (node, rest) = split_once(line, b',')?;
    let node = u32::try_from(parse_number(node)?).ok()?;
    let rest = rest.trim_ascii_start().strip_prefix(b"zone")?;
    rest.first()?.is_ascii_whitespace().then_some((NodeId(node), rest.trim_ascii_start()))
}

/// A word as text for a message or a name: bytes that are not UTF-8 are shown as such, length is bounded.
pub fn to_printable(word: &[u8]) -> String {
    const CHARACTERS_MAX: usize = 60;
    let cut = &word[..word.len().min(CHARACTERS_MAX)];
    let mut text: String = String::from_utf8_lossy(cut).escape_debug().collect();
    if cut.len() < word.len() {
        text.push('…');
    }
    text
}

/// A name that is kept: UTF-8 is required, since the kernel's names are ASCII.
pub fn parse_name<'a>(format: &'static str, line: u64, word: &'a [u8]) -> Result<&'a str, ParseError> {
    match std::str::from_utf8(word) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => Ok(text),
        _ => Err(ParseError::at_line(format, line, format!("`{}` is not a name", to_printable(word)))),
    }
}

/// All entries, unless there are more than `limit`, which no kernel prints: an entry takes many times the
/// memory of its text.
pub(crate) fn collect_at_most<T>(
    format: &'static str,
    limit: usize,
    entries: impl Iterator<Item = Result<T, ParseError>>,
) -> Result<Vec<T>, ParseError> {
    let mut kept = Vec::new();
    for entry in entries {
        if kept.len() == limit {
            return Err(ParseError::for_input(format, format!("more than {limit} entries")));
        }
        kept.push(entry?);
    }
    Ok(kept)
}

/// The error of a file that is one short line: the line is named, unless the file is empty.
pub(crate) fn one_line_error(format: &'static str, text: &[u8], problem: String) -> ParseError {
    match lines(text).next() {
        Some(_) => ParseError::at_line(format, 1, problem),
        None => ParseError::for_input(format, "empty file"),
    }
}

/// Text with every octal escape undone, such as `\040` for a blank in `/proc/self/mountinfo` and
/// `/proc/swaps` (fs/seq_file.c, `mangle_path`); anything else after a backslash stays.
pub fn unescape(word: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, more)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| octal(more)).flatten();
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &more[3..] } else { more };
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
    fn lines_are_numbered_and_the_last_newline_is_optional() {
        let of = |text: &'static str| lines(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("a\nb\n"), of("a\nb"));
        assert_eq!(of("a\r\n\nb"), [(1, &b"a"[..]), (2, b""), (3, b"b")]);
        assert!(of("").is_empty() && of("\n").is_empty());
    }

    #[test]
    fn a_minus_sign_and_a_wrapped_counter_are_one_value() {
        for (word, kept, clamped) in [
            ("-3", Some(3u64.wrapping_neg()), Some(0)),
            ("18446744073709551613", Some(3u64.wrapping_neg()), Some(0)),
            ("-9223372036854775808", Some(1 << 63), Some(0)),
            ("-9223372036854775809", None, None),
            ("9223372036854775807", Some(i64::MAX as u64), Some(i64::MAX as u64)),
            ("-0", Some(0), Some(0)),
            ("--1", None, None),
            ("-", None, None),
        ] {
            assert_eq!(
                (parse_counter(word.as_bytes()), parse_amount(word.as_bytes())),
                (kept, clamped),
                "{word}"
            );
            let line = format!("{word} kB");
            assert_eq!(split_counter(line.as_bytes()), kept.map(|kept| (kept, &b" kB"[..])), "{word}");
            assert_eq!(
                split_number(line.as_bytes()).map(|(n, _)| n),
                parse_number(word.as_bytes()),
                "{word}"
            );
        }
    }

    #[test]
    fn hexadecimal_numbers_fill_the_word() {
        assert_eq!(parse_hex(b"ffffffffff600000"), Some(0xffff_ffff_ff60_0000));
        for bad in ["", "g", "0x1", "+1", "10000000000000000"] {
            assert_eq!(parse_hex(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn numbered_lines_are_the_same_lines_with_their_bytes() {
        for text in ["a\nb\n", "a\r\n\nb", "x"] {
            let plain: Vec<_> = lines(text.as_bytes()).collect();
            let with_bytes: Vec<_> = lines_with_ranges(text.as_bytes()).collect();
            assert_eq!(with_bytes.iter().map(|(_, n, line)| (*n, *line)).collect::<Vec<_>>(), plain);
            assert_eq!(with_bytes.iter().map(|(bytes, ..)| bytes.len()).sum::<usize>(), text.len());
        }
    }

    #[test]
    fn numbers_fill_the_word_and_do_not_wrap() {
        assert_eq!(parse_number(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["18446744073709551616", "", "-1", "+1", "1 ", "0x1", "99999999999999999999999"] {
            assert_eq!(parse_number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn more_entries_than_a_kernel_prints_are_refused() {
        let entries = |count: u32| (0..count).map(Ok::<u32, ParseError>);
        assert_eq!(collect_at_most("x", 3, entries(3)).unwrap(), [0, 1, 2]);
        assert_eq!(
            collect_at_most("x", 3, entries(4)).unwrap_err().message_in_file("f"),
            "f: more than 3 entries (read as x)"
        );
    }

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
