//! Documents against what they speak of: links to files, and the table of exit codes.

use super::{Files, Violation};

const CODES_DOC: &str = "docs/exit-codes.md";
const CODES_SOURCE: &str = "crates/pagelab/src/exit.rs";

/// Links of a Markdown file to files of the repository.
pub fn links(path: &str, text: &str, exists: &dyn Fn(&str) -> bool, found: &mut Vec<Violation>) {
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            if resolve(path, file).is_none_or(|file| !exists(&file)) {
                let text = format!("the link `{target}` leads to no file of the repository");
                found.push(Violation::new(path, number, "link", text));
            }
        }
    }
}

/// The targets of `[text](target "title")` and `[name]: target` in a line, code aside.
fn targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut targets: Vec<String> = Vec::new();
    for (place, _) in prose.match_indices("](") {
        let rest = &prose[place + 2..];
        let inside = rest.split(')').next().unwrap_or("");
        targets.extend(inside.split_whitespace().next().map(|t| t.trim_matches(['<', '>']).to_owned()));
    }
    if prose.starts_with('[')
        && let Some((_, target)) = prose.split_once("]: ")
    {
        targets.extend(target.split_whitespace().next().map(str::to_owned));
    }
    targets
}

/// `file` as seen from the folder of `from`, from the root; `None` when it leads out of the repository.
fn resolve(from: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = match file.starts_with('/') {
        true => Vec::new(),
        false => from.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect(),
    };
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The documented exit codes are those of the code, in number and in words.
pub fn exit_codes(files: &Files<'_>, found: &mut Vec<Violation>) {
    let text_of =
        |path: &str| files.texts.iter().find(|(name, _)| name == path).map(|(_, text)| text.as_str());
    let (Some(doc), Some(source)) = (text_of(CODES_DOC), text_of(CODES_SOURCE)) else { return };
    let documented = documented(doc);
    let meant = meant(source);
    if meant.is_empty() {
        found.push(Violation::new(CODES_SOURCE, 1, "exit-codes", "no table of exit codes can be read here"));
    }
    for (code, meaning) in &meant {
        match documented.iter().find(|(_, other, _)| other == code) {
            None => found.push(Violation::new(CODES_DOC, 1, "exit-codes", format!("{code} is missing"))),
            Some((line, _, words)) if words != meaning => {
                let text = format!("{code} is `{meaning}` in {CODES_SOURCE}, `{words}` here");
                found.push(Violation::new(CODES_DOC, *line, "exit-codes", text));
            }
            Some(_) => {}
        }
    }
    for (line, code, _) in documented.iter().filter(|(_, code, _)| meant.iter().all(|(c, _)| c != code)) {
        let text = format!("{code} is not in {CODES_SOURCE}");
        found.push(Violation::new(CODES_DOC, *line, "exit-codes", text));
    }
}

/// Rows `| 3 | the input was bad | …`: line, code, meaning.
fn documented(doc: &str) -> Vec<(usize, u8, String)> {
    let row = |(line, text): (usize, &str)| {
        let mut cells = text.trim().strip_prefix('|')?.split('|').map(str::trim);
        let code = cells.next()?.trim_matches('`').parse().ok()?;
        Some((line, code, cells.next()?.to_owned()))
    };
    (1..).zip(doc.lines()).filter_map(row).collect()
}

/// The variants with their numbers joined with their words in `TABLE`, and the codes after signals.
fn meant(source: &str) -> Vec<(u8, String)> {
    let variant = |line: &str| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        Some((name.to_owned(), number.parse::<u8>().ok()?))
    };
    let variants: Vec<(String, u8)> = source.lines().filter_map(variant).collect();
    // Every `(WHAT, "words")` in a table of constants, where WHAT is a variant or a number.
    let tables = source.split("const ").skip(1).filter_map(|rest| rest.split_once("];"));
    let pairs = tables.flat_map(|(table, _)| table.split('(')).filter_map(|rest| {
        let (what, rest) = rest.split_once(", \"")?;
        let words = rest.split('"').next()?.to_owned();
        let code = match what.strip_prefix("Exit::") {
            Some(name) => variants.iter().find(|(known, _)| known == name)?.1,
            None => what.parse().ok()?,
        };
        Some((code, words))
    });
    pairs.collect()
}
