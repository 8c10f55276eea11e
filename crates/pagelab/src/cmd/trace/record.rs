//! `pagelab trace record`: each allocation and free of the whole machine, into a run file.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use pagelab_formats::{duration, size};
use pagelab_host::alloc_trace;
use pagelab_host::census::runs::RunScan;
use pagelab_host::guard::Guard;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::alloc_trace::{TraceEnd, TraceThrough};
use pagelab_model::run::Ending;
use pagelab_model::{Bytes, Reading};
use pagelab_report::quantity;
use pagelab_report::style::{bytes, count, percent};
use pagelab_report::text::Page;
use pagelab_runfile::{Error, Writer};
use pagelab_sys::{clock, spawn};

use super::session::{Session, Totals};
use super::through::{self, Opened, Way};
use super::words::{SAID, rate as rate_text, recorder_cost};
use crate::cmd::record::status::{size as file_size, whole_seconds};
use crate::cmd::record::tick::Stop;
use crate::cmd::record::{self, DAY, SIGINT};
use crate::cmd::{program, run_file, unread, usage};
use crate::exit::{Exit, Failure};
use crate::{manifest, out};

const EXAMPLES: &str = "\
Examples:
  pagelab trace record -o t.pagelab --for 30s
  pagelab trace record -o t.pagelab -- make -j2
  pagelab trace record -o t.pagelab --no-snapshot --for 5s

First the state of each page is read, for half a second to some seconds.
--for and COMMAND begin behind that; what happens meanwhile is in the trace too.
How COMMAND ends is told, and is not the exit code: 0 says that the trace is
whole. docs/trace.md";

/// What `trace record` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The new run file
    #[arg(short, long, value_name = "FILE.pagelab")]
    output: PathBuf,
    /// End this long after the snapshot, such as 30s; without it, Ctrl-C ends it
    #[arg(long = "for", value_name = "TIME", conflicts_with = "command")]
    duration: Option<String>,
    /// Read buddyinfo so often, from 10ms on
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    every: String,
    /// Leave out the state of each page at the start
    #[arg(long)]
    no_snapshot: bool,
    /// Whose buffers the events come through: auto is ftrace's where they can be had
    #[arg(long, value_name = "auto|ftrace|perf", default_value = "auto", hide_possible_values = true)]
    through: Way,
    /// Room for events on each processor
    #[arg(long, value_name = "SIZE", default_value = "32M", hide = true)]
    ring: String,
    /// Record until this command ends; it is killed with the recording
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How long the rings are left alone at most: a request to stop is answered, and the line goes on.
const TURN: Duration = Duration::from_millis(100);

/// Between two status lines.
const LINE_EVERY_NS: u64 = 500_000_000;

/// Everything resolved before anything is made.
struct Plan {
    for_ns: Option<u64>,
    every_ns: u64,
    ring: Bytes,
}

/// Why a recording ended.
enum Ended {
    Over,
    Signal(i32),
    Child(ExitStatus),
    Failed(Error),
}

/// Records until the time is over, the command has ended, or a signal comes.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let plan = resolve(args)?;
    record::allow_files();
    let root = Root::live();
    let reader = Reader::new(&root);
    let look = manifest::this_machine(&root);
    let stop = Stop::new()
        .map_err(|errno| Failure::new(Exit::NotAvailable, "cannot wait for signals").because(errno))?;
    // A trace instance may be made from here on, and must not outlive a signal.
    record::watch_signals(&args.output, &stop);
    let Opened { guard, mut source, fields } = through::open(&reader, args.through, plan.ring)?;
    let page_size = look.machine.page_size;
    let seconds = clock::realtime_ns() / 1_000_000_000;
    let (mut head, zoneinfo) = alloc_trace::head(&reader, page_size, seconds).map_err(unread)?;
    head.through = source.through();
    let orders = usize::from(head.max_order) + 1;
    let scan = match args.no_snapshot {
        true => None,
        false => Some(RunScan::new(&reader, &zoneinfo, page_size, orders).map_err(unread)?),
    };
    let started = manifest::now();
    let manifest = manifest::of_this_process("trace", None, started, &look);
    let mut writer = Writer::create(&args.output, &manifest).map_err(|error| run_file(&error))?;
    writer.trace_head(&head).map_err(|error| run_file(&error))?;
    // From here on no thread is added: those that are there are left out.
    let is_filtered = source.leave_out_threads(&reader).map_err(unread)?;
    let session = Session::begin(&reader, source, fields, is_filtered, writer, started.boottime_ns);
    let session = session.map_err(|error| run_file(&error))?;
    let (through, snapshot_ns) = (head.through, (0, 0));
    let mut recording = Recording { args, plan, stop, line_ns: 0, snapshot_ns, session, through, guard };
    let ended = recording.go(scan)?;
    recording.finish(ended)
}

