//! A small program for workloads that start processes: `true`, or where there is none, as in a guest that has
//! nothing but pagelab, this program asked for its version.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagelab_sys::storm::children::exec_and_wait;

use crate::Failed;
use crate::options::{Kind, OptionHead, Options};

/// The option of workloads that start processes.
pub const PROGRAM: OptionHead = OptionHead {
    name: "program",
    kind: Kind::Path,
    default: "",
    help: "A small program that ends at once with 0; else the `true` on PATH, else pagelab's own --version",
};

/// Where programs are looked for without PATH, as execvp(3) does.
const USUAL: &str = "/bin:/usr/bin";

/// What is run, and where its output goes.
#[derive(Debug)]
pub struct SmallProgram {
    words: Vec<CString>,
    nowhere: File,
}

impl SmallProgram {
    /// The program that the options name, or the one that is found.
    pub fn of(options: &Options) -> Result<SmallProgram, Failed> {
        let words = match (options.text("program"), on_path("true")) {
            ("", Some(path)) => vec![word(&path)?],
            ("", None) => {
                let own = std::env::current_exe().map_err(|error| {
                    Failed::Missing(format!("no `true` and no way to run pagelab: {error}"))
                })?;
                vec![word(&own)?, c"--version".to_owned()]
            }
            (named, _) if Path::new(named).is_file() => vec![word(Path::new(named))?],
            (named, _) => {
                let text = format!("{named} is no file: name a small program by the option program");
                return Err(Failed::Missing(text));
            }
        };
        let nowhere = File::options().write(true).open("/dev/null");
        let nowhere = nowhere.map_err(|error| Failed::system("cannot open /dev/null", error))?;
        Ok(SmallProgram { words, nowhere })
    }

    /// Forks, runs it and waits until it has ended, which must be with 0.
    pub fn run(&self) -> io::Result<()> {
        let words: Vec<&CStr> = self.words.iter().map(CString::as_c_str).collect();
        let program = words.first().ok_or(io::ErrorKind::NotFound)?;
        match exec_and_wait(program, &words, self.nowhere.as_fd())? {
            0 => Ok(()),
            code => Err(io::Error::other(format!("{} ended with {code}", program.to_string_lossy()))),
        }
    }

    /// Its words, to be said beside a figure.
    pub fn name(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }
}

fn word(path: &Path) -> Result<CString, Failed> {
    let text = || Failed::Options("program: its name has a zero byte".to_owned());
    CString::new(path.as_os_str().as_bytes()).map_err(|_| text())
}

/// The first file of this name in the folders of PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED, size};

    #[test]
    fn a_program_runs_and_one_that_is_not_there_is_missing() {
        const HEADS: [OptionHead; 3] = [size("1M", "Bytes"), SEED, PROGRAM];
        let mut options = Options::defaults(&HEADS);
        let found = SmallProgram::of(&options).unwrap();
        found.run().unwrap();
        assert!(found.name().ends_with("/true"), "{}", found.name());
        options.set("program", "/no/such/program").unwrap();
        assert!(matches!(SmallProgram::of(&options), Err(Failed::Missing(_))));
        // This test's own program has no tests of that name, and runs none.
        let own = std::env::current_exe().unwrap();
        let words = [word(&own).unwrap(), c"--exact".to_owned(), c"no-such-test".to_owned()];
        SmallProgram { words: words.into(), ..found }.run().unwrap();
    }
}
