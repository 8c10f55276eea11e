//! Text formats of Prometheus exporters: 0.0.4 and OpenMetrics 1.0.
//!
//! ```text
//! # HELP node_buddyinfo_blocks Count of free blocks according to size.
//! node_buddyinfo_blocks{node="0",size="9",zone="Normal"} 2236 1770127506000
//! ```
//! A time stamp is milliseconds since 1970; in OpenMetrics, whose texts end in `# EOF`, it is seconds with
//! decimals. Exemplars are passed over. The last line must have its end: of a number that was cut off, what
//! is left looks like another number.

use std::borrow::Cow;

use crate::ParseError;
use crate::text::{lines, to_printable};

const FORMAT: &str = "Prometheus text";

/// More labels than this on one metric are refused.
const LABELS_MAX: usize = 64;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Its line, counted from 1.
    pub line: u64,
    /// The metric's name.
    pub name: Cow<'a, str>,
    /// Names and values of its labels, in their order.
    pub labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The value, which may be infinite or no number.
    pub value: f64,
    /// Its time in milliseconds since 1970, if the text states it.
    pub at_ms: Option<i64>,
    /// How many texts were ended by `# EOF` before it.
    pub texts_before: u32,
}

impl Sample<'_> {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }

    /// The value as a count: whole, not negative, below 2^63.
    pub fn count(&self) -> Option<u64> {
        let fits = self.value >= 0.0 && self.value < 9.3e18 && self.value.fract() == 0.0;
        fits.then_some(self.value as u64).filter(|&value| i64::try_from(value).is_ok())
    }

    /// An error at this sample.
    pub fn error(&self, problem: impl Into<String>) -> ParseError {
        ParseError::at_line(FORMAT, self.line, problem)
    }
}

/// Calls `visit` with each sample whose name `is_selected` accepts, in order. Every other line is checked
/// too.
pub fn for_each_sample<'a>(
    text: &'a [u8],
    is_selected: impl Fn(&str) -> bool,
    mut visit: impl FnMut(Sample<'a>) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    let is_open_metrics = lines(text).any(|(_, line)| is_eof_marker(line));
    let (mut texts_before, mut last) = (0, 0);
    for (line, raw) in lines(text) {
        last = line;
        if is_eof_marker(raw) {
            texts_before += 1;
            continue;
        }
        let content = raw.trim_ascii();
        if content.is_empty() || content.starts_with(b"#") {
            continue;
        }
        let bad = |problem: &str| {
            ParseError::at_line(FORMAT, line, format!("`{}`: {problem}", to_printable(content)))
        };
        let content = std::str::from_utf8(content).map_err(|_| bad("not valid UTF-8"))?;
        let mut sample = parse_line(line, content, is_open_metrics).map_err(bad)?;
        sample.texts_before = texts_before;
        if is_selected(&sample.name) {
            visit(sample)?;
        }
    }
    if last > 0
        && text.last() != Some(&b'\n')
        && !lines(text).last().is_some_and(|(_, line)| is_eof_marker(line))
    {
        return Err(ParseError::at_line(FORMAT, last, "the last line has no newline: the text is truncated"));
    }
    Ok(())
}

fn is_eof_marker(line: &[u8]) -> bool {
    line.trim_ascii_end() == b"# EOF"
}

fn parse_line(line: u64, text: &str, is_open_metrics: bool) -> Result<Sample<'_>, &'static str> {
    const EXPECTED: &str = "expected `name{label=\"value\",…} value`";
    let end = text.find(|sign: char| sign == '{' || sign.is_ascii_whitespace()).ok_or(EXPECTED)?;
    let (name, rest) = text.split_at(end);
    let mut name = Cow::Borrowed(name);
    let mut labels = Vec::new();
    let mut rest = rest.trim_start();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut name, &mut labels)?;
    }
    // A name in quotes, within the braces, may have any letters.
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || sign == '_' || sign == ':';
    if name.is_empty() || end > 0 && !name.chars().all(is_plain) {
        return Err(EXPECTED);
    }
    // An exemplar follows a value, and is marked by ` # {`.
    let rest = rest.split_once(" # ").map_or(rest, |(before, _)| before);
    let mut words = rest.split_ascii_whitespace();
    let value = words.next().ok_or("no value")?;
    let value = value.parse().map_err(|_| "value is not a number")?;
    let at_ms = words.next().map(|word| parse_time_ms(word, is_open_metrics)).transpose()?;
    match words.next() {
        Some(_) => Err("unexpected text after the value and timestamp"),
        None => Ok(Sample { line, name, labels, value, at_ms, texts_before: 0 }),
    }
}

/// Milliseconds since 1970.
fn parse_time_ms(word: &str, in_seconds: bool) -> Result<i64, &'static str> {
    const NOT_A_TIME: &str = "invalid timestamp";
    if !in_seconds {
        return word.parse().map_err(|_| NOT_A_TIME);
    }
    let seconds: f64 = word.parse().map_err(|_| NOT_A_TIME)?;
    let ms = (seconds * 1000.0).round();
    if ms.abs() < 9e18 { Ok(ms as i64) } else { Err(NOT_A_TIME) }
}

