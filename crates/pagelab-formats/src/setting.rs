//! Values of settings in /proc and sysfs: a number, or a list of options with the active one in brackets:
//! `always [madvise] never`.

use pagelab_model::SysfsChoice;

use crate::ParseError;
use crate::text::{parse_name, parse_number, to_printable, words};

const FORMAT: &str = "a choice";

/// More options than this are refused: no setting of the kernel has a dozen.
const OPTIONS_MAX: usize = 64;

/// Reads one line of options, exactly one of them in brackets.
pub fn parse(text: &[u8]) -> Result<SysfsChoice, ParseError> {
    let line = text.trim_ascii();
    let fail = |problem: String| ParseError::at_line(FORMAT, 1, problem);
    if line.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no options found"));
    }
    if line.contains(&b'\n') {
        return Err(fail("more than one line".to_owned()));
    }
    let (mut options, mut selected) = (Vec::new(), None);
    for word in words(line) {
        if options.len() == OPTIONS_MAX {
            return Err(fail(format!("more than {OPTIONS_MAX} options")));
        }
        let inside = word.strip_prefix(b"[").and_then(|word| word.strip_suffix(b"]"));
        if inside.is_some() && selected.replace(options.len()).is_some() {
            return Err(fail(format!("`{}`: more than one option in brackets", to_printable(line))));
        }
        options.push(parse_name(FORMAT, 1, inside.unwrap_or(word))?.to_owned());
    }
    let selected =
        selected.ok_or_else(|| fail(format!("`{}`: no option in brackets", to_printable(line))))?;
    Ok(SysfsChoice { options, selected })
}

const NUMBER_FORMAT: &str = "a number";

/// Reads a text that is one unsigned decimal number, with or without a newline behind it.
pub fn parse_u64(text: &[u8]) -> Result<u64, ParseError> {
    let word = text.trim_ascii();
    if word.is_empty() {
        return Err(ParseError::for_input(NUMBER_FORMAT, "no number found"));
    }
    parse_number(word).ok_or_else(|| {
        ParseError::at_line(NUMBER_FORMAT, 1, format!("`{}` is not an unsigned number", to_printable(word)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracketed_option_is_in_force() {
        let choice = parse(b"always defer defer+madvise [madvise] never\n").unwrap();
        assert_eq!(choice.selected(), "madvise");
        assert!(choice.has_option("defer+madvise") && !choice.has_option("inherit"));
        assert_eq!(parse(b"[none]").unwrap().options, ["none"]);
    }

    #[test]
    fn bad_texts_are_named() {
        for (text, expect) in [
            ("\n", "f: no options found (read as a choice)"),
            ("always never\n", "f:1: `always never`: no option in brackets (read as a choice)"),
            (
                "[always] [never]\n",
                "f:1: `[always] [never]`: more than one option in brackets (read as a choice)",
            ),
            ("[always\n", "f:1: `[always`: no option in brackets (read as a choice)"),
            ("[]", "f:1: `` is not a name (read as a choice)"),
            ("[always]\nnever\n", "f:1: more than one line (read as a choice)"),
            ("[a\0]", "f:1: `a\\0` is not a name (read as a choice)"),
            (&"a ".repeat(1 << 20), "f:1: more than 64 options (read as a choice)"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), expect);
        }
    }

    #[test]
    fn one_number_and_nothing_else() {
        assert_eq!(parse_u64(b"0\n"), Ok(0));
        assert_eq!(parse_u64(b" 18446744073709551615"), Ok(u64::MAX));
        for (text, expect) in [
            ("", "f: no number found (read as a number)"),
            ("\n", "f: no number found (read as a number)"),
            ("-1\n", "f:1: `-1` is not an unsigned number (read as a number)"),
            ("1\n2\n", "f:1: `1\\n2` is not an unsigned number (read as a number)"),
            ("max\n", "f:1: `max` is not an unsigned number (read as a number)"),
        ] {
            assert_eq!(parse_u64(text.as_bytes()).unwrap_err().message_in_file("f"), expect);
        }
    }
}
