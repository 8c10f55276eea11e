//! `pagelab fragment procedure`: a published procedure on this machine, beside its published scores.

mod recording;
mod show;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::procedure::{Acts, Pass, pass};
use pagelab_contig::random::{self as walk, Plan};
use pagelab_contig::whole_thp;
use pagelab_host::root::Root;
use pagelab_metrics::known_scores::Phase;
use pagelab_model::{BuddyInfo, Bytes, Snapshot};

use super::taking::Taking;
use super::{failure, random};
use crate::exit::{Exit, Failure};
use crate::out;

const ABOUT: &str = "\
The procedure is that of a course report on fragmentation and huge pages:
compact, wait, score F_u, fragment by chance, score, compact while the
fragmenter holds its memory, score; without huge pages and with them. Its
scores are printed beside this machine's, and compared by shape: heights depend
on the machine. Compaction cannot be undone, and needs root. Exit code 0: the
same shape as a published one; 1: another; docs/fragment.md
";

/// What `fragment procedure` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub struct Args {
    #[command(flatten)]
    options: random::Walking,

    /// Only with huge pages
    #[arg(long, conflicts_with = "no_thp")]
    thp: bool,

    /// Only without huge pages
    #[arg(long)]
    no_thp: bool,

    /// Wait so many seconds after the first compaction
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    settle: u32,

    /// Every number as JSON
    #[arg(long)]
    json: bool,

    /// Keep the scores, free blocks and use over time in this run file
    #[arg(short = 'o', long = "run", value_name = "FILE")]
    output: Option<PathBuf>,
}

/// One pass with what the fragmenter did in it.
pub struct Told {
    /// The scores.
    pub pass: Pass,
    /// What the fragmenter did, in lines.
    pub lines: Vec<String>,
}

/// Carries it out.
pub fn run(args: &Args, snapshot: &Snapshot) -> Result<u8, Failure> {
    let facts = Facts::of(snapshot, None).map_err(|error| failure(&error))?;
    let (plan, reserve) = args.options.resolve(&facts, false)?;
    let passes: &[bool] = match (args.thp, args.no_thp) {
        (true, _) => &[true],
        (_, true) => &[false],
        _ => &[false, true],
    };
    random::check_huge_pages(&facts, passes.contains(&true))?;
    let mut taking = Taking::begin(&facts, reserve, random::most(&plan, &facts, reserve))?;
    taking.record(args.output.as_deref(), plan.seed, snapshot)?;
    let mut machine = Machine { taking, facts: &facts, plan, held: None, lines: Vec::new(), thp: false };
    let mut told = Vec::new();
    let mut ended = Ok(());
    for &thp in passes {
        machine.thp = thp;
        match pass(&mut machine, thp, Duration::from_secs(args.settle.into())) {
            Ok(pass) => told.push(Told { pass, lines: std::mem::take(&mut machine.lines) }),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    let signal = machine.taking.stop.signal();
    let is_clean = machine.taking.finish(false);
    // What was measured before a failure is shown all the same.
    let is_same = if told.is_empty() { false } else { show::all(&told, &facts, args.json)? };
    if let (Err(failure), Some(_)) = (&ended, signal) {
        out::complain(&format!("pagelab: {failure}"));
    } else {
        ended?;
    }
    Ok(match (signal, is_clean, is_same) {
        (Some(signal), ..) => u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8),
        (None, false, _) => Exit::Partial as u8,
        (None, true, true) => Exit::Done as u8,
        (None, true, false) => Exit::No as u8,
    })
}

/// This machine, as the procedure sees it.
struct Machine<'a> {
    taking: Taking,
    facts: &'a Facts,
    plan: Plan,
    held: Option<walk::Held>,
    lines: Vec<String>,
    thp: bool,
}

impl Machine<'_> {
    fn event(&mut self, text: &str) {
        let with = if self.thp { "with huge pages" } else { "without huge pages" };
        out::note(&format!("{with}: {text}"));
        self.taking.event("procedure", &format!("{with}: {text}"));
        self.taking.sample();
    }
}

impl Acts for Machine<'_> {
    type Error = Failure;

    fn compact(&mut self) -> Result<(), Failure> {
        self.taking.check_signal()?;
        self.event("compacting");
        self.taking.compact()
    }

    fn settle(&mut self, time: Duration) -> Result<(), Failure> {
        self.event("waiting");
        let began = Instant::now();
        while began.elapsed() < time {
            self.taking.room(Bytes(0)).map_err(|why| Failure::new(Exit::Partial, why))?;
            std::thread::sleep(Duration::from_millis(250).min(time));
        }
        Ok(())
    }

    fn score(&mut self, phase: Phase) -> Result<BuddyInfo, Failure> {
        let free = self.taking.free()?;
        self.event(phase.name());
        if let Some(recording) = self.taking.recording() {
            recording::score(recording, phase, self.thp, &free);
        }
        Ok(free)
    }

    fn fragment(&mut self, thp: bool) -> Result<(), Failure> {
        self.event("fragmenting");
        self.plan.thp = thp;
        let held = random::fill(&self.plan, self.facts, &mut self.taking)?;
        self.taking.check_signal()?;
        let whole = whole_thp::count(&Root::live(), held.addresses(), self.facts.page_size, self.facts.unit);
        self.lines = random::filled(&self.plan, &held, &whole, self.facts);
        self.held = Some(held);
        for line in self.lines.clone() {
            self.event(line.trim());
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), Failure> {
        self.held = None;
        self.event("given back");
        Ok(())
    }
}
