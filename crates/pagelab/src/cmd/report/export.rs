//! `--export perf-csv DIR`: an experiment as files of `perf stat -x,` and `time`, in a folder that is whole
//! or not there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagelab_model::run::Run;
use pagelab_report::perf_csv;
use pagelab_report::style::count;
use rustix::fs::{CWD, RenameFlags};

use crate::exit::{Exit, Failure};

/// Formats that can be written.
const FORMATS: [&str; 1] = ["perf-csv"];

/// A folder to be made.
pub struct Export {
    folder: PathBuf,
}

impl Export {
    /// Looks at format and place before any work is done for them.
    pub fn new(words: &[OsString], files: &[PathBuf]) -> Result<Export, Failure> {
        let [format, folder] = words else {
            return Err(super::super::usage("--export takes a format and a folder: --export perf-csv DIR"));
        };
        if !FORMATS.iter().any(|known| format == known) {
            let message = format!(
                "--export {}: no such format: there is {}",
                format.to_string_lossy(),
                FORMATS.join(", ")
            );
            return Err(super::super::usage(&message));
        }
        let folder = PathBuf::from(folder);
        if files.len() != 1 {
            let message =
                format!("--export: one run file was wanted, not {}: export them one by one", files.len());
            return Err(super::super::usage(&message));
        }
        if folder.symlink_metadata().is_ok() {
            let problem = "is there already, and nothing is overwritten: give another folder";
            return Err(super::super::usage(&format!("--export {}: {problem}", folder.display())));
        }
        Ok(Export { folder })
    }

    /// Writes all files, and says what is there.
    pub fn write(&self, run: &Run) -> Result<String, Failure> {
        let Some(experiment) = run.experiment.as_deref() else {
            let message = format!("{}: the run is no experiment: there are no trials to export", run.name);
            return Err(Failure::new(Exit::BadInput, message));
        };
        let (files, left_out) = perf_csv::files(experiment);
        if files.is_empty() {
            let message = format!("{}: no trial of it ended as it should: nothing was exported", run.name);
            return Err(Failure::new(Exit::BadInput, message));
        }
        let part = part(&self.folder);
        let made = files.iter().try_for_each(|file| one(&part.join(&file.path), &file.text));
        let named = made.and_then(|()| {
            Ok(rustix::fs::renameat_with(CWD, &part, CWD, &self.folder, RenameFlags::NOREPLACE)?)
        });
        if let Err(error) = named {
            let _ = fs::remove_dir_all(&part);
            let message = format!("cannot write {}", self.folder.display());
            return Err(Failure::new(Exit::Partial, message).because(error));
        }
        let mut line = format!("→ {}   {} files", self.folder.display(), count(files.len() as u128));
        if left_out > 0 {
            line.push_str(&format!(
                "   {} trials that do not count are not in them",
                count(left_out as u128)
            ));
        }
        Ok(line)
    }
}

/// The folder while it is made: beside its place, so that it can be renamed.
fn part(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

fn one(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create_new(path)?.write_all(text.as_bytes())
}
