//! The process that splits mappings of others and merges them again. It is one of its own, in a process group
//! of its own, so that neither Ctrl-C nor a kill of the pagelab that a person sees can come in the middle of
//! an injected call; when that pagelab is gone, its standard input ends, and it merges what is split.
//!
//! One line asks: `PID START dontdump|dodump ADDRESS-ADDRESS …`, and one answers: `ok CALLS STOPPED-NS DONE`
//! or `no REASON`. `PID START dropzeros ADDRESS-ADDRESS …` is answered by
//! `ok AT-NS CPU-NS FAULTS STOPPED-NS ADDRESS-ADDRESS …`, the parts that were dropped. Nothing of it is to be
//! undone: contents are the same.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::root::Root;
use pagelab_sys::attach::{self, Injected, Refusal};
use pagelab_sys::realtime::Realtime;

use super::zeros::standing;
use crate::drops::{self, Used};
use crate::inject::{self, Identity};

/// What the ranges are advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// MADV_DONTDUMP (Linux 3.4): left out of core dumps, and so a mapping of its own.
    DontDump,
    /// MADV_DODUMP: as it was.
    DoDump,
}

impl Advice {
    fn word(self) -> &'static str {
        match self {
            Advice::DontDump => "dontdump",
            Advice::DoDump => "dodump",
        }
    }

    fn number(self) -> u64 {
        match self {
            Advice::DontDump => libc::MADV_DONTDUMP as u64,
            Advice::DoDump => libc::MADV_DODUMP as u64,
        }
    }

    /// The call: its number and arguments.
    pub(super) fn call(self, range: &Range<u64>) -> (i64, [u64; 6]) {
        let length = range.end.saturating_sub(range.start);
        (libc::SYS_madvise, [range.start, length, self.number(), 0, 0, 0])
    }
}

/// The word of a request to drop entries of the page of zeros.
const DROP_ZEROS: &str = "dropzeros";

/// Calls in one stop of the program; it goes on in between.
pub(super) const CALLS_OF_A_STOP: usize = 64;

/// How long the splitter stays for a call that has not come back: while it is there, the thread that made it
/// gets its registers back.
const LATE_CALLS: Duration = Duration::from_secs(3600);

/// How long an answer may take: all the calls of a request, on a machine that is busy.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Entries of the page of zeros that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Where.
    pub parts: Vec<Range<u64>>,
    /// What the process had used then.
    pub used: Used,
    /// Time in which all of its threads stood.
    pub stopped_ns: u64,
}

/// Drops the entries of the page of zeros in these runs while all threads of the process stand, if nobody
/// else may write to it; an error is a phrase.
pub fn drop_zeros(root: &Root, process: Identity, runs: Vec<Range<u64>>) -> Result<Dropped, String> {
    let pid = process.pid;
    let threads = move || standing::living_threads(&Root::live(), pid);
    let (done, injected) = inject::with_all(root, process, threads, move |injector| {
        let _soon = Realtime::enter();
        let parts = match standing::droppable(pid, None, &runs) {
            Ok(parts) => parts,
            Err(why) => return Ok(Err(why)),
        };
        let results = drops::drop_all(pid, &parts, |number, arguments| injector.call(number, arguments))?;
        let taken = parts.into_iter().zip(results).filter(|(_, result)| *result == 0);
        let parts = taken.map(|(part, _)| part).collect();
        Ok(Ok(Dropped { parts, used: Used::by(&Root::live(), pid), stopped_ns: 0 }))
    })
    .map_err(|refusal| refusal.to_string())?;
    done.map(|dropped| Dropped { stopped_ns: injected.stopped_ns, ..dropped })
}

