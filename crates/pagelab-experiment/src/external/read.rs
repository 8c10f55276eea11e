//! Reading a manifest: TOML with file, line and key in every complaint, by the machinery that reads recipes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;

use pagelab_formats::checksum::crc32;
use pagelab_workloads::options::{self, Kind, OptionHead, Options};

use super::manifest::{Manifest, Program, UserFolder};
use super::{embedded, words};
use crate::recipe::document::{self, Table};
use crate::recipe::fields::{Fields, Problems};
use crate::recipe::workload::{environment, figures, good_codes, read_metric};
use crate::recipe::{Bad, Metric};

/// Manifests and their files are some pages of text.
const BYTES_MAX: u64 = 1 << 20;
/// Files of a manifest at most.
const FILES_MAX: usize = 100;

/// A file with its text.
pub type ManifestFile = (String, Cow<'static, str>);

/// A manifest that cannot be had.
#[derive(Debug)]
pub enum Unread {
    /// No manifest of this name comes with pagelab.
    Unknown(String),
    /// Its file, or one that belongs to it, cannot be read.
    Io(String, io::Error),
    /// It is wrong.
    Bad(Bad),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Unknown(name) => {
                let names: Vec<&str> = embedded::all().iter().map(|of| of.name.as_str()).collect();
                write!(f, "{name:?} is no external workload; there are {}, ", names.join(", "))?;
                write!(f, "or a path with a slash or .toml names a manifest of yours")
            }
            Unread::Io(path, error) => write!(f, "cannot read the manifest {path}: {error}"),
            Unread::Bad(bad) => bad.fmt(f),
        }
    }
}

impl std::error::Error for Unread {}

/// Whether this is how one names a file, and not a manifest that comes with pagelab.
pub fn is_path(asked: &str) -> bool {
    asked.contains('/') || asked.ends_with(".toml")
}

/// The manifest of this name, or in this file.
pub fn named(asked: &str) -> Result<&'static Manifest, Unread> {
    if !is_path(asked) {
        return embedded::find(asked).ok_or_else(|| Unread::Unknown(asked.to_owned()));
    }
    let path = Path::new(asked);
    let text = read_text(path).map_err(|error| Unread::Io(asked.to_owned(), error))?;
    let folder = path.with_extension("");
    let files = read_files(&folder).map_err(|error| Unread::Io(folder.display().to_string(), error))?;
    let manifest = parse(asked, asked, &text, files).map_err(Unread::Bad)?;
    Ok(Box::leak(Box::new(manifest)))
}

fn read_text(path: &Path) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        let text = format!("a text file of at most {BYTES_MAX} bytes was wanted");
        return Err(io::Error::other(text));
    }
    std::fs::read_to_string(path)
}

/// The files in the folder beside a manifest, which need not be there.
fn read_files(folder: &Path) -> io::Result<Vec<ManifestFile>> {
    let mut files = Vec::new();
    if !folder.is_dir() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if files.len() >= FILES_MAX {
            return Err(io::Error::other(format!("more than {FILES_MAX} files are in it")));
        }
        let text = read_text(&entry.path());
        let text = text.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        files.push((name, Cow::Owned(text)));
    }
    files.sort();
    Ok(files)
}

/// Reads a text that came from `origin` and is asked for as `asked`, and checks all of it.
pub fn parse(origin: &str, asked: &str, text: &str, files: Vec<ManifestFile>) -> Result<Manifest, Bad> {
    let bad = |mut problems: Vec<_>| {
        problems.sort_by_key(|problem: &crate::recipe::Problem| problem.line);
        Bad { origin: origin.to_owned(), problems }
    };
    let document = document::parse(text, "a manifest is TOML, see docs/external.md");
    let document = document.map_err(|problem| bad(vec![problem]))?;
    let mut problems = Problems::default();
    let mut manifest = read(&document, asked, &mut problems);
    manifest.files = files;
    // The same manifest has the same fingerprint, wherever its files came from.
    manifest.files.sort();
    if problems.0.is_empty() {
        check(&manifest, &mut problems);
    }
    if !problems.0.is_empty() {
        return Err(bad(problems.0));
    }
    let mut all = text.as_bytes().to_vec();
    for (name, text) in &manifest.files {
        all.extend([name.as_bytes(), b"\0", text.as_bytes(), b"\0"].concat());
    }
    manifest.fingerprint = format!("{:08x}", crc32(&all));
    Ok(manifest)
}

