//! Display of numbers, bars and colours, on a terminal and without one.

pub use pagelab_model::size::{format_argument, format_bytes, format_exact, format_three_digits};

use crate::text_report::{NO_BREAK_SPACE, wrap_text};

/// Features that the output may use. Colour only repeats what the text says, so all text reads the same
/// without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// ANSI colours: only on a terminal, and never with NO_COLOR.
    pub colour: bool,
    /// Unicode bars; else ASCII.
    pub unicode: bool,
    /// Columns to fill, at most.
    pub width: usize,
}

/// Emphasis of a part of a line. It repeats what the text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// None.
    Plain,
    /// Less prominent.
    Dim,
    /// More prominent.
    Bold,
    /// One of the colours that differ from each other.
    Green,
    /// Another of these colours.
    Yellow,
    /// Another of these colours.
    Blue,
    /// Another of these colours.
    Magenta,
    /// Another of these colours.
    Cyan,
}

/// Codes of [`TextStyle`], after the escape character.
const COLOUR_CODES: [&str; 8] = ["[0m", "[1m", "[2m", "[32m", "[33m", "[34m", "[35m", "[36m"];

impl TextStyle {
    /// Style for pipes and files: no colour, Unicode, 80 columns.
    pub const PLAIN: TextStyle = TextStyle { colour: false, unicode: true, width: 80 };

    /// Paints `text` in bold.
    pub fn paint_bold(&self, text: &str) -> String {
        self.paint_code("1", text)
    }

    /// Paints `text` less prominent.
    pub fn paint_dim(&self, text: &str) -> String {
        self.paint_code("2", text)
    }

    /// Paints `text` as a warning.
    pub fn paint_alert(&self, text: &str) -> String {
        self.paint_code("33", text)
    }

    /// Paints `text` as a command to type.
    pub fn paint_command(&self, text: &str) -> String {
        self.paint_code("36", text)
    }

    /// Paints `text` with an emphasis.
    pub fn paint_tint(&self, text: &str, tint: Tint) -> String {
        match tint {
            Tint::Plain => text.to_owned(),
            Tint::Dim => self.paint_dim(text),
            Tint::Bold => self.paint_bold(text),
            Tint::Green => self.paint_code("32", text),
            Tint::Yellow => self.paint_code("33", text),
            Tint::Blue => self.paint_code("34", text),
            Tint::Magenta => self.paint_code("35", text),
            Tint::Cyan => self.paint_code("36", text),
        }
    }

    /// Converts a text to what the terminal can display: without Unicode, its signs become ASCII, and other
    /// characters in names from the machine become question marks.
    pub fn to_displayable(&self, text: &str) -> String {
        const ASCII_SIGNS: [(char, &str); 20] = [
            ('µ', "u"),
            ('·', "|"),
            ('…', "..."),
            ('—', "-"),
            ('–', "-"),
            ('−', "-"),
            ('±', "+-"),
            ('°', " deg"),
            ('→', "->"),
            ('≥', ">="),
            ('≤', "<="),
            ('×', "*"),
            ('Σ', "sum "),
            ('⌊', "["),
            ('⌋', "]"),
            ('₀', "0"),
            ('░', ":"),
            ('▒', "+"),
            ('▓', "#"),
            ('\u{202f}', " "),
        ];
        let text = &self.escape_control(text);
        if self.unicode || text.is_ascii() {
            return text.clone();
        }
        let known =
            ASCII_SIGNS.iter().fold(text.to_owned(), |text, &(sign, plain)| text.replace(sign, plain));
        known.chars().map(|sign| if sign.is_ascii() || sign == NO_BREAK_SPACE { sign } else { '?' }).collect()
    }

    /// Converts a text that must stay on its line: line ends are spelled out too.
    pub fn to_one_line(&self, text: &str) -> String {
        if text.contains('\n') {
            self.to_displayable(&text.replace('\n', "\\n"))
        } else {
            self.to_displayable(text)
        }
    }

    /// Shortens a name from a file for a column, and keeps it on its line.
    pub fn clip_name(&self, name: &str, chars_max: usize) -> String {
        self.to_one_line(&clip_name(name, chars_max))
    }

    /// Applies [`wrap_text`] at this width to the text as the terminal can display it.
    pub fn wrap_text(&self, text: &str, first_indent: usize, next_indent: usize) -> String {
        wrap_text(&self.to_displayable(text), self.width, first_indent, next_indent)
    }

    /// Untrusted names may contain control characters, which would move the cursor or worse, and characters
    /// that reorder or hide adjacent text. They are spelled out; pagelab's own colours stay.
    fn escape_control(&self, text: &str) -> String {
        if !text.chars().any(is_invisible) {
            return text.to_owned();
        }
        let mut displayable = String::with_capacity(text.len());
        for (at, sign) in text.char_indices() {
            let is_ours = || COLOUR_CODES.iter().any(|code| text[at + 1..].starts_with(code));
            match sign {
                '\n' => displayable.push(sign),
                '\x1b' if self.colour && is_ours() => displayable.push(sign),
                _ if is_invisible(sign) => displayable.push_str(&escape_char(sign)),
                _ => displayable.push(sign),
            }
        }
        displayable
    }

