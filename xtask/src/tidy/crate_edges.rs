//! Edges between crates, permitted dependencies of pure crates, and inherited lints.

use super::Violation;
use super::source::SourceFile;
use crate::crate_graph::{self, CrateKind};

/// Modules of the standard library that talk to the machine, and types that read its clock.
const IO_MODULES: [&str; 6] = ["fs", "env", "net", "process", "thread", "os"];
const CLOCKS: [&str; 2] = ["Instant", "SystemTime"];

/// A `Cargo.toml` under `crates/`.
pub fn check_manifest(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let Some(folder) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
        return;
    };
    let mut at = |line: usize, text: String| violations.push(Violation::new(path, line, "edges", text));
    let Some(known) = crate_graph::find_crate(folder) else {
        at(1, format!("`{folder}` is not in xtask/src/crate_graph.rs"));
        return;
    };
    for (line, section, name) in manifest_keys(text) {
        let is_dependency = section == "dependencies" || section == "build-dependencies";
        if !is_dependency {
            continue;
        }
        if name.starts_with("pagelab") {
            if !known.may_depend_on(&name) {
                at(line, format!("{folder} may not depend on {name}"));
            }
        } else if let CrateKind::Pure(outside) = known.kind
            && !outside.contains(&name.as_str())
        {
            at(line, format!("{folder} is pure and may not depend on {name}"));
        }
    }
    let takes_lints =
        manifest_keys(text).iter().any(|(_, section, name)| section == "lints" && name == "workspace");
    let is_unsafe = crate_graph::UNSAFE.iter().any(|place| place.starts_with(&format!("crates/{folder}/")));
    if !takes_lints && !is_unsafe {
        at(1, "`[lints] workspace = true` is missing".to_owned());
    }
}

/// Every key of a manifest: its line, its section without a `target.…` in front, its first part.
fn manifest_keys(text: &str) -> Vec<(usize, String, String)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    let mut depth = 0_i64;
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or("").trim();
        let inside = depth > 0;
        let count = |open: char, close: char| {
            content.matches(open).count() as i64 - content.matches(close).count() as i64
        };
        depth += count('[', ']') + count('{', '}');
        if inside || content.is_empty() {
            continue;
        }
        if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim_matches(['[', ']']);
            let name = match name.strip_prefix("target.") {
                Some(rest) => rest.rsplit_once("'.").or(rest.split_once('.')).map_or(rest, |(_, name)| name),
                None => name,
            };
            // `[dependencies.serde]` is the key `serde` of `[dependencies]`.
            let (table, key) = name.split_once('.').unwrap_or((name, ""));
            section = name.to_owned();
            if !key.is_empty() {
                keys.push((line, table.to_owned(), key.trim_matches('"').to_owned()));
            }
            continue;
        }
        let end = content.find(['=', '.', ' ']).unwrap_or(content.len());
        keys.push((line, section.clone(), content[..end].trim_matches('"').to_owned()));
    }
    keys
}

/// The source of a pure crate asks the machine nothing; its build script may read files.
pub fn check_pure_source(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
    let pure = crate_graph::find_crate(source.crate_name())
        .is_some_and(|known| matches!(known.kind, CrateKind::Pure(_)));
    if !pure || !source.path.starts_with("crates/") || source.path.ends_with("build.rs") {
        return;
    }
    let tokens = source.tokens();
    for (place, token) in tokens.iter().enumerate().filter(|(_, token)| !source.is_in_test(token.offset)) {
        let next = |n: usize| tokens.get(place + n).map_or("", |token| token.text);
        let named: Vec<&str> = match (token.text, next(1), next(3)) {
            ("std", ":", "{") => first_segments(&tokens[place + 3..]),
            ("std", ":", module) => vec![module],
            _ => vec![],
        };
        let module = named.into_iter().find(|module| IO_MODULES.contains(module));
        let clock = CLOCKS.contains(&token.text).then_some(token.text);
        if let Some(word) = module.or(clock) {
            let text = format!("`{word}` in a crate that is pure: no IO, no clock, no environment");
            violations.push(Violation::new(source.path, source.line_of(token.offset), "pure", text));
        }
    }
}

/// The first words of each branch of `{a::b, c}`.
fn first_segments<'a>(tokens: &[super::source::Token<'a>]) -> Vec<&'a str> {
    let mut depth = 0;
    let mut before = "";
    let mut top = Vec::new();
    for token in tokens {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            word if depth == 1 && matches!(before, "{" | ",") => top.push(word),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = token.text;
    }
    top
}
