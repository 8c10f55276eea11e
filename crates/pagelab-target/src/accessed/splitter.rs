//! The process that splits mappings of others and merges them again. It has its own process group, so that
//! neither Ctrl-C nor a kill of the foreground pagelab interrupts an injected call; when that pagelab ends,
//! its standard input ends, and it merges all mappings that are split.
//!
//! A request is a line: `PID START dontdump|dodump ADDRESS-ADDRESS …`; the response is `ok STOPPED-NS` or
//! `no REASON`. The response to `PID START dropzeros ADDRESS-ADDRESS …` is `ok AT-NS CPU-NS FAULTS
//! STOPPED-NS ADDRESS-ADDRESS …`, the parts that were dropped. That needs no undo: contents do not change.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_host::root::Root;
use pagelab_sys::injection::{self, InjectionError};
use pagelab_sys::scheduling::RealtimePriority;

use super::zero_pages::stop_check;
use crate::dontneed::{self, CpuUsage};
use crate::process_injection::{self, ProcessIdentity};

/// The advice for ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// MADV_DONTDUMP (Linux 3.4): not in core dumps, and therefore a separate mapping.
    DontDump,
    /// MADV_DODUMP: as it was.
    DoDump,
}

impl Advice {
    /// The call: its number and arguments.
    pub(super) fn madvise_call(self, range: &Range<u64>) -> (i64, [u64; 6]) {
        let advice = match self {
            Advice::DontDump => libc::MADV_DONTDUMP,
            Advice::DoDump => libc::MADV_DODUMP,
        };
        let length = range.end.saturating_sub(range.start);
        (libc::SYS_madvise, [range.start, length, advice as u64, 0, 0, 0])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Advise(Advice),
    DropZeros,
}

impl Request {
    fn keyword(self) -> &'static str {
        match self {
            Request::Advise(Advice::DontDump) => "dontdump",
            Request::Advise(Advice::DoDump) => "dodump",
            Request::DropZeros => "dropzeros",
        }
    }
}

/// Calls per stop of the program; it runs in between.
pub(super) const CALLS_PER_STOP: usize = 64;

/// Longest time that the splitter waits for a call that has not returned: it has to restore the registers of
/// the thread.
const LATE_CALL_TIMEOUT: Duration = Duration::from_secs(3600);

/// Longest time of a response: all calls of a request, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Zero-page entries that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedRanges {
    /// Their addresses.
    pub parts: Vec<Range<u64>>,
    /// The CPU usage of the process then.
    pub usage: CpuUsage,
    /// Time in which all of its threads were stopped.
    pub stopped_ns: u64,
}

/// Drops the zero-page entries in these runs while all threads of the process are stopped, if nothing else
/// may write to it; an error is a phrase.
pub fn drop_zero_pages(
    root: &Root,
    process: ProcessIdentity,
    runs: Vec<Range<u64>>,
) -> Result<DroppedRanges, String> {
    let pid = process.pid;
    let (outcome, injected) =
        process_injection::inject_with_threads_stopped(root, process, move |injector| {
            let _priority = RealtimePriority::enter();
            let parts = match stop_check::find_droppable(pid, None, &runs) {
                Ok(parts) => parts,
                Err(why) => return Ok(Err(why)),
            };
            let results =
                dontneed::drop_ranges(pid, &parts, |number, arguments| injector.call(number, arguments))?;
            let dropped_parts = parts.into_iter().zip(results).filter(|(_, result)| *result == 0);
            let parts = dropped_parts.map(|(part, _)| part).collect();
            Ok(Ok(DroppedRanges { parts, usage: CpuUsage::read(&Root::live(), pid), stopped_ns: 0 }))
        })
        .map_err(|refusal| refusal.to_string())?;
    outcome.map(|dropped| DroppedRanges { stopped_ns: injected.stopped_ns, ..dropped })
}

/// Advises ranges of another process; returns for how long a thread was stopped, in nanoseconds.
pub fn advise_ranges(
    root: &Root,
    process: ProcessIdentity,
    advice: Advice,
    ranges: &[Range<u64>],
) -> Result<u64, InjectionError> {
    let mut stopped_ns = 0;
    for chunk in ranges.chunks(CALLS_PER_STOP) {
        let chunk = chunk.to_vec();
        let ((), injected) = process_injection::inject_calls(root, process, move |injector| {
            // The program is stopped until all are made.
            let _priority = RealtimePriority::enter();
            for range in &chunk {
                let (number, arguments) = advice.madvise_call(range);
                injector.call(number, arguments)?;
            }
            Ok(())
        })?;
        stopped_ns += injected.stopped_ns;
    }
    Ok(stopped_ns)
}

/// Serves until the input ends, and then merges the remaining splits.
pub fn serve_split_requests(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let root = Root::live();
    let _ = crate::priority::raise_priority();
    let mut split: BTreeMap<ProcessIdentity, Vec<Range<u64>>> = BTreeMap::new();
    for line in input.lines() {
        let Ok(line) = line else { break };
        let Some((process, request, ranges)) = parse_request(&line) else {
            writeln!(output, "no unknown request")?;
            continue;
        };
        let answer = match request {
            Request::DropZeros => drop_zero_pages(&root, process, ranges).map(|dropped| {
                let CpuUsage { at_ns, cpu_ns, faults } = dropped.usage;
                let parts = format_ranges(&dropped.parts);
                format!("{at_ns} {cpu_ns} {faults} {}{parts}", dropped.stopped_ns)
            }),
            Request::Advise(advice) => {
                // Recorded first: a part of it may be executed before a failure.
                if advice == Advice::DontDump {
                    split.entry(process).or_default().extend(ranges.iter().cloned());
                }
                let result = advise_ranges(&root, process, advice, &ranges);
                if advice == Advice::DoDump && matches!(result, Ok(_) | Err(InjectionError::ThreadExited)) {
                    split.remove(&process);
                }
                result.map(|stopped_ns| stopped_ns.to_string()).map_err(|failure| failure.to_string())
            }
        };
        let answer = match answer {
            Ok(payload) => format!("ok {payload}"),
            Err(why) => format!("no {why}"),
        };
        if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
            break;
        }
    }
    let merge_all = || {
        for (process, ranges) in &split {
            let _ = advise_ranges(&root, *process, Advice::DoDump, ranges);
        }
    };
    merge_all();
    if !injection::wait_all_released(LATE_CALL_TIMEOUT) {
        // The calls may have returned by now, or never will.
        merge_all();
    }
    Ok(())
}

