//! Memory limits of control groups: the tightest of this process's group and the ancestors, and those of
//! groups that the kernel log names.

use pagelab_formats::cgroup::CgroupMembership;
use pagelab_formats::mountinfo::Mount;
use pagelab_formats::{ParseError, cgroup as format, setting, vmstat};
use pagelab_model::machine::{Cgroup, CgroupVersion};
use pagelab_model::snapshot::{LimitFile, OomKill};
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};

use crate::paths;
use crate::reader::Reader;

/// Version 1 prints no limit as the largest number of whole pages (include/linux/page_counter.h); no
/// machine has this much memory.
const UNLIMITED_MIN: u64 = 1 << 62;
/// Maximum of levels on the way up; the kernel's own default depth limit is far above any real tree.
const LEVELS_MAX: usize = 64;
/// Groups of kills that are looked up at most; a log holds fewer.
const GROUPS_MAX: usize = 256;

/// Reads version, path and limit. `mounts` has the mount points of the hierarchies.
pub fn read(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>) -> Reading<Cgroup> {
    let groups = reader.parse(paths::SELF_CGROUP, format::parse)?;
    let v1 = groups.iter().find(|group| group.has_controller("memory"));
    let v2 = groups.iter().find(|group| group.is_v2());
    let Some(group) = v1.or(v2) else {
        let source = reader.root().display_path(paths::SELF_CGROUP);
        let detail = "no hierarchy has the memory controller";
        return Err(Absence::new(source, AbsenceReason::NotThere, detail)
            .with_hint("boot without cgroup_disable=memory, on a kernel with CONFIG_MEMCG=y"));
    };
    let version = match (v1, v2) {
        (Some(_), Some(_)) => CgroupVersion::Hybrid,
        (Some(_), None) => CgroupVersion::V1,
        (None, _) => CgroupVersion::V2,
    };
    let mounts = mounts.as_ref().map_err(Clone::clone)?;
    let Some(mount) = find_mount(group, mounts) else {
        let source = reader.root().display_path(paths::SELF_MOUNTINFO);
        let detail = "the hierarchy with the memory controller is not mounted";
        return Err(Absence::new(source, AbsenceReason::NotThere, detail)
            .with_hint("mount -t cgroup2 none /mnt, as root"));
    };
    let levels = cgroup_dirs(group, mount);
    let Limits { limit, level, usage, headroom } = match v1 {
        Some(_) => read_limits_v1(reader, &levels),
        None => read_limits(reader, &levels, &V2),
    };
    let files = if v1.is_some() { &V1 } else { &V2 };
    let limit_file = level.as_ref().map(|level| format!("{level}/{}", files.limit));
    let path = |level: String| {
        let path = level.strip_prefix(mount.mount_point.trim_end_matches('/')).unwrap_or_default();
        if path.is_empty() { "/".to_owned() } else { path.to_owned() }
    };
    Ok(Cgroup {
        version,
        path: group.path.clone(),
        memory_limit: limit,
        limit_path: level.map(path),
        limit_file,
        memory_used: usage,
        memory_room: headroom,
    })
}

/// The mount that shows the group: of several, the one with the deepest root above it.
fn find_mount<'m>(group: &CgroupMembership, mounts: &'m [Mount]) -> Option<&'m Mount> {
    let fits = |mount: &&Mount| match group.is_v2() {
        true => mount.fs_type == "cgroup2",
        false => is_memory_mount_v1(mount),
    };
    let rank = |mount: &&Mount| strip_root(&group.path, &mount.root).map(|_| mount.root.len());
    mounts.iter().filter(fits).max_by_key(rank)
}

fn is_memory_mount_v1(mount: &Mount) -> bool {
    mount.fs_type == "cgroup" && mount.has_super_option("memory")
}

