//! Facts of the machine that a skipped check or an unmeasured bar may rest on, and a small language for them:
//! terms such as `not root` or `readable /proc/kpageflags`, joined by `or`.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::tree;

/// One term without its negation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// We run as root.
    Root,
    /// The corpus is there.
    Corpus,
    /// A program can be run.
    Tool(String),
    /// A path exists.
    Exists(String),
    /// A file can be opened and its first bytes read.
    Readable(String),
    /// A file can be read and has this word in it.
    Contains(String, String),
    /// A file can be opened for writing.
    Writable(String),
    /// An environment variable is set and not empty.
    Env(String),
    /// At least so many CPUs are usable.
    Cpus(usize),
    /// We may make a mount namespace of our own and mount in it.
    MountNamespace,
    /// The processor says that a hypervisor runs it.
    Vm,
    /// The processor is of this family and model.
    Processor(u32, u32),
}

/// One alternative of a condition: a fact, or that it does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    fact: Fact,
    negated: bool,
}

/// A condition holds when one of its terms does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Vec<Term>);

impl Condition {
    /// Reads `not root or not readable PATH`.
    pub fn parse(text: &str) -> Result<Condition, String> {
        text.split(" or ").map(|term| parse_term(term.trim())).collect::<Result<_, _>>().map(Condition)
    }

    /// Whether it holds, asking `ask` for each fact.
    pub fn holds(&self, ask: &dyn Fn(&Fact) -> bool) -> bool {
        self.0.iter().any(|term| ask(&term.fact) != term.negated)
    }
}

fn parse_term(text: &str) -> Result<Term, String> {
    let (negated, text) = match text.strip_prefix("not ") {
        Some(rest) => (true, rest.trim()),
        None => (false, text),
    };
    let (word, argument) = text.split_once(' ').unwrap_or((text, ""));
    let argument = argument.trim();
    let fact = match (word, argument) {
        ("root", "") => Fact::Root,
        ("corpus", "") => Fact::Corpus,
        ("vm", "") => Fact::Vm,
        ("mount-namespace", "") => Fact::MountNamespace,
        ("tool", name) if !name.is_empty() => Fact::Tool(name.to_owned()),
        ("exists", path) if path.starts_with('/') => Fact::Exists(path.to_owned()),
        ("readable", path) if path.starts_with('/') => Fact::Readable(path.to_owned()),
        ("writable", path) if path.starts_with('/') => Fact::Writable(path.to_owned()),
        ("contains", rest) if rest.starts_with('/') => {
            let (path, word) = rest.split_once(' ').ok_or("`contains` wants a path and a word")?;
            Fact::Contains(path.to_owned(), word.to_owned())
        }
        ("env", name) if !name.is_empty() => Fact::Env(name.to_owned()),
        ("processor", name) => {
            let read = |text: &str| text.parse().map_err(|_| format!("`{name}` is no FAMILY/MODEL"));
            let (family, model) = name.split_once('/').unwrap_or((name, ""));
            Fact::Processor(read(family)?, read(model)?)
        }
        ("cpus", count) => Fact::Cpus(count.parse().map_err(|_| format!("`{count}` is no number of CPUs"))?),
        _ => return Err(format!("`{text}` is no fact that xtask can find out")),
    };
    Ok(Term { fact, negated })
}

/// Whether a fact holds on this machine.
pub fn here(fact: &Fact) -> bool {
    match fact {
        Fact::Root => is_root(),
        Fact::Corpus => tree::corpus().is_some(),
        Fact::Tool(name) => tree::on_path(name),
        Fact::Exists(path) => fs::symlink_metadata(path).is_ok(),
        Fact::Readable(path) => File::open(path).and_then(|mut file| file.read_exact(&mut [0; 8])).is_ok(),
        Fact::Contains(path, word) => fs::read_to_string(path)
            .is_ok_and(|text| text.split_ascii_whitespace().any(|other| other == word)),
        Fact::Writable(path) => OpenOptions::new().write(true).open(path).is_ok(),
        Fact::Env(name) => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
        Fact::Cpus(count) => std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= *count),
        Fact::MountNamespace => Command::new("unshare")
            .args(["-m", "sh", "-c", "mount -t tmpfs none /tmp"])
            .output()
            .is_ok_and(|output| output.status.success()),
        Fact::Processor(family, model) => {
            fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| processor(&text) == Some((*family, *model)))
        }
        Fact::Vm => fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|text| text.split_ascii_whitespace().any(|word| word == "hypervisor")),
    }
}

/// Family and model of the first processor of `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> Option<(u32, u32)> {
    let field = |name: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name)?.1.trim().parse().ok()
    };
    Some((field("cpu family")?, field("model")?))
}

/// Whether we run as root: the owner of our own process.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_when_one_term_does() {
        let ask = |fact: &Fact| matches!(fact, Fact::Root | Fact::Exists(_));
        for (text, holds) in [
            ("root", true),
            ("not root", false),
            ("not root or corpus", false),
            ("corpus or exists /a", true),
            ("not root or not corpus", true),
            ("not tool cargo-deny", true),
            ("cpus 2", false),
        ] {
            assert_eq!(Condition::parse(text).unwrap().holds(&ask), holds, "{text}");
        }
    }

    #[test]
    fn an_unknown_term_is_refused() {
        for text in [
            "",
            "moon",
            "not",
            "tool",
            "readable here",
            "cpus many",
            "root or",
            "corpus absent",
            "contains /a",
        ] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
    }
}
