//! `/proc/self/mountinfo`: mount points, with the root of each mount inside its file system.

use crate::ParseError;
use crate::text::{collect_at_most, filled_lines, parse_number, to_printable, unescape, words};

const FORMAT: &str = "mountinfo";
/// The kernel allows 100 000 mounts in a namespace (fs.mount-max).
const MOUNTS_MAX: usize = 1 << 17;

/// One mount. Octal escapes are undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Id of the mount.
    pub id: u64,
    /// The directory of the file system that is mounted here; `/` for the whole. In a container a
    /// control group mount may show another one.
    pub root: String,
    /// Where it is mounted, as this process sees it.
    pub mount_point: String,
    /// `ext4`, `cgroup2`, `debugfs` …
    pub fs_type: String,
    /// Options of the file system, such as the controllers of a version 1 control group.
    pub super_options: String,
}

impl Mount {
    /// Whether the file system has `option` among its comma-separated options.
    pub fn has_super_option(&self, option: &str) -> bool {
        self.super_options.split(',').any(|o| o == option)
    }
}

/// Reads a whole mountinfo; a namespace without mounts is an empty list.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, ParseError> {
    collect_at_most(FORMAT, MOUNTS_MAX, filled_lines(text).map(|(at, line)| parse_mount(at, line)))
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: any number of optional
/// fields comes before the single dash.
fn parse_mount(line_number: u64, line: &[u8]) -> Result<Mount, ParseError> {
    let fail = |problem: &str| {
        ParseError::at_line(FORMAT, line_number, format!("`{}` {problem}", to_printable(line)))
    };
    let mut fields = words(line);
    let mut next = || fields.next().ok_or_else(|| fail("has fewer than 10 fields"));
    let id = parse_number(next()?).ok_or_else(|| fail("does not start with a mount ID"))?;
    parse_number(next()?).ok_or_else(|| fail("has no parent mount ID"))?;
    let _device = next()?;
    let root = unescape(next()?);
    let mount_point = unescape(next()?);
    let _options = next()?;
    while next()? != b"-" {}
    let fs_type = unescape(next()?);
    // A file system without a source has an empty name there, which leaves one field fewer.
    let super_options = match (fields.next(), fields.next()) {
        (Some(_), Some(options)) | (Some(options), None) => unescape(options),
        (None, _) => return Err(fail("has fewer than 10 fields")),
    };
    Ok(Mount { id, root, mount_point, fs_type, super_options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_and_escapes() {
        let text = "\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 35 98:0 /mnt\\0401 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue
37 1 0:5 / /x rw -  tmpfs  rw
";
        let mounts = parse(text.as_bytes()).unwrap();
        assert!(mounts[0].has_super_option("memory") && !mounts[0].has_super_option("mem"));
        assert_eq!((mounts[1].root.as_str(), mounts[1].fs_type.as_str()), ("/mnt 1", "ext3"));
        assert_eq!(mounts[2].super_options, "rw");
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            ("x 1 0:1 / / rw - a b c\n", "`x 1 0:1 / / rw - a b c` does not start with a mount ID"),
            ("1 y 0:1 / / rw - a b c\n", "`1 y 0:1 / / rw - a b c` has no parent mount ID"),
            ("1 1 0:1 / / rw master:1\n", "`1 1 0:1 / / rw master:1` has fewer than 10 fields"),
            ("1 1 0:1 / / rw - tmpfs\n", "`1 1 0:1 / / rw - tmpfs` has fewer than 10 fields"),
        ];
        for (text, problem) in cases {
            let message = format!("f:1: {problem} (read as mountinfo)");
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }
}
