//! Conditions of the machine for skipped checks and unmeasured bars: terms such as `not root` or `readable
//! /proc/kpageflags`, joined by `or`.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::tree;

/// One term without its negation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    IsRoot,
    HasCorpus,
    Tool(String),
    Exists(String),
    /// A file can be opened and its first bytes read.
    Readable(String),
    /// A file can be read and has this word in it.
    Contains(String, String),
    /// A file can be opened for writing.
    Writable(String),
    /// An environment variable is set and not empty.
    Env(String),
    /// At least this number of CPUs is usable.
    Cpus(usize),
    /// We may make a mount namespace of our own and mount in it.
    MountNamespace,
    /// The processor is of this family and model.
    Processor(u32, u32),
    /// No route leads out of this machine.
    Offline,
}

/// One alternative of a condition: a fact, or that it does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    fact: Fact,
    is_negated: bool,
}

/// A condition holds when one of its terms does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Vec<Term>);

impl Condition {
    /// Reads `not root or not readable PATH`.
    pub fn parse(text: &str) -> Result<Condition, String> {
        text.split(" or ").map(|term| parse_term(term.trim())).collect::<Result<_, _>>().map(Condition)
    }

    /// Whether it holds, asking `is_true` for each fact.
    pub fn holds(&self, is_true: &dyn Fn(&Fact) -> bool) -> bool {
        self.0.iter().any(|term| is_true(&term.fact) != term.is_negated)
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
        ("root", "") => Fact::IsRoot,
        ("corpus", "") => Fact::HasCorpus,
        ("mount-namespace", "") => Fact::MountNamespace,
        ("offline", "") => Fact::Offline,
        ("tool", name) if !name.is_empty() => Fact::Tool(name.to_owned()),
        ("exists", path) if path.starts_with('/') => Fact::Exists(path.to_owned()),
        ("readable", path) if path.starts_with('/') => Fact::Readable(path.to_owned()),
        ("writable", path) if path.starts_with('/') => Fact::Writable(path.to_owned()),
        ("contains", rest) if rest.starts_with('/') => {
            let (path, word) = rest.split_once(' ').ok_or("`contains` expects a path and a word")?;
            Fact::Contains(path.to_owned(), word.to_owned())
        }
        ("env", name) if !name.is_empty() => Fact::Env(name.to_owned()),
        ("processor", name) => {
            let read = |text: &str| text.parse().map_err(|_| format!("`{name}`: expected FAMILY/MODEL"));
            let (family, model) = name.split_once('/').unwrap_or((name, ""));
            Fact::Processor(read(family)?, read(model)?)
        }
        ("cpus", count) => {
            Fact::Cpus(count.parse().map_err(|_| format!("`{count}`: expected a number of CPUs"))?)
        }
        _ => return Err(format!("unknown condition `{text}`")),
    };
    Ok(Term { fact, is_negated: negated })
}

/// Whether a fact holds on this machine.
pub fn holds_here(fact: &Fact) -> bool {
    match fact {
        Fact::IsRoot => is_root(),
        Fact::HasCorpus => tree::corpus_folder().is_some(),
        Fact::Tool(name) => tree::is_on_path(name),
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
        Fact::Processor(family, model) => fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|text| parse_processor(&text) == Some((*family, *model))),
        Fact::Offline => is_offline(),
    }
}

/// Whether neither IPv4 nor IPv6 has a default route but the one that rejects.
fn is_offline() -> bool {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let routes6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    !has_default_route(&routes, &routes6)
}

/// Whether a destination of length 0 leads to a device other than the loopback.
fn has_default_route(routes: &str, routes6: &str) -> bool {
    let has_ipv4 = routes.lines().skip(1).any(|line| {
        let route: Vec<&str> = line.split_whitespace().collect();
        route.len() > 7 && route[0] != "lo" && route[1] == "00000000" && route[7] == "00000000"
    });
    let has_ipv6 = routes6.lines().any(|line| {
        let route: Vec<&str> = line.split_whitespace().collect();
        route.len() == 10 && route[9] != "lo" && route[1] == "00" && route[0].bytes().all(|byte| byte == b'0')
    });
    has_ipv4 || has_ipv6
}

/// The processor: `AMD EPYC 25/17`.
pub fn describe_processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo_field(&cpuinfo, "model name").unwrap_or("processor");
    match parse_processor(&cpuinfo) {
        Some((family, model)) => format!("{name} {family}/{model}"),
        None => name.to_owned(),
    }
}

/// Family and model of the first processor of `/proc/cpuinfo`.
fn parse_processor(cpuinfo: &str) -> Option<(u32, u32)> {
    let number = |name: &str| cpuinfo_field(cpuinfo, name)?.parse().ok();
    Some((number("cpu family")?, number("model")?))
}

/// A field of the first processor of `/proc/cpuinfo`.
fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
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
        let ask = |fact: &Fact| matches!(fact, Fact::IsRoot | Fact::Exists(_));
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
    fn a_machine_without_a_default_route_is_offline() {
        const HEAD: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
        const LOCAL6: &str = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";
        let has_route = |lines: &str, lines6: &str| has_default_route(&format!("{HEAD}{lines}"), lines6);
        assert!(!has_route("", ""));
        assert!(!has_route("eth0 0002000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n", LOCAL6));
        assert!(has_route("eth0 00000000 0102000A 0003 0 0 0 00000000 0 0 0\n", LOCAL6));
        assert!(has_route("", &LOCAL6.replace("lo", "eth0")));
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
