//! The limits of the control groups that this process is in, up to the root of each hierarchy.

use std::io;

use super::Taking;
use crate::paths;
use crate::paths::captured;

/// Groups from the innermost up.
const DEPTH_MAX: usize = 64;

/// Takes the memory and hugetlb limits of our own group and of those above it.
pub(super) fn take(taking: &mut Taking<'_>) -> io::Result<()> {
    let (Ok(groups), Ok(mounts)) =
        (taking.root.read(paths::SELF_CGROUP), taking.root.read(paths::SELF_MOUNTINFO))
    else {
        return Ok(());
    };
    for (top, group) in folders(&String::from_utf8_lossy(&groups), &String::from_utf8_lossy(&mounts)) {
        let mut at = group.as_str();
        for _ in 0..DEPTH_MAX {
            of_group(taking, &format!("{top}{at}"))?;
            match at.rfind('/') {
                Some(slash) => at = &at[..slash],
                None => break,
            }
        }
    }
    Ok(())
}

fn of_group(taking: &mut Taking<'_>, folder: &str) -> io::Result<()> {
    let Ok(names) = taking.root.list(folder) else { return Ok(()) };
    for name in names {
        let hugetlb = name.starts_with("hugetlb.")
            && ["max", "current", "limit_in_bytes", "usage_in_bytes"].iter().any(|end| name.ends_with(end));
        if hugetlb || captured::CGROUP_FILES.contains(&name.as_str()) || name == "cgroup.controllers" {
            taking.text(&format!("{folder}/{name}"), "")?;
        }
    }
    Ok(())
}

/// Mount point and group below it, for each hierarchy that limits memory.
fn folders(groups: &str, mounts: &str) -> Vec<(String, String)> {
    let mut folders = Vec::new();
    for mount in mounts.lines() {
        // `31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`: optional fields end at the dash (proc(5)).
        let Some((before, after)) = mount.split_once(" - ") else { continue };
        let mut before = before.split(' ').skip(3);
        let (Some(inside), Some(top)) = (before.next(), before.next()) else { continue };
        let mut after = after.split(' ');
        let (fs, options) = (after.next(), after.nth(1).unwrap_or(""));
        let memory = |list: &str| list.split(',').any(|name| matches!(name, "memory" | "hugetlb"));
        let group = match fs {
            Some("cgroup2") => groups.lines().find_map(|line| line.strip_prefix("0::")),
            Some("cgroup") if memory(options) => groups.lines().find_map(|line| {
                let (_, line) = line.split_once(':')?;
                let (controllers, group) = line.split_once(':')?;
                memory(controllers).then_some(group)
            }),
            _ => None,
        };
        let Some(group) = group else { continue };
        // In a container the mount may show only a part of the hierarchy.
        let below = match inside {
            "/" => group,
            _ => group
                .strip_prefix(inside)
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
                .unwrap_or(""),
        };
        let below = below.trim_end_matches('/');
        // A group outside of our namespace is shown by `..`, and cannot be read.
        let below = if below.split('/').any(|name| name == "..") { "" } else { below };
        // Blanks in mount points are escaped, and no cgroup is mounted at such a place.
        if top.starts_with('/') && !top.contains('\\') && !top.split('/').any(|name| name == "..") {
            folders.push((top.trim_end_matches('/').to_owned(), below.to_owned()));
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::folders;

    #[test]
    fn the_hierarchies_that_limit_memory_are_found() {
        let v2 = "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let part = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let cases = [
            ("0::/user.slice/a\n", v2, vec![("/sys/fs/cgroup", "/user.slice/a")]),
            ("0::/\n", v2, vec![("/sys/fs/cgroup", "")]),
            ("0::/../x\n", v2, vec![("/sys/fs/cgroup", "")]),
            ("4:memory:/job/3\n1:cpu:/\n0::/\n", v1, vec![("/sys/fs/cgroup/memory", "/job/3")]),
            ("4:memory:/docker/7/x\n", part, vec![("/sys/fs/cgroup/memory", "/x")]),
            ("4:memory:/docker/77\n", part, vec![("/sys/fs/cgroup/memory", "")]),
            ("", v2, vec![]),
            ("0::/a", "nonsense\n - cgroup2\n1 2 3 / ../x - cgroup2 c rw", vec![]),
        ];
        for (groups, mounts, want) in cases {
            let got = folders(groups, mounts);
            let got: Vec<(&str, &str)> = got.iter().map(|(top, group)| (&**top, &**group)).collect();
            assert_eq!(got, want, "{groups}{mounts}");
        }
    }
}
