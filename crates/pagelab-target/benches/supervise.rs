//! Benchmark of the supervisor: its cost for a program of five seconds, by accounting. The program is this
//! bench once more: a tree of small pieces of memory, so that its heap grows, large buffers that come and go,
//! and additions at random places of 256 MiB until the time is over; splitmix64 with seed 1.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelab_model::random::SplitMix64;
use pagelab_target::supervisor::{self, HugePageChoice, SupervisorConfig, ThpMode};

const WORK_DURATION: Duration = Duration::from_secs(5);
const WORK_ARGUMENT: &str = "work";
/// Numbers in the large buffer: 256 MiB of them.
const BUFFER_LENGTH: usize = 32 << 20;

fn main() -> Result<(), pagelab_model::Failure> {
    if std::env::args().nth(1).as_deref() == Some(WORK_ARGUMENT) {
        run_work();
        return Ok(());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let spec = SupervisorConfig {
        arguments: vec![program.clone().into(), WORK_ARGUMENT.into()],
        program,
        choice: HugePageChoice::All,
        overrides: false,
        hugetlb: false,
        allow_stale: false,
        thp: ThpMode::OnlyAdvised,
        traces_all_mappings: false,
        page: rustix::param::page_size() as u64,
        huge: 2 << 20,
    };
    supervisor::run_supervised(
        &Arc::new(spec),
        |_| {},
        |_, summary| {
            let cost = (summary.supervisor_cpu_ns + summary.stopped_ns) as f64;
            let how = format!(
                "{} ns of CPU, {} of them for collapses, and {} ns in {} stops, to {} ns; {} of {} huge \
                 pages came",
                summary.supervisor_cpu_ns,
                summary.collapse_cpu_ns,
                summary.stopped_ns,
                summary.stops,
                summary.wall_ns,
                summary.allocated,
                summary.requested
            );
            let ratio = cost / summary.wall_ns as f64;
            let line = format!(
                r#"{{"bar":"apply_supervisor_ratio","value":{ratio:.5},"unit":"ratio","how":"{how}"}}"#
            );
            let _ = writeln!(io::stdout(), "{line}");
        },
    )
}

fn run_work() {
    let began = Instant::now();
    let mut random = SplitMix64::new(1);
    let mut tree = BTreeMap::new();
    for number in 0..300_000u64 {
        tree.insert(random.next_u64(), [number; 8]);
    }
    let mut buffer = vec![1u64; BUFFER_LENGTH];
    while began.elapsed() < WORK_DURATION {
        for _ in 0..1_000_000 {
            let place = random.next_below(BUFFER_LENGTH as u64) as usize;
            buffer[place] = buffer[place].wrapping_add(place as u64);
        }
        black_box(vec![1u8; 8 << 20]);
    }
    black_box((tree, buffer));
}