fn resolve(args: &Args) -> Result<Plan, Failure> {
    let for_ns = match &args.duration {
        Some(text) => Some(record::time("--for", text, Duration::from_millis(100), 366 * DAY)?),
        None => None,
    };
    let every = duration::parse(&args.every).map_err(|error| usage(&format!("--every {error}")))?;
    if every < Duration::from_millis(10) || every > DAY {
        return Err(usage(&format!("--every {}: from 10ms to 1d was wanted", args.every)));
    }
    // Before there is a file, which would stand in the way of the next attempt.
    args.command.first().map(|name| program(name)).transpose()?;
    let ring = size::parse_suffixed(args.ring.as_bytes()).ok().filter(|ring| ring.0 > 0 && ring.0 <= 1 << 30);
    let ring = ring.ok_or_else(|| usage(&format!("--ring {}: from 4K to 1G was wanted", args.ring)))?;
    Ok(Plan { for_ns, every_ns: u64::try_from(every.as_nanos()).unwrap_or(u64::MAX), ring })
}

struct Recording<'a> {
    args: &'a Args,
    plan: Plan,
    stop: Stop,
    line_ns: u64,
    /// When the kernel was let to begin, and when the state of memory had been read.
    snapshot_ns: (u64, u64),
    session: Session<'a>,
    through: TraceThrough,
    /// Ends last, once every file of the trace instance is closed.
    guard: Option<Guard>,
}

impl Recording<'_> {
    fn go(&mut self, scan: Option<RunScan>) -> Result<Ended, Failure> {
        let began_ns = self.session.now_ns();
        self.session
            .enable(self.plan.every_ns)
            .map_err(|error| Failure::new(Exit::NotAvailable, "cannot begin to trace").because(error))?;
        if let Some(scan) = scan {
            match self.snapshot(scan) {
                Err(error) => return Ok(Ended::Failed(error)),
                Ok(Err(absence)) => {
                    let reason = absence.reason();
                    out::complain(&format!(
                        "pagelab: the trace begins without the state of memory: {}: {reason}",
                        absence.source
                    ));
                }
                Ok(Ok(())) => {}
            }
            self.snapshot_ns = (began_ns, self.session.now_ns());
        }
        let mut child = self.start()?;
        let until_ns = self.plan.for_ns.map(|for_ns| self.session.now_ns().saturating_add(for_ns));
        loop {
            let left_ns =
                until_ns.map_or(u64::MAX, |until_ns| until_ns.saturating_sub(self.session.now_ns()));
            if let Err(error) = self.session.turn(TURN.min(Duration::from_nanos(left_ns))) {
                return Ok(Ended::Failed(error));
            }
            if let Some(code) = self.stop.asked() {
                return Ok(Ended::Signal(code));
            }
            if until_ns.is_some_and(|until_ns| self.session.now_ns() >= until_ns) {
                return Ok(Ended::Over);
            }
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Ok(Ended::Child(status));
            }
            self.show("");
        }
    }

    fn snapshot(&mut self, scan: RunScan) -> Result<Reading<()>, Error> {
        let (stop, is_watched) = (self.stop.clone(), out::is_watched());
        let all = scan.frames_left().max(1);
        self.session.snapshot(scan, |_, left| {
            if is_watched {
                let share = percent(1.0 - left as f64 / all as f64);
                out::status(&format!("reading the state of memory: {share}"));
            }
            stop.asked().is_none()
        })
    }

    fn start(&self) -> Result<Option<Child>, Failure> {
        let Some((program, arguments)) = self.args.command.split_first() else { return Ok(None) };
        let mut command = Command::new(program);
        command.args(arguments);
        spawn::die_with_parent(&mut command);
        command.spawn().map(Some).map_err(|error| {
            let program = program.display();
            let message =
                format!("cannot start {program}: {error}; give a program that is in PATH, or its path");
            Failure::new(Exit::BadInput, message)
        })
    }

    /// The line on the terminal, at most twice a second.
    fn show(&mut self, more: &str) {
        let now_ns = self.session.now_ns();
        if !out::is_watched() || now_ns.saturating_sub(self.line_ns) < LINE_EVERY_NS {
            return;
        }
        self.line_ns = now_ns;
        let totals = &self.session.totals;
        let rate = totals.events() as f64 / (now_ns as f64 / 1e9);
        out::status(&format!(
            "{}   {} events   {}/s   {:.2} bytes each   {}   {} lost{more}",
            whole_seconds(now_ns),
            count(totals.events().into()),
            rate_text(rate),
            totals.bytes_per_event(),
            bytes(file_size(&self.args.output)),
            count(totals.lost.into()),
        ));
    }

    /// Closes the file, says what is in it, and finds the exit code.
    fn finish(mut self, ended: Ended) -> Result<u8, Failure> {
        if out::is_watched() {
            out::status("");
        }
        // Without a time and without a command, Ctrl-C is the end that was asked for.
        let is_endless = self.plan.for_ns.is_none() && self.args.command.is_empty();
        let is_asked_end = is_endless && matches!(ended, Ended::Signal(SIGINT));
        let told = match &ended {
            Ended::Failed(_) => None,
            _ => Some(self.session.end()),
        };
        let after_ns = self.session.now_ns();
        let (writer, totals) = self.session.into_parts();
        through::close(self.guard);
        let (ending, failed) = match (&ended, &told) {
            (Ended::Failed(error), _) | (_, Some(Err(error))) => {
                (Ending::Stopped { after_ns, why: error.to_string() }, Some(error.clone()))
            }
            (Ended::Signal(code), _) if !is_asked_end => {
                (Ending::Stopped { after_ns, why: out::signal_name(*code).to_owned() }, None)
            }
            _ => (Ending::Complete { after_ns }, None),
        };
        let closed = writer.close(ending);
        if let Some(error) = failed.or(closed.err()) {
            let failure = run_file(&error);
            let message = format!("the trace stopped after {} events: {failure}", totals.events());
            return Err(Failure::new(failure.exit(), message));
        }
        let end = told.and_then(Result::ok).unwrap_or_default();
        let mut out = out::stdout();
        let lasted = (self.snapshot_ns, after_ns);
        out.write_all(said(&self.args.output, &totals, &end, self.through, lasted).as_bytes())?;
        out.flush()?;
        Ok(match ended {
            Ended::Signal(code) if !is_asked_end => u8::try_from(code).unwrap_or(Exit::Bug as u8),
            Ended::Child(status) if !status.success() => {
                out::complain(&format!("pagelab: the command ended with {status}"));
                Exit::Done as u8
            }
            _ => Exit::Done as u8,
        })
    }
}

