//! Workload, variant and round of a result file, from its label or its path.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use pagelab_report::perf_csv::{NO_THP_GROUP, THP_GROUP};

use pagelab_command::exit::Failure;

use crate::source::list_folder;

const FILES_MAX: usize = 1 << 16;
const DEPTH_MAX: usize = 16;
/// Directories of other tools that contain the directories of workloads.
const RESULT_FOLDERS: [&str; 2] = ["results", "logs"];
/// Workload of a file without a directory.
const DEFAULT_WORKLOAD: &str = "program";

/// Result file with its workload, variant and round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLabel {
    pub path: PathBuf,
    pub workload: String,
    pub variant: String,
    /// Number at the end of its name.
    pub round: Option<u32>,
    /// Whether the names mean that huge pages were requested.
    pub asks_for_huge_pages: bool,
    /// Whether a label before the path names the variant: then files of several directories can be one
    /// variant.
    pub is_labelled: bool,
}

/// Lists all files of all sources: `PATH`, `VARIANT=PATH` or `WORKLOAD/VARIANT=PATH`.
pub fn label_files(sources: &[PathBuf], workload: Option<&str>) -> Result<Vec<FileLabel>, Failure> {
    let mut places = Vec::new();
    for source in sources {
        let (label, path) = split_label(source);
        let mut files = Vec::new();
        list_files(&path, 0, &mut files)?;
        for file in files {
            let mut place = label_from_path(&path, &file, workload);
            if let Some(label) = &label {
                match label.rsplit_once('/') {
                    Some((workload, variant)) => {
                        (place.workload, place.variant) = (workload.to_owned(), variant.to_owned());
                    }
                    None => place.variant.clone_from(label),
                }
                place.asks_for_huge_pages = asks_for_huge_pages(&place.variant);
                place.is_labelled = true;
            }
            place.workload = workload.map_or(place.workload, str::to_owned);
            places.push(place);
        }
    }
    Ok(places)
}

/// Splits the label from a path, unless a file with that name exists.
fn split_label(source: &Path) -> (Option<String>, PathBuf) {
    let text = source.to_string_lossy();
    match text.split_once('=') {
        Some((label, path)) if !label.is_empty() && !path.is_empty() && !source.exists() => {
            (Some(label.to_owned()), PathBuf::from(path))
        }
        _ => (None, source.to_owned()),
    }
}

