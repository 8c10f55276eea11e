//! JSON output, specified in `docs/json.md`: units in names, a version in every document.
//!
//! An absent value is `null`, with the reason in `<name>_absent_reason`.

pub mod averages;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod experiment;
pub mod forecast;
pub mod frag;
pub(crate) mod huge_page_supply;
pub mod judge;
pub(crate) mod machine;
pub mod map;
pub(crate) mod memory_needs;
pub mod object;
pub mod plan;
pub(crate) mod probe;
pub mod profile;
pub mod run;
pub mod run_plan;
pub(crate) mod stacks;
pub mod tune;
pub(crate) mod zones;

use serde::Serialize;

use crate::style::is_invisible;

/// Version of the contract. It increases when a field changes its meaning or is removed, not when one is
/// added.
pub const CONTRACT_VERSION: u32 = 2;

/// Why a zone has no exact index.
const NO_FREE_REASON: &str = "no free memory in this zone";

/// Returns a document as one line with a newline at the end, for programs that print one for each of many.
pub fn to_json_line(document: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(escape_invisible(serde_json::to_string(document)?) + "\n")
}

/// Begins a document of a type, such as `frag`.
pub fn document_header(kind: &'static str) -> object::JsonObject {
    object::JsonObject::new().field("pagelab_json", CONTRACT_VERSION).field("kind", kind)
}

/// Returns a document as text: indentation by two blanks, arrays of plain values on one line, a newline at
/// the end.
pub fn to_json_text(document: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(lay_out(serde_json::to_string(document)?))
}

/// Lays out compact JSON as [`to_json_text`] does.
fn lay_out(compact: String) -> String {
    indent_json(&escape_invisible(compact))
}

/// JSON does not escape some characters on which a terminal acts, such as DEL, 8-bit control characters and
/// marks of writing direction. This function writes them as `\\u` and four digits, with the same meaning.
fn escape_invisible(compact: String) -> String {
    if !compact.chars().any(is_invisible) {
        return compact;
    }
    let mut text = String::with_capacity(compact.len() + 64);
    for sign in compact.chars() {
        if is_invisible(sign) {
            let mut units = [0; 2];
            text.extend(sign.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(sign);
        }
    }
    text
}

/// Lays out compact JSON in lines.
fn indent_json(compact: &str) -> String {
    let bytes = compact.as_bytes();
    let mut text = String::with_capacity(compact.len() * 2);
    let mut depth = 0;
    let mut index = 0;
    let newline = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth));
    };
    while index < bytes.len() {
        let end = match bytes[index] {
            b'"' => string_end(bytes, index),
            b'[' | b'{' => flat_array_end(bytes, index).unwrap_or(index + 1),
            b',' | b':' | b']' | b'}' => index + 1,
            _ => bytes[index..].iter().position(|b| b",]}".contains(b)).map_or(bytes.len(), |n| index + n),
        };
        match &compact[index..end] {
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
        index = end;
    }
    text.push('\n');
    text
}

/// Returns the end of the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut index = start + 1;
    while index < bytes.len() && bytes[index] != b'"' {
        index += if bytes[index] == b'\\' { 2 } else { 1 };
    }
    (index + 1).min(bytes.len())
}

/// Returns the end of an array without arrays or objects in it, or of an empty object.
fn flat_array_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut index = start + 1;
    while let Some(&byte) = bytes.get(index) {
        match byte {
            b']' | b'}' if bytes[start] == b'[' || index == start + 1 => return Some(index + 1),
            b'[' | b'{' => return None,
            b'"' if bytes[start] == b'[' => index = string_end(bytes, index),
            _ if bytes[start] == b'[' => index += 1,
            _ => return None,
        }
    }
    None
}

/// Appends an array of plain values with a blank after each comma.
fn push_spaced(text: &mut String, array_text: &str) {
    let mut index = 0;
    let bytes = array_text.as_bytes();
    while index < bytes.len() {
        let end = if bytes[index] == b'"' { string_end(bytes, index) } else { index + 1 };
        text.push_str(&array_text[index..end]);
        if bytes[index] == b',' {
            text.push(' ');
        }
        index = end;
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
            let laid_out = indent_json(compact);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&laid_out), value(compact), "{laid_out}");
        }
    }

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left_and_nothing_is_changed() {
        let name = "a\u{1b}\u{7f}\u{9b}b\u{202e}\u{e0041}é";
        let text = to_json_text(&[name]).unwrap();
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
        .assert_eq(&indent_json(r#"{"a":[1,"x, y",null],"b":[{"c":[],"d":{}}]}"#));
    }
}