fn read(table: &Table, asked: &str, problems: &mut Problems) -> Manifest {
    let mut fields = Fields::new(table, "", 1);
    let (metric_name, metric) = metric(&mut fields, problems);
    let options = option_heads(&mut fields, problems);
    let quick = chosen(&mut fields, options, problems);
    let mut texts = |key| fields.texts(problems, key).unwrap_or_default();
    let [packages, data_packages, program_folders, library_folders, data_options] =
        ["packages", "data_packages", "program_folders", "library_folders", "data_options"].map(&mut texts);
    let (command, prepare) = (fields.texts(problems, "command"), fields.texts(problems, "prepare"));
    if command.as_ref().is_none_or(|words| words.first().is_none_or(String::is_empty)) {
        problems.say(1, "command is missing: command = [\"PROGRAM\", …]");
    }
    let mut text = |key| fields.text(problems, key).map_or("", |(text, _)| text).trim().to_owned();
    let [explanation, input, working_set] = ["explanation", "input", "working_set"].map(&mut text);
    let name = fields.name(problems, "name");
    check_name(&name, &mut fields, problems);
    let manifest = Manifest {
        asked: asked.to_owned(),
        name,
        about: fields.name(problems, "about"),
        explanation,
        input,
        working_set,
        space: fields.size(problems, "space"),
        takes: fields.duration(problems, "takes"),
        quick_takes: fields.duration(problems, "quick_takes"),
        packages,
        data_packages,
        programs: programs(&mut fields, problems),
        program_folders,
        library_folders,
        user_folder: fields.table(problems, "user_folder").map(|of| user_folder(of, problems)),
        options,
        quick,
        data_options,
        prepare: prepare.filter(|words| !words.is_empty()),
        command: command.unwrap_or_default(),
        metric_name,
        metric,
        figures: figures(&mut fields, problems),
        checksum: fields.text(problems, "checksum").map(|(text, _)| text.to_owned()),
        exit_codes: good_codes(&mut fields, problems),
        environment: environment(&mut fields, problems),
        files: Vec::new(),
        fingerprint: String::new(),
    };
    fields.finish(problems);
    manifest
}

/// The name becomes a folder's.
fn check_name(name: &str, fields: &mut Fields<'_>, problems: &mut Problems) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let line = fields.item("name").map_or(1, |item| item.line);
    if !name.is_empty() && !name.chars().all(is_plain) {
        problems.say(line, format!("name: {name:?} becomes a folder's name: letters, digits, - _ do"));
    }
    if ["setup", "all"].contains(&name) || pagelab_workloads::table::find(name).is_some() {
        problems.say(line, format!("name: {name:?} is taken: give another name"));
    }
}

fn metric(fields: &mut Fields<'_>, problems: &mut Problems) -> (String, Metric) {
    let none = || {
        let better = pagelab_model::experiment::Better::Lower;
        Metric { before: String::new(), behind: String::new(), unit: String::new(), better }
    };
    let name = fields.name(problems, "metric_name");
    let Some(metric) = fields.table(problems, "metric") else {
        problems.say(1, "metric is missing: metric = { pattern = \"done in {} s\", unit = \"s\" }");
        return (name, none());
    };
    (name, read_metric(metric, problems).unwrap_or_else(none))
}

fn programs(fields: &mut Fields<'_>, problems: &mut Problems) -> Vec<Program> {
    let program = |(table, line): (&Table, usize)| {
        let mut of = Fields::new(table, "program", line);
        let program = Program {
            name: of.name(problems, "name"),
            least: of.text(problems, "least").map(|(text, _)| text.to_owned()),
        };
        of.finish(problems);
        program
    };
    let tables = fields.tables(&mut Problems::default(), "program");
    tables.into_iter().map(program).collect()
}

