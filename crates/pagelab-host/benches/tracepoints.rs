//! Benchmark of the tracepoint reader: CPU time of reading events in time order with their fields, compared
//! with copying the records out of the rings.
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
use pagelab_host::tracepoints::{StackDepth, Tracefs, TracepointOptions, TracepointRequest, Tracepoints};
use pagelab_model::order_statistics::median;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use pagelab_sys::clock::thread_cpu_ns;
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::perf_ring::{PerfEvent, Ring, TracepointSampling};

const BAR: &str = "tracepoint_drain_cpu_ratio";
/// Blocks of the order ABBA; odd, so that the median is one of them.
const ABBA_BLOCKS: usize = 9;
const PAGES: usize = 60_000;
const RING_BYTES: u64 = 16 << 20;
const TRACEPOINTS: [&str; 2] = ["mm_page_alloc", "mm_page_free"];

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

fn io_absence(error: &io::Error) -> Absence {
    Absence::new("perf_event_open", AbsenceReason::Failed, error.to_string())
}

fn measure() -> Reading<String> {
    let (mut ratios, mut reading, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    // The first block warms up caches and branch predictors.
    for block in 0..=ABBA_BLOCKS {
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
    let middle = |values: &[f64]| median(&mut values.to_vec()).unwrap_or(f64::NAN);
    let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    let how = format!(
        "CPU of an event read in the order of time with two fields ({:.0} ns) over that of a record copied out of \
         its ring ({:.0} ns); median of {ABBA_BLOCKS} blocks ABBA, 120 000 events of page faults each",
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
fn fault_and_free_pages() -> Reading<()> {
    let bytes = Bytes((PAGES * rustix::param::page_size()) as u64);
    let done = Mapping::anonymous(bytes, Bytes(1)).and_then(|mut memory| {
        memory.advise(0..bytes.0, Advice::NoHugePage)?;
        memory.touch_for_writing(0..bytes.0)
    });
    done.map_err(|error| io_absence(&error))
}

/// Nanoseconds of CPU for an event.
fn read_events() -> Reading<f64> {
    let root = Root::live();
    let requests = TRACEPOINTS.map(|name| TracepointRequest {
        system: "kmem",
        name,
        filter: "",
        stacks: StackDepth::None,
    });
    let options =
        TracepointOptions { ring_bytes: Bytes(RING_BYTES), own_events: true, ..TracepointOptions::default() };
    let (mut tracepoints, _) = Tracepoints::open(&Reader::new(&root), &requests, &options)?;
    let field = |kind: usize, name: &str| {
        let found = tracepoints.kinds().get(kind).and_then(|kind| kind.format.field(name));
        found.ok_or_else(|| Absence::new(name, AbsenceReason::NotThere, "no such field"))
    };
    let fields = [(field(0, "pfn")?, field(0, "order")?), (field(1, "pfn")?, field(1, "order")?)];
    tracepoints.enable().map_err(|error| io_absence(&error))?;
    fault_and_free_pages()?;
    tracepoints.disable().map_err(|error| io_absence(&error))?;
    let (mut sum, mut events) = (0u64, 0u64);
    let before = thread_cpu_ns();
    tracepoints.drain(|event| {
        let (pfn, order) = fields[event.kind];
        events += 1;
        sum = sum.wrapping_add(event.u64(pfn).unwrap_or(0) ^ event.u64(order).unwrap_or(0) ^ event.time_ns);
    });
    let spent = thread_cpu_ns() - before;
    black_box(sum);
    assert!(
        events as usize > PAGES && tracepoints.losses().lost_events() == 0,
        "{events} events, or some lost"
    );
    Ok(spent as f64 / events as f64)
}

/// Nanoseconds of CPU for a record that is copied out.
fn copy_records() -> Reading<f64> {
    let root = Root::live();
    let tracefs = Tracefs::find(&Reader::new(&root))?;
    let ids =
        [tracefs.read_format("kmem", TRACEPOINTS[0])?.id, tracefs.read_format("kmem", TRACEPOINTS[1])?.id];
    let mut filled = open_rings(ids).map_err(|error| io_absence(&error))?;
    let all = |filled: &[(Ring, PerfEvent)], act: fn(&PerfEvent) -> io::Result<()>| {
        let done = filled.iter().try_for_each(|(ring, other)| act(ring.event()).and_then(|()| act(other)));
        done.map_err(|error| io_absence(&error))
    };
    all(&filled, PerfEvent::enable)?;
    fault_and_free_pages()?;
    all(&filled, PerfEvent::disable)?;
    let (mut copy, mut records) = (vec![0u8; RING_BYTES as usize], 0u64);
    let before = thread_cpu_ns();
    for (ring, _) in &mut filled {
        ring.update_head();
        let mut at = 0;
        while let Ok(Some(record)) = ring.next_record() {
            let size = record.len();
            copy[at..at + size].copy_from_slice(record);
            at += size;
            records += 1;
            ring.advance(size);
        }
        ring.release_space();
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
    let sampling =
        TracepointSampling { sample_type, wakeup_bytes, frames_max: 0, kernel_frames, user_frames };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    (0..cpus)
        .map(|cpu| {
            let ring = Ring::new(PerfEvent::open_tracepoint(ids[0], cpu, &sampling)?, RING_BYTES)?;
            let other = PerfEvent::open_tracepoint(ids[1], cpu, &sampling)?;
            other.set_output(&ring)?;
            Ok((ring, other))
        })
        .collect()
}