/// Advises ranges of another process: how many of them were taken, and what it cost.
pub fn advise(
    root: &Root,
    process: Identity,
    advice: Advice,
    ranges: &[Range<u64>],
) -> Result<(u64, Injected), Refusal> {
    let (mut taken, mut cost) = (0, Injected::default());
    for some in ranges.chunks(CALLS_OF_A_STOP) {
        let some = some.to_vec();
        let (count, injected) = inject::with(root, process, move |injector| {
            // The program stands until all are made.
            let _soon = Realtime::enter();
            let mut count = 0;
            for range in &some {
                let (number, arguments) = advice.call(range);
                count += u64::from(injector.call(number, arguments)? == 0);
            }
            Ok(count)
        })?;
        taken += count;
        cost.calls += injected.calls;
        cost.stopped_ns += injected.stopped_ns;
        cost.calls_ns += injected.calls_ns;
    }
    Ok((taken, cost))
}

/// Serves until the input ends, and then merges what is still split.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let root = Root::live();
    let _ = crate::priority::sooner();
    let mut split: BTreeMap<Identity, Vec<Range<u64>>> = BTreeMap::new();
    for line in input.lines() {
        let Ok(line) = line else { break };
        if let Some((process, runs)) = drop_request(&line) {
            let answer = match drop_zeros(&root, process, runs) {
                Ok(Dropped { parts, used, stopped_ns }) => {
                    let Used { at_ns, cpu_ns, faults } = used;
                    format!("ok {at_ns} {cpu_ns} {faults} {stopped_ns}{}", listed(&parts))
                }
                Err(why) => format!("no {why}"),
            };
            if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
                break;
            }
            continue;
        }
        let Some((process, advice, ranges)) = request(&line) else {
            writeln!(output, "no such request is known")?;
            continue;
        };
        // Kept before it is done: a part of it may be done.
        match advice {
            Advice::DontDump => split.entry(process).or_default().extend(ranges.iter().cloned()),
            Advice::DoDump => {}
        }
        let done = advise(&root, process, advice, &ranges);
        if advice == Advice::DoDump && matches!(done, Ok(_) | Err(Refusal::Gone)) {
            split.remove(&process);
        }
        let answer = match done {
            Ok((taken, cost)) => format!("ok {} {} {taken}", cost.calls, cost.stopped_ns),
            Err(refusal) => format!("no {refusal}"),
        };
        if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
            break;
        }
    }
    for (process, ranges) in &split {
        let _ = advise(&root, *process, Advice::DoDump, ranges);
    }
    if !attach::all_let_go(LATE_CALLS) {
        // The calls may have come back by now, or never will.
        split.iter().for_each(|(process, ranges)| drop(advise(&root, *process, Advice::DoDump, ranges)));
    }
    Ok(())
}

fn range(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// Each with a blank before it.
fn listed(ranges: &[Range<u64>]) -> String {
    ranges.iter().map(|range| format!(" {:x}-{:x}", range.start, range.end)).collect()
}

fn drop_request(line: &str) -> Option<(Identity, Vec<Range<u64>>)> {
    let mut words = line.split(' ');
    let process = Identity { pid: words.next()?.parse().ok()?, start_ticks: words.next()?.parse().ok()? };
    (words.next()? == DROP_ZEROS).then_some(())?;
    Some((process, words.map(range).collect::<Option<Vec<_>>>()?))
}

fn request(line: &str) -> Option<(Identity, Advice, Vec<Range<u64>>)> {
    let mut words = line.split(' ');
    let pid = words.next()?.parse().ok()?;
    let start_ticks = words.next()?.parse().ok()?;
    let word = words.next()?;
    let advice = [Advice::DontDump, Advice::DoDump].into_iter().find(|advice| advice.word() == word)?;
    let ranges = words.map(range).collect::<Option<Vec<_>>>()?;
    Some((Identity { pid, start_ticks }, advice, ranges))
}

/// The splitter, as its user sees it.
#[derive(Debug)]
pub struct Splitter {
    child: Child,
    to: Option<ChildStdin>,
    /// Its answers, line by line.
    from: Receiver<String>,
}

/// What the splitter did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Time in which a thread of the program was stopped.
    pub stopped_ns: u64,
    /// Ranges that were advised.
    pub taken: u64,
}

