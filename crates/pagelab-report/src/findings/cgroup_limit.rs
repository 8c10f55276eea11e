//! Wording and remedy of a control group that reached its memory limit.
//!
//! The limit is raised by a write to the group's own file: that needs no program besides the shell. A group
//! that does not exist any more has no file; its service will make it again, with the same limit.

use pagelab_model::snapshot::LimitFile;
use pagelab_model::{Bytes, Snapshot};

use crate::style::format_bytes;

/// Lists the groups in which processes were killed; any user may read these files. The first is of version 2,
/// the second of version 1 (4.13).
pub(super) const LIST_GROUPS_WITH_KILLS: &str = "grep -r --include=memory.events \
    --include=memory.oom_control 'oom_kill [1-9]' /sys/fs/cgroup";

/// What is known about the group now, as an addition to the evidence of its kills; empty if nothing is.
pub(super) fn describe_group_now(
    group: Option<&str>,
    limit_then: Option<Bytes>,
    file: Option<&LimitFile>,
) -> String {
    let creator = group.and_then(find_service).map(|service| format!(" of {}", service.name));
    let creator = creator.unwrap_or_default();
    match file {
        Some(LimitFile::Present { limit: Some(limit), .. }) if Some(*limit) == limit_then => String::new(),
        Some(LimitFile::Present { limit: Some(limit), .. }) => {
            format!("; the limit is now {}", format_bytes(*limit))
        }
        Some(LimitFile::Present { limit: None, .. }) => "; it now has no limit".to_owned(),
        Some(LimitFile::GroupGone) => format!("; the cgroup{creator} no longer exists"),
        Some(LimitFile::Unseen(absence)) => {
            format!("; it is unknown whether the cgroup{creator} still exists: {}", absence.reason())
        }
        None => String::new(),
    }
}

/// The command that doubles the limit of a group whose processes were killed. If the group does not exist any
/// more or cannot be seen, the command that leads to its creator.
pub(super) fn raise_limit_after_kill(
    group: Option<&str>,
    limit_then: Option<Bytes>,
    file: Option<&LimitFile>,
) -> String {
    match (file, group) {
        (Some(LimitFile::Present { path, limit: None }), _) => format!("cat {}", quote_word(path)),
        // The limit may have been raised since.
        (Some(LimitFile::Present { path, limit }), _) => raise_limit(path, limit_then.max(*limit)),
        (_, Some(group)) => match find_service(group) {
            Some(service) => service.remedy(limit_then),
            None => format!("dmesg | grep -F {}", quote_word(group)),
        },
        (_, None) => LIST_GROUPS_WITH_KILLS.to_owned(),
    }
}

/// The command that doubles the tightest limit of this process. If its group is above those that can be seen,
/// the user replaces the word in capitals.
pub(super) fn raise_own_limit(snapshot: &Snapshot, limit: Bytes) -> String {
    let file = snapshot.machine.cgroup.as_ref().ok().and_then(|group| group.limit_file.as_deref());
    raise_limit(file.unwrap_or("LIMIT_FILE"), Some(limit))
}

fn raise_limit(path: &str, limit: Option<Bytes>) -> String {
    format!("echo {} > {}", double_limit(limit), quote_word(path))
}

fn double_limit(limit: Option<Bytes>) -> String {
    limit.map_or("SIZE".to_owned(), |limit| limit.0.saturating_mul(2).to_string())
}

/// The systemd service that made a group.
#[derive(Debug, PartialEq, Eq)]
struct Service<'g> {
    name: &'g str,
    /// Whether the manager of a user started it.
    is_of_user: bool,
    /// Whether the group is the service's own, whose limit is its property MemoryMax. The service itself made
    /// a group below it.
    is_own_group: bool,
}

/// The service that made a group, if its path tells. Units whose names begin with `run-` are transient, like
/// scopes: they do not exist any more. The service of a user manager is only the place of the user's units.
fn find_service(group: &str) -> Option<Service<'_>> {
    let is_service = |name: &str| name.ends_with(".service");
    let is_manager = |name: &str| name.starts_with("user@") && is_service(name);
    let parts: Vec<&str> = group.split('/').filter(|part| !part.is_empty()).collect();
    let at = parts.iter().rposition(|name| is_service(name))?;
    let name = *parts.get(at)?;
    let is_transient = name.starts_with("run-") || is_manager(name);
    let is_of_user = parts.iter().take(at).any(|name| is_manager(name));
    (!is_transient).then_some(Service { name, is_of_user, is_own_group: at + 1 == parts.len() })
}

