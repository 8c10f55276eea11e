//! Source tree of a build in a guest: what the host that packs it and the workload that builds it agree on.

/// The compiler of the tree, by the name that its commands have.
pub const COMPILER: &str = "gcc-12";
/// Device with the archive of the tree, in a guest that has one.
pub const TREE_DEVICE: &str = "/dev/pagelab-tree";
/// File of the tree that lists its objects, one a line, in the order in which they are built.
pub const OBJECT_LIST: &str = "OBJECTS";
/// Command that makes the tree.
pub const TREE_SETUP: &str = "pagelab guest setup --linux-source";

/// Whether this is the path of an object or of another file in the tree: relative, without `.` and `..`, of
/// characters that neither make nor a shell interprets, and no option.
pub fn is_plain_path(path: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+,".contains(c);
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.chars().all(is_plain) && !path.starts_with('-') && path.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_tree_leads_nowhere_else_and_means_nothing_to_a_shell() {
        for (path, is) in [
            ("lib/bitmap.o", true),
            ("include/asm-generic/bitops/__ffs.h", true),
            ("Makefile", true),
            ("", false),
            ("/etc/passwd", false),
            ("../x.h", false),
            ("lib/../mm/internal.h", false),
            ("lib/./x.h", false),
            ("lib//x.h", false),
            ("lib/", false),
            ("-o", false),
            ("lib/$(x).o", false),
            ("lib/a b.o", false),
            ("lib/a;b.o", false),
            ("lib/a\nb.o", false),
            ("lib/é.o", false),
        ] {
            assert_eq!(is_plain_path(path), is, "{path:?}");
        }
    }
}
