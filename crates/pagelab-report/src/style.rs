//! How numbers, bars and colours look, on a terminal and without one.

use pagelab_model::Bytes;

use crate::grid::{UNBROKEN, wrap};

/// What the output may use. Colour carries nothing alone, so all text reads the same without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// ANSI colours: only on a terminal, and never with NO_COLOR.
    pub colour: bool,
    /// Unicode bars; else ASCII.
    pub unicode: bool,
    /// Columns to fill at most.
    pub width: usize,
}

/// How a part of a line is set off. It repeats what the text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tint {
    /// Not at all.
    Plain,
    /// Less prominent.
    Dim,
    /// More prominent.
    Bold,
    /// In one of the colours that are told apart.
    Green,
    /// In another one.
    Yellow,
    /// In another one.
    Blue,
    /// In another one.
    Magenta,
    /// In another one.
    Cyan,
}

/// The codes that [`Style`] paints with, behind the escape character.
const COLOURS: [&str; 8] = ["[0m", "[1m", "[2m", "[32m", "[33m", "[34m", "[35m", "[36m"];

impl Style {
    /// For pipes and files: no colour, Unicode, 80 columns.
    pub const PLAIN: Style = Style { colour: false, unicode: true, width: 80 };

    /// `text` in bold.
    pub fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// `text` less prominent.
    pub fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    /// `text` as something that wants attention.
    pub fn alert(&self, text: &str) -> String {
        self.paint("33", text)
    }

    /// `text` as something to type.
    pub fn command(&self, text: &str) -> String {
        self.paint("36", text)
    }

    /// `text` set off.
    pub fn tint(&self, text: &str, tint: Tint) -> String {
        match tint {
            Tint::Plain => text.to_owned(),
            Tint::Dim => self.dim(text),
            Tint::Bold => self.bold(text),
            Tint::Green => self.paint("32", text),
            Tint::Yellow => self.paint("33", text),
            Tint::Blue => self.paint("34", text),
            Tint::Magenta => self.paint("35", text),
            Tint::Cyan => self.paint("36", text),
        }
    }

    /// A text as the terminal can show it: without Unicode, its signs become ASCII ones, and what the
    /// machine's own names hold beyond ASCII becomes question marks.
    pub fn signs(&self, text: &str) -> String {
        const SIGNS: [(char, &str); 19] = [
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
        let text = &self.harmless(text);
        if self.unicode || text.is_ascii() {
            return text.clone();
        }
        let known = SIGNS.iter().fold(text.to_owned(), |text, &(sign, plain)| text.replace(sign, plain));
        known.chars().map(|sign| if sign.is_ascii() || sign == UNBROKEN { sign } else { '?' }).collect()
    }

    /// The same for a text that is to stay on its line: line ends are spelt out too.
    pub fn one_line(&self, text: &str) -> String {
        if text.contains('\n') { self.signs(&text.replace('\n', "\\n")) } else { self.signs(text) }
    }

    /// [`wrap`] at this width, of the text as the terminal can show it.
    pub fn wrap(&self, text: &str, first: usize, next: usize) -> String {
        wrap(&self.signs(text), self.width, first, next)
    }

    /// Names that strangers choose may hold control characters, which would move the cursor or worse, and
    /// others that reorder or hide what stands beside them. They are spelt out; our own colours stay.
    fn harmless(&self, text: &str) -> String {
        if !text.chars().any(is_unseen) {
            return text.to_owned();
        }
        let mut shown = String::with_capacity(text.len());
        for (at, sign) in text.char_indices() {
            let is_ours = || COLOURS.iter().any(|code| text[at + 1..].starts_with(code));
            match sign {
                '\n' => shown.push(sign),
                '\x1b' if self.colour && is_ours() => shown.push(sign),
                _ if is_unseen(sign) => shown.push_str(&spelt_out(sign)),
                _ => shown.push(sign),
            }
        }
        shown
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A bar of one character for `share` of 1; values outside are cut.
    pub fn spark(&self, share: f64) -> char {
        const UNICODE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 8] = ['.', ':', '-', '=', '+', '*', '%', '@'];
        let steps = if self.unicode { UNICODE } else { ASCII };
        let at = (share.clamp(0.0, 1.0) * 8.0) as usize;
        steps[at.min(7)]
    }
}

/// Whether a character shows nothing itself and acts on the terminal or on what stands beside it: control
/// characters, marks of writing direction, blanks without width, separators of lines, tags.
pub fn is_unseen(sign: char) -> bool {
    sign.is_control()
        || matches!(sign,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Such a character in words that a programmer knows: `\n`, `\u{202e}`.
fn spelt_out(sign: char) -> String {
    if sign.is_ascii() { sign.escape_debug().to_string() } else { sign.escape_unicode().to_string() }
}

/// Every such character of a text spelt out, line ends too: for a cell of a table that other programs read.
pub fn spelt(text: &str) -> String {
    if !text.chars().any(is_unseen) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        if is_unseen(sign) { shown.push_str(&spelt_out(sign)) } else { shown.push(sign) }
    }
    shown
}

/// An amount with a binary prefix and three significant digits: `23.5 GiB`.
pub fn bytes(amount: Bytes) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = amount.0 as f64;
    // 999.5 would be printed with four digits, so it moves on to the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// At most three significant digits, without trailing decimals of whole numbers below 1000.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == value.abs().trunc() => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => {
            let text = format!("{value:.2}");
            text.strip_suffix(".00").unwrap_or(&text).to_owned()
        }
    }
}