/// What a recording came to, for a person.
fn said(
    path: &Path,
    totals: &Totals,
    end: &TraceEnd,
    through: TraceThrough,
    (scan_ns, after_ns): ((u64, u64), u64),
) -> String {
    let mut page = Page::new(out::style());
    let events = totals.events();
    // From the first event to the last, as `trace info` counts.
    let (first_ns, last_ns) = totals.span_ns.unwrap_or((0, after_ns));
    let span_ns = last_ns.saturating_sub(first_ns);
    let per_second = events as f64 / (span_ns as f64 / 1e9).max(1e-9);
    page.hanging(
        "",
        &format!(
            "{}   {}   {} events in {}: {}/s, {:.2} bytes each   {} lost",
            path.display(),
            bytes(file_size(path)),
            count(events.into()),
            quantity::duration(span_ns),
            rate_text(per_second),
            totals.bytes_per_event(),
            count(totals.lost.into()),
        ),
    );
    let snapshot_ns = scan_ns.1.saturating_sub(scan_ns.0);
    if snapshot_ns > 0 {
        let rest = quantity::duration(after_ns.saturating_sub(scan_ns.1));
        let text =
            format!("{} for the state of memory at the start + {rest}", quantity::duration(snapshot_ns));
        page.hanging("", &text);
    }
    let kinds = totals.kinds.iter().zip(SAID).filter(|(times, _)| **times > 0);
    let kinds: Vec<String> =
        kinds.map(|(times, what)| format!("{} {what}", count((*times).into()))).collect();
    page.facts("  ", &kinds, " · ");
    page.hanging("", &format!("through {}; {}", through.name(), recorder_cost(end, events)));
    if let Some(check) = &end.check {
        let (agreeing, orders) = check.agreeing();
        let (off, free) = check.pages_off();
        page.hanging(
            "",
            &format!(
                "free lists at the start: {agreeing} of {orders} orders from 1 on are as in buddyinfo before \
                 and after; {} of {} free pages differ",
                count(off.into()),
                count(free.into()),
            ),
        );
    }
    if totals.lost > 0 {
        let lost = percent(totals.lost as f64 / (totals.lost + events) as f64);
        page.hanging(
            "",
            &format!("{lost} of all events were lost: the rings were full; trace less at a time"),
        );
    }
    page.hanging("", &format!("→ pagelab trace info {}", path.display()));
    page.finish()
}
