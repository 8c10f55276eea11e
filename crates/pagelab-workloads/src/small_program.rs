//! Small program for workloads that start processes: `true`, or, if there is none, as in a guest that has
//! only pagelab, `pagelab --version`.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagelab_sys::syscall_loop::exec_and_wait;

use crate::WorkloadError;
use crate::options::{OptionSpec, WorkloadOptions, path_option};

/// The option of workloads that start processes.
pub const PROGRAM_OPTION: OptionSpec = path_option(
    "program",
    "A small program that exits immediately with 0; default: `true` from PATH, else pagelab --version",
);

/// Where programs are looked for without PATH, as execvp(3) does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Program and destination of its output.
#[derive(Debug)]
pub struct SmallProgram {
    arguments: Vec<CString>,
    dev_null: File,
}

impl SmallProgram {
    /// The program that the options name, or the one that is found.
    pub fn from_options(options: &WorkloadOptions) -> Result<SmallProgram, WorkloadError> {
        let arguments = match (options.get_text("program"), find_on_path("true")) {
            ("", Some(path)) => vec![to_cstring(&path)?],
            ("", None) => {
                let own = std::env::current_exe().map_err(|error| {
                    WorkloadError::NotAvailable(format!("no `true` on PATH, and cannot run pagelab: {error}"))
                })?;
                vec![to_cstring(&own)?, c"--version".to_owned()]
            }
            (named, _) if Path::new(named).is_file() => vec![to_cstring(Path::new(named))?],
            (named, _) => {
                let text = format!("{named} is not a file; hint: set the option program to a small program");
                return Err(WorkloadError::NotAvailable(text));
            }
        };
        let nowhere = File::options().write(true).open("/dev/null");
        let nowhere = nowhere.map_err(|error| WorkloadError::system_error("cannot open /dev/null", error))?;
        Ok(SmallProgram { arguments, dev_null: nowhere })
    }

    /// Forks, runs it and waits until it has ended, which must be with 0.
    pub fn run_once(&self) -> io::Result<()> {
        let arguments: Vec<&CStr> = self.arguments.iter().map(CString::as_c_str).collect();
        let program = arguments.first().ok_or(io::ErrorKind::NotFound)?;
        match exec_and_wait(program, &arguments, self.dev_null.as_fd())? {
            0 => Ok(()),
            code => Err(io::Error::other(format!("{} exited with {code}", program.to_string_lossy()))),
        }
    }

    /// Its text, to show beside a figure.
    pub fn command_line(&self) -> String {
        let arguments: Vec<_> = self.arguments.iter().map(|word| word.to_string_lossy()).collect();
        arguments.join(" ")
    }
}

fn to_cstring(path: &Path) -> Result<CString, WorkloadError> {
    let text = || WorkloadError::InvalidOptions("program: its name contains a NUL byte".to_owned());
    CString::new(path.as_os_str().as_bytes()).map_err(|_| text())
}

/// The first file of this name in the folders of PATH.
pub(crate) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED_OPTION, size_option};

    #[test]
    fn a_program_runs_and_one_that_is_not_there_is_missing() {
        const SPECS: [OptionSpec; 3] = [size_option("1M", "Bytes"), SEED_OPTION, PROGRAM_OPTION];
        let mut options = WorkloadOptions::with_defaults(&SPECS);
        let found = SmallProgram::from_options(&options).unwrap();
        found.run_once().unwrap();
        assert!(found.command_line().ends_with("/true"), "{}", found.command_line());
        options.set_value("program", "/no/such/program").unwrap();
        assert!(matches!(SmallProgram::from_options(&options), Err(WorkloadError::NotAvailable(_))));
        // This test's own program has no tests of that name, and runs none.
        let own = std::env::current_exe().unwrap();
        let arguments = [to_cstring(&own).unwrap(), c"--exact".to_owned(), c"no-such-test".to_owned()];
        SmallProgram { arguments: arguments.into(), ..found }.run_once().unwrap();
    }
}
