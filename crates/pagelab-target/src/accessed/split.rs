//! Mappings are split for the time of a sweep, and merged after it.

use std::ops::Range;
use std::time::Instant;

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;

use super::hands::NotDone;
use super::splitter::Advice;
use super::watch::Watch;
use super::{image, pieces};
use crate::inject::Identity;

/// How the mappings of an image are for a sweep.
pub(super) enum Pieces {
    /// As they are: there is nothing to be split, or it cannot be.
    Whole,
    /// These ranges are pieces of their own, since then.
    Split(Vec<Range<u64>>, Instant),
    /// A sweep of whole mappings would spoil what those of pieces told; a later one is made.
    NotNow,
}

impl Watch<'_> {
    pub(super) fn split(&mut self, at: usize, mappings: &[Mapping]) -> Pieces {
        let most = Reader::new(&self.root).line(paths::MAX_MAP_COUNT).ok().and_then(|line| line.parse().ok());
        let free = most.unwrap_or(0u64).saturating_sub(mappings.len() as u64);
        let image = &self.images[at];
        let populated = |mapping: &_| image.populated(mapping, self.huge);
        let process = image.process;
        if image.is_whole || !self.hands.is_somebody() {
            return Pieces::Whole;
        }
        let plan = pieces::plan(mappings, self.huge, &populated, free);
        if plan.is_short {
            self.notes.retain(|note| !note.contains("mappings it may have"));
            self.notes.push(format!(
                "process {} has {} of the {} mappings it may have (vm.max_map_count): a part of its memory \
                 is seen by whole mappings",
                process.pid,
                mappings.len(),
                most.unwrap_or(0)
            ));
        }
        if plan.advised.is_empty() {
            return Pieces::Whole;
        }
        if !self.merge_the_late(process) {
            return Pieces::NotNow;
        }
        let since = Instant::now();
        match self.advise(process, Advice::DontDump, &plan.advised) {
            Ok(()) => Pieces::Split(plan.advised, since),
            Err(_) if !process.is_there(&self.root) => Pieces::NotNow,
            Err(NotDone { why, is_passing, is_begun }) => {
                if is_begun {
                    self.merge(process, &plan.advised, since);
                }
                if is_passing {
                    self.note(format!("sweeps of process {} were left out: {why}", process.pid));
                    return Pieces::NotNow;
                }
                self.images[at].is_whole = true;
                self.note(format!(
                    "mappings are seen whole and not by huge page, since process {} cannot be made to \
                     split them: {why}",
                    process.pid
                ));
                Pieces::Whole
            }
        }
    }

    pub(super) fn merge(&mut self, process: Identity, ranges: &[Range<u64>], since: Instant) {
        // A signal storm may be over the second time.
        let done = self.advise(process, Advice::DoDump, ranges);
        let done = match done {
            Err(_) if process.is_there(&self.root) => self.advise(process, Advice::DoDump, ranges),
            done => done,
        };
        match done {
            Err(not) if process.is_there(&self.root) => {
                if not.is_passing {
                    self.unmerged.push((process, ranges.to_vec()));
                }
                let pid = process.pid;
                self.note(format!(
                    "pieces of the memory of process {pid} were left out of core dumps for longer than a \
                     sweep: {not}"
                ));
            }
            _ => {}
        }
        let split = since.elapsed();
        self.longest_split = self.longest_split.max(split);
        *self.effort.split_ns.get_or_insert(0) += split.as_nanos() as u64;
    }

    /// Merges what is left of earlier sweeps; `false` if it cannot be yet.
    pub(super) fn merge_the_late(&mut self, process: Identity) -> bool {
        let (late, others) =
            std::mem::take(&mut self.unmerged).into_iter().partition(|(of, _)| *of == process);
        self.unmerged = others;
        let late: Vec<(Identity, Vec<Range<u64>>)> = late;
        for (of, ranges) in late {
            if self.advise(of, Advice::DoDump, &ranges).is_err() && of.is_there(&self.root) {
                self.unmerged.push((of, ranges));
            }
        }
        !self.unmerged.iter().any(|(of, _)| *of == process)
    }

    /// Has a process advise, and counts what that costs it.
    fn advise(&mut self, process: Identity, advice: Advice, ranges: &[Range<u64>]) -> Result<(), NotDone> {
        let waited = |root: &Root| image::waited(root, process.pid).as_nanos() as u64;
        let before = waited(&self.root);
        let done = self.hands.advise(process, advice, ranges)?;
        *self.effort.stopped_ns.get_or_insert(0) += done.stopped_ns;
        self.waited_ns += waited(&self.root).saturating_sub(before).min(done.stopped_ns);
        self.splits += u64::from(advice == Advice::DontDump);
        Ok(())
    }
}
