//! Who makes calls in the name of a profiled process: the supervisor of one that was started, or the
//! splitter.

use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;

use pagelab_sys::clock;
use pagelab_tlb::engine::ledger::Ledger;

use super::splitter::{Advice, CALLS_OF_A_STOP, Done, Dropped, Splitter};
use super::zeros::standing;
use crate::error::{Error, ErrorKind};
use crate::inject::Identity;
use crate::supervise::{Choice, Ended, Spec, Thp, Watch};

/// Whoever it is.
pub enum Hands {
    /// The tracer of a program that was started. It knows the names of mappings, and its end is the
    /// program's.
    Watch(Watch),
    /// A process of its own, for programs that run already.
    Splitter(Splitter),
    /// Mappings stay whole.
    Nobody,
}

impl Hands {
    /// Starts a program under the supervisor.
    pub fn launch(command: &[std::ffi::OsString], page: u64, huge: u64) -> Result<Hands, Error> {
        let name = command.first().cloned().unwrap_or_default();
        let program = crate::program::find(&name)?;
        let spec = Spec {
            program,
            arguments: command.to_vec(),
            choice: Choice::Nothing,
            overrides: false,
            hugetlb: false,
            stale: false,
            thp: Thp::Off,
            // As `apply` sees it. A stop for each small mapping would slow down programs that map often.
            sees_all: false,
            page,
            huge,
        };
        Watch::start(spec).map(Hands::Watch)
    }

    /// Has a process advise ranges of its memory.
    pub fn advise(&mut self, of: Identity, advice: Advice, ranges: &[Range<u64>]) -> Result<Done, NotDone> {
        let for_good = |why: String| NotDone { why, is_passing: false, is_begun: false };
        let watch = match self {
            Hands::Watch(watch) => watch,
            Hands::Splitter(splitter) => return splitter.advise(of, advice, ranges).map_err(for_good),
            Hands::Nobody => return Err(for_good("nothing shall be injected".to_owned())),
        };
        let before = watch.stopped_ns();
        let mut taken = 0;
        for some in ranges.chunks(CALLS_OF_A_STOP) {
            let calls: Vec<(i64, [u64; 6])> = some.iter().map(|range| advice.call(range)).collect();
            let results = watch.make(of.pid, &calls).map_err(|why| NotDone {
                why: why.to_string(),
                is_passing: why.is_passing(),
                is_begun: taken > 0,
            })?;
            taken += results.iter().filter(|&&result| result == 0).count() as u64;
        }
        Ok(Done { stopped_ns: watch.stopped_ns().saturating_sub(before), taken })
    }

    /// Has a process drop the entries of the page of zeros in these runs, as far as they are that while all
    /// of its threads stand and nobody else may write.
    pub fn drop_zeros(&mut self, of: Identity, runs: &[Range<u64>]) -> Result<Dropped, NotDone> {
        let passing = |why: String| NotDone { why, is_passing: true, is_begun: false };
        let watch = match self {
            Hands::Watch(watch) => watch,
            Hands::Splitter(splitter) => return splitter.drop_zeros(of, runs).map_err(passing),
            Hands::Nobody => return Err(passing("nothing shall be injected".to_owned())),
        };
        let before = watch.stopped_ns();
        let (says, hears) = mpsc::channel();
        let runs = runs.to_vec();
        let prepare = move |others: &[u32]| {
            let parts = standing::droppable(of.pid, Some(others), &runs);
            let ranges = parts.clone().unwrap_or_default();
            let _ = says.send(parts);
            ranges
        };
        let answer = watch.drop_standing(of.pid, Box::new(prepare)).map_err(|why| NotDone {
            why: why.to_string(),
            is_passing: why.is_passing(),
            is_begun: false,
        })?;
        let parts = hears.recv().map_err(|_| passing("it was not looked at".to_owned()))?.map_err(passing)?;
        let taken = parts.into_iter().zip(answer.results).filter(|(_, result)| *result == 0);
        let stopped_ns = watch.stopped_ns().saturating_sub(before);
        Ok(Dropped { parts: taken.map(|(part, _)| part).collect(), used: answer.used, stopped_ns })
    }

    /// Whether calls can be made at all.
    pub fn is_somebody(&self) -> bool {
        !matches!(self, Hands::Nobody)
    }

    /// What lies where in a process, by the calls that it made, and a number of the program that it runs.
    pub fn ledger(&self, pid: u32) -> Option<(usize, Ledger)> {
        match self {
            Hands::Watch(watch) => watch.ledger(pid),
            _ => None,
        }
    }

    /// CPU time that calls in the program's name took it, about: as long as it took who had them made.
    pub fn calls_cpu_ns(&self) -> u64 {
        match self {
            Hands::Watch(watch) => watch.cpu_ns(),
            _ => self.cpu_ns(),
        }
    }

    /// CPU time of the splitter; the supervisor is a thread of this process.
    pub fn cpu_ns(&self) -> u64 {
        match self {
            Hands::Splitter(splitter) => clock::process_cpu_ns(splitter.pid()).unwrap_or(0),
            _ => 0,
        }
    }
}

/// Why a process did not advise.
#[derive(Debug)]
pub struct NotDone {
    /// In a phrase.
    pub why: String,
    /// It may do so later.
    pub is_passing: bool,
    /// A part of the ranges was advised.
    pub is_begun: bool,
}

impl std::fmt::Display for NotDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// The program that was started.
pub enum Started {
    /// As any child.
    Child(Child),
    /// Under the supervisor.
    Watched(u32),
}

impl Started {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        match self {
            Started::Child(child) => child.id(),
            Started::Watched(pid) => *pid,
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self, hands: &Hands) -> std::io::Result<Option<ExitStatus>> {
        match (self, hands) {
            (Started::Child(child), _) => child.try_wait(),
            (Started::Watched(_), Hands::Watch(watch)) => Ok(watch.ended().map(status)),
            (Started::Watched(_), _) => Ok(None),
        }
    }
}

fn status(ended: Ended) -> ExitStatus {
    // The encoding of wait(2).
    ExitStatus::from_raw(match ended {
        Ended::Code(code) => (code & 0xff) << 8,
        Ended::Signal(signal) => signal,
    })
}

/// A splitter for a program that runs already, or is about to.
pub fn splitter(command: Command) -> Result<Hands, Error> {
    Splitter::start(command).map(Hands::Splitter).map_err(|error| {
        let message =
            format!("the process that splits mappings cannot be started: {error}; a way out: --no-split");
        Error::new(ErrorKind::NotAvailable, message)
    })
}