    fn paint_code(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Returns a bar of one character for `share` of 1; values outside are clipped.
    pub fn spark_char(&self, share: f64) -> char {
        const UNICODE_BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII_BARS: [char; 8] = ['.', ':', '-', '=', '+', '*', '%', '@'];
        let steps = if self.unicode { UNICODE_BARS } else { ASCII_BARS };
        let at = (share.clamp(0.0, 1.0) * 8.0) as usize;
        steps[at.min(7)]
    }
}

/// Shortens a name from a file for a column.
pub(crate) fn clip_name(name: &str, chars_max: usize) -> String {
    if name.chars().count() <= chars_max {
        return name.to_owned();
    }
    name.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

/// Keeps the end of a name, which is more specific than its beginning.
pub(crate) fn clip_start(name: &str, chars_max: usize) -> String {
    let signs = name.chars().count();
    match signs > chars_max {
        true => format!("…{}", name.chars().skip(signs - chars_max + 1).collect::<String>()),
        false => name.to_owned(),
    }
}

/// Returns whether a character is invisible and acts on the terminal or on adjacent text: control characters,
/// marks of writing direction, zero-width blanks, line separators, tags.
pub fn is_invisible(sign: char) -> bool {
    sign.is_control()
        || matches!(sign,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Spells such a character as an escape: `\n`, `\u{202e}`.
fn escape_char(sign: char) -> String {
    if sign.is_ascii() { sign.escape_debug().to_string() } else { sign.escape_unicode().to_string() }
}

/// Spells out every such character of a text, including line ends, for a cell of a table that other programs
/// read.
pub fn escape_invisible(text: &str) -> String {
    if !text.chars().any(is_invisible) {
        return text.to_owned();
    }
    text.chars().map(|sign| if is_invisible(sign) { escape_char(sign) } else { sign.to_string() }).collect()
}

/// Formats a share of 1 as a percentage, which is `100 %` or `0 %` only if it is exactly that.
pub fn format_percent(share: f64) -> String {
    match share * 100.0 {
        v if v <= 0.0 => "0 %".to_owned(),
        v if v >= 100.0 => "100 %".to_owned(),
        v if v < 0.01 => "less than 0.01 %".to_owned(),
        v if v > 99.9 => "more than 99.9 %".to_owned(),
        v if v >= 99.5 || (0.995..9.95).contains(&v) => format!("{v:.1} %"),
        v if v < 0.995 => format!("{v:.2} %"),
        v => format!("{v:.0} %"),
    }
}

/// Formats a count in groups of three digits, which a narrow no-break space separates: a group is neither
/// wrapped nor a field of its own for other programs.
pub fn format_count(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 report`, `12 reports`; irregular forms follow a bar:
/// `process was|processes were`.
pub fn format_plural(count: impl TryInto<u128>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u128::MAX);
    let number = format_count(count);
    match (noun.split_once('|'), count) {
        (Some((one, _)), 1) => format!("{number} {one}"),
        (Some((_, many)), _) => format!("{number} {many}"),
        (None, 1) => format!("{number} {noun}"),
        (None, _) => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;
    use serde_json::Value;

    use super::*;
    use crate::quantity_format::format_duration;

    /// The page runs the same cases: `web/test/unit/format.test.ts`.
    #[test]
    fn numbers_look_as_on_the_page() {
        let cases: Value =
            serde_json::from_str(include_str!("../../../web/test/unit/format_cases.json")).unwrap();
        let check = |table: &str, show: &dyn Fn(&Value) -> String| {
            let rows = cases[table].as_array().unwrap();
            assert!(rows.len() > 3, "{table}");
            for row in rows {
                assert_eq!(show(&row[0]), row[1].as_str().unwrap(), "{table}: {}", row[0]);
            }
        };
        let whole = |value: &Value| value.as_u64().unwrap();
        check("bytes", &|value| format_bytes(Bytes(whole(value))));
        check("three_digits", &|value| format_three_digits(value.as_f64().unwrap()));
        check("percent", &|value| format_percent(value.as_f64().unwrap()));
        check("count", &|value| format_count(whole(value).into()));
        check("duration_ns", &|value| format_duration(whole(value)));
    }

    #[test]
    fn nouns_follow_their_count() {
        assert_eq!([0_u64, 1, 2].map(|count| format_plural(count, "page")), ["0 pages", "1 page", "2 pages"]);
        assert_eq!(
            [1_usize, 2].map(|count| format_plural(count, "entry is|entries are")),
            ["1 entry is", "2 entries are"]
        );
    }

    #[test]
    fn control_characters_are_spelt_out_and_our_colours_stay() {
        let colour = TextStyle { colour: true, ..TextStyle::PLAIN };
        let name = "ev\x1b[31mil\x1b[2J\x07";
        assert_eq!(TextStyle::PLAIN.to_displayable(name), "ev\\u{1b}[31mil\\u{1b}[2J\\u{7}");
        assert_eq!(colour.to_displayable(name), "ev\\u{1b}[31mil\\u{1b}[2J\\u{7}");
        assert_eq!(colour.to_displayable(&colour.paint_bold("x")), "\x1b[1mx\x1b[0m");
        assert_eq!(
            TextStyle::PLAIN.to_displayable("a\u{202e}b\u{9b}2Jc\u{200b}"),
            "a\\u{202e}b\\u{9b}2Jc\\u{200b}"
        );
        assert_eq!(TextStyle::PLAIN.to_one_line("a\nb\r"), "a\\nb\\r");
        assert_eq!(escape_invisible("a\nb\u{2066}\0é, µ"), "a\\nb\\u{2066}\\0é, µ");
    }

    #[test]
    fn sparks_cover_the_range_and_cut_what_is_outside() {
        let style = TextStyle::PLAIN;
        let text: String = [-1.0, 0.0, 0.5, 1.0, 7.0].map(|share| style.spark_char(share)).iter().collect();
        assert_eq!(text, "▁▁▅██");
    }
}
