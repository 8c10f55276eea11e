//! Kills for lack of memory in the kernel's log (mm/oom_kill.c, mm/memcontrol.c), and what ran out.
//!
//! ```text
//! memory: usage 65536kB, limit 65536kB, failcnt 42
//! oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,…
//! Memory cgroup out of memory: Killed process 4711 (java) total-vm:…       5.1 and later
//! Task in /a killed as a result of limit of /a                             before 5.0
//! Memory cgroup out of memory: Kill process 4711 (java) score 9 or sacrifice child
//! Killed process 4712 (worker) total-vm:…
//! Out of memory: Killed process 4711 (java) total-vm:…                     the machine
//! ```
//! A kill line counts one kill, whoever it names: what stands before it is printed at a limited rate, and the
//! line itself always.

use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::snapshot::{OomKill, OomScope};

use super::{Message, NAME_MAX, bounded, find};
use crate::text::number;

/// Longest path of a control group kept; that of a file is at most 4095 bytes.
const GROUP_MAX: usize = 400;

/// How a kill line begins, and what ran out.
const HEADS: [(&str, OomScope); 4] = [
    ("Memory cgroup out of memory", OomScope::ControlGroup),
    ("memory cgroup out of memory", OomScope::ControlGroup),
    ("Out of memory", OomScope::Machine),
    ("out of memory", OomScope::Machine),
];

/// How the victim stands in a kill line.
const VERBS: [&str; 3] = ["Killed process ", "Kill process ", "kill process "];
/// What follows the name of the victim; a name may hold brackets.
const NAME_ENDS: [&str; 4] = [") total-vm", ") score", "), UID", ") vsz"];

/// Whether a message is a kill, or says what ran out before one: all that [`Oom`] reads.
pub fn is_told(text: &[u8]) -> bool {
    let is_kill = || VERBS.iter().any(|verb| find(text, verb.as_bytes()).is_some());
    let has_head = || HEADS.iter().any(|(head, _)| text.starts_with(head.as_bytes()));
    [&b"memory: usage "[..], b"Task in ", b"oom-kill:", b"Killed process "]
        .iter()
        .any(|w| text.starts_with(w))
        || has_head() && is_kill()
}

/// Where the name of the victim stands in a kill line, without its brackets.
pub fn victim_name(text: &[u8]) -> Option<Range<usize>> {
    let (at, verb) = VERBS.iter().find_map(|verb| Some((find(text, verb.as_bytes())?, verb)))?;
    let begin = at + verb.len();
    let end = name_end(text.get(begin..)?).map(|end| begin + end)?;
    let open = begin + text.get(begin..end)?.iter().position(|&b| b == b'(')?;
    Some(open + 1..end)
}

/// Where a name that begins in `text` ends.
fn name_end(text: &[u8]) -> Option<usize> {
    let ends = NAME_ENDS.iter().filter_map(|end| find(text, end.as_bytes()));
    ends.min().or_else(|| text.iter().rposition(|&b| b == b')'))
}

/// What was said before the next kill.
#[derive(Debug, Default)]
pub struct Oom {
    group: Option<String>,
    limit: Option<Bytes>,
    /// Whether the next bare `Killed process` line names the victim of the last kill.
    is_victim_due: bool,
}

impl Oom {
    /// Takes the next message; a kill is added to `kills`.
    pub fn take(&mut self, message: &Message<'_>, kills: &mut Vec<OomKill>) {
        let text = message.text;
        if find(text, b" invoked oom-killer").is_some() {
            *self = Oom::default();
        } else if let Some(path) = limited_group(text) {
            self.group = Some(bounded(path, GROUP_MAX));
        } else if let Some(limit) = limit_of(text) {
            self.limit = Some(limit);
        } else if let Some(kill) = self.kill(message) {
            kills.push(kill);
        } else if text.starts_with(b"Killed process ")
            && std::mem::take(&mut self.is_victim_due)
            && let Some((pid, process)) = victim(text, &["Killed process "])
            && let Some(kill) = kills.last_mut()
        {
            (kill.pid, kill.process) = (pid, process);
        }
    }

    fn kill(&mut self, message: &Message<'_>) -> Option<OomKill> {
        let (head, scope) = HEADS.iter().find(|(head, _)| message.text.starts_with(head.as_bytes()))?;
        let rest = message.text.get(head.len()..)?;
        let rest = rest.get(rest.iter().take(64).position(|&b| b == b':')? + 1..)?.trim_ascii_start();
        let (pid, process) = victim(rest, &VERBS)?;
        // Before 5.1 the victim, which may be a child, is named by a line of its own.
        self.is_victim_due = !rest.starts_with(b"Killed");
        let is_group = *scope == OomScope::ControlGroup;
        let (group, limit) = (self.group.take(), self.limit.take());
        let (group, limit) = (group.filter(|_| is_group), limit.filter(|_| is_group));
        Some(OomKill { at_us: message.at_us, scope: *scope, pid, process, group, limit })
    }
}

/// `Killed process 4711 (java)`, with the pid and the name.
fn victim(text: &[u8], verbs: &[&str]) -> Option<(Option<u64>, String)> {
    let rest = verbs.iter().find_map(|verb| text.strip_prefix(verb.as_bytes()))?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let name = rest.get(digits..)?;
    let name = name.get(..name_end(name).unwrap_or(name.len())).unwrap_or_default();
    // RHEL 6 has `, UID 0, ` between the two.
    let name = name.iter().position(|&b| b == b'(').and_then(|open| name.get(open + 1..)).unwrap_or(name);
    Some((number(&rest[..digits]), bounded(name.trim_ascii_start(), NAME_MAX)))
}