/// A share of 1 in per cent, which is `100 %` or `0 %` only if it is exactly that.
pub fn percent(share: f64) -> String {
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

/// A count with thin groups of three digits: `12 800`.
pub fn count(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_significant_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1023, "1 KiB"),
            (1536, "1.50 KiB"),
            (25_276_510_208, "23.5 GiB"),
            (1_073_741_824, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (amount, text) in cases {
            assert_eq!(bytes(Bytes(amount)), text);
        }
    }

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        let cases = [
            (0.0, "0 %"),
            (1e-9, "less than 0.01 %"),
            (0.0004, "0.04 %"),
            (0.00999, "1.0 %"),
            (0.0834, "8.3 %"),
            (0.0999, "10 %"),
            (0.611, "61 %"),
            (0.9951, "99.5 %"),
            (0.9999, "more than 99.9 %"),
            (1.0, "100 %"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn control_characters_are_spelt_out_and_our_colours_stay() {
        let colour = Style { colour: true, ..Style::PLAIN };
        let name = "ev\x1b[31mil\x1b[2J\x07";
        assert_eq!(Style::PLAIN.signs(name), "ev\\u{1b}[31mil\\u{1b}[2J\\u{7}");
        assert_eq!(colour.signs(name), "ev\\u{1b}[31mil\\u{1b}[2J\\u{7}");
        assert_eq!(colour.signs(&colour.bold("x")), "\x1b[1mx\x1b[0m");
        assert_eq!(Style::PLAIN.signs("a\u{202e}b\u{9b}2Jc\u{200b}"), "a\\u{202e}b\\u{9b}2Jc\\u{200b}");
        assert_eq!(Style::PLAIN.one_line("a\nb\r"), "a\\nb\\r");
        assert_eq!(spelt("a\nb\u{2066}\0é, µ"), "a\\nb\\u{2066}\\0é, µ");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(12), "12");
        assert_eq!(count(12_800), "12 800");
        assert_eq!(count(1_000_000), "1 000 000");
    }

    #[test]
    fn sparks_cover_the_range_and_cut_what_is_outside() {
        let style = Style::PLAIN;
        let text: String = [-1.0, 0.0, 0.5, 1.0, 7.0].map(|share| style.spark(share)).iter().collect();
        assert_eq!(text, "▁▁▅██");
    }
}
