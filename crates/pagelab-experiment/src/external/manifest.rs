//! What a manifest says, typed.

use std::borrow::Cow;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_workloads::options::{OptionHead, Options};

use crate::recipe::Metric;

/// A workload that is not ours. It lives as long as the process: its options are tables like those of the
/// built-in workloads, and a process reads a handful.
#[derive(Debug, PartialEq)]
pub struct Manifest {
    /// How it is asked for: its name, or the path of its file.
    pub asked: String,
    /// Its name.
    pub name: String,
    /// What it does, in one line.
    pub about: String,
    /// What of memory it uses, and how it differs from what its name may promise.
    pub explanation: String,
    /// What it works on, with options in braces.
    pub input: String,
    /// What it touches, in words.
    pub working_set: String,
    /// Disk that its set-up, its default data and a run take.
    pub space: Option<Bytes>,
    /// How long a run takes, about.
    pub takes: Option<Duration>,
    /// How long a quick run takes.
    pub quick_takes: Option<Duration>,
    /// Debian packages that have its programs.
    pub packages: Vec<String>,
    /// Debian packages of which files are used, whatever programs there are.
    pub data_packages: Vec<String>,
    /// Programs that it starts.
    pub programs: Vec<Program>,
    /// Folders besides those of PATH in which programs lie, below the root; `*` stands for any one name.
    pub program_folders: Vec<String>,
    /// Folders of libraries besides the usual ones, below the root.
    pub library_folders: Vec<String>,
    /// What the user must have himself.
    pub user_folder: Option<UserFolder>,
    /// What may be chosen.
    pub options: &'static [OptionHead],
    /// What a quick run chooses.
    pub quick: Vec<(String, String)>,
    /// Options on which the data depend.
    pub data_options: Vec<String>,
    /// Makes the data, in the folder where they are to be.
    pub prepare: Option<Vec<String>>,
    /// One run.
    pub command: Vec<String>,
    /// What the figure of merit is called.
    pub metric_name: String,
    /// Where its figure of merit stands.
    pub metric: Metric,
    /// More numbers.
    pub figures: Vec<(String, Metric)>,
    /// The text before a checksum that is the same for the same options.
    pub checksum: Option<String>,
    /// Exit codes that are no failure.
    pub exit_codes: Vec<i32>,
    /// Added to its environment.
    pub environment: Vec<(String, String)>,
    /// Scripts and other files that come with it.
    pub files: Vec<(String, Cow<'static, str>)>,
    /// Tells this text with these files from any other.
    pub fingerprint: String,
}

/// A program that a manifest wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The oldest version that does.
    pub least: Option<String>,
}

/// Something that no package has, and that the user builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFolder {
    /// The variable that names the folder.
    pub variable: String,
    /// A file or folder in it; `*` stands for any one name.
    pub has: String,
    /// What it is and where one gets it.
    pub what: String,
}

impl Manifest {
    /// Options of a run: the defaults, for a quick run what that changes, and then these.
    pub fn options(&self, quick: bool, given: &[(String, String)]) -> Result<Options, String> {
        let mut options = Options::defaults(self.options);
        let quick = self.quick.iter().filter(|_| quick);
        for (name, value) in quick.chain(given) {
            options.set(name, value)?;
        }
        Ok(options)
    }

    /// Whether it has this option.
    pub fn takes_option(&self, option: &str) -> bool {
        self.options.iter().any(|head| head.name == option)
    }
}
