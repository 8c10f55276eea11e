//! Directory of tables of runs. A table gets its name only when it is complete; a file is replaced only with
//! `--force`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pagelab_model::Bytes;
use pagelab_model::run::Run;
use pagelab_report::csv::{self, CsvTable};
use pagelab_report::style;

use crate::atomic_file::{check_folder, refuse_dash, write_beside};
use crate::exit::{Failure, FailureKind};

/// The given directory, and the directories of the runs in it.
pub struct CsvFolder {
    folder: PathBuf,
    /// Whether existing tables are replaced.
    replaces: bool,
    /// One for each remaining file, in order; the directory itself if there is only one file.
    runs: std::vec::IntoIter<(PathBuf, PathBuf)>,
}

impl CsvFolder {
    /// Checks the path before any work.
    pub fn new(folder: &Path, files: &[PathBuf], replaces: bool) -> Result<CsvFolder, Failure> {
        refuse_dash(folder, "directory")?;
        if folder.exists() && !folder.is_dir() {
            let action = format_args!("write {}", folder.display());
            let failure = Failure::cannot(FailureKind::Usage, action, "expected a directory, found a file");
            return Err(failure.hint("choose another name"));
        }
        if !folder.exists() {
            check_folder(folder)?;
        }
        let mut taken = BTreeSet::new();
        let run_folder = |file: &PathBuf| match files {
            [_] => folder.to_owned(),
            _ => {
                let stem = file.file_stem().unwrap_or_default().to_string_lossy();
                folder.join(csv::unique_name(&stem, &mut taken))
            }
        };
        let places: Vec<PathBuf> = files.iter().map(run_folder).collect();
        if let Some(place) =
            places.iter().find(|place| files.len() > 1 && !replaces && place.symlink_metadata().is_ok())
        {
            return Err(Failure::exists(place.display()));
        }
        let runs: Vec<_> = files.iter().cloned().zip(places).collect();
        Ok(CsvFolder { folder: folder.to_owned(), replaces, runs: runs.into_iter() })
    }

    /// Writes the tables of a run and `extra_tables`, and returns a line with the result. On failure it
    /// leaves no table.
    pub fn write(
        &mut self,
        file: &Path,
        run: &Run,
        extra_tables: Vec<CsvTable<'_>>,
    ) -> Result<String, Failure> {
        // Skips files that could not be read.
        let run_folder =
            self.runs.find(|(of, _)| of == file).map_or_else(|| self.folder.clone(), |(_, place)| place);
        let mut tables = csv::list_tables(run);
        tables.extend(extra_tables);
        for table in &tables {
            let path = run_folder.join(&table.file);
            if !self.replaces && path.symlink_metadata().is_ok() {
                return Err(Failure::exists(path.display()));
            }
        }
        let count = tables.len();
        let mut created = Vec::new();
        let written = self.write_tables(&run_folder, tables, &mut created);
        let bytes = written.map_err(|(path, error)| {
            // A file that cannot be removed stays, and is complete.
            for made in created.iter().rev() {
                let _ = fs::remove_file(made).or_else(|_| fs::remove_dir(made));
            }
            Failure::cannot_write(path.display(), &error, "directory")
        })?;
        let size = style::format_bytes(Bytes(bytes));
        let count = style::format_plural(count, "table");
        Ok(format!("{} → {}   {count}   {size}", file.display(), run_folder.display()))
    }

    fn write_tables(
        &self,
        run_folder: &Path,
        tables: Vec<CsvTable<'_>>,
        created: &mut Vec<PathBuf>,
    ) -> Result<u64, (PathBuf, io::Error)> {
        for folder in [self.folder.as_path(), run_folder] {
            match fs::create_dir(folder) {
                Ok(()) => created.push(folder.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err((folder.to_owned(), error)),
            }
        }
        let mut bytes = 0;
        for table in tables {
            let path = run_folder.join(&table.file);
            let written = write_beside(&path, self.replaces, |part| fill_table(part, table));
            bytes += written.map_err(|error| (path.clone(), error))?;
            created.push(path);
        }
        Ok(bytes)
    }
}

fn fill_table(part: &Path, table: CsvTable<'_>) -> io::Result<u64> {
    let mut file = BufWriter::with_capacity(1 << 16, File::create_new(part)?);
    let mut bytes = 0;
    for line in table.into_lines() {
        file.write_all(line.as_bytes())?;
        bytes += line.len() as u64;
    }
    file.flush()?;
    Ok(bytes)
}