/// The group whose limit was reached: `oom_memcg=` of 5.0 and later, words before it.
fn limited_group(text: &[u8]) -> Option<&[u8]> {
    if text.starts_with(b"oom-kill:") {
        let from = find(text, b",oom_memcg=")? + b",oom_memcg=".len();
        let rest = text.get(from..)?;
        return rest.get(..find(rest, b",task_memcg=").unwrap_or(rest.len()));
    }
    let words = b" killed as a result of limit of ";
    let at = text.starts_with(b"Task in ").then(|| find(text, words)).flatten()?;
    text.get(at + words.len()..).map(|path| path.trim_ascii_end())
}

/// `memory: usage 65536kB, limit 65536kB, failcnt 42`; a limit that no machine reaches is none.
fn limit_of(text: &[u8]) -> Option<Bytes> {
    const NO_LIMIT_KIB: u64 = 1 << 52;
    let rest = text.strip_prefix(b"memory: usage ")?;
    let from = find(rest, b"limit ")? + b"limit ".len();
    let digits = rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let kib = number(&rest[from..from + digits]).filter(|&kib| kib < NO_LIMIT_KIB)?;
    Some(Bytes(kib.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// Scope, pid, process, group, limit in KiB.
    type Expected<'a> = (OomScope, Option<u64>, &'a str, Option<&'a str>, Option<u64>);

    fn check(log: &str, expected: &[Expected<'_>]) {
        let found = parse(log.as_bytes()).unwrap();
        assert_eq!(found.reports, [], "{log}");
        let kills: Vec<_> = found
            .kills
            .iter()
            .map(|kill| {
                let limit_kib = kill.limit.map(|limit| limit.0 / 1024);
                (kill.scope, kill.pid, kill.process.as_str(), kill.group.as_deref(), limit_kib)
            })
            .collect();
        assert_eq!(kills, expected, "{log}");
    }

    #[test]
    fn kills_of_a_control_group_and_of_the_machine_are_told_apart() {
        use OomScope::{ControlGroup, Machine};
        check(
            "4,1,10,-;java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n\
             6,2,11,-;memory: usage 65536kB, limit 65536kB, failcnt 42\n\
             6,3,11,-;swap: usage 0kB, limit 9007199254740988kB, failcnt 0\n\
             6,4,12,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg=/a b/c,task_memcg=/a b/c/d,task=java,pid=4711,uid=0\n\
             3,5,13,-;Memory cgroup out of memory: Killed process 4711 (ja) va) total-vm:75kB, anon-rss:1kB\n\
             3,6,14,-;Memory cgroup out of memory: Killed process 4713 (second) total-vm:75kB\n\
             3,7,15,-;Out of memory: Killed process 9 (x) total-vm:1kB, anon-rss:1kB\n",
            &[
                (ControlGroup, Some(4711), "ja) va", Some("/a b/c"), Some(65536)),
                (ControlGroup, Some(4713), "second", None, None),
                (Machine, Some(9), "x", None, None),
            ],
        );
        // Before 5.1: who is chosen, and who of its children is killed in its place.
        check(
            "[    2.500000] insmod invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0\n\
             [    2.500001] Task in /a/b killed as a result of limit of /a\n\
             [    2.500002] memory: usage 2048kB, limit 2048kB, failcnt 7\n\
             [    2.500003] Memory cgroup out of memory: Kill process 10 (one) score 966 or sacrifice child\n\
             [    2.500004] Killed process 11 (two) total-vm:100kB, anon-rss:1kB, file-rss:1kB\n\
             [    3.500003] Out of memory: Kill process 12 (three) score 9 or sacrifice child\n\
             [    3.500004] Killed process 12 (three) total-vm:100kB\n\
             [    4.000000] Killed process 13 (nobody's) total-vm:100kB\n",
            &[
                (ControlGroup, Some(11), "two", Some("/a"), Some(2048)),
                (Machine, Some(12), "three", None, None),
            ],
        );
        check(
            "Out of memory: kill process 46 (old) score 9 or a child\n\
             Killed process 47, UID 0, (older) total-vm:7kB, anon-rss:1kB\n",
            &[(Machine, Some(47), "older", None, None)],
        );
        check(
            "Out of memory (oom_kill_allocating_task): Killed process 7 (a) vsz\n",
            &[(Machine, Some(7), "a", None, None)],
        );
    }

    #[test]
    fn a_kill_whose_victim_is_named_like_a_report_is_a_kill_alone() {
        check(
            "Memory cgroup out of memory: Killed process 4 (a: page allocation failure: order:7) total-vm:1kB\n",
            &[(OomScope::ControlGroup, Some(4), "a: page allocation failure: order:7", None, None)],
        );
    }

    #[test]
    fn prose_kills_nobody_and_hostile_lengths_are_bounded() {
        check("Out of memory and no killable processes...\nOut of memory\noom-kill:x\nTask in \n", &[]);
        check("Memory cgroup out of memory: Killed process\nmemory: usage 1kB, limit kB\n", &[]);
        let long = format!("Out of memory: Killed process 99999999999999999999 ({})\n", "a".repeat(1800));
        let kill = parse(long.as_bytes()).unwrap().kills.remove(0);
        assert_eq!((kill.pid, kill.process.chars().count()), (None, NAME_MAX + 1));
    }
}
