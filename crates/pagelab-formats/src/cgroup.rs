//! `/proc/PID/cgroup`: the control groups of a process, version 1, version 2 or both.

use crate::ParseError;
use crate::text::{collect_at_most, lines, parse_number, to_printable};

const FORMAT: &str = "cgroup";
/// The kernel has some 15 controllers; each may be its own hierarchy, and there are named ones without a
/// controller.
const HIERARCHIES_MAX: usize = 256;
const CONTROLLERS_MAX: usize = 64;

/// One line: the process's group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMembership {
    /// Number of the hierarchy; 0 is version 2.
    pub hierarchy: u64,
    /// Controllers of a version 1 hierarchy, `name=systemd` among them; empty for version 2.
    pub controllers: Vec<String>,
    /// Path of the group, as seen from the reader's control group namespace.
    pub path: String,
}

impl CgroupMembership {
    /// Whether this is the version 2 hierarchy.
    pub fn is_v2(&self) -> bool {
        self.hierarchy == 0 && self.controllers.is_empty()
    }

    /// Whether a version 1 hierarchy has `controller`.
    pub fn has_controller(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }
}

/// Reads a whole cgroup file: `4:memory:/path` or `0::/path`. A path may hold colons.
pub fn parse(text: &[u8]) -> Result<Vec<CgroupMembership>, ParseError> {
    let filled = lines(text).filter(|(_, line)| !line.is_empty());
    collect_at_most(FORMAT, HIERARCHIES_MAX, filled.map(|(at, line)| parse_membership(at, line)))
}

fn parse_membership(line_number: u64, line: &[u8]) -> Result<CgroupMembership, ParseError> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let parts = (fields.next().and_then(parse_number), fields.next(), fields.next());
    let (Some(hierarchy), Some(controllers), Some(path)) = parts else {
        let problem = format!("expected `number:controllers:path`, found `{}`", to_printable(line));
        return Err(ParseError::at_line(FORMAT, line_number, problem));
    };
    if path.first() != Some(&b'/') {
        let problem = format!("path `{}` does not start with a slash", to_printable(path));
        return Err(ParseError::at_line(FORMAT, line_number, problem));
    }
    let controllers = String::from_utf8_lossy(controllers);
    let controllers = controllers.split(',').filter(|c| !c.is_empty()).take(CONTROLLERS_MAX);
    Ok(CgroupMembership {
        hierarchy,
        controllers: controllers.map(str::to_owned).collect(),
        path: String::from_utf8_lossy(path).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions() {
        let groups = parse(b"9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/user.slice\n").unwrap();
        assert_eq!(groups.iter().map(CgroupMembership::is_v2).collect::<Vec<_>>(), [false, false, true]);
        assert!(groups[1].has_controller("cpuacct") && !groups[1].has_controller("memory"));
        assert_eq!(groups[1].path, "/a:b");
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, problem) in [
            ("0:/x\n", "expected `number:controllers:path`, found `0:/x`"),
            ("a::/x\n", "expected `number:controllers:path`, found `a::/x`"),
            ("0::x\n", "path `x` does not start with a slash"),
        ] {
            let message = format!("f:1: {problem} (read as cgroup)");
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }
}
