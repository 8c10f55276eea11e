//! The bar of the reader of tracepoints: CPU of reading events in the order of time with their fields,
//! against copying the same kind of records out of the rings.
//!
//! Prints one JSON line on stdout. Each side has rings of its own of 16 MiB a CPU, which are filled by
//! faulting
//! 60 000 pages in and giving them back (some 120 000 events of mm_page_alloc and mm_page_free); then only
//! the emptying is timed, by the thread's CPU clock, and divided by the number of events. Blocks have the
//! order ABBA.

use std::hint::black_box;
use std::io::{self, Write};

use pagelab_formats::perf_record::sample_type::{CPU, RAW, TID, TIME};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{Options, StackDepth, Tracefs, Tracepoints, Wanted};
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::perf_ring::{PerfEvent, Ring, Sampling};

const BAR: &str = "tracepoint_drain_cpu_ratio";
/// Blocks of the order ABBA; odd, so that the median is one of them.
const BLOCKS: usize = 9;
const PAGES: usize = 60_000;
const RING_BYTES: u64 = 16 << 20;
const NAMES: [&str; 2] = ["mm_page_alloc", "mm_page_free"];

fn main() {
    let line = match measure() {
        Ok(line) => line,
        Err(absence) => {
            let why = format!("{}: {}", absence.source, absence.reason()).replace(['"', '\\'], "'");
            format!(r#"{{"bar":"{BAR}","value":null,"unit":"ratio","why":"{why}"}}"#)
        }
    };
    let _ = writeln!(io::stdout(), "{line}");
}

fn failed(error: &io::Error) -> Absence {
    Absence::new("perf_event_open", AbsentWhy::Failed, error.to_string())
}

fn measure() -> Reading<String> {
    let (mut ratios, mut reading, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    // The first block warms up caches and branch predictors.
    for block in 0..=BLOCKS {
        let (mut ours, mut theirs) = (0.0, 0.0);
        for is_ours in [true, false, false, true] {
            match is_ours {
                true => ours += read_events()?,
                false => theirs += copy_records()?,
            }
        }
        if block > 0 {
            ratios.push(ours / theirs);
            reading.push(ours / 2.0);
            copying.push(theirs / 2.0);
        }
    }
    let middle = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    let how = format!(
        "CPU of an event read in the order of time with two fields ({:.0} ns) over that of a record copied out of \
         its ring ({:.0} ns); median of {BLOCKS} blocks ABBA, 120 000 events of page faults each",
        middle(&reading),
        middle(&copying)
    );
    Ok(format!(
        r#"{{"bar":"{BAR}","value":{:.3},"unit":"ratio","samples":[{}],"how":"{how}"}}"#,
        middle(&ratios),
        samples.join(",")
    ))
}

/// Faults pages in one by one and gives them back.
fn churn() -> Reading<()> {
    let bytes = Bytes((PAGES * rustix::param::page_size()) as u64);
    let done = Mapping::anonymous(bytes, Bytes(1)).and_then(|mut memory| {
        memory.advise(0..bytes.0, Advice::NoHugePage)?;
        memory.touch(0..bytes.0)
    });
    done.map_err(|error| failed(&error))
}

/// Nanoseconds of CPU for an event.
fn read_events() -> Reading<f64> {
    let root = Root::live();
    let wanted = NAMES.map(|name| Wanted { system: "kmem", name, filter: "", stacks: StackDepth::None });
    let options = Options { ring_bytes: Bytes(RING_BYTES), own_events: true, ..Options::default() };
    let (mut tracepoints, _) = Tracepoints::open(&Reader::new(&root), &wanted, &options)?;
    let field = |kind: usize, name: &str| {
        let found = tracepoints.kinds().get(kind).and_then(|kind| kind.format.field(name));
        found.ok_or_else(|| Absence::new(name, AbsentWhy::NotThere, "no such field"))
    };
    let fields = [(field(0, "pfn")?, field(0, "order")?), (field(1, "pfn")?, field(1, "order")?)];
    tracepoints.enable().map_err(|error| failed(&error))?;
    churn()?;
    tracepoints.disable().map_err(|error| failed(&error))?;
    let (mut sum, mut events) = (0u64, 0u64);
    let before = thread_cpu_ns();
    let drained = tracepoints.drain(|event| {
        let (pfn, order) = fields[event.kind];
        events += 1;
        sum = sum.wrapping_add(event.u64(pfn).unwrap_or(0) ^ event.u64(order).unwrap_or(0) ^ event.at_ns);
    });
    let spent = thread_cpu_ns() - before;
    drained.map_err(|error| failed(&error))?;
    black_box(sum);
    assert!(events as usize > PAGES && tracepoints.losses().lost() == 0, "{events} events, or some lost");
    Ok(spent as f64 / events as f64)
}

/// Nanoseconds of CPU for a record that is copied out.
fn copy_records() -> Reading<f64> {
    let root = Root::live();
    let tracefs = Tracefs::find(&Reader::new(&root))?;
    let ids = [tracefs.format("kmem", NAMES[0])?.id, tracefs.format("kmem", NAMES[1])?.id];
    let mut filled = open_rings(ids).map_err(|error| failed(&error))?;
    let all = |filled: &[(Ring, PerfEvent)], act: fn(&PerfEvent) -> io::Result<()>| {
        let done = filled.iter().try_for_each(|(ring, other)| act(ring.event()).and_then(|()| act(other)));
        done.map_err(|error| failed(&error))
    };
    all(&filled, PerfEvent::enable)?;
    churn()?;
    all(&filled, PerfEvent::disable)?;
    let (mut copy, mut records) = (vec![0u8; RING_BYTES as usize], 0u64);
    let before = thread_cpu_ns();
    for (ring, _) in &mut filled {
        ring.look();
        let mut at = 0;
        while let Ok(Some(record)) = ring.record() {
            let size = record.len();
            copy[at..at + size].copy_from_slice(record);
            at += size;
            records += 1;
            ring.pass(size);
        }
        ring.release();
    }
    let spent = thread_cpu_ns() - before;
    black_box(&copy);
    assert!(records as usize > PAGES, "{records}");
    Ok(spent as f64 / records as f64)
}

fn open_rings(ids: [u16; 2]) -> io::Result<Vec<(Ring, PerfEvent)>> {
    let (kernel_frames, user_frames) = (false, false);
    let sample_type = TIME | TID | CPU | RAW;
    let wakeup_bytes = (RING_BYTES / 4) as u32;
    let sampling = Sampling { sample_type, wakeup_bytes, frames_max: 0, kernel_frames, user_frames };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    (0..cpus)
        .map(|cpu| {
            let ring = Ring::new(PerfEvent::tracepoint(ids[0], cpu, &sampling)?, RING_BYTES)?;
            let other = PerfEvent::tracepoint(ids[1], cpu, &sampling)?;
            other.send_to(&ring)?;
            Ok((ring, other))
        })
        .collect()
}
