//! Patterns of paths, expanded under a root without following symbolic links.

use pagelab_model::{Absence, AbsentWhy};

use crate::root::{Kind, Root};

/// Paths that one pattern may match. Memory blocks are the most numerous: 16 TiB in blocks of 1 GiB.
const MATCHES_MAX: usize = 16_384;
/// Folders below a `**`.
const DEPTH_MAX: usize = 8;
/// Files of every device folder that are written, not read.
const WRITE_ONLY: &[&str] = &["uevent", "demote", "compact", "reclaim"];

/// What a pattern met.
pub(super) struct Expanded {
    pub(super) paths: Vec<(String, Found)>,
    /// Why there is nothing, or not everything.
    pub(super) absence: Option<Absence>,
    /// Whether there were more than are given.
    pub(super) cut: bool,
}

pub(super) enum Found {
    File,
    /// A symbolic link and its target.
    Link(String),
}

/// All files and links that `pattern` matches, in the order of their names.
pub(super) fn expand(root: &Root, pattern: &str) -> Expanded {
    let mut out = Expanded { paths: Vec::new(), absence: None, cut: false };
    let names: Vec<&str> = pattern.split('/').filter(|name| !name.is_empty()).collect();
    descend(root, "", &names, &mut out);
    if out.paths.is_empty() && out.absence.is_none() {
        let why = if root.is_live() { AbsentWhy::NotThere } else { AbsentWhy::NotSaved };
        out.absence = Some(Absence::new(root.show(pattern), why, ""));
    }
    out
}

fn descend(root: &Root, at: &str, names: &[&str], out: &mut Expanded) {
    if out.paths.len() >= MATCHES_MAX {
        out.cut = true;
        return;
    }
    let Some((&name, below)) = names.split_first() else { return found(root, at, out) };
    match name {
        "**" => everything(root, at, DEPTH_MAX, out),
        _ if !name.contains('*') => descend(root, &format!("{at}/{name}"), below, out),
        _ => {
            for entry in listed(root, at, out) {
                let path = format!("{at}/{entry}");
                let wanted = matches(name, &entry) && !WRITE_ONLY.contains(&entry.as_str());
                // A pattern is not led through links on its way: they would lead in circles in sysfs.
                if wanted && (below.is_empty() || root.kind(&path) == Ok(Kind::Dir)) {
                    descend(root, &path, below, out);
                }
            }
        }
    }
}

fn everything(root: &Root, at: &str, depth: usize, out: &mut Expanded) {
    if out.paths.len() >= MATCHES_MAX {
        out.cut = true;
        return;
    }
    for entry in listed(root, at, out) {
        let path = format!("{at}/{entry}");
        match root.kind(&path) {
            Ok(Kind::Dir) if depth > 0 => everything(root, &path, depth - 1, out),
            Ok(Kind::File) if !WRITE_ONLY.contains(&entry.as_str()) => out.paths.push((path, Found::File)),
            _ => {}
        }
    }
}

fn found(root: &Root, path: &str, out: &mut Expanded) {
    match root.kind(path) {
        Ok(Kind::File) => out.paths.push((path.to_owned(), Found::File)),
        Ok(Kind::Link) => match root.link(path) {
            // What points into another tree would be of no use in a saved one.
            Ok(target) if !target.starts_with('/') => out.paths.push((path.to_owned(), Found::Link(target))),
            _ => {}
        },
        _ => {}
    }
}

/// The names in a folder. What cannot be listed is remembered, unless it is just not there: other
/// matches of the pattern may be.
fn listed(root: &Root, at: &str, out: &mut Expanded) -> Vec<String> {
    root.list(at).unwrap_or_else(|absence| {
        if !matches!(absence.why, AbsentWhy::NotThere | AbsentWhy::NotSaved) {
            out.absence.get_or_insert(absence);
        }
        Vec::new()
    })
}

/// Whether `name` fits a pattern in which each `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or("");
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_any_text() {
        let cases = [
            ("*", "x", true),
            ("node*", "node12", true),
            ("node*", "nod", false),
            ("*.max", "memory.max", true),
            ("*.max", "memory.maximum", false),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
        ];
        for (pattern, name, fits) in cases {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