impl Service<'_> {
    fn remedy(&self, limit_then: Option<Bytes>) -> String {
        let manager = if self.is_of_user { "systemctl --user" } else { "systemctl" };
        let name = quote_word(self.name);
        match self.is_own_group {
            true => format!("{manager} set-property {name} MemoryMax={}", double_limit(limit_then)),
            false => format!("{manager} status {name}"),
        }
    }
}

/// A word as a shell takes it.
fn quote_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-:@".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::{Absence, AbsenceReason};

    use super::*;

    const THEN: Option<Bytes> = Some(Bytes(64 << 20));

    fn check(group: Option<&str>, file: Option<LimitFile>, now: &str, remedy: &str) {
        assert_eq!(describe_group_now(group, THEN, file.as_ref()), now, "{group:?} {file:?}");
        assert_eq!(raise_limit_after_kill(group, THEN, file.as_ref()), remedy, "{group:?} {file:?}");
    }

    #[test]
    fn the_limit_of_a_group_that_exists_is_written_to_its_own_file() {
        let present = |path: &str, limit: Option<u64>| {
            Some(LimitFile::Present { path: path.to_owned(), limit: limit.map(|mib| Bytes(mib << 20)) })
        };
        let v2 = "/sys/fs/cgroup/jobs/7/memory.max";
        let v1 = "/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes";
        let group = Some("/jobs/7");
        check(group, present(v2, Some(64)), "", &format!("echo 134217728 > {v2}"));
        check(group, present(v1, Some(64)), "", &format!("echo 134217728 > {v1}"));
        let raised = "; the limit is now 1 GiB";
        check(group, present(v2, Some(1024)), raised, &format!("echo 2147483648 > {v2}"));
        check(group, present(v2, None), "; it now has no limit", &format!("cat {v2}"));
        let odd = r"echo 134217728 > '/c/a b'\''s/memory.max'";
        check(Some("/a b's"), present("/c/a b's/memory.max", Some(64)), "", odd);
    }

    #[test]
    fn of_a_group_that_is_gone_the_creator_is_named() {
        let gone = || Some(LimitFile::GroupGone);
        let nobody = "; the cgroup no longer exists";
        check(Some("/jobs/7"), gone(), nobody, "dmesg | grep -F /jobs/7");
        check(Some("/a b"), gone(), nobody, "dmesg | grep -F '/a b'");
        let session = "/user.slice/user-0.slice/session-3.scope";
        check(Some(session), gone(), nobody, &format!("dmesg | grep -F {session}"));
        let transient = "/system.slice/run-u7.service";
        check(Some(transient), gone(), nobody, &format!("dmesg | grep -F {transient}"));
        let desktop = "/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope";
        check(Some(desktop), gone(), nobody, &format!("dmesg | grep -F {desktop}"));
        check(
            Some("/system.slice/db.service"),
            gone(),
            "; the cgroup of db.service no longer exists",
            "systemctl set-property db.service MemoryMax=134217728",
        );
        check(
            Some("/system.slice/db.service/worker"),
            gone(),
            "; the cgroup of db.service no longer exists",
            "systemctl status db.service",
        );
        check(
            Some("/user.slice/user-1000.slice/user@1000.service/app.slice/db.service"),
            gone(),
            "; the cgroup of db.service no longer exists",
            "systemctl --user set-property db.service MemoryMax=134217728",
        );
    }

    #[test]
    fn a_group_that_cannot_be_seen_is_not_written_to() {
        let unseen = Some(LimitFile::Unseen(Absence::new("a.tar", AbsenceReason::NotSaved, "")));
        let text = "; it is unknown whether the cgroup still exists: not in the saved tree";
        check(Some("/jobs/7"), unseen, text, "dmesg | grep -F /jobs/7");
        check(Some("/jobs/7"), None, "", "dmesg | grep -F /jobs/7");
        check(None, None, "", LIST_GROUPS_WITH_KILLS);
    }
}
