//! The swap file of an experiment: made once, before the first trial that needs it, and taken away at its
//! end.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use pagelab_host::guard::{Fate, Guard, Options, Site, Watched, swap_file_maker};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{paths, settings};
use pagelab_model::Bytes;

/// Where it is made if nobody says otherwise: on a disk, and there after a reboot, by the standard of file
/// systems (FHS 3.0, 5.15).
const DEFAULT_DIR: &str = "/var/tmp";

/// The swap of an experiment.
#[derive(Debug, Default)]
pub struct Swap {
    /// Where the file is to be; by `TMPDIR`, else in `/var/tmp`, where nobody says.
    dir: Option<PathBuf>,
    made: Option<Result<Guard, String>>,
}

impl Swap {
    /// With its file in this directory.
    pub fn in_dir(dir: Option<PathBuf>) -> Swap {
        Swap { dir, made: None }
    }

    /// The directory in which the file would be.
    pub fn dir(&self) -> PathBuf {
        let chosen = self.dir.clone();
        let by_variable = || env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        chosen.or_else(by_variable).unwrap_or_else(|| PathBuf::from(DEFAULT_DIR))
    }

    /// Makes it. Says in words what was made, or why it could not be: then each trial that needs it says so.
    pub fn make(&mut self, site: &Result<Site, String>, size: Bytes) -> String {
        let dir = self.dir();
        let made = site.as_ref().map_err(Clone::clone).and_then(|site| begin(site, &dir, size));
        let (made, said) = match made {
            Ok((guard, said)) => (Ok(guard), said),
            Err(why) => {
                let said = format!("no swap file: {why}");
                (Err(why), said)
            }
        };
        self.made = Some(made);
        let left: Vec<String> = left_in(&dir);
        match left.as_slice() {
            [] => said,
            left => format!(
                "{said}; swap files of a boot before this one lie in {}, in nobody's use: rm {}",
                dir.display(),
                left.join(" ")
            ),
        }
    }

    /// Whether it is in use.
    pub fn is_on(&self) -> bool {
        matches!(self.made, Some(Ok(_)))
    }

    /// Why a trial that needs it cannot begin.
    pub fn missing(&self) -> Option<&str> {
        match &self.made {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why),
            None => Some("it was not made"),
        }
    }

    /// Takes it away. Says in words what is not as it was.
    pub fn finish(&mut self) -> Vec<String> {
        let Some(Ok(guard)) = self.made.take() else { return Vec::new() };
        let outcomes = guard.finish();
        let left = outcomes.iter().filter(|outcome| matches!(outcome.fate, Fate::Failed | Fate::LeftAlone));
        left.map(|outcome| {
            let way_out = if outcome.fate == Fate::Failed { "; pagelab restore tries again" } else { "" };
            format!("the swap file {} is still there: {}{way_out}", outcome.path, outcome.detail)
        })
        .collect()
    }
}

fn begin(site: &Site, dir: &Path, size: Bytes) -> Result<(Guard, String), String> {
    let failed = |error: std::io::Error| {
        format!("{} is no directory for a swap file: {error}; --swap-dir names another", dir.display())
    };
    let real = fs::canonicalize(dir).map_err(failed)?;
    let named = real.to_str().ok_or_else(|| format!("{} is not UTF-8, and a journal is", dir.display()))?;
    let guard = Guard::begin(site, Watched::left_to_restore(), Options::default());
    let guard = guard.map_err(|error| error.to_string())?;
    // Its own page holds no memory.
    let page = Bytes(pagelab_host::machine::live_page_size().map_or(0, |size| size.bytes()));
    let made = guard.swap_file(named, Bytes(size.0.saturating_add(page.0)));
    let made = made.map_err(|error| error.to_string())?;
    let said = format!(
        "{} MiB of swap in {}, until the last trial has ended; other programs may be swapped to it too, and \
         come back with it",
        made.size.0 >> 20,
        made.path
    );
    Ok((guard, said))
}

/// Files of ours that nobody swaps to and whose process is gone: a machine that went down leaves its disk as
/// it was. They are named and not removed, for no journal tells of them.
fn left_in(dir: &Path) -> Vec<String> {
    let root = Root::live();
    let areas = settings::read(&Reader::new(&root)).swap.unwrap_or_default();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_left = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_used = areas.iter().any(|area| Path::new(&area.name) == path);
        let is_alive = |pid: u32| root.read(&paths::process(pid, "stat")).is_ok();
        !is_used && swap_file_maker(&name).is_some_and(|pid| !is_alive(pid))
    };
    entries.map(|entry| entry.path()).filter(is_left).map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_says_why_and_holds_no_trial_up() {
        let mut swap = Swap::in_dir(Some(PathBuf::from("/none/there")));
        assert!(swap.missing().is_some());
        let said = swap.make(&Err("no root".to_owned()), Bytes(1 << 20));
        assert_eq!(
            (said.as_str(), swap.missing(), swap.is_on()),
            ("no swap file: no root", Some("no root"), false)
        );
        let folder = tempfile::tempdir().unwrap();
        let site = Site::under(folder.path());
        let said = swap.make(&site.map_err(|error| error.to_string()), Bytes(1 << 20));
        assert!(said.contains("/none/there is no directory for a swap file"), "{said}");
        assert!(said.contains("--swap-dir"), "{said}");
        assert!(swap.finish().is_empty());
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
        assert_eq!(left_in(folder.path()), [left.display().to_string()]);
        assert!(left.exists());
    }
}
