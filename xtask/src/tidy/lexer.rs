//! Lexer for the rules: Rust code, comments and strings.

/// A comment or a string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSpan {
    /// Offset of its first byte.
    pub start: usize,
    /// Offset after its last byte.
    pub end: usize,
}

/// A source text taken apart.
#[derive(Debug)]
pub struct LexedSource {
    /// The text with comments and the insides of literals blanked; offsets and lines are the text's.
    pub code: String,
    /// Comments of all kinds, with their marks.
    pub comments: Vec<TextSpan>,
    /// String literals with their quotes, byte, C and raw ones too.
    pub strings: Vec<TextSpan>,
}

/// Takes `text` apart. Any text is accepted; one that is no Rust gives nonsense, never a panic.
pub fn lex(text: &str) -> LexedSource {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let (mut comments, mut strings) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let (end, kind) = next_lexeme(text, at);
        let span = TextSpan { start: at, end };
        let inside = match kind {
            LexemeKind::Code => end..end,
            LexemeKind::Comment => at..end,
            LexemeKind::Literal => (at + 1).min(end)..end.saturating_sub(1).max(at + 1).min(end),
        };
        code[inside].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        match kind {
            LexemeKind::Comment => comments.push(span),
            LexemeKind::Literal if bytes[at] != b'\'' => strings.push(span),
            _ => {}
        }
        at = end;
    }
    // Blanking replaces whole literals and comments, so the rest is still UTF-8.
    LexedSource { code: String::from_utf8_lossy(&code).into_owned(), comments, strings }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LexemeKind {
    Code,
    Comment,
    Literal,
}

/// The piece that starts at `offset`: its end and its kind.
fn next_lexeme(text: &str, offset: usize) -> (usize, LexemeKind) {
    let bytes = text.as_bytes();
    let rest = &bytes[offset..];
    match rest {
        [b'/', b'/', ..] => {
            (offset + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()), LexemeKind::Comment)
        }
        [b'/', b'*', ..] => (offset + block_comment_len(rest), LexemeKind::Comment),
        [b'"', ..] => (offset + quoted_len(rest, b'"'), LexemeKind::Literal),
        [b'\'', ..] => match char_literal_len(&text[offset..]) {
            Some(length) => (offset + length, LexemeKind::Literal),
            None => (offset + 1, LexemeKind::Code),
        },
        [b'r', ..] if !is_in_word(bytes, offset) || has_literal_prefix(bytes, offset) => {
            match raw_string_len(&rest[1..]) {
                Some(length) => (offset + 1 + length, LexemeKind::Literal),
                None => (offset + 1, LexemeKind::Code),
            }
        }
        _ => (offset + text[offset..].chars().next().map_or(1, char::len_utf8), LexemeKind::Code),
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_in_word(bytes: &[u8], offset: usize) -> bool {
    offset > 0 && is_word_byte(bytes[offset - 1])
}

/// Whether the `r` at `offset` follows a single `b` or `c`, as in `br"…"`.
fn has_literal_prefix(bytes: &[u8], offset: usize) -> bool {
    offset > 0 && matches!(bytes[offset - 1], b'b' | b'c') && !is_in_word(bytes, offset - 1)
}

fn block_comment_len(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    text.len()
}

fn quoted_len(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The length of a character literal at the start of `text`; `None` for a lifetime.
fn char_literal_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        return Some(quoted_len(text.as_bytes(), b'\''));
    }
    let (place, second) = chars.next()?;
    (second == '\'').then_some(place + 1)
}

/// The length of `##"…"##` at the start of `text`.
fn raw_string_len(text: &[u8]) -> Option<usize> {
    let hashes = text.iter().take_while(|&&b| b == b'#').count();
    if text.get(hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let inside = &text[hashes + 1..];
    let end = inside.windows(close.len()).position(|window| window == close);
    Some(end.map_or(text.len(), |end| hashes + 1 + end + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, comments: &[&str], strings: &[&str], code: &[&str]) {
        let lexed = lex(text);
        let of =
            |spans: &[TextSpan]| spans.iter().map(|s| text[s.start..s.end].to_owned()).collect::<Vec<_>>();
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
