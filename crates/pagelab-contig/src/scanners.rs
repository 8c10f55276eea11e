//! Watching one's own compaction by the kernel's tracepoints: where the scanners of each zone stopped.

use pagelab_formats::trace_format::Field;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{Event, Options, StackDepth, Tracepoints, Wanted};
use pagelab_metrics::compaction::ScannerRun;
use pagelab_model::{Absence, AbsentWhy, Pfn, Reading};

const SYSTEM: &str = "compaction";
const END: &str = "mm_compaction_end";
const MOVED: &str = "mm_compaction_migratepages";

/// Both tracepoints, open and enabled.
#[derive(Debug)]
pub struct ScannerWatch {
    tracepoints: Tracepoints,
    fields: Fields,
}

/// Where the fields lie that are read.
#[derive(Clone, Copy, Debug)]
struct Fields {
    end: usize,
    zone_first: Field,
    zone_end: Field,
    migrate: Field,
    free: Field,
    status: Field,
    failed: Option<(usize, Field)>,
}

impl ScannerWatch {
    /// Opens and enables them. Batches that were moved whole are filtered out by the kernel.
    pub fn begin(root: &Root) -> Reading<ScannerWatch> {
        let wanted = |name: &'static str, filter: &'static str| Wanted {
            system: SYSTEM,
            name,
            filter,
            stacks: StackDepth::None,
        };
        let wanted = [wanted(END, ""), wanted(MOVED, "nr_failed > 0")];
        // The one who compacts is this very thread.
        let options = Options { own_events: true, ..Options::default() };
        let (tracepoints, _) = Tracepoints::open(&Reader::new(root), &wanted, &options)?;
        let fields = Fields::of(&tracepoints)?;
        tracepoints.enable().map_err(failed)?;
        Ok(ScannerWatch { tracepoints, fields })
    }

    /// What this thread's compactions came to since the beginning, in their order.
    pub fn end(mut self) -> Reading<Vec<ScannerRun>> {
        self.tracepoints.disable().map_err(failed)?;
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let (fields, mut join) = (self.fields, Join::default());
        while self.tracepoints.drain(|event| join.add(event, &fields, own)).map_err(failed)?.events > 0 {}
        match self.tracepoints.losses().lost() {
            0 => Ok(join.runs),
            lost => Err(Absence::new(END, AbsentWhy::Failed, format!("{lost} events were lost"))),
        }
    }
}

impl Fields {
    fn of(tracepoints: &Tracepoints) -> Reading<Fields> {
        let absent = |name: &str| Absence::new(END, AbsentWhy::NotThere, format!("it has no {name}"));
        let end = tracepoints.kind(SYSTEM, END).ok_or_else(|| absent("place in this kernel"))?;
        let format = &tracepoints.kinds()[end].format;
        let field = |name: &str| format.field(name).ok_or_else(|| absent(name));
        let failed = tracepoints.kind(SYSTEM, MOVED);
        Ok(Fields {
            end,
            zone_first: field("zone_start")?,
            zone_end: field("zone_end")?,
            migrate: field("migrate_pfn")?,
            free: field("free_pfn")?,
            status: field("status")?,
            failed: failed
                .and_then(|kind| Some((kind, tracepoints.kinds()[kind].format.field("nr_failed")?))),
        })
    }
}

/// Events of one thread on their way to runs.
#[derive(Debug, Default)]
struct Join {
    runs: Vec<ScannerRun>,
    failed: u64,
}

impl Join {
    fn add(&mut self, event: &Event<'_>, fields: &Fields, own: u32) {
        if event.tid != own {
            return;
        }
        if let Some((_, field)) = fields.failed.filter(|(kind, _)| *kind == event.kind) {
            self.failed = self.failed.saturating_add(event.u64(field).unwrap_or(0));
        } else if event.kind == fields.end {
            let pfn = |field| Pfn(event.u64(field).unwrap_or(0));
            self.runs.push(ScannerRun {
                first: pfn(fields.zone_first),
                end: pfn(fields.zone_end),
                migrate: pfn(fields.migrate),
                free: pfn(fields.free),
                status: event.i64(fields.status).unwrap_or(-1),
                failed: std::mem::take(&mut self.failed),
            });
        }
    }
}

fn failed(error: std::io::Error) -> Absence {
    Absence::new("tracepoints of compaction", AbsentWhy::Failed, error.to_string())
}