/// Labels behind an opening brace, and what follows the closing one.
fn parse_labels<'a>(
    mut text: &'a str,
    name: &mut Cow<'a, str>,
    labels: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>,
) -> Result<&'a str, &'static str> {
    const NOT_LABELS: &str = "expected labels as `{label=\"value\",…}`";
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix('}') {
            return Ok(rest);
        }
        let label;
        if let Some(rest) = text.strip_prefix('"') {
            (label, text) = parse_quoted(rest).ok_or(NOT_LABELS)?;
            text = text.trim_start();
            if name.is_empty() && !text.starts_with('=') {
                *name = label;
                text = text.strip_prefix(',').unwrap_or(text);
                continue;
            }
        } else {
            let end = text.find(|sign: char| sign == '=' || sign.is_ascii_whitespace()).ok_or(NOT_LABELS)?;
            (label, text) = (Cow::Borrowed(&text[..end]), text[end..].trim_start());
        }
        let rest = text.strip_prefix('=').ok_or(NOT_LABELS)?.trim_start();
        let (value, rest) = parse_quoted(rest.strip_prefix('"').ok_or(NOT_LABELS)?).ok_or(NOT_LABELS)?;
        if label.is_empty() || labels.len() == LABELS_MAX || labels.iter().any(|(known, _)| *known == label) {
            return Err("unnamed label, duplicate label or too many labels");
        }
        labels.push((label, value));
        text = rest.trim_start();
        text = match text.strip_prefix(',') {
            Some(rest) => rest,
            None if text.starts_with('}') => text,
            None => return Err(NOT_LABELS),
        };
    }
}

/// The text before the closing quotes, and what follows them. `\\`, `\"` and `\n` are unescaped.
fn parse_quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut value = String::new();
    let mut is_escaped = false;
    let mut has_escapes = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => {
                match character {
                    'n' => value.push('\n'),
                    '"' | '\\' => value.push(character),
                    // Unknown escapes are kept unchanged.
                    _ => value.extend(['\\', character]),
                }
                is_escaped = false;
            }
            '"' => {
                let quoted = if has_escapes { Cow::Owned(value) } else { Cow::Borrowed(&text[..at]) };
                return Some((quoted, &text[at + 1..]));
            }
            '\\' => (is_escaped, has_escapes) = (true, true),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(text: &str) -> Result<Vec<Sample<'_>>, String> {
        let mut samples = Vec::new();
        for_each_sample(
            text.as_bytes(),
            |_| true,
            |sample| {
                samples.push(sample);
                Ok(())
            },
        )
        .map(|()| samples)
        .map_err(|error| error.message_in_file("f"))
    }

    #[test]
    fn samples_are_read_as_they_stand() {
        let text = "# HELP a words\n# TYPE a gauge\na 1\n\nb{x=\"1\", y=\"a\\\"b\\\\c\\nd,}\",} -2.5e+3 1770127506000\n\
            c { z = \"\" } +Inf\n{\"d.e\",f=\"g\"} 4\n";
        let samples = parse_all(text).unwrap();
        let shown: Vec<_> = samples.iter().map(|s| (&*s.name, s.labels.len(), s.value, s.at_ms)).collect();
        let wanted =
            [("a", 0, 1.0, None), ("b", 2, -2500.0, Some(1_770_127_506_000)), ("c", 1, f64::INFINITY, None)];
        assert_eq!(shown[..3], wanted);
        assert_eq!(shown[3], ("d.e", 1, 4.0, None));
        assert_eq!(samples[1].label("y"), Some("a\"b\\c\nd,}"));
        assert_eq!(samples[1].line, 5);
    }

    #[test]
    fn time_stamps_of_open_metrics_are_seconds_and_exemplars_are_passed_over() {
        let text =
            "a_total 3 1770127506.25\nb_bucket{le=\"1\"} 17 # {id=\"x\"} 0.67 1.5\n# EOF\na_total 4\n# EOF";
        let samples = parse_all(text).unwrap();
        assert_eq!(samples[0].at_ms, Some(1_770_127_506_250));
        assert_eq!((samples[1].value, samples[1].at_ms), (17.0, None));
        assert_eq!(samples[2].texts_before, 1);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, problem) in [
            ("a 1\nb\n", "f:2: `b`: expected `name{label"),
            ("a 1\nb 12", "f:2: the last line has no newline"),
            ("a one\n", "f:1: `a one`: value is not a number"),
            ("a 1 2 3\n", "unexpected text after the value and timestamp"),
            ("a 1 soon\n", "invalid timestamp"),
            ("a{b=\"c} 1\n", "expected labels as"),
            ("a{b=\"c\" d=\"e\"} 1\n", "expected labels as"),
            ("a{b=\"c\",b=\"e\"} 1\n", "duplicate label"),
            ("a{} \n", "no value"),
            ("\u{1}\u{2} 3\n", "expected `name{label"),
        ] {
            let error = parse_all(text).unwrap_err();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
        assert!(
            for_each_sample(b"\xff\xfe 1\n", |_| true, |_| Ok(()))
                .unwrap_err()
                .message_in_file("f")
                .contains("not valid UTF-8")
        );
        assert_eq!(parse_all("").unwrap(), []);
    }

    #[test]
    fn counts_are_whole_and_fit() {
        let count = |text: &str| parse_all(&format!("a {text}\n")).unwrap()[0].count();
        assert_eq!(count("2.5277366272e+10"), Some(25_277_366_272));
        for bad in ["-1", "0.5", "NaN", "Inf", "1e19", "9223372036854775808"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }
}