fn list_files(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    // Links may form a loop.
    let is_safe =
        |entry: &DirEntry| !entry.file_type().is_ok_and(|kind| kind.is_symlink()) || !entry.path().is_dir();
    for path in list_folder(path, files.len(), FILES_MAX, is_safe)? {
        if depth < DEPTH_MAX {
            list_files(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

/// Parses a path: `results/canneal/thp/always-3.csv` is round 3 of canneal with `always`, which requests huge
/// pages. If a file has the name of its workload, its directory is the variant:
/// `results/canneal/no-thp/canneal.csv`.
fn label_from_path(source: &Path, file: &Path, workload_override: Option<&str>) -> FileLabel {
    let names: Vec<String> = file
        .components()
        .filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let above = names.iter().rposition(|name| RESULT_FOLDERS.contains(&name.as_str()));
    let inside = file.strip_prefix(source).map_or(0, |inside| inside.components().count());
    let from = match above {
        Some(place) if place + 2 < names.len() => place + 1,
        // In a given directory, its subdirectories name the workload; for a given file, its own directory.
        _ => names.len().saturating_sub(inside.max(2)),
    };
    let mut parts = names.get(from..).unwrap_or_default().to_vec();
    let last = parts.pop().unwrap_or_default();
    let stem = last.rsplit_once('.').map_or(last.as_str(), |(stem, _)| stem);
    let (stem, round) = split_round(stem);
    parts.drain(..workload_folder(&parts, stem));
    // The given directory is that of a workload, and its subdirectories are the groups.
    let above = from.checked_sub(1).and_then(|above| names.get(above));
    if let Some(above) = above.filter(|above| stem.is_empty() || *above == stem)
        && parts.first().is_some_and(|group| is_thp_group(group))
    {
        parts.insert(0, above.clone());
    }
    let workload = if parts.is_empty() { DEFAULT_WORKLOAD.to_owned() } else { parts.remove(0) };
    match stem == workload {
        true => {}
        false if workload_override == Some(stem) && parts.is_empty() => parts.push(workload.clone()),
        false if workload_override == Some(stem) || stem.is_empty() => {}
        false => parts.push(stem.to_owned()),
    }
    let group = parts.first().filter(|group| is_thp_group(group)).cloned();
    if group.is_some() && parts.len() > 1 {
        parts.remove(0);
    }
    let variant = parts.join("/");
    let variant = if variant.is_empty() { "all".to_owned() } else { variant };
    let asks_for_huge_pages = group.map_or_else(|| asks_for_huge_pages(&variant), |group| group == THP_GROUP);
    FileLabel { path: file.to_owned(), workload, variant, round, asks_for_huge_pages, is_labelled: false }
}

/// Returns which directory of a file is its workload: the one with the name of the file, or the one above the
/// groups, else the first. Directories further up, for a day or a machine, are not part of this layout.
fn workload_folder(folders: &[String], stem: &str) -> usize {
    let above_last = folders.len().saturating_sub(1);
    let called = folders[..above_last].iter().rposition(|folder| folder == stem && !is_thp_group(folder));
    let grouped = || folders.iter().skip(1).rposition(|folder| is_thp_group(folder));
    called.or_else(grouped).unwrap_or(0)
}

/// Whether a directory groups runs by whether huge pages were enabled.
fn is_thp_group(folder: &str) -> bool {
    matches!(folder, THP_GROUP | NO_THP_GROUP)
}

/// Splits the number of the round from the end of a name: `always-3`, `run3`, `3`, `always-3.2`.
fn split_round(stem: &str) -> (&str, Option<u32>) {
    // The second trial of a round has a number after a point.
    let first = match stem.rsplit_once('.') {
        Some((first, again))
            if again.parse::<u32>().is_ok() && first.ends_with(|c: char| c.is_ascii_digit()) =>
        {
            first
        }
        _ => stem,
    };
    let name = first.trim_end_matches(|sign: char| sign.is_ascii_digit());
    match first[name.len()..].parse() {
        Ok(round) => (name.trim_end_matches(['-', '_', '.', ' ']), Some(round)),
        Err(_) => (stem, None),
    }
}

/// Whether a name means that huge pages are enabled.
fn asks_for_huge_pages(name: &str) -> bool {
    let name = name.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    has(&["thp", "huge", "always", "madvise", "enabled"])
        && !has(&["no-", "no_", "nothp", "nohuge", "never", "without", "disabled", "off"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_workload_variant_and_round() {
        let check = |source: &str, file: &str, expected: (&str, &str, Option<u32>, bool)| {
            let place = label_from_path(Path::new(source), Path::new(file), None);
            let found =
                (place.workload.as_str(), place.variant.as_str(), place.round, place.asks_for_huge_pages);
            assert_eq!(found, expected, "{file}");
        };
        check("d", "d/results/canneal/thp/always-3.csv", ("canneal", "always", Some(3), true));
        check("d", "d/logs/canneal/no-thp/never-10.2.log", ("canneal", "never", Some(10), false));
        check("x/results", "x/results/fmm/thp/1.csv", ("fmm", "thp", Some(1), true));
        check("x", "x/hugepage/results/fmm/no_thp.csv", ("fmm", "no_thp", None, false));
        check("d", "d/fmm/disabled.csv", ("fmm", "disabled", None, false));
        check("a/fmm/thp-2.csv", "a/fmm/thp-2.csv", ("fmm", "thp", Some(2), true));
        check("thp-2.csv", "thp-2.csv", (DEFAULT_WORKLOAD, "thp", Some(2), true));
        check("results/1.csv", "results/1.csv", ("results", "all", Some(1), false));
        check("d", "d/big.sort/limit-512M.csv", ("big.sort", "limit-512M", None, false));
    }

    #[test]
    fn folders_above_the_layout_are_no_workloads() {
        let check = |file: &str, expected: (&str, &str, Option<u32>)| {
            let place = label_from_path(Path::new("d"), Path::new(file), None);
            assert_eq!((place.workload.as_str(), place.variant.as_str(), place.round), expected, "{file}");
        };
        check("d/monday/canneal/thp/canneal.csv", ("canneal", "thp", None));
        check("d/2026/monday/canneal/no-thp/never-2.csv", ("canneal", "never", Some(2)));
        check("d/monday/canneal/thp/3.csv", ("canneal", "thp", Some(3)));
        check("d/monday/fmm/thp/thp-1.csv", ("fmm", "thp", Some(1)));
        check("d/monday/canneal/4K/canneal-2.csv", ("canneal", "4K", Some(2)));
        check("d/fmm/always/always-1.csv", ("fmm", "always/always", Some(1)));
    }

    #[test]
    fn a_file_called_as_its_workload_leaves_the_variant_to_its_folder() {
        let check =
            |source: &str, file: &str, named: Option<&str>, expected: (&str, &str, Option<u32>, bool)| {
                let place = label_from_path(Path::new(source), Path::new(file), named);
                let found =
                    (place.workload.as_str(), place.variant.as_str(), place.round, place.asks_for_huge_pages);
                assert_eq!(found, expected, "{file}");
            };
        check("results", "results/canneal/thp/canneal.csv", None, ("canneal", "thp", None, true));
        check("results", "results/canneal/no-thp/canneal.csv", None, ("canneal", "no-thp", None, false));
        check("d", "d/results/canneal/no-thp/canneal-2.csv", None, ("canneal", "no-thp", Some(2), false));
        check("canneal", "canneal/thp/canneal.csv", None, ("canneal", "thp", None, true));
        check("canneal", "canneal/thp/3.csv", None, ("canneal", "thp", Some(3), true));
        check("d", "d/canneal/canneal.csv", None, ("canneal", "all", None, false));
        check("d", "d/thp/canneal.csv", Some("canneal"), ("thp", "thp", None, true));
        check("d", "d/canneal/thp/4K/canneal.csv", None, ("canneal", "4K", None, true));
    }
}
