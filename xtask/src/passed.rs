//! Record of the whole runs that passed on this machine: `cargo xtask passed`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::phases;
use crate::tally::TaskError;
use crate::{conditions, since, tree};

/// One whole run that passed: a line of the record, its fields separated by tabs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedRun {
    /// Hash of the tree, as `git rev-parse HEAD^{tree}` prints it.
    pub tree: String,
    /// When it ended, in UTC.
    pub time: String,
    pub duration: String,
    pub processor: String,
}

impl PassedRun {
    fn parse(line: &str) -> Option<PassedRun> {
        let mut fields = line.split('\t').map(str::to_owned);
        let mut next = || fields.next().filter(|field| !field.is_empty());
        Some(PassedRun { tree: next()?, time: next()?, duration: next()?, processor: next()? })
    }

    fn line(&self) -> String {
        [&self.tree, &self.time, &self.duration, &self.processor].map(String::as_str).join("\t")
    }
}

/// `passed [REV]`: says whether a commit passed as a whole, or which last one did.
pub fn run(arguments: &[&str]) -> Result<(), TaskError> {
    let runs = read(&record_path())?;
    let (commits, of) = match arguments {
        [] => (commits("HEAD", &[])?, "HEAD or an ancestor of it"),
        [revision] if !revision.starts_with('-') => {
            since::check_revision(revision)?;
            (commits(revision, &["--max-count=1"])?, *revision)
        }
        _ => return Err(TaskError::Usage(format!("unexpected argument `{}`", arguments.join(" ")))),
    };
    match find(&commits, &runs) {
        Some((commit, run)) => {
            let PassedRun { time, duration, processor, .. } = run;
            println!("{commit} passed: {time}, {duration}, {processor}");
            Ok(())
        }
        None => {
            println!("no whole run of {of} passed on this machine ({})", record_path().display());
            Err(TaskError::Reported)
        }
    }
}

/// The newest ancestor of HEAD that passed as a whole.
pub fn last_passed_commit() -> Option<String> {
    let runs = read(&record_path()).ok()?;
    find(&commits("HEAD", &[]).ok()?, &runs).map(|(commit, _)| commit.to_owned())
}

/// Hash of the tree of HEAD, or why a run cannot be recorded: the work tree has changes, or git fails.
pub fn clean_tree() -> Result<String, String> {
    let git = |arguments: &[&str]| tree::git(arguments).map_err(TaskError::into_reason);
    if !git(&["status", "--porcelain"])?.trim().is_empty() {
        return Err("the work tree has changes".to_owned());
    }
    Ok(git(&["rev-parse", "HEAD^{tree}"])?.trim().to_owned())
}

/// Adds a run of the tree `tree` to the record.
pub fn record(tree: &str, duration: Duration) -> Result<(), TaskError> {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    let run = PassedRun {
        tree: tree.to_owned(),
        time: String::from_utf8_lossy(&date.stdout).trim().to_owned(),
        duration: phases::format_duration(duration),
        processor: conditions::describe_processor(),
    };
    append(&record_path(), &run)?;
    Ok(())
}

fn append(path: &Path, run: &PassedRun) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{}\n", run.line()).as_bytes())
}

/// `$XDG_CACHE_HOME/pagelab-xtask/passed`.
fn record_path() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("pagelab-xtask/passed")
}

/// The runs of the record, oldest first. A line that was cut off is no run.
fn read(path: &Path) -> Result<Vec<PassedRun>, TaskError> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).lines().filter_map(PassedRun::parse).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(TaskError::Message(format!("cannot read {}: {error}", path.display()))),
    }
}

/// The first of these commits whose tree passed, with its latest run.
fn find<'c, 'r>(commits: &'c [(String, String)], runs: &'r [PassedRun]) -> Option<(&'c str, &'r PassedRun)> {
    commits.iter().find_map(|(commit, tree)| {
        let run = runs.iter().rev().find(|run| run.tree == *tree)?;
        Some((commit.as_str(), run))
    })
}

/// Hashes of a revision and its ancestors, newest first, each with the hash of its tree.
fn commits(revision: &str, options: &[&str]) -> Result<Vec<(String, String)>, TaskError> {
    let log = tree::git(&[&["log", "--format=%H %T"], options, &[revision, "--"]].concat())?;
    let pair = |line: &str| line.split_once(' ').map(|(commit, tree)| (commit.to_owned(), tree.to_owned()));
    Ok(log.lines().filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_run(tree: &str, time: &str) -> PassedRun {
        let [tree, time] = [tree, time].map(str::to_owned);
        PassedRun { tree, time, duration: "19 min 02 s".to_owned(), processor: "25/17".to_owned() }
    }

    #[test]
    fn the_newest_commit_with_a_recorded_tree_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache/passed");
        assert_eq!(read(&path).unwrap(), []);
        for run in [passed_run("t1", "monday"), passed_run("t2", "tuesday"), passed_run("t1", "friday")] {
            append(&path, &run).unwrap();
        }
        // A run that was killed while it wrote.
        fs::write(&path, fs::read_to_string(&path).unwrap() + "t9\tsun").unwrap();
        let runs = read(&path).unwrap();
        assert_eq!(runs.len(), 3);
        let commit = |hash: &str, tree: &str| (hash.to_owned(), tree.to_owned());
        let history = [commit("c9", "t9"), commit("c1", "t1"), commit("c2", "t2")];
        let found = find(&history, &runs).map(|(commit, run)| (commit, run.time.as_str()));
        assert_eq!(found, Some(("c1", "friday")));
        assert_eq!(find(&history[..1], &runs), None);
        assert!(read(folder.path()).is_err(), "a folder is no record");
    }
}
