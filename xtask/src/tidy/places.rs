//! What belongs to one machine and not to the repository: folders, and hosts of package registries.

use super::Violation;

/// Folders of one machine.
const FOLDERS: [&str; 3] = ["/work/", "/root/", "/home/"];
/// Hosts from which packages come; which one is asked is the machine's own business.
const HOSTS: [&str; 8] = [
    "index.crates.io",
    "static.crates.io",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "proxy.golang.org",
    "files.pythonhosted.org",
    "deb.debian.org",
    "pypi.org/simple",
];
/// The one source that a lock file may name, which is a name and not a host that is asked.
const LOCKED: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rule, for every text of the repository.
pub fn check(path: &str, text: &str, found: &mut Vec<Violation>) {
    for (number, line) in (1..).zip(text.lines()) {
        for folder in FOLDERS.iter().filter(|folder| has_folder(line, folder)) {
            let text = format!("`{folder}` is a place on one machine");
            found.push(Violation::new(path, number, "machine-path", text));
        }
        for host in HOSTS.iter().filter(|host| line.contains(**host)) {
            found.push(Violation::new(
                path,
                number,
                "machine-path",
                format!("`{host}` is a registry's host"),
            ));
        }
        let locked = path.ends_with("Cargo.lock").then(|| line.strip_prefix("source = \"")).flatten();
        if let Some(source) = locked.filter(|source| !source.starts_with(LOCKED)) {
            let text = format!("`{}` is not the public registry", source.trim_end_matches('"'));
            found.push(Violation::new(path, number, "machine-path", text));
        }
    }
}

/// Whether an absolute path that starts with `folder` stands in `line`; a part of a longer path does
/// not count.
fn has_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(place, _)| {
        let before = line[..place].chars().next_back();
        !before.is_some_and(|c| {
            c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '~' | '*' | '>' | ')')
        })
    })
}