/// Finds the limit file of each group that a kill names.
pub(crate) fn find_limit_files(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>, kills: &mut [OomKill]) {
    let mut found: Vec<(String, LimitFile)> = Vec::new();
    for kill in kills.iter_mut().rev() {
        let Some(group) = &kill.group else { continue };
        let known = found.iter().find(|(name, _)| name == group).map(|(_, file)| file.clone());
        let file = match known {
            Some(file) => file,
            None if found.len() < GROUPS_MAX => {
                let file = match mounts {
                    Ok(mounts) => find_limit_file(reader, mounts, group, reader.root().is_live()),
                    Err(absence) => LimitFile::Unseen(absence.clone()),
                };
                found.push((group.clone(), file.clone()));
                file
            }
            None => continue,
        };
        kill.limit_file = Some(file);
    }
}

/// The limit file of a group that the kernel log names: by its path from the root of the hierarchy, whatever
/// this process sees of it. `has_all_groups`: a group whose files are absent does not exist. A saved tree has
/// the files of a few groups.
fn find_limit_file(reader: &Reader<'_>, mounts: &[Mount], group: &str, has_all_groups: bool) -> LimitFile {
    let source = reader.root().display_path(paths::SELF_MOUNTINFO);
    let unseen = |why, detail: &str| LimitFile::Unseen(Absence::new(source.clone(), why, detail));
    let is_v1 = mounts.iter().any(is_memory_mount_v1);
    let files = if is_v1 { &V1 } else { &V2 };
    let fits = |mount: &&Mount| if is_v1 { is_memory_mount_v1(mount) } else { mount.fs_type == "cgroup2" };
    let below = mounts.iter().filter(fits).filter_map(|mount| Some((mount, strip_root(group, &mount.root)?)));
    let Some((mount, inside)) = below.max_by_key(|(mount, _)| mount.root.len()) else {
        return unseen(
            AbsenceReason::NotThere,
            "no mounted hierarchy with the memory controller contains it",
        );
    };
    // A path that the log or its reader has cut, or that is no path of a group.
    if inside.ends_with('…') || inside.split('/').any(|part| part == ".." || part == ".") {
        return unseen(AbsenceReason::Malformed, "the log does not contain its full path");
    }
    let base = mount.mount_point.trim_end_matches('/');
    if mount.root == "/" && !is_hierarchy_root(reader, base, is_v1) {
        let detail = "this process is in a cgroup namespace, and the log names groups from outside it";
        return unseen(AbsenceReason::NotPermitted, detail);
    }
    let dir = format!("{base}{}", inside.trim_end_matches('/'));
    let path = format!("{dir}/{}", files.limit);
    match reader.parse(&path, parse_limit) {
        Ok(limit) => LimitFile::Present { path, limit: limit.map(Bytes) },
        Err(absence) if is_missing(&absence) => match reader.root().entry_kind(&dir) {
            Err(absence) if has_all_groups && is_missing(&absence) => LimitFile::GroupGone,
            Err(absence) => LimitFile::Unseen(absence),
            Ok(_) => unseen(AbsenceReason::NotThere, "the group exists but has no limit file"),
        },
        Err(absence) => LimitFile::Unseen(absence),
    }
}

fn is_missing(absence: &Absence) -> bool {
    matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::NotSaved)
}

/// Whether the directory is the root of the whole hierarchy. That of a cgroup namespace looks the same in
/// mountinfo. `release_agent` is only in the root (kernel/cgroup/cgroup-v1.c, CFTYPE_ONLY_ON_ROOT),
/// `cgroup.events` only below it (kernel/cgroup/cgroup.c, CFTYPE_NOT_ON_ROOT).
fn is_hierarchy_root(reader: &Reader<'_>, dir: &str, is_v1: bool) -> bool {
    match is_v1 {
        true => reader.root().entry_kind(&format!("{dir}/release_agent")).is_ok(),
        false => reader.root().entry_kind(&format!("{dir}/cgroup.events")).is_err(),
    }
}

