//! JSON as a contract, written down in `docs/json.md`: units in names, a version in every document.
//!
//! A value that is absent is `null`, and beside it stands `<name>_absent_reason`.

pub mod averages;
pub mod can;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod demo;
pub mod experiment;
pub mod frag;
mod machine;
pub mod map;
mod needs;
pub mod object;
pub mod plan;
mod probe;
pub mod profile;
pub mod run;
mod stacks;
pub mod study;
mod supply;
pub mod tune;
mod zones;

use serde::Serialize;

use crate::style::is_unseen;

/// The version of the contract. It rises when a field changes its meaning or goes away, not when one
/// is added.
pub const VERSION: u32 = 1;

/// Why a zone has no exact index.
const NOTHING_FREE: &str = "nothing is free in this zone, so there is no share of it";

/// What every document begins with.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Header {
    /// [`VERSION`].
    pagelab_json: u32,
    /// Which document it is: `frag` …
    kind: &'static str,
}

impl Header {
    /// The header of a document of this kind.
    pub fn new(kind: &'static str) -> Header {
        Header { pagelab_json: VERSION, kind }
    }
}

/// A document as one line with a newline at the end: for programs that print one for each of many.
pub fn to_line(document: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(without_unseen(serde_json::to_string(document)?) + "\n")
}

/// The beginning of a document that is built field by field.
pub fn header(kind: &'static str) -> object::Object {
    object::Object::new().put("pagelab_json", VERSION).put("kind", kind)
}

/// A document as text: two blanks of indentation, arrays of plain values on one line, a newline at the end.
pub fn to_text(document: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(indent(&without_unseen(serde_json::to_string(document)?)))
}

/// JSON leaves characters as they are that a terminal acts on, such as DEL, the controls of 8 bits and marks
/// of writing direction. They become `\\u` and four digits, which mean the same.
fn without_unseen(compact: String) -> String {
    if !compact.chars().any(is_unseen) {
        return compact;
    }
    let mut text = String::with_capacity(compact.len() + 64);
    for sign in compact.chars() {
        if is_unseen(sign) {
            let units = sign
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            text.push_str(&units);
        } else {
            text.push(sign);
        }
    }
    text
}

/// Lays compact JSON out in lines.
fn indent(compact: &str) -> String {
    let bytes = compact.as_bytes();
    let mut text = String::with_capacity(compact.len() * 2);
    let mut depth = 0;
    let mut at = 0;
    let newline = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth));
    };
    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => string_end(bytes, at),
            b'[' | b'{' => flat_end(bytes, at).unwrap_or(at + 1),
            b',' | b':' | b']' | b'}' => at + 1,
            _ => bytes[at..].iter().position(|b| b",]}".contains(b)).map_or(bytes.len(), |n| at + n),
        };
        match &compact[at..end] {
            open @ ("[" | "{") => {
                text.push_str(open);
                depth += 1;
                newline(&mut text, depth);
            }
            close @ ("]" | "}") => {
                depth -= 1;
                newline(&mut text, depth);
                text.push_str(close);
            }
            "," => {
                text.push(',');
                newline(&mut text, depth);
            }
            ":" => text.push_str(": "),
            flat if flat.starts_with('[') => push_spaced(&mut text, flat),
            other => text.push_str(other),
        }
        at = end;
    }
    text.push('\n');
    text
}

/// The end of the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The end of an array that holds neither arrays nor objects, or of an empty object.
fn flat_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b']' | b'}' if bytes[start] == b'[' || at == start + 1 => return Some(at + 1),
            b'[' | b'{' => return None,
            b'"' if bytes[start] == b'[' => at = string_end(bytes, at),
            _ if bytes[start] == b'[' => at += 1,
            _ => return None,
        }
    }
    None
}

/// Appends an array of plain values with a blank behind each comma.
fn push_spaced(text: &mut String, flat: &str) {
    let mut at = 0;
    let bytes = flat.as_bytes();
    while at < bytes.len() {
        let end = if bytes[at] == b'"' { string_end(bytes, at) } else { at + 1 };
        text.push_str(&flat[at..end]);
        if bytes[at] == b',' {
            text.push(' ');
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_changes_nothing_but_blanks() {
        for compact in [
            r#"{"a":1,"b":[1,2.5,null],"c":{"d":"x,\"]{"},"e":[],"f":{},"g":[{"h":["a, b","]"]},{"i":-1}]}"#,
            "[]",
            "{}",
            r#"[[1],["\\"],[[]]]"#,
            r#""lone""#,
            "12",
        ] {
            let laid_out = indent(compact);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&laid_out), value(compact), "{laid_out}");
        }
    }

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left_and_nothing_is_changed() {
        let name = "a\u{1b}\u{7f}\u{9b}b\u{202e}\u{e0041}é";
        let text = to_text(&[name]).unwrap();
        assert_eq!(text, "[\"a\\u001b\\u007f\\u009bb\\u202e\\udb40\\udc41é\"]\n");
        assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [name]);
    }

    #[test]
    fn arrays_of_plain_values_stand_on_one_line() {
        expect_test::expect![[r#"
            {
              "a": [1, "x, y", null],
              "b": [
                {
                  "c": [],
                  "d": {}
                }
              ]
            }
        "#]]
        .assert_eq(&indent(r#"{"a":[1,"x, y",null],"b":[{"c":[],"d":{}}]}"#));
    }
}