fn damaged_answer(answer: &str) -> String {
    format!("the process that splits mappings sent an unexpected answer: {answer:?}")
}

fn parse_range(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// Each with a blank before it.
fn format_ranges(ranges: &[Range<u64>]) -> String {
    ranges.iter().map(|range| format!(" {:x}-{:x}", range.start, range.end)).collect()
}

fn parse_request(line: &str) -> Option<(ProcessIdentity, Request, Vec<Range<u64>>)> {
    let mut words = line.split(' ');
    let process =
        ProcessIdentity { pid: words.next()?.parse().ok()?, start_ticks: words.next()?.parse().ok()? };
    let word = words.next()?;
    let known = [Request::Advise(Advice::DontDump), Request::Advise(Advice::DoDump), Request::DropZeros];
    let request = known.into_iter().find(|request| request.keyword() == word)?;
    Some((process, request, words.map(parse_range).collect::<Option<Vec<_>>>()?))
}

/// The splitter, as its user sees it.
#[derive(Debug)]
pub struct Splitter {
    child: Child,
    requests: Option<ChildStdin>,
    /// Its answers, line by line.
    answers: Receiver<String>,
}

impl Splitter {
    /// Starts it: `command` is a program that calls [`serve_split_requests`].
    pub fn start(mut command: Command) -> io::Result<Splitter> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (requests, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.ok_or_else(|| io::Error::other("no pipe"))?);
        let (sender, receiver) = mpsc::channel();
        // It ends with the splitter's output.
        thread::Builder::new().spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .take_while(|line| sender.send(line.clone()).is_ok())
                .for_each(drop);
        })?;
        Ok(Splitter { child, requests, answers: receiver })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it advise; returns for how long a thread was stopped, in nanoseconds. An error is a phrase.
    pub fn advise_ranges(
        &mut self,
        process: ProcessIdentity,
        advice: Advice,
        ranges: &[Range<u64>],
    ) -> Result<u64, String> {
        let answer = self.send_request(process, Request::Advise(advice), ranges)?;
        answer.parse().map_err(|_| damaged_answer(&answer))
    }

    /// Has it drop entries of the zero page; an error is a phrase.
    pub fn drop_zero_pages(
        &mut self,
        process: ProcessIdentity,
        runs: &[Range<u64>],
    ) -> Result<DroppedRanges, String> {
        let answer = self.send_request(process, Request::DropZeros, runs)?;
        let mut words = answer.split(' ');
        let mut number = || -> Result<u64, String> {
            words.next().and_then(|word| word.parse().ok()).ok_or_else(|| damaged_answer(&answer))
        };
        let usage = CpuUsage { at_ns: number()?, cpu_ns: number()?, faults: number()? };
        let stopped_ns = number()?;
        Ok(DroppedRanges { parts: words.filter_map(parse_range).collect(), usage, stopped_ns })
    }

    /// Sends one request; returns the text after `ok`.
    fn send_request(
        &mut self,
        target: ProcessIdentity,
        request: Request,
        ranges: &[Range<u64>],
    ) -> Result<String, String> {
        let (keyword, ranges) = (request.keyword(), format_ranges(ranges));
        let line = format!("{} {} {keyword}{ranges}\n", target.pid, target.start_ticks);
        let gone = |_| "the process that splits mappings exited".to_owned();
        let requests = self.requests.as_mut().ok_or("the process that splits mappings has exited")?;
        requests.write_all(line.as_bytes()).map_err(gone)?;
        // A late answer must not be taken for the answer to the next request.
        let answer = self.answers.recv_timeout(ANSWER_TIMEOUT).map_err(|_| {
            self.requests = None;
            "the process that splits mappings does not answer".to_owned()
        })?;
        match answer.trim_end().split_once(' ') {
            Some(("ok", payload)) => Ok(payload.to_owned()),
            Some(("no", reason)) => Err(reason.to_owned()),
            _ => Err("the process that splits mappings exited".to_owned()),
        }
    }
}

impl Drop for Splitter {
    fn drop(&mut self) {
        drop(self.requests.take());
        // One that waits for a late call ends when it has come, without us.
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
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
        let process = ProcessIdentity { pid: 7, start_ticks: 9731 };
        let request = parse_request("7 9731 dontdump 1000-2000 fffff000-100000000");
        assert_eq!(request, Some((process, Request::Advise(Advice::DontDump), ranges)));
        let runs: Vec<_> = std::iter::once(0x1000..0x3000).collect();
        let request = parse_request("7 9731 dropzeros 1000-3000");
        assert_eq!(request, Some((process, Request::DropZeros, runs)));
        let request = parse_request("7 9731 dodump 1000-2000").map(|(_, request, _)| request);
        assert_eq!(request, Some(Request::Advise(Advice::DoDump)));
        for bad in ["", "7", "7 1 dontdump x", "7 1 free 1-2", "-1 1 dodump 1-2", "7 1 dodump 1"] {
            assert_eq!(parse_request(bad), None, "{bad}");
        }
    }
}
