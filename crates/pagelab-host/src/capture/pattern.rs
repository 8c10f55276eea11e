//! Patterns of paths, expanded under a root without following symbolic links.

use pagelab_model::{Absence, AbsenceReason};

use crate::root::{EntryKind, Root};

/// Maximum number of matches of a pattern. Memory blocks are the most numerous: 16 TiB in blocks of 1 GiB.
const MATCHES_MAX: usize = 16_384;
/// Maximum number of directories below a `**`.
const DEPTH_MAX: usize = 8;
/// Files of every device directory that are written, not read.
const WRITE_ONLY: &[&str] = &["uevent", "demote", "compact", "reclaim"];

/// Matches of a pattern.
pub(super) struct Expansion {
    pub(super) paths: Vec<(String, MatchKind)>,
    /// Reason for no or incomplete matches.
    pub(super) absence: Option<Absence>,
    /// Whether there were more than the returned ones.
    pub(super) is_truncated: bool,
}

pub(super) enum MatchKind {
    File,
    Link(String),
}

/// All files and links that match `pattern`, by name.
pub(super) fn expand(root: &Root, pattern: &str) -> Expansion {
    let mut out = Expansion { paths: Vec::new(), absence: None, is_truncated: false };
    let names: Vec<&str> = pattern.split('/').filter(|name| !name.is_empty()).collect();
    descend(root, "", &names, &mut out);
    if out.paths.is_empty() && out.absence.is_none() {
        let why = if root.is_live() { AbsenceReason::NotThere } else { AbsenceReason::NotSaved };
        out.absence = Some(Absence::new(root.display_path(pattern), why, ""));
    }
    out
}

fn descend(root: &Root, dir: &str, names: &[&str], out: &mut Expansion) {
    if out.paths.len() >= MATCHES_MAX {
        out.is_truncated = true;
        return;
    }
    let Some((&name, below)) = names.split_first() else { return add_match(root, dir, out) };
    match name {
        "**" => walk_tree(root, dir, DEPTH_MAX, out),
        _ if !name.contains('*') => descend(root, &format!("{dir}/{name}"), below, out),
        _ => {
            for entry in list_dir(root, dir, out) {
                let path = format!("{dir}/{entry}");
                let wanted = is_match(name, &entry) && !WRITE_ONLY.contains(&entry.as_str());
                // A pattern does not follow links: they form cycles in sysfs.
                if wanted && (below.is_empty() || root.entry_kind(&path) == Ok(EntryKind::Dir)) {
                    descend(root, &path, below, out);
                }
            }
        }
    }
}

fn walk_tree(root: &Root, dir: &str, depth: usize, out: &mut Expansion) {
    if out.paths.len() >= MATCHES_MAX {
        out.is_truncated = true;
        return;
    }
    for entry in list_dir(root, dir, out) {
        let path = format!("{dir}/{entry}");
        match root.entry_kind(&path) {
            Ok(EntryKind::Dir) if depth > 0 => walk_tree(root, &path, depth - 1, out),
            Ok(EntryKind::File) if !WRITE_ONLY.contains(&entry.as_str()) => {
                out.paths.push((path, MatchKind::File))
            }
            _ => {}
        }
    }
}

fn add_match(root: &Root, path: &str, out: &mut Expansion) {
    match root.entry_kind(path) {
        Ok(EntryKind::File) => out.paths.push((path.to_owned(), MatchKind::File)),
        Ok(EntryKind::Link) => match root.read_link(path) {
            // A link into another tree would be useless in a saved one.
            Ok(target) if !target.starts_with('/') => {
                out.paths.push((path.to_owned(), MatchKind::Link(target)))
            }
            _ => {}
        },
        _ => {}
    }
}

/// The names in a directory. Records a directory that cannot be listed, unless it does not exist; other
/// matches of the pattern may.
fn list_dir(root: &Root, dir: &str, out: &mut Expansion) -> Vec<String> {
    root.list_dir(dir).unwrap_or_else(|absence| {
        if !matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::NotSaved) {
            out.absence.get_or_insert(absence);
        }
        Vec::new()
    })
}

/// Whether `name` matches a pattern in which each `*` matches any text.
pub(crate) fn is_match(pattern: &str, name: &str) -> bool {
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
    use super::is_match;

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
            assert_eq!(is_match(pattern, name), fits, "{pattern} {name}");
        }
    }
}
