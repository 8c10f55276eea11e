//! The placement policies, one file each, and the table of them.
//!
//! Zones are no policy: what the paper calls zone-based is a [`crate::layout::Layout`], under any of these.

pub mod contiguitas;
pub mod lists;
pub mod mobility;
pub mod standard;

use crate::policy::Policy;

/// A policy that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is called on the command line and in files.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from: kernel file and release, or the paper.
    pub source: &'static str,
    /// The policy.
    pub policy: &'static (dyn Policy + Sync),
}

/// All of them, the oldest idea first.
pub const TABLE: &[Entry] = &[
    Entry {
        name: "standard",
        summary: "one list at each order",
        source: "mm/page_alloc.c of Linux up to 2.6.23",
        policy: &standard::Standard,
    },
    Entry {
        name: "list2",
        summary: "a list for user pages and one for the kernel's; the largest block is taken",
        source: "Gorman and Whitcroft, OLS 2006, section 5, with two types",
        policy: &lists::Lists::Two,
    },
    Entry {
        name: "list3",
        summary: "the same with a list of its own for kernel caches",
        source: "Gorman and Whitcroft, OLS 2006, section 5",
        policy: &lists::Lists::Three,
    },
    Entry {
        name: "mobility-6.1",
        summary: "pageblocks; free blocks move to the list that is short",
        source: "mm/page_alloc.c of Linux 6.1 to 6.9",
        policy: &mobility::Mobility,
    },
    Entry {
        name: "mobility-6.10",
        summary: "pageblocks; a whole one is claimed, or a piece of the largest block cut",
        source: "mm/page_alloc.c of Linux 6.10 to 6.14, as first released",
        policy: &mobility::Strict::Cuts,
    },
    Entry {
        name: "mobility-6.18",
        summary: "pageblocks; one that can be claimed is looked for, then the smallest is cut",
        source: "mm/page_alloc.c of Linux 6.15 to 6.18",
        policy: &mobility::Strict::Claims,
    },
    Entry {
        name: "defrag-6.18",
        summary: "the same; kinds are mixed only after reclaim and compaction were tried",
        source: "vm.defrag_mode of Linux 6.15 to 6.18",
        policy: &mobility::Strict::Defrag,
    },
    Entry {
        name: "contiguitas",
        summary: "what cannot be moved stays below a border that moves by pageblocks",
        source: "Zhao et al., Contiguitas, ISCA 2023",
        policy: &contiguitas::Contiguitas,
    },
];

/// Short names that people type, and the policies that they stand for.
pub const SHORT: [(&str, &str); 2] = [("list", "list2"), ("mobility", "mobility-6.18")];

/// The one of a name, or of a short one.
pub fn find(name: &str) -> Option<&'static Entry> {
    let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    TABLE.iter().find(|entry| entry.name == long)
}

/// The policy of a kernel, by its release (`uname -r`); one that cannot be read counts as new.
pub fn of_release(release: &str) -> &'static str {
    match numbers(release) {
        release if release <= (2, 6, 23) => "standard",
        release if release < (6, 10, 0) => "mobility-6.1",
        release if release < (6, 15, 0) => "mobility-6.10",
        _ => "mobility-6.18",
    }
}

/// The numbers of a release; those that it does not have are large.
pub(crate) fn numbers(release: &str) -> (u32, u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let mut next = || numbers.next().unwrap_or(u32::MAX);
    (next(), next(), next())
}

/// The guide's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/policies.md")]
pub struct Guide;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Kind;

    #[test]
    fn the_table_can_be_chosen_from() {
        for entry in TABLE {
            let found = find(entry.name).unwrap();
            assert_eq!(found.summary, entry.summary, "two of one name");
            assert!(entry.summary.len() <= 80 && !entry.source.is_empty(), "{}", entry.name);
        }
        assert!(find("").is_none() && find("Standard").is_none());
    }

    #[test]
    fn a_kernel_has_the_policy_of_its_release() {
        for (release, policy) in [
            ("2.6.16-rc6", "standard"),
            ("2.6.23", "standard"),
            ("2.6.24", "mobility-6.1"),
            ("3.10.0-1160.el7.x86_64", "mobility-6.1"),
            ("6.1.0-56-cloud-amd64", "mobility-6.1"),
            ("6.9.12", "mobility-6.1"),
            ("6.12.117+deb12-cloud-amd64", "mobility-6.10"),
            ("6.15-rc1", "mobility-6.18"),
            ("6.18.44", "mobility-6.18"),
            ("7.0", "mobility-6.18"),
            ("", "mobility-6.18"),
        ] {
            assert_eq!(of_release(release), policy, "{release}");
            assert!(find(policy).is_some());
        }
    }

    #[test]
    fn lists_are_numbered_from_zero_and_a_strict_home_is_the_pageblocks() {
        for entry in TABLE {
            let policy = entry.policy;
            let lists = policy.lists();
            assert!((1..=8).contains(&lists), "{}", entry.name);
            for kind in Kind::ALL {
                assert!(policy.wanted(kind) < lists, "{}", entry.name);
                for block in 0..lists {
                    let home = policy.home(kind, block);
                    assert!(home < lists && (home == block || !policy.short().is_strict()), "{}", entry.name);
                    assert!(policy.others(block).iter().all(|&other| other < lists && other != block));
                }
            }
            assert!((0..64).all(|block| policy.owner_at_start(block, 64) < lists));
        }
    }
}
