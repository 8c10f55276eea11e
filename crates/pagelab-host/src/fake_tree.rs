//! Synthetic trees of kernel files for tests.

use pagelab_formats::mountinfo::{self, Mount};
use pagelab_model::Reading;

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// A directory of files that represents a machine; removed on drop.
pub struct FakeTree {
    dir: tempfile::TempDir,
}

impl FakeTree {
    /// A tree of `(path, content)`.
    pub fn new(files: &[(&str, &str)]) -> FakeTree {
        let tree = FakeTree { dir: tempfile::tempdir().unwrap() };
        for (name, content) in files {
            tree.add_file(name, content.as_bytes());
        }
        tree
    }

    /// One more file.
    pub fn add_file(&self, name: &str, content: &[u8]) {
        let path = self.dir.path().join(name.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Result of `read` in a tree of `files` with its own list of mounts.
    pub fn read_with<T>(
        files: &[(&str, &str)],
        read: impl FnOnce(&Reader<'_>, &Reading<Vec<Mount>>) -> T,
    ) -> T {
        let tree = FakeTree::new(files);
        let root = tree.root();
        let reader = Reader::new(&root);
        let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        read(&reader, &mounts)
    }

    /// Its directory.
    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The tree as a root.
    pub fn root(&self) -> Root {
        Root::open(self.dir.path()).unwrap()
    }
}
