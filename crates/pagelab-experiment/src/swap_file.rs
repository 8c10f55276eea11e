//! Swap file of an experiment: created once, before the first trial that needs it, and removed at its end.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use pagelab_host::guard::{Guard, GuardOptions, GuardSite, SignalWatch, UndoOutcome, swap_file_creator};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{paths, settings};
use pagelab_model::Bytes;
use pagelab_model::size::format_bytes;

/// Default directory: on a disk, and kept across reboots according to the file system standard (FHS 3.0,
/// 5.15).
const DEFAULT_DIR: &str = "/var/tmp";

/// The swap of an experiment.
#[derive(Debug, Default)]
pub struct ExperimentSwap {
    /// Directory of the file; by default `TMPDIR`, else `/var/tmp`.
    dir: Option<PathBuf>,
    active: Option<Result<Guard, String>>,
}

impl ExperimentSwap {
    /// With its file in this directory.
    pub fn with_dir(dir: Option<PathBuf>) -> ExperimentSwap {
        ExperimentSwap { dir, active: None }
    }

    /// The directory of the file.
    pub fn directory(&self) -> PathBuf {
        let chosen = self.dir.clone();
        let by_variable = || env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        chosen.or_else(by_variable).unwrap_or_else(|| PathBuf::from(DEFAULT_DIR))
    }

    /// Creates it. Returns a description, or the reason why it was not created: then each trial that needs it
    /// reports that.
    pub fn create(&mut self, site: &Result<GuardSite, String>, size: Bytes) -> String {
        let dir = self.directory();
        let made = site.as_ref().map_err(Clone::clone).and_then(|site| create_and_enable(site, &dir, size));
        let description = match &made {
            Ok((_, message)) => message.clone(),
            Err(why) => format!("no swap file: {why}"),
        };
        self.active = Some(made.map(|(guard, _)| guard));
        match find_leftovers(&dir).as_slice() {
            [] => description,
            left => format!(
                "{description}; swap files from an earlier boot remain in {}; hint: rm {}",
                dir.display(),
                left.join(" ")
            ),
        }
    }

    /// Whether it is in use.
    pub fn is_active(&self) -> bool {
        matches!(self.active, Some(Ok(_)))
    }

    /// Why a trial that needs it cannot begin.
    pub fn why_missing(&self) -> Option<&str> {
        match &self.active {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why),
            None => Some("the swap file was not created"),
        }
    }

    /// Removes it. Returns descriptions of what was not restored.
    pub fn remove(&mut self) -> Vec<String> {
        let Some(Ok(guard)) = self.active.take() else { return Vec::new() };
        let problems = guard.finish().into_iter().filter_map(|outcome| {
            let hint = match outcome.undo {
                UndoOutcome::Failed => "; hint: run `pagelab restore`",
                UndoOutcome::LeftUnchanged => "",
                _ => return None,
            };
            Some(format!("cannot remove the swap file {}: {}{hint}", outcome.path, outcome.detail))
        });
        problems.collect()
    }
}

fn create_and_enable(site: &GuardSite, dir: &Path, size: Bytes) -> Result<(Guard, String), String> {
    let failed = |error: std::io::Error| {
        format!("cannot use {} for a swap file: {error}; hint: use --swap-dir", dir.display())
    };
    let canonical_dir = fs::canonicalize(dir).map_err(failed)?;
    let dir_text =
        canonical_dir.to_str().ok_or_else(|| format!("{}: expected a UTF-8 path", dir.display()))?;
    let guard = Guard::new(site, SignalWatch::without_handler(), GuardOptions::default());
    let guard = guard.map_err(|error| error.to_string())?;
    // The header page holds no swapped memory.
    let page = Bytes(pagelab_host::machine::live_page_size().map_or(0, |size| size.bytes()));
    let made = guard.swap_file(dir_text, Bytes(size.0.saturating_add(page.0)));
    let made = made.map_err(|error| error.to_string())?;
    let message = format!(
        "{} of swap in {} until the last trial ends; other processes may be swapped out to it too",
        format_bytes(made.size),
        made.path
    );
    Ok((guard, message))
}

/// Files of pagelab that are not in use as swap and whose process has exited: a machine that went down leaves
/// its disk unchanged. They are named, not removed, since no journal records them.
fn find_leftovers(dir: &Path) -> Vec<String> {
    let root = Root::live();
    let areas = settings::read(&Reader::new(&root)).swap.unwrap_or_default();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_leftover = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_used = areas.iter().any(|area| Path::new(&area.name) == path);
        let is_alive = |pid: u32| root.read(&paths::process_file(pid, "stat")).is_ok();
        !is_used && swap_file_creator(&name).is_some_and(|pid| !is_alive(pid))
    };
    entries.map(|entry| entry.path()).filter(is_leftover).map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_says_why_and_holds_no_trial_up() {
        let mut swap = ExperimentSwap::with_dir(Some(PathBuf::from("/none/there")));
        assert!(swap.why_missing().is_some());
        let message = swap.create(&Err("no root".to_owned()), Bytes(1 << 20));
        assert_eq!(
            (message.as_str(), swap.why_missing(), swap.is_active()),
            ("no swap file: no root", Some("no root"), false)
        );
        let folder = tempfile::tempdir().unwrap();
        let site = GuardSite::with_base(folder.path());
        let message = swap.create(&site.map_err(|error| error.to_string()), Bytes(1 << 20));
        assert!(message.contains("cannot use /none/there for a swap file"), "{message}");
        assert!(message.contains("--swap-dir"), "{message}");
        assert!(swap.remove().is_empty());
    }

    #[test]
    fn a_file_of_a_boot_before_is_named_and_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        // No process has the number 0, and this one has its own.
        let left = folder.path().join("pagelab-swap-0-1-1");
        let own = folder.path().join(format!("pagelab-swap-{}-1-1", std::process::id()));
        for path in [&left, &own, &folder.path().join("swapfile")] {
            fs::write(path, "").unwrap();
        }
        assert_eq!(find_leftovers(folder.path()), [left.display().to_string()]);
        assert!(left.exists());
    }
}