/// `path` relative to `root` if it is below it: `/a/b` from `/a` is `/b`.
fn strip_root<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Directories from the process's own group up to the mount point. A path that is not below the root of
/// the mount, as in a container without a control group namespace, leaves the mount point alone.
pub(crate) fn cgroup_dirs(group: &CgroupMembership, mount: &Mount) -> Vec<String> {
    let base = mount.mount_point.trim_end_matches('/');
    let inside = strip_root(&group.path, &mount.root).unwrap_or("").trim_end_matches('/');
    let inside = if inside.split('/').any(|part| part == "..") { "" } else { inside };
    let levels = std::iter::successors(Some(inside), |rest| Some(rest.rsplit_once('/')?.0));
    levels.take(LEVELS_MAX).map(|rest| format!("{base}{rest}")).collect()
}

/// Names of the two files of a version.
struct ControlFiles {
    limit: &'static str,
    usage: &'static str,
}

const V1: ControlFiles = ControlFiles { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes" };
const V2: ControlFiles = ControlFiles { limit: "memory.max", usage: "memory.current" };

/// A limit file: `max`, or bytes.
fn parse_limit(text: &[u8]) -> Result<Option<u64>, ParseError> {
    if text.trim_ascii() == b"max" {
        return Ok(None);
    }
    setting::parse_u64(text).map(|bytes| Some(bytes).filter(|&bytes| bytes < UNLIMITED_MIN))
}

/// Limits of the ancestors.
#[derive(Default)]
struct Limits {
    /// The smallest limit.
    limit: Option<Bytes>,
    /// The folder of the group that has it, if it can be seen.
    level: Option<String>,
    /// Charge of the cgroup with the smallest limit.
    usage: Option<Bytes>,
    /// Memory that may still be charged until any limit is reached.
    headroom: Option<Bytes>,
}

/// Reads all levels. The root of a hierarchy, and a group without the controller, have no file; they limit
/// nothing. A larger limit may leave less room than the smallest one: its group has other members.
fn read_limits(reader: &Reader<'_>, levels: &[String], files: &ControlFiles) -> Limits {
    let limited = levels.iter().filter_map(|level| {
        let bytes = reader.parse(&format!("{level}/{}", files.limit), parse_limit).ok()??;
        Some((Bytes(bytes), read_usage(reader, level, files), level))
    });
    let limited: Vec<(Bytes, Option<Bytes>, &String)> = limited.collect();
    let Some(&(limit, used, level)) = limited.iter().min_by_key(|(limit, ..)| *limit) else {
        return Limits::default();
    };
    let rooms: Option<Vec<Bytes>> =
        limited.into_iter().map(|(limit, used, _)| headroom_below(limit, used)).collect();
    let room = rooms.and_then(|rooms| rooms.into_iter().min());
    Limits { limit: Some(limit), level: Some(level.clone()), usage: used, headroom: room }
}

fn headroom_below(limit: Bytes, usage: Option<Bytes>) -> Option<Bytes> {
    usage.map(|used| Bytes(limit.0.saturating_sub(used.0)))
}

fn read_usage(reader: &Reader<'_>, level: &str, files: &ControlFiles) -> Option<Bytes> {
    reader.parse(&format!("{level}/{}", files.usage), setting::parse_u64).ok().map(Bytes)
}

/// Version 1: `hierarchical_memory_limit` counts the groups above those that can be seen from a
/// container, and only those that count (`use_hierarchy`).
fn read_limits_v1(reader: &Reader<'_>, levels: &[String]) -> Limits {
    let Some(own_dir) = levels.first() else { return Limits::default() };
    let stat = reader.parse(&format!("{own_dir}/memory.stat"), vmstat::parse_counters);
    let whole = stat.ok().and_then(|stat| stat.get("hierarchical_memory_limit"));
    let seen = read_limits(reader, levels, &V1);
    match whole.map(Bytes) {
        Some(Bytes(UNLIMITED_MIN..)) => Limits::default(),
        Some(limit) if seen.limit == Some(limit) => seen,
        Some(limit) => {
            let used = read_usage(reader, own_dir, &V1);
            let room = headroom_below(limit, used);
            // An unknown limit may be lower than the known ones, so it stays unknown.
            let room = if seen.limit.is_some() { room.min(seen.headroom) } else { room };
            Limits { limit: Some(limit), level: None, usage: used, headroom: room }
        }
        None => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    const MOUNT_V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const MOUNT_V2: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn read_fake(files: &[(&str, &str)]) -> Reading<Cgroup> {
        FakeTree::read_with(files, read)
    }

    #[test]
    fn version_2_takes_the_tightest_on_the_way_up() {
        let group = read_fake(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/proc/self/mountinfo", MOUNT_V2),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/memory.current", "400\n"),
            ("/sys/fs/cgroup/memory.max", "9000\n"),
            ("/sys/fs/cgroup/memory.current", "8900\n"),
        ])
        .unwrap();
        assert_eq!((group.version, group.path.as_str()), (CgroupVersion::V2, "/a/b"));
        assert_eq!((group.memory_limit, group.memory_used), (Some(Bytes(1000)), Some(Bytes(400))));
        assert_eq!(group.limit_path.as_deref(), Some("/a"));
        assert_eq!(group.limit_file.as_deref(), Some("/sys/fs/cgroup/a/memory.max"));
        assert_eq!(group.memory_room, Some(Bytes(100)), "the larger limit leaves less room");
        let unknown = read_fake(&[
            ("/proc/self/cgroup", "0::/a\n"),
            ("/proc/self/mountinfo", MOUNT_V2),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
        ])
        .unwrap();
        assert_eq!((unknown.memory_limit, unknown.memory_room), (Some(Bytes(1000)), None));
    }

    #[test]
    fn version_1_knows_limits_above_what_is_mounted() {
        let base = "/sys/fs/cgroup/memory/memory";
        let huge = "9223372036854771712\n";
        let files = |stat: &str| {
            read_fake(&[
                ("/proc/self/cgroup", "4:memory:/docker/x\n0::/\n"),
                ("/proc/self/mountinfo", &MOUNT_V1.replace(" / /sys", " /docker/x /sys")),
                (&format!("{base}.limit_in_bytes"), huge),
                (&format!("{base}.usage_in_bytes"), "77\n"),
                (&format!("{base}.stat"), stat),
            ])
            .unwrap()
        };
        let group = files("cache 0\nhierarchical_memory_limit 5000\n");
        assert_eq!(group.version, CgroupVersion::Hybrid);
        assert_eq!((group.memory_limit, group.memory_used), (Some(Bytes(5000)), Some(Bytes(77))));
        assert_eq!(group.memory_room, Some(Bytes(4923)));
        let group = files(&format!("hierarchical_memory_limit {huge}"));
        assert_eq!((group.memory_limit, group.memory_used), (None, None));
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        let reason = |files: &[(&str, &str)]| read_fake(files).unwrap_err().reason().to_owned();
        assert_eq!(reason(&[]), "not in the saved tree");
        assert_eq!(reason(&[("/proc/self/cgroup", "1:cpu:/\n")]), "no hierarchy has the memory controller");
        let unmounted = [("/proc/self/cgroup", "0::/\n"), ("/proc/self/mountinfo", MOUNT_V1)];
        assert_eq!(reason(&unmounted), "the hierarchy with the memory controller is not mounted");
    }

    /// The limit file of a group in a tree with all groups.
    fn limit_file(group: &str, mounts: &str, files: &[(&str, &str)]) -> LimitFile {
        let mounts = [(paths::SELF_MOUNTINFO, mounts)];
        FakeTree::read_with(&[&mounts[..], files].concat(), |reader, mounts| {
            find_limit_file(reader, mounts.as_ref().unwrap(), group, true)
        })
    }

    fn present(path: &str, limit: Option<u64>) -> LimitFile {
        LimitFile::Present { path: path.to_owned(), limit: limit.map(Bytes) }
    }

    #[test]
    fn the_limit_file_of_a_group_is_where_its_hierarchy_is_mounted() {
        let jobs = ("/sys/fs/cgroup/jobs/memory.max", "max\n");
        let job = ("/sys/fs/cgroup/jobs/7/memory.max", "65536\n");
        let v2 = |group: &str| limit_file(group, MOUNT_V2, &[jobs, job]);
        assert_eq!(v2("/jobs/7"), present("/sys/fs/cgroup/jobs/7/memory.max", Some(65536)));
        assert_eq!(v2("/jobs"), present("/sys/fs/cgroup/jobs/memory.max", None));
        assert_eq!(v2("/jobs/8"), LimitFile::GroupGone);
        assert_eq!(v2("/jobs/7/x/y"), LimitFile::GroupGone);

        let agent = ("/sys/fs/cgroup/memory/release_agent", "\n");
        let file = ("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "65536\n");
        let hybrid = format!("{MOUNT_V1}{}", MOUNT_V2.replace("cgroup rw", "cgroup/unified rw"));
        for mounts in [MOUNT_V1, &hybrid] {
            let v1 = |group: &str| limit_file(group, mounts, &[agent, file]);
            assert_eq!(v1("/jobs/7"), present(file.0, Some(65536)));
            assert_eq!(v1("/jobs/8"), LimitFile::GroupGone);
        }
        // A part of the hierarchy, as in a container without a cgroup namespace.
        let part = MOUNT_V2.replace(" / /sys", " /jobs /sys");
        let inside = limit_file("/jobs/7", &part, &[("/sys/fs/cgroup/7/memory.max", "65536\n")]);
        assert_eq!(inside, present("/sys/fs/cgroup/7/memory.max", Some(65536)));
    }

    #[test]
    fn a_group_that_cannot_be_seen_is_not_called_gone() {
        let reason =
            |group: &str, mounts: &str, files: &[(&str, &str)]| match limit_file(group, mounts, files) {
                LimitFile::Unseen(absence) => absence.reason().to_owned(),
                other => panic!("{group}: {other:?}"),
            };
        let unmounted = "no mounted hierarchy with the memory controller contains it";
        assert_eq!(reason("/a", "", &[]), unmounted);
        assert_eq!(reason("/a", &MOUNT_V2.replace(" / /sys", " /jobs /sys"), &[]), unmounted);
        let namespace = "this process is in a cgroup namespace, and the log names groups from outside it";
        assert_eq!(reason("/a", MOUNT_V2, &[("/sys/fs/cgroup/cgroup.events", "populated 1\n")]), namespace);
        assert_eq!(reason("/a", MOUNT_V1, &[]), namespace);
        assert_eq!(reason("/a/../b", MOUNT_V2, &[]), "the log does not contain its full path");
        assert_eq!(reason("/aaa…", MOUNT_V2, &[]), "the log does not contain its full path");
        let other_file = [("/sys/fs/cgroup/a/cgroup.procs", "\n")];
        assert_eq!(reason("/a", MOUNT_V2, &other_file), "the group exists but has no limit file");
        // A saved tree has the files of a few groups.
        let saved = FakeTree::read_with(&[(paths::SELF_MOUNTINFO, MOUNT_V2)], |reader, mounts| {
            find_limit_file(reader, mounts.as_ref().unwrap(), "/a", false)
        });
        assert!(matches!(saved, LimitFile::Unseen(absence) if absence.reason() == "not in the saved tree"));
    }

    #[test]
    fn levels_end_at_the_mount_point() {
        let group =
            |path: &str| CgroupMembership { hierarchy: 0, controllers: vec![], path: path.to_owned() };
        let mount = |root: &str| {
            let line = MOUNT_V2.replace(" / /sys", &format!(" {root} /sys"));
            pagelab_formats::mountinfo::parse(line.as_bytes()).unwrap().remove(0)
        };
        let cases: [(&str, &str, &[&str]); 5] = [
            ("/", "/", &["/sys/fs/cgroup"]),
            ("/a/b", "/", &["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]),
            ("/a/b", "/a", &["/sys/fs/cgroup/b", "/sys/fs/cgroup"]),
            ("/ab", "/a", &["/sys/fs/cgroup"]),
            ("/../x", "/", &["/sys/fs/cgroup"]),
        ];
        for (path, root, expected) in cases {
            assert_eq!(cgroup_dirs(&group(path), &mount(root)), expected, "{path} {root}");
        }
    }
}
