//! Benchmark of the census: its CPU and wall time, compared with reading and discarding kpageflags.
//!
//! Prints one JSON line for each bar on stdout. The census is the whole of it: memory map, scan, blocks put
//! together. The other side reads the same file once, from its start to its end, by the same 256 KiB, in one
//! thread. Blocks have the order ABBA, so that a drift of the machine's speed falls on both sides alike.
//! Two threads can only be faster than one where a second core is free: for the bar of wall time a block
//! counts if all others together used little CPU in it, whatever its ratio is.

use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use pagelab_formats::{buddyinfo, zoneinfo};
use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::machine::live_page_size;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::order_statistics::median;
use pagelab_model::{Coverage, PageSize, Reading, Zoneinfo};
use rustix::time::{ClockId, clock_gettime};

/// Blocks of the order ABBA; each gives one ratio. Odd, so that the median is one of them.
const ABBA_BLOCKS: usize = 11;

/// Blocks after which a busy machine is given up.
const ABBA_BLOCKS_MAX: usize = 60;

/// Bytes read at a time, as the census does.
const CHUNK_BYTES: usize = 256 << 10;

fn main() {
    let root = Root::live();
    let machine = match ScanTarget::read(&root) {
        Ok(machine) => machine,
        Err(absence) => {
            let why = format!("{}: {}", absence.source, absence.reason());
            report_unmeasured("kpageflags_cpu_ratio_1_thread", &why);
            report_unmeasured("kpageflags_wall_ratio_2_threads", &why);
            return;
        }
    };
    let cpu = Bar {
        name: "kpageflags_cpu_ratio_1_thread",
        threads: 1,
        clock: process_cpu_time,
        background_share_max: 1.0,
    };
    measure(&cpu, &machine, "process CPU time");
    let wall = Bar {
        name: "kpageflags_wall_ratio_2_threads",
        threads: 2,
        clock: wall_time,
        background_share_max: 0.1,
    };
    measure(&wall, &machine, "wall time");
}

struct ScanTarget<'a> {
    root: &'a Root,
    zoneinfo: Zoneinfo,
    options: CensusOptions,
}

impl<'a> ScanTarget<'a> {
    fn read(root: &'a Root) -> Reading<ScanTarget<'a>> {
        let reader = Reader::new(root);
        let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
        let buddy = reader.parse(paths::BUDDYINFO, buddyinfo::parse)?;
        let page_size = live_page_size().unwrap_or(PageSize::DEFAULT);
        let pmd = page_size.default_pmd_order();
        let orders = buddy.zones.first().map_or(1, |zone| zone.areas.orders());
        let mut options = CensusOptions::new(page_size, pmd, pmd, orders);
        options.time_budget = Duration::from_secs(600);
        let machine = ScanTarget { root, zoneinfo, options };
        machine.run_census(1)?;
        Ok(machine)
    }

    fn run_census(&self, threads: usize) -> Reading<()> {
        let reader = Reader::new(self.root);
        let options = CensusOptions { threads, ..self.options };
        let census = take_census(self.root, &reader, &self.zoneinfo, &options)?;
        assert_eq!(census.coverage, Coverage::Whole, "the bar is for a whole census");
        black_box(census);
        Ok(())
    }

    fn read_and_discard(&self) -> Reading<()> {
        let file = self.root.open_regular_file(paths::KPAGEFLAGS)?;
        let mut buffer = vec![1u8; CHUNK_BYTES];
        let mut offset = 0;
        loop {
            let got = file.read_at(&mut buffer, offset);
            match got.map_err(|error| self.root.absence(paths::KPAGEFLAGS, &error))? {
                0 => return Ok(()),
                count => offset += black_box(count) as u64,
            }
        }
    }
}

/// A bar without a value says why.
fn report_unmeasured(bar: &str, why: &str) {
    let why = why.replace(['"', '\\'], "'");
    let _ = writeln!(io::stdout(), r#"{{"bar":"{bar}","value":null,"unit":"ratio","why":"{why}"}}"#);
}

struct Bar {
    name: &'static str,
    threads: usize,
    clock: fn() -> Duration,
    /// The largest share of the machine's CPU time that others may have in a block that counts.
    background_share_max: f64,
}

fn measure(bar: &Bar, machine: &ScanTarget, label: &str) {
    let (mut ratios, mut busy) = (Vec::new(), 0);
    // The first block warms up caches and branch predictors.
    for block in 0..=ABBA_BLOCKS_MAX {
        let before = CpuTimes::now();
        let ratio = measure_block_ratio(bar, machine);
        let others =
            CpuTimes::now().zip(before).map_or(0.0, |(after, before)| after.background_share_since(&before));
        if block > 0 && others <= bar.background_share_max {
            ratios.push(ratio);
        }
        busy += usize::from(others > bar.background_share_max);
        if ratios.len() == ABBA_BLOCKS {
            break;
        }
    }
    if ratios.len() < ABBA_BLOCKS {
        return report_unmeasured(
            bar.name,
            &format!("others used the CPU in {busy} blocks: the machine is busy"),
        );
    }
    let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
    let how = format!(
        "{label} of a whole census with {} thread(s) over that of one thread reading kpageflags by 256 KiB \
         and discarding; median of {ABBA_BLOCKS} blocks ABBA; {busy} blocks left out in which others used more than \
         {:.0} % of the CPU",
        bar.threads,
        bar.background_share_max * 100.0
    );
    let _ = writeln!(
        io::stdout(),
        r#"{{"bar":"{}","value":{:.4},"unit":"ratio","samples":[{}],"how":"{how}"}}"#,
        bar.name,
        median(&mut ratios.clone()).unwrap_or(f64::NAN),
        samples.join(",")
    );
}

fn measure_block_ratio(bar: &Bar, machine: &ScanTarget) -> f64 {
    let (mut ours, mut theirs) = (Duration::ZERO, Duration::ZERO);
    for is_ours in [true, false, false, true] {
        let start = (bar.clock)();
        let done = if is_ours { machine.run_census(bar.threads) } else { machine.read_and_discard() };
        done.unwrap_or_else(|absence| panic!("{}: {}", absence.source, absence.reason()));
        *(if is_ours { &mut ours } else { &mut theirs }) += (bar.clock)() - start;
    }
    ours.as_secs_f64() / theirs.as_secs_f64()
}

/// CPU time of the machine, in ticks, and of this process.
struct CpuTimes {
    total: u64,
    idle: u64,
    process_cpu: Duration,
}

impl CpuTimes {
    /// From the first line of `/proc/stat`: user nice system idle iowait irq softirq steal.
    fn now() -> Option<CpuTimes> {
        let stat = std::fs::read_to_string(paths::STAT).ok()?;
        let ticks: Vec<u64> = stat
            .lines()
            .next()?
            .split_ascii_whitespace()
            .skip(1)
            .map_while(|word| word.parse().ok())
            .collect();
        let total = ticks.iter().take(8).sum();
        Some(CpuTimes { total, idle: ticks.get(3)? + ticks.get(4)?, process_cpu: process_cpu_time() })
    }

    /// The share of the machine's CPU time since `before` that was neither idle nor this process's. A tick is
    /// 10 ms on Linux, independent of the kernel's HZ (USER_HZ).
    fn background_share_since(&self, before: &CpuTimes) -> f64 {
        let total = (self.total - before.total) as f64;
        let busy = total - (self.idle.saturating_sub(before.idle)) as f64;
        let own = (self.process_cpu - before.process_cpu).as_secs_f64() * 100.0;
        ((busy - own) / total.max(1.0)).max(0.0)
    }
}

fn process_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn wall_time() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
