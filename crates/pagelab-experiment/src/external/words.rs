//! Names in braces in the words of a manifest: `{keys}` is an option, `{data}` a folder.

use pagelab_workloads::options::{Options, Value};

/// Names that are not options: the folders of a run.
pub(super) const FOLDERS: [&str; 4] = ["files", "root", "data", "work"];

/// The names in braces in a text; an error if a brace is not closed.
pub(super) fn names(text: &str) -> Result<Vec<&str>, String> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('{') {
        let (name, after) = behind.split_once('}').ok_or_else(|| format!("{text:?}: a {{ without its }}"))?;
        names.push(name);
        rest = after;
    }
    Ok(names)
}

/// The text with each name replaced. The manifest was checked to have no others.
pub(super) fn filled(text: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, after)) = behind.split_once('}') else { break };
        filled.push_str(before);
        filled.push_str(&value(name).unwrap_or_default());
        rest = after;
    }
    filled + rest
}

/// An option's value as a program takes it: sizes are bytes.
pub(super) fn value_of(options: &Options, name: &str) -> Option<String> {
    options.all().find(|(head, _)| head.name == name).map(|(_, value)| match value {
        Value::Size(bytes) => bytes.0.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Thousandths(thousandths) => (*thousandths as f64 / 1000.0).to_string(),
        Value::Text(text) => text.clone(),
        Value::Switch(is_on) => if *is_on { "yes" } else { "no" }.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_found_and_filled() {
        assert_eq!(names("a{b}c{d}").unwrap(), ["b", "d"]);
        assert!(names("a{b").unwrap_err().contains("without its"));
        assert!(names("plain").unwrap().is_empty());
        let value = |name: &str| (name == "b").then(|| "{x}".to_owned());
        assert_eq!(filled("a{b}c{d}e", &value), "a{x}ce", "what is filled in is not looked at again");
    }
}
