//! Options of `pagelab profile`, by source.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_command::arguments::parse_page_size;
use pagelab_formats::duration;
use pagelab_model::{PageSize, size};
use pagelab_tune::profile::{AccessedOptions, MissSource, ProfileRequest};

use crate::output_args::OutputArgs;
use crate::value_parsers::{Choice, choice, parse_bounded, parse_pid};

/// What to profile, and how.
#[derive(Debug, Default, clap::Args)]
#[command(mut_arg("output", |arg| arg.help("Run file to create [default: PROGRAM.profile.pagelab]")))]
pub struct ProfileArgs {
    /// Profile source
    #[arg(long, default_value = "auto", value_parser = choice(&SOURCES))]
    source: MissSource,
    /// With --source perf-data, file written by perf: perf.data, or the output of perf script or perf report
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Profile a running process instead of a command
    #[arg(long, value_name = "PID", conflicts_with = "command", value_parser = parse_pid)]
    pid: Option<u32>,
    /// Duration of the profile [default: until the program exits, or Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    time: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
    /// Print the profile as JSON
    #[arg(long)]
    pub json: bool,
    /// Exit codes of the program that mean success, for example 0,1: pagelab then exits with 0; otherwise
    /// with the program's code
    #[arg(long, value_name = "CODES", value_delimiter = ',', conflicts_with = "pid",
        value_parser = parse_bounded::<u8, 0, 255>)]
    pub exit_codes: Vec<u8>,
    /// The file is passed to another command (internal)
    #[arg(long, hide = true)]
    pub passing: bool,
    /// TLB geometry [default: this machine's]
    #[arg(long, value_name = "SPEC", help_heading = WITH_EXACT)]
    tlb: Option<String>,
    /// Also count the misses with these huge pages: all, or a plan
    #[arg(long, value_name = "all|PLAN", help_heading = WITH_EXACT)]
    what_if: Vec<String>,
    /// Model the first N of every M accesses, for example 10M/100M
    #[arg(long, value_name = "N/M", help_heading = WITH_EXACT)]
    window: Option<String>,
    /// Share of time spent on scans, which sets the slow-down of the program: at most 2 % at 1.5%, unlimited
    /// at 100% [default: 1.5%]
    #[arg(long, value_name = "SHARE", help_heading = WITH_ACCESSED, value_parser = parse_duty)]
    duty: Option<u32>,
    /// Run the command without the supervisor of apply: mappings are identified for this run only, and the
    /// program survives if pagelab is killed
    #[arg(long, help_heading = WITH_ACCESSED, conflicts_with = "pid")]
    no_supervise: bool,
    /// Do not split mappings: coarser, but nothing is injected into the program
    #[arg(long, help_heading = WITH_ACCESSED)]
    no_split: bool,
    /// Drop zero page entries and see which are faulted in again, to find memory that is only read. All
    /// threads are stopped during a drop; no other program may write to this memory [default: yes for a
    /// command, no for --pid]
    #[arg(long, value_name = "YES|NO", help_heading = WITH_ACCESSED, value_parser = choice(&ZERO_PAGE))]
    zero_page: Option<bool>,
    /// Longest interval between clearing and reading the bits [default: 100ms]
    #[arg(long, value_name = "TIME", help_heading = WITH_ACCESSED, value_parser = duration::parse)]
    pause: Option<Duration>,
    /// Address range of one mapping to use, in hexadecimal
    #[arg(long, value_name = "BASE-END", help_heading = WITH_PERF_DATA, value_parser = parse_range)]
    range: Option<Range<u64>>,
    /// Base page size of the recorded machine [default: 4K]
    #[arg(long, value_name = "SIZE", help_heading = WITH_PERF_DATA, value_parser = parse_page_size)]
    page_size: Option<PageSize>,
    /// Command to profile
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub const SOURCES: [Choice<MissSource>; 5] = [
    (&["auto"], "Hardware samples where available, otherwise accessed bits", MissSource::Auto),
    (&["pmu"], "Precise samples of a hardware counter (PMU)", MissSource::Pmu),
    (&["accessed"], "Accessed bits of page tables: an estimate, at native speed", MissSource::Accessed),
    (&["exact"], "A modelled TLB under QEMU user mode: every access, slow", MissSource::Exact),
    (&["perf-data"], "A file written by perf", MissSource::PerfData),
];

/// Whether zero page entries are dropped.
const ZERO_PAGE: [Choice<bool>; 2] =
    [(&["yes"], "Drop zero page entries", true), (&["no"], "Keep zero page entries", false)];

const WITH_EXACT: &str = "With --source exact";
const WITH_ACCESSED: &str = "With --source accessed";
const WITH_PERF_DATA: &str = "With --source perf-data";

impl ProfileArgs {
    /// Returns the request without its output options.
    pub fn to_request(&self) -> ProfileRequest {
        ProfileRequest {
            source: self.source,
            file: self.file.clone(),
            pid: self.pid,
            time_limit: self.time,
            output: self.output.run_file(),
            tlb: self.tlb.clone(),
            what_ifs: self.what_if.clone(),
            window: self.window.clone(),
            accessed: AccessedOptions {
                duty_permille: self.duty,
                is_unsupervised: self.no_supervise,
                keeps_mappings_whole: self.no_split,
                drops_zero_pages: self.zero_page,
                pause_max: self.pause,
            },
            range: self.range.clone(),
            page_size: self.page_size,
            command: self.command.clone(),
        }
    }
}

/// Parses a share from 0.1 % to 100 %, in permille.
fn parse_duty(text: &str) -> Result<u32, String> {
    let permille = (size::parse_share(text)? * 1000.0).round() as u32;
    if permille > 0 {
        Ok(permille)
    } else {
        Err("expected a share of at least 0.1%, for example 1.5%".to_owned())
    }
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let number = |part: &str| u64::from_str_radix(part.trim_start_matches("0x"), 16).ok();
    let ends = || {
        let (base, end) = text.split_once('-')?;
        Some(number(base)?..number(end)?).filter(|range| range.start < range.end)
    };
    ends().ok_or_else(|| {
        "expected two hexadecimal addresses, the first below the second: 7f0000000000-7f0040000000".to_owned()
    })
}