fn user_folder(mut of: Fields<'_>, problems: &mut Problems) -> UserFolder {
    let folder = UserFolder {
        variable: of.name(problems, "variable"),
        has: of.name(problems, "has"),
        what: of.name(problems, "what"),
    };
    of.finish(problems);
    folder
}

/// `[[option]]`: tables like those of the built-in workloads, which are constants; hence the leak.
fn option_heads(fields: &mut Fields<'_>, problems: &mut Problems) -> &'static [OptionHead] {
    let mut heads: Vec<OptionHead> = Vec::new();
    for (table, line) in fields.tables(problems, "option") {
        let mut of = Fields::new(table, "option", line);
        let name = of.name(problems, "name");
        of.what = format!("option {name:?}");
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_taken = words::FOLDERS.contains(&name.as_str()) || ["quick", "json", "help"].contains(&&*name);
        if !name.chars().all(is_plain) || is_taken || heads.iter().any(|head| head.name == name) {
            let text = format!("{}: the name is taken, stands twice, or has more than a-z, 0-9, _", of.what);
            problems.say(line, text);
        }
        let kind = option_kind(&mut of, problems);
        let default = of.text(problems, "default").map(|(text, _)| text.to_owned()).unwrap_or_default();
        let help = of.name(problems, "help");
        of.finish(problems);
        let (name, default, help) = (name.leak(), default.leak(), help.leak());
        let head = OptionHead { name, kind, default, help };
        if let Err(why) = options::parse(&head, head.default) {
            problems.say(line, format!("option {:?}: default: {why}", head.name));
            continue;
        }
        heads.push(head);
    }
    heads.leak()
}

fn option_kind(of: &mut Fields<'_>, problems: &mut Problems) -> Kind {
    let kind = of.word(problems, "kind", &["size", "number", "word", "switch"]);
    let least = of.number(problems, "least", (0, i64::MAX as u64)).unwrap_or(0);
    let most = of.number(problems, "most", (0, i64::MAX as u64)).unwrap_or(u64::MAX);
    let words = of.texts(problems, "words").unwrap_or_default();
    match kind {
        Some("size") => Kind::Size,
        Some("word") => {
            let words: Vec<&'static str> = words.into_iter().map(|word| &*word.leak()).collect();
            Kind::Word(words.leak())
        }
        Some("switch") => Kind::Switch,
        _ => Kind::Number(least, most),
    }
}

fn chosen(
    fields: &mut Fields<'_>,
    heads: &'static [OptionHead],
    problems: &mut Problems,
) -> Vec<(String, String)> {
    let mut options = Options::defaults(heads);
    let mut good = Vec::new();
    for (name, value, line) in fields.pairs(problems, "quick") {
        match options.set(&name, &value) {
            Ok(()) => good.push((name, value)),
            Err(why) => problems.say(line, format!("quick: {why}")),
        }
    }
    good
}

/// What each part allows and the whole does not: names in braces that there are not.
fn check(manifest: &Manifest, problems: &mut Problems) {
    let known: BTreeSet<&str> =
        words::FOLDERS.into_iter().chain(manifest.options.iter().map(|head| head.name)).collect();
    let environment = manifest.environment.iter().map(|(_, value)| value);
    let prepare = manifest.prepare.iter().flatten();
    let parts = [("command", manifest.command.iter().collect::<Vec<_>>())];
    let parts = parts.into_iter().chain([
        ("prepare", prepare.collect()),
        ("environment", environment.collect()),
        ("input", vec![&manifest.input]),
    ]);
    for (key, texts) in parts {
        for text in texts {
            let names = words::names(text).unwrap_or_else(|why| {
                problems.say(1, format!("{key}: {why}"));
                Vec::new()
            });
            for name in names.into_iter().filter(|name| !known.contains(name)) {
                let there = known.iter().copied().collect::<Vec<_>>().join(", ");
                problems.say(1, format!("{key}: {{{name}}} is nothing that there is; there are {there}"));
            }
        }
    }
    for name in manifest.data_options.iter().filter(|name| !manifest.takes_option(name)) {
        problems.say(1, format!("data_options: {name:?} is no option of this manifest"));
    }
    if manifest.programs.is_empty() {
        problems.say(1, "no program is given: at least one [[program]] with its name was wanted");
    }
}
