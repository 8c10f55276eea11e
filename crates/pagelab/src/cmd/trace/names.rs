//! Names of the threads of a trace: read by the recorder, so that the traced side pays nothing.
//!
//! The kernel's own list (`saved_cmdlines`) would be filled at each switch of tasks, and holds 128 names.

use std::collections::{BTreeMap, BTreeSet};

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::alloc_trace::TraceThread;

/// Threads whose names are kept at most: those that are counted one by one, too.
const THREADS_MAX: usize = 1 << 16;

/// The threads that were seen so far.
#[derive(Debug, Default)]
pub struct Names {
    /// By processor, the thread of the last event: most events are of the same one as the event before.
    last: Vec<u32>,
    known: BTreeMap<u32, Option<String>>,
    /// Seen, and not read yet.
    fresh: Vec<u32>,
    /// Read once, perhaps before they became another program.
    young: BTreeSet<u32>,
}

impl Names {
    /// An event of this thread came. 0 is a processor that idles.
    #[inline]
    pub fn see(&mut self, cpu: u16, tid: u32) {
        if self.last.get(usize::from(cpu)) != Some(&tid) {
            self.see_another(usize::from(cpu), tid);
        }
    }

    fn see_another(&mut self, cpu: usize, tid: u32) {
        if self.last.len() <= cpu {
            self.last.resize(cpu + 1, 0);
        }
        self.last[cpu] = tid;
        if tid != 0 && self.known.len() < THREADS_MAX && !self.known.contains_key(&tid) {
            self.known.insert(tid, None);
            self.fresh.push(tid);
        }
    }

    /// Reads the names of threads that were seen for the first time.
    pub fn read_fresh(&mut self, root: &Root) {
        for tid in std::mem::take(&mut self.fresh) {
            self.read(root, tid);
            self.young.insert(tid);
        }
    }

    /// Reads those once more that are known for a second or less.
    pub fn read_young(&mut self, root: &Root) {
        for tid in std::mem::take(&mut self.young) {
            self.read(root, tid);
        }
    }

    /// All threads, each with the last name that was read, once more if it still runs.
    pub fn all(mut self, root: &Root) -> Vec<TraceThread> {
        let tids: Vec<u32> = self.known.keys().copied().collect();
        tids.into_iter().for_each(|tid| self.read(root, tid));
        self.known.into_iter().map(|(tid, name)| TraceThread { tid, name }).collect()
    }

    /// One that has ended keeps the name that it had.
    fn read(&mut self, root: &Root, tid: u32) {
        if let Ok(text) = root.read(&paths::process(tid, "comm")) {
            let name = String::from_utf8_lossy(text.trim_ascii()).into_owned();
            self.known.insert(tid, Some(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_when_a_thread_is_new_and_again_and_stay_when_it_ends() {
        let lab = tempfile::tempdir().unwrap();
        let process = |tid: u32| lab.path().join(format!("proc/{tid}"));
        let name = |tid: u32, name: &str| {
            std::fs::create_dir_all(process(tid)).unwrap();
            std::fs::write(process(tid).join("comm"), format!("{name}\n")).unwrap();
        };
        name(7, "sh");
        name(8, "Web Content");
        name(9, "cc1");
        let root = Root::open(lab.path()).unwrap();
        let mut names = Names::default();
        for (cpu, tid) in [(0, 7), (3, 0), (0, 7), (1, 9), (0, 8), (0, 7), (2, 10)] {
            names.see(cpu, tid);
        }
        names.read_fresh(&root);
        // One becomes another program, one ends, one was never there.
        name(7, "make");
        std::fs::remove_dir_all(process(9)).unwrap();
        names.read_young(&root);
        name(8, "renamed");
        let all: Vec<(u32, Option<String>)> =
            names.all(&root).into_iter().map(|thread| (thread.tid, thread.name)).collect();
        let expected = [(7, Some("make")), (8, Some("renamed")), (9, Some("cc1")), (10, None)];
        assert_eq!(all, expected.map(|(tid, name)| (tid, name.map(str::to_owned))));
    }
}
