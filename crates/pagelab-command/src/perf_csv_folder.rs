//! Directory of an experiment as files of `perf stat -x,` and `time` (`--export perf-csv DIR`). It is either
//! complete or absent.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagelab_model::run::Run;
use pagelab_report::perf_csv;
use pagelab_report::style::format_count;
use pagelab_runfile::RunReader;

use crate::atomic_file::{part_path, rename_new};
use crate::exit::{Failure, FailureKind, usage_error};

/// The only format.
const FORMAT: &str = "perf-csv";

/// Writes the experiment of the only file to a new directory, and returns a line with the result.
/// `arguments`: the format and the directory.
pub fn export(arguments: &[OsString], files: &[PathBuf]) -> Result<String, Failure> {
    let [format, folder] = arguments else {
        return Err(usage_error("--export requires a format and a directory: --export perf-csv DIR"));
    };
    if format != FORMAT {
        return Err(Failure::unknown("format", &format.to_string_lossy(), &[FORMAT]));
    }
    let [file] = files else {
        return Err(usage_error(&format!("--export: expected one run file, found {}", files.len())));
    };
    let folder = Path::new(folder);
    if folder.symlink_metadata().is_ok() {
        return Err(Failure::exists(folder.display()).hint("choose another directory"));
    }
    write_folder(&RunReader::open(file)?.read_run()?, folder)
}

fn write_folder(run: &Run, folder: &Path) -> Result<String, Failure> {
    let Some(experiment) = run.experiment.as_deref() else {
        return Err(cannot_export(run, "expected an experiment, found none"));
    };
    if experiment.plan.is_simulated() {
        return Err(cannot_export(run, "expected an experiment of a host, found simulations"));
    }
    let (files, left_out) = perf_csv::build_files(experiment);
    if files.is_empty() {
        return Err(cannot_export(run, "no trial succeeded"));
    }
    let part = part_path(folder);
    let made = files.iter().try_for_each(|file| write_file(&part.join(&file.path), &file.text));
    if let Err(error) = made.and_then(|()| rename_new(&part, folder)) {
        let _ = fs::remove_dir_all(&part);
        return Err(Failure::cannot_write(folder.display(), &error, "directory"));
    }
    let mut line = format!("→ {}   {} files", folder.display(), format_count(files.len() as u128));
    if left_out > 0 {
        line.push_str(&format!("   {} uncounted trials omitted", format_count(left_out as u128)));
    }
    Ok(line)
}

fn cannot_export(run: &Run, reason: &str) -> Failure {
    Failure::cannot(FailureKind::BadInput, format_args!("export {}", run.name), reason)
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create_new(path)?.write_all(text.as_bytes())
}
