//! As much of Rust's lexical grammar as the rules need: what is code, what a comment, what a string.

/// A comment or a string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The line of its first byte, from 1.
    pub line: usize,
    /// Offset of its first byte.
    pub start: usize,
    /// Offset behind its last byte.
    pub end: usize,
}

/// A source text taken apart.
#[derive(Debug)]
pub struct Lexed {
    /// The text with comments and the insides of literals blanked; offsets and lines are the text's.
    pub code: String,
    /// Comments of all kinds, with their marks.
    pub comments: Vec<Span>,
    /// String literals with their quotes, byte, C and raw ones too.
    pub strings: Vec<Span>,
}

/// Takes `text` apart. Any text is accepted; one that is no Rust gives nonsense, never a panic.
pub fn lex(text: &str) -> Lexed {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let (mut comments, mut strings) = (Vec::new(), Vec::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let (end, kind) = piece(text, at);
        let span = Span { line, start: at, end };
        line += bytes[at..end].iter().filter(|&&b| b == b'\n').count();
        let inside = match kind {
            Piece::Code => end..end,
            Piece::Comment => at..end,
            Piece::Literal => (at + 1).min(end)..end.saturating_sub(1).max(at + 1).min(end),
        };
        code[inside].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        match kind {
            Piece::Comment => comments.push(span),
            Piece::Literal if bytes[at] != b'\'' => strings.push(span),
            _ => {}
        }
        at = end;
    }
    // Blanking replaces whole literals and comments, so what is left is UTF-8 still.
    Lexed { code: String::from_utf8_lossy(&code).into_owned(), comments, strings }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Code,
    Comment,
    Literal,
}

/// The piece that starts at `at`: its end and its kind.
fn piece(text: &str, at: usize) -> (usize, Piece) {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => {
            (at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()), Piece::Comment)
        }
        [b'/', b'*', ..] => (at + block_comment(rest), Piece::Comment),
        [b'"', ..] => (at + quoted(rest, b'"'), Piece::Literal),
        [b'\'', ..] => match character(&text[at..]) {
            Some(length) => (at + length, Piece::Literal),
            None => (at + 1, Piece::Code),
        },
        [b'r', ..] if !in_word(bytes, at) || prefixed(bytes, at) => match raw(&rest[1..]) {
            Some(length) => (at + 1 + length, Piece::Literal),
            None => (at + 1, Piece::Code),
        },
        _ => (at + text[at..].chars().next().map_or(1, char::len_utf8), Piece::Code),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn in_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

/// Whether the `r` at `at` stands behind a lone `b` or `c`, as in `br"…"`.
fn prefixed(bytes: &[u8], at: usize) -> bool {
    at > 0 && matches!(bytes[at - 1], b'b' | b'c') && !in_word(bytes, at - 1)
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character literal at the start of `rest`; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        return Some(quoted(rest.as_bytes(), b'\''));
    }
    let (place, second) = chars.next()?;
    (second == '\'').then_some(place + 1)
}

/// The length of `##"…"##` at the start of `rest`.
fn raw(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&b| b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let inside = &rest[hashes + 1..];
    let end = inside.windows(close.len()).position(|window| window == close);
    Some(end.map_or(rest.len(), |end| hashes + 1 + end + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, comments: &[&str], strings: &[&str], code: &[&str]) {
        let lexed = lex(text);
        let of = |spans: &[Span]| spans.iter().map(|s| text[s.start..s.end].to_owned()).collect::<Vec<_>>();
        assert_eq!(of(&lexed.comments), comments, "{text}");
        assert_eq!(of(&lexed.strings), strings, "{text}");
        assert_eq!(lexed.code.split_whitespace().collect::<Vec<_>>(), code, "{text}");
        assert_eq!(lexed.code.len(), text.len());
    }

    #[test]
    fn comments_strings_and_code_are_told_apart() {
        check("a // b \"c\"\nd", &["// b \"c\""], &[], &["a", "d"]);
        check("a /* b /* c */ d */ e", &["/* b /* c */ d */"], &[], &["a", "e"]);
        check(r#"a "b // \" c" d"#, &[], &[r#""b // \" c""#], &["a", "\"", "\"", "d"]);
        check(r##"a r#"b " c"# d"##, &[], &[r##"r#"b " c"#"##], &["a", "r", "#", "d"]);
        check(r#"br"x\" y"#, &[], &[r#"r"x\""#], &["br", "\"", "y"]);
        check("r#fn for", &[], &[], &["r#fn", "for"]);
        check(
            "'a' '\\'' '\"' 'é' &'a str",
            &[],
            &[],
            &["'", "'", "'", "'", "'", "'", "'", "'", "&'a", "str"],
        );
        check("for\"x\"", &[], &["\"x\""], &["for\"", "\""]);
    }

    #[test]
    fn cut_off_texts_end_without_a_panic() {
        for text in ["\"a", "\"a\\", "/* a", "r#\"a", "'", "'\\", "b'", "/*/", "r", "r#", "\"", "'é"] {
            assert_eq!(lex(text).code.len(), text.len(), "{text}");
        }
    }
}