impl Splitter {
    /// Starts it: `command` is a program that calls [`serve`].
    pub fn start(mut command: Command) -> io::Result<Splitter> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = BufReader::new(from.ok_or_else(|| io::Error::other("no pipe"))?);
        let (says, hears) = mpsc::channel();
        // It ends with the splitter's output.
        thread::Builder::new().spawn(move || {
            from.lines()
                .map_while(Result::ok)
                .take_while(|line| says.send(line.clone()).is_ok())
                .for_each(drop);
        })?;
        Ok(Splitter { child, to, from: hears })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it advise; an error is a phrase.
    pub fn advise(&mut self, of: Identity, advice: Advice, ranges: &[Range<u64>]) -> Result<Done, String> {
        let told = self.ask(of, advice.word(), ranges)?;
        let mut numbers = told.split(' ').map(|word| word.parse::<u64>().unwrap_or(0));
        let (_calls, stopped_ns) = (numbers.next(), numbers.next().unwrap_or(0));
        Ok(Done { stopped_ns, taken: numbers.next().unwrap_or(0) })
    }

    /// Has it drop entries of the page of zeros; an error is a phrase.
    pub fn drop_zeros(&mut self, of: Identity, runs: &[Range<u64>]) -> Result<Dropped, String> {
        let told = self.ask(of, DROP_ZEROS, runs)?;
        let mut words = told.split(' ');
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let used = Used { at_ns: number(), cpu_ns: number(), faults: number() };
        let stopped_ns = number();
        Ok(Dropped { parts: words.filter_map(range).collect(), used, stopped_ns })
    }

    /// Asks for one thing: what was answered behind `ok`.
    fn ask(&mut self, of: Identity, word: &str, ranges: &[Range<u64>]) -> Result<String, String> {
        let line = format!("{} {} {word}{}\n", of.pid, of.start_ticks, listed(ranges));
        let gone = |_| "the process that splits mappings is gone".to_owned();
        let to = self.to.as_mut().ok_or("the process that splits mappings has ended")?;
        to.write_all(line.as_bytes()).map_err(gone)?;
        // What comes late must not be taken for the answer to the next request.
        let answer = self.from.recv_timeout(ANSWER_WAIT).map_err(|_| {
            self.to = None;
            "the process that splits mappings does not answer".to_owned()
        })?;
        let mut words = answer.trim_end().splitn(2, ' ');
        match (words.next(), words.next()) {
            (Some("ok"), Some(told)) => Ok(told.to_owned()),
            (Some("no"), Some(reason)) => Err(reason.to_owned()),
            _ => Err("the process that splits mappings is gone".to_owned()),
        }
    }
}

impl Drop for Splitter {
    fn drop(&mut self) {
        drop(self.to.take());
        // One that waits for a late call ends when it has come, without us.
        let until = Instant::now() + ANSWER_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written_and_nothing_else_is() {
        let ranges = vec![0x1000..0x2000, 0xffff_f000..0x1_0000_0000];
        let asked = request("7 9731 dontdump 1000-2000 fffff000-100000000");
        assert_eq!(asked, Some((Identity { pid: 7, start_ticks: 9731 }, Advice::DontDump, ranges)));
        let runs: Vec<_> = std::iter::once(0x1000..0x3000).collect();
        let asked = "7 9731 dropzeros 1000-3000";
        assert_eq!(drop_request(asked), Some((Identity { pid: 7, start_ticks: 9731 }, runs)));
        assert_eq!((request(asked), drop_request("7 1 dodump 1000-2000")), (None, None));
        for bad in ["", "7", "7 1 dontdump x", "7 1 free 1-2", "-1 1 dodump 1-2", "7 1 dodump 1"] {
            assert_eq!(request(bad), None, "{bad}");
        }
    }
}
