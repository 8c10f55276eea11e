//! Links of documents to files.

use super::Violation;

/// Links of a Markdown file to files of the repository.
pub fn check_links(path: &str, text: &str, exists: &dyn Fn(&str) -> bool, violations: &mut Vec<Violation>) {
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in link_targets(line) {
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            if resolve_link(path, file).is_none_or(|file| !exists(&file)) {
                let text = format!("broken link: no file `{target}` in the repository");
                violations.push(Violation::new(path, number, "link", text));
            }
        }
    }
}

/// The targets of `[text](target "title")` and `[name]: target` in a line, code aside.
fn link_targets(line: &str) -> Vec<String> {
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
fn resolve_link(from: &str, file: &str) -> Option<String> {
    let folder = from.rsplit_once('/').filter(|_| !file.starts_with('/')).map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(file.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
