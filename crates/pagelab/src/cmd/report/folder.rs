//! `--csv DIR`: the tables of runs in a folder. A table gets its name only when it is whole, and never one
//! that is taken.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pagelab_model::Bytes;
use pagelab_model::run::Run;
use pagelab_report::csv::{self, Table};
use pagelab_report::style;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::exit::{Exit, Failure};
use crate::whole_file;

/// The folder that was named, and the folders of the runs in it.
pub struct Folder {
    folder: PathBuf,
    /// One for each file still to come, in their order; the folder itself where there is but one file.
    runs: std::vec::IntoIter<(PathBuf, PathBuf)>,
}

impl Folder {
    /// Looks at the place before any work is done for it.
    pub fn new(folder: &Path, files: &[PathBuf]) -> Result<Folder, Failure> {
        let refuse = |path: &Path, problem: &str| {
            Err(Failure::new(Exit::Usage, format!("--csv {}: {problem}", path.display())))
        };
        whole_file::refuse_dash(folder, "--csv", "folder")?;
        if folder.exists() && !folder.is_dir() {
            return refuse(folder, "is a file, a folder was wanted: give another name");
        }
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        if !folder.exists() && above.is_some_and(|above| !above.is_dir()) {
            return refuse(folder, "there is no folder to make it in: make that first");
        }
        let mut taken = BTreeSet::new();
        let place = |file: &PathBuf| match files {
            [_] => folder.to_owned(),
            _ => {
                let stem = file.file_stem().unwrap_or_default().to_string_lossy();
                folder.join(csv::free_name(&stem, &mut taken))
            }
        };
        let places: Vec<PathBuf> = files.iter().map(place).collect();
        if let Some(place) = places.iter().find(|place| files.len() > 1 && place.symlink_metadata().is_ok()) {
            return refuse(place, "is there already, and nothing is overwritten: give another folder");
        }
        let runs: Vec<_> = files.iter().cloned().zip(places).collect();
        Ok(Folder { folder: folder.to_owned(), runs: runs.into_iter() })
    }

    /// Writes the tables of a run and `more`, and says where in a line. If one cannot be written, none is
    /// left.
    pub fn write(&mut self, file: &Path, run: &Run, more: Vec<Table<'_>>) -> Result<String, Failure> {
        // Files that could not be read are passed over.
        let place =
            self.runs.find(|(of, _)| of == file).map_or_else(|| self.folder.clone(), |(_, place)| place);
        let mut tables = csv::tables(run);
        tables.extend(more);
        for table in &tables {
            let path = place.join(&table.file);
            if path.symlink_metadata().is_ok() {
                let problem =
                    "is there already, and nothing is overwritten: give another folder, or move it away";
                return Err(Failure::new(Exit::Usage, format!("{}: {problem}", path.display())));
            }
        }
        let count = tables.len();
        let mut made = Made::default();
        let written = self.all(&place, tables, &mut made);
        let bytes = written.map_err(|(path, error)| {
            made.remove();
            whole_file::not_written(path.display(), &error, "folder")
        })?;
        let size = style::bytes(Bytes(bytes));
        Ok(format!(
            "{} → {}   {count} {}   {size}",
            file.display(),
            place.display(),
            if count == 1 { "table" } else { "tables" }
        ))
    }

    fn all(
        &self,
        place: &Path,
        tables: Vec<Table<'_>>,
        made: &mut Made,
    ) -> Result<u64, (PathBuf, io::Error)> {
        for folder in [self.folder.as_path(), place] {
            match fs::create_dir(folder) {
                Ok(()) => made.folders.push(folder.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err((folder.to_owned(), error)),
            }
        }
        let mut bytes = 0;
        for table in tables {
            let path = place.join(&table.file);
            bytes += one(&path, table).map_err(|error| (path.clone(), error))?;
            made.files.push(path);
        }
        Ok(bytes)
    }
}

/// What has been made so far.
#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Made {
    /// Takes it away again. What cannot be removed stays, and is whole.
    fn remove(&self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Writes one table beside its place and gives it its name. Returns its size.
fn one(path: &Path, table: Table<'_>) -> io::Result<u64> {
    let part = path.with_file_name(format!(".{}.{}.part", table.file, std::process::id()));
    let written = fill(&part, table).and_then(|bytes| name(&part, path).map(|()| bytes));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn fill(part: &Path, table: Table<'_>) -> io::Result<u64> {
    let mut file = BufWriter::with_capacity(1 << 16, File::create_new(part)?);
    let mut bytes = 0;
    for line in table.lines() {
        file.write_all(line.as_bytes())?;
        bytes += line.len() as u64;
    }
    file.flush()?;
    Ok(bytes)
}

/// Renames without replacing.
fn name(part: &Path, path: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, part, CWD, path, RenameFlags::NOREPLACE) {
        // A file system without this way of renaming: what came up meanwhile is looked for.
        Err(Errno::INVAL) if path.symlink_metadata().is_err() => fs::rename(part, path),
        renamed => Ok(renamed?),
    }
}
