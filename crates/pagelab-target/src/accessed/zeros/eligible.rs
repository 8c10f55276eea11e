//! Which mappings may have entries of the page of zeros dropped: private anonymous memory that nobody
//! watches.

use pagelab_model::process::Mapping;

/// Flags (`VmFlags` of smaps) of mappings whose entries stay, and what they mean.
const KEPT: [(&str, &str); 10] = [
    ("lo", "locked in memory (mlock)"),
    ("um", "watched by a userfaultfd"),
    ("uw", "watched by a userfaultfd"),
    ("ui", "watched by a userfaultfd"),
    ("ht", "of the hugetlb pool"),
    ("io", "a device's"),
    ("pf", "a device's"),
    ("mm", "a device's"),
    ("gd", "a stack that grows"),
    ("ss", "a shadow stack"),
];

/// Whether this is memory that a program had from the kernel for itself, and not a file's.
pub fn is_anonymous(mapping: &Mapping) -> bool {
    is_own(&mapping.name) && mapping.inode == 0 && mapping.permissions.ends_with('p')
}

/// The same by the name alone.
pub fn is_own(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name.starts_with("[anon:")
}

/// Why entries of a mapping stay. `None`: they may be dropped.
pub fn kept(mapping: &Mapping) -> Option<&'static str> {
    if mapping.vm_flags.is_empty() {
        return Some("of which the kernel tells no flags");
    }
    let has = |flag: &str| mapping.vm_flags.iter().any(|of| of == flag);
    KEPT.iter().find(|(flag, _)| has(flag)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::smaps;

    #[test]
    fn each_flag_that_forbids_it_is_met_and_nothing_but_own_memory_is_anonymous() {
        let one = |head: &str, flags: &str| {
            let text = format!("1000-2000 {head}\nRss: 0 kB\nVmFlags: {flags}\n");
            smaps::parse(text.as_bytes()).unwrap().remove(0)
        };
        let own = "rw-p 00000000 00:00 0 ";
        assert_eq!(kept(&one(own, "rd wr mr mw me ac sd nh")), None);
        for (flag, why) in KEPT {
            assert_eq!(kept(&one(own, &format!("rd wr {flag} ac"))), Some(why), "{flag}");
        }
        assert!(kept(&one(own, "")).is_some());
        for head in [own, "rw-p 00000000 00:00 0 [heap]", "rw-p 00000000 00:00 0 [anon:arena]"] {
            assert!(is_anonymous(&one(head, "rd")), "{head}");
        }
        for head in [
            "rw-s 00000000 00:01 77 /dev/zero (deleted)",
            "rw-p 00000000 00:05 5 /dev/zero",
            "rw-p 00000000 08:01 99 /lib/libc.so.6",
            "rw-p 00000000 00:00 0 [stack]",
        ] {
            assert!(!is_anonymous(&one(head, "rd")), "{head}");
        }
    }
}
