//! Of which workload, variant and round a file of results is, told by a word in front of it or by its path.

use std::path::{Path, PathBuf};

use pagelab_report::perf_csv::{NO_THP, THP};

use crate::exit::{Exit, Failure};

/// More files than this are refused.
const FILES_MAX: usize = 1 << 16;
/// Folders in folders beyond this are not looked into.
const DEPTH_MAX: usize = 16;
/// Folders of other tools under which the folders of workloads lie.
const ABOVE: [&str; 2] = ["results", "logs"];
/// What a workload is called whose file lies in no folder.
const WORKLOAD: &str = "program";

/// A file and what it is a result of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it lies.
    pub path: PathBuf,
    /// The workload's name.
    pub workload: String,
    /// The variant's name.
    pub variant: String,
    /// The number at the end of its name.
    pub round: Option<u32>,
    /// Whether the names say that huge pages were asked for.
    pub asks_for_huge_pages: bool,
    /// Whether a word in front of the path said which variant it is: then files of several folders are one
    /// variant because somebody said so.
    pub is_labelled: bool,
}

/// All files of all sources: `PATH`, `VARIANT=PATH` or `WORKLOAD/VARIANT=PATH`.
pub fn places(sources: &[PathBuf], workload: Option<&str>) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for source in sources {
        let (label, path) = labelled(source);
        let mut files = Vec::new();
        listed(&path, 0, &mut files)?;
        for file in files {
            let mut place = of_path(&path, &file, workload);
            if let Some(label) = &label {
                match label.rsplit_once('/') {
                    Some((workload, variant)) => {
                        (place.workload, place.variant) = (workload.to_owned(), variant.to_owned());
                    }
                    None => place.variant.clone_from(label),
                }
                place.asks_for_huge_pages = asks(&place.variant);
                place.is_labelled = true;
            }
            place.workload = workload.map_or(place.workload, str::to_owned);
            places.push(place);
        }
    }
    Ok(places)
}

/// The label in front of a path, unless a file has that very name.
fn labelled(source: &Path) -> (Option<String>, PathBuf) {
    let text = source.to_string_lossy();
    match text.split_once('=') {
        Some((label, path)) if !label.is_empty() && !path.is_empty() && !source.exists() => {
            (Some(label.to_owned()), PathBuf::from(path))
        }
        _ => (None, source.to_owned()),
    }
}

fn listed(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Failure::new(Exit::NotAvailable, format!("cannot list {}", path.display())).because(error)
    };
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // A link may lead around in a circle.
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !(is_hidden || is_link && entry.path().is_dir()) {
            inside.push(entry.path());
        }
        if files.len() + inside.len() > FILES_MAX {
            let message = format!("more than {FILES_MAX} files: import fewer at a time");
            return Err(Failure::new(Exit::BadInput, message));
        }
    }
    inside.sort();
    for path in inside {
        if depth < DEPTH_MAX {
            listed(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

/// What a path says: `results/canneal/thp/always-3.csv` is round 3 of canneal under `always`, which asks for
/// huge pages. A file that is called as its workload says nothing, and its folder is the variant:
/// `results/canneal/no-thp/canneal.csv`.
fn of_path(source: &Path, file: &Path, named: Option<&str>) -> Place {
    let names: Vec<String> = file
        .components()
        .filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let above = names.iter().rposition(|name| ABOVE.contains(&name.as_str()));
    let inside = file.strip_prefix(source).map_or(0, |inside| inside.components().count());
    let from = match above {
        Some(place) if place + 2 < names.len() => place + 1,
        // A file of a folder that was named is called by what lies in it, a file alone by its own folder.
        _ => names.len().saturating_sub(inside.max(2)),
    };
    let mut parts = names.get(from..).unwrap_or_default().to_vec();
    let last = parts.pop().unwrap_or_default();
    let stem = last.rsplit_once('.').map_or(last.as_str(), |(stem, _)| stem);
    let (stem, round) = numbered(stem);
    parts.drain(..workload_in(&parts, stem));
    // The folder of a workload was named itself, and what lies in it are the groups.
    let above = from.checked_sub(1).and_then(|above| names.get(above));
    if let Some(above) = above.filter(|above| stem.is_empty() || *above == stem)
        && parts.first().is_some_and(|group| is_group(group))
    {
        parts.insert(0, above.clone());
    }
    let workload = if parts.is_empty() { WORKLOAD.to_owned() } else { parts.remove(0) };
    match stem == workload {
        true => {}
        false if named == Some(stem) && parts.is_empty() => parts.push(workload.clone()),
        false if named == Some(stem) || stem.is_empty() => {}
        false => parts.push(stem.to_owned()),
    }
    let group = parts.first().filter(|group| is_group(group)).cloned();
    if group.is_some() && parts.len() > 1 {
        parts.remove(0);
    }
    let variant = parts.join("/");
    let variant = if variant.is_empty() { "all".to_owned() } else { variant };
    let asks_for_huge_pages = group.map_or_else(|| asks(&variant), |group| group == THP);
    Place { path: file.to_owned(), workload, variant, round, asks_for_huge_pages, is_labelled: false }
}

/// Which of a file's folders is its workload's: the one that the file is called as, or the one above the
/// groups. Folders further up, such as one a day or a machine, are no part of this layout. Else the first.
fn workload_in(folders: &[String], stem: &str) -> usize {
    let above_last = folders.len().saturating_sub(1);
    let called = folders[..above_last].iter().rposition(|folder| folder == stem && !is_group(folder));
    let grouped = || folders.iter().skip(1).rposition(|folder| is_group(folder));
    called.or_else(grouped).unwrap_or(0)
}

/// Whether a folder groups runs by whether huge pages were on.
fn is_group(folder: &str) -> bool {
    matches!(folder, THP | NO_THP)
}

/// A name without the number of its round, which stands at its end: `always-3`, `run3`, `3`, `always-3.2`.
fn numbered(stem: &str) -> (&str, Option<u32>) {
    // The second trial of a round has a number behind a point.
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

/// Whether a name speaks of huge pages and does not deny them.
fn asks(name: &str) -> bool {
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
            let place = of_path(Path::new(source), Path::new(file), None);
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
        check("thp-2.csv", "thp-2.csv", (WORKLOAD, "thp", Some(2), true));
        check("results/1.csv", "results/1.csv", ("results", "all", Some(1), false));
        check("d", "d/big.sort/limit-512M.csv", ("big.sort", "limit-512M", None, false));
    }

    #[test]
    fn folders_above_the_layout_are_no_workloads() {
        let check = |file: &str, expected: (&str, &str, Option<u32>)| {
            let place = of_path(Path::new("d"), Path::new(file), None);
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
                let place = of_path(Path::new(source), Path::new(file), named);
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
