//! Measured phase of a workload: without its preparation, and without the check of its result.

use pagelab_sys::clock;

/// Counters of the phase. A phase may be left and entered again; then it is the sum.
pub trait PhaseObserver {
    /// The phase begins: the last thing that is done before it.
    fn begin(&mut self);
    /// The phase ends: the first thing that is done after it.
    fn end(&mut self);
}

/// The phase, and its observer, if any.
pub struct MeasuredPhase<'w> {
    observer: Option<&'w mut dyn PhaseObserver>,
}

impl<'w> MeasuredPhase<'w> {
    /// No observer.
    pub fn without_observer() -> MeasuredPhase<'w> {
        MeasuredPhase { observer: None }
    }

    /// This one does.
    pub fn with_observer(observer: &'w mut dyn PhaseObserver) -> MeasuredPhase<'w> {
        MeasuredPhase { observer: Some(observer) }
    }

    /// It begins.
    pub fn begin(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.begin();
        }
    }

    /// It ends.
    pub fn end(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.end();
        }
    }

    /// It lasts as long as this, whose CPU time in this thread is returned too, ns.
    pub fn measure_cpu<T>(&mut self, work: impl FnOnce() -> T) -> (T, u64) {
        self.measure(|| time_cpu(work))
    }

    /// The same with wall time and CPU time, ns.
    pub fn measure_times<T>(&mut self, work: impl FnOnce() -> T) -> (T, u64, u64) {
        let timed = || {
            let began_ns = clock::monotonic_ns();
            let done = work();
            (done, clock::monotonic_ns().saturating_sub(began_ns))
        };
        let ((done, wall_ns), cpu_ns) = self.measure_cpu(timed);
        (done, wall_ns, cpu_ns)
    }

    /// It lasts as long as this.
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.begin();
        let done = work();
        self.end();
        done
    }
}

/// Result of some work, and its CPU time in this thread, ns.
pub fn time_cpu<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let began_ns = clock::thread_cpu_ns();
    let done = work();
    (done, clock::thread_cpu_ns().saturating_sub(began_ns))
}
