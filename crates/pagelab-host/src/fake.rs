//! Trees of made-up kernel files for tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use pagelab_formats::mountinfo::{self, Mount};
use pagelab_model::Reading;

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// A folder of files that stands for a machine; removed on drop.
pub struct Tree {
    path: PathBuf,
}

impl Tree {
    /// A tree of `(path, content)`.
    pub fn new(files: &[(&str, &str)]) -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pagelab-fake-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let tree = Tree { path };
        for (name, content) in files {
            tree.add(name, content.as_bytes());
        }
        tree
    }

    /// One more file.
    pub fn add(&self, name: &str, content: &[u8]) {
        let path = self.path.join(name.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// What `read` reads in a tree of `files` with its own list of mounts.
    pub fn look<T>(files: &[(&str, &str)], read: impl FnOnce(&Reader<'_>, &Reading<Vec<Mount>>) -> T) -> T {
        let tree = Tree::new(files);
        let root = tree.root();
        let reader = Reader::new(&root);
        let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        read(&reader, &mounts)
    }

    /// The tree as a root.
    pub fn root(&self) -> Root {
        Root::open(&self.path).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
