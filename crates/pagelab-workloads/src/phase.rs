//! The measured phase of a workload: without what it prepares, and without the check of its result.

use std::fmt;

/// What counts while the phase lasts. A phase may be left and entered again; then it is the sum.
pub trait Watch {
    /// The phase begins: the last thing that is done before it.
    fn begin(&mut self);
    /// The phase ends: the first thing that is done after it.
    fn end(&mut self);
}

/// The phase, and who watches it, if anybody does.
pub struct Phase<'w> {
    watch: Option<&'w mut dyn Watch>,
}

impl fmt::Debug for Phase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Phase").field("is_watched", &self.watch.is_some()).finish()
    }
}

impl<'w> Phase<'w> {
    /// Nobody watches.
    pub fn unwatched() -> Phase<'w> {
        Phase { watch: None }
    }

    /// This one does.
    pub fn watched(watch: &'w mut dyn Watch) -> Phase<'w> {
        Phase { watch: Some(watch) }
    }

    /// It begins.
    pub fn begin(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.begin();
        }
    }

    /// It ends.
    pub fn end(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.end();
        }
    }

    /// It lasts as long as this.
    pub fn of<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.begin();
        let done = work();
        self.end();
        done
    }
}
