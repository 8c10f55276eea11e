//! A setting that lists its options and brackets the one in force: `always [madvise] never`.

use pagelab_model::Choice;

use crate::ParseError;
use crate::text::{name, show, words};

const FORMAT: &str = "a choice";

/// More options than this are refused: no setting of the kernel has a dozen.
const OPTIONS_MAX: usize = 64;

/// Reads one line of options, of which exactly one stands in brackets.
pub fn parse(text: &[u8]) -> Result<Choice, ParseError> {
    let line = text.trim_ascii();
    let fail = |problem: String| ParseError::at_line(FORMAT, 1, problem);
    if line.is_empty() {
        return Err(ParseError::whole(FORMAT, "no option in it"));
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
            return Err(fail(format!("`{}` brackets more than one option", show(line))));
        }
        options.push(name(FORMAT, 1, inside.unwrap_or(word))?.to_owned());
    }
    let selected = selected.ok_or_else(|| fail(format!("`{}` brackets no option", show(line))))?;
    Ok(Choice { options, selected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracketed_option_is_in_force() {
        let choice = parse(b"always defer defer+madvise [madvise] never\n").unwrap();
        assert_eq!(choice.selected(), "madvise");
        assert!(choice.offers("defer+madvise") && !choice.offers("inherit"));
        assert_eq!(parse(b"[none]").unwrap().options, ["none"]);
    }

    #[test]
    fn bad_texts_are_named() {
        for (text, expect) in [
            ("\n", "f: no option in it (read as a choice)"),
            ("always never\n", "f:1: `always never` brackets no option (read as a choice)"),
            (
                "[always] [never]\n",
                "f:1: `[always] [never]` brackets more than one option (read as a choice)",
            ),
            ("[always\n", "f:1: `[always` brackets no option (read as a choice)"),
            ("[]", "f:1: `` is not a name (read as a choice)"),
            ("[always]\nnever\n", "f:1: more than one line (read as a choice)"),
            ("[a\0]", "f:1: `a\\0` is not a name (read as a choice)"),
            (&"a ".repeat(1 << 20), "f:1: more than 64 options (read as a choice)"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().in_file("f"), expect);
        }
    }
}
