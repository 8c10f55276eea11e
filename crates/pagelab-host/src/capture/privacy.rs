//! Privacy filters for texts that contain more than amounts of memory: allow lists, not deny lists.

use super::Alteration;

/// Note in a capture without `--with-processes`.
pub(super) const REDACTIONS: [&str; 3] = [
    "the host name is not stored; capture with --with-processes to store it",
    "only memory sizes of processes are stored: no names, command lines or addresses",
    "only cgroup, debugfs and hugetlbfs mounts are stored, and whether / is an overlay",
];

/// Applies `keep` to a text, and returns its original length.
pub(super) fn redact_text(
    text: Vec<u8>,
    description: &'static str,
    keep: impl Fn(&str) -> String,
) -> (Vec<u8>, Option<Alteration>) {
    let bytes = text.len() as u64;
    let kept = keep(&String::from_utf8_lossy(&text)).into_bytes();
    let changed = (kept != text).then_some(Alteration { description, original_bytes: bytes });
    (kept, changed)
}

/// The mounts that concern memory, and whether `/` is an overlay, without its directories: that indicates a
/// container.
pub(super) fn redact_mounts(text: &str) -> String {
    let mut kept = String::new();
    for line in text.split_inclusive('\n') {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        match after.split(' ').next() {
            Some("cgroup" | "cgroup2" | "debugfs" | "hugetlbfs") => kept.push_str(line),
            Some("overlay") if before.split(' ').nth(4) == Some("/") => {
                kept.push_str(before);
                kept.push_str(" - overlay overlay rw\n");
            }
            _ => {}
        }
    }
    kept
}

/// The amounts of a process's status file, and an empty name; nothing of its users, groups and signals.
pub(super) fn redact_status(text: &str) -> String {
    const KEPT_FIELDS: [&str; 7] =
        ["State", "Pid", "PPid", "Threads", "HugetlbPages", "Kthread", "THP_enabled"];
    const KEPT_PREFIXES: [&str; 3] = ["Vm", "Rss", "Mems_allowed"];
    let mut kept = String::new();
    for line in text.split_inclusive('\n') {
        let key = line.split(':').next().unwrap_or("");
        if key == "Name" {
            kept.push_str("Name:\t\n");
        } else if KEPT_FIELDS.contains(&key) || KEPT_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
            kept.push_str(line);
        }
    }
    kept
}

/// A smaps_rollup without the addresses of its first line: the range becomes all zeros to all ones of the
/// same width.
pub(super) fn redact_smaps_rollup(text: &str) -> String {
    let Some((range, rest)) = text.split_once(' ') else { return String::new() };
    let Some((start, end)) = range.split_once('-') else { return String::new() };
    format!("{}-{} {rest}", "0".repeat(start.len()), "f".repeat(end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_kept() {
        let status_text = "Name:\tsecret\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t7\t7\nVmRSS:\t  12 kB\n\
                           RssAnon:\t 3 kB\nTHP_enabled:\t1\nGroups:\t4 5\n";
        let want = "Name:\t\nState:\tS (sleeping)\nVmRSS:\t  12 kB\nRssAnon:\t 3 kB\nTHP_enabled:\t1\n";
        assert_eq!(redact_status(status_text), want);
        let rollup_text = "55d0c5a7e000-7ffd1 ---p 00000000 00:00 0    [rollup]\nRss:    884 kB\n";
        let want = "000000000000-fffff ---p 00000000 00:00 0    [rollup]\nRss:    884 kB\n";
        assert_eq!(redact_smaps_rollup(rollup_text), want);
        assert_eq!(redact_smaps_rollup("nonsense"), "");
        let overlay = "27 1 0:9 / / rw shared:1 - overlay overlay rw,lowerdir=/secret\n";
        assert_eq!(redact_mounts(overlay), "27 1 0:9 / / rw shared:1 - overlay overlay rw\n");
        let mount_text = "27 1 254:0 / / rw - ext4 /dev/secret rw\n36 25 0:31 / /c rw - cgroup2 cgroup2 rw\n";
        assert_eq!(redact_mounts(mount_text), "36 25 0:31 / /c rw - cgroup2 cgroup2 rw\n");
    }
}
