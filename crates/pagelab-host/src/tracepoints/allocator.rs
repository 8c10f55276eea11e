//! The page allocator's tracepoints as words of a trace.
//!
//! `mm_page_alloc`, `mm_page_free` (include/trace/events/kmem.h, since 2.6.32; frames by number since 4.1),
//! `mm_compaction_*` (compaction.h), `mm_vmscan_*` (vmscan.h). Which fields a record has and where they
//! lie is read on the machine; an event that lacks one that is needed is not taken.

use pagelab_formats::trace_format::{Field, TraceFormat};
use pagelab_model::alloc_trace::TraceWhat;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::{Event, Kind};

/// Where the fields of each kind lie, by the place of the kind.
#[derive(Clone, Debug)]
pub struct AllocatorFields {
    kinds: Vec<Fields>,
}

#[derive(Clone, Copy, Debug)]
enum Fields {
    Alloc { pfn: Field, order: Field, migratetype: Field, gfp: Field },
    Free { pfn: Field, order: Field },
    Fallback { pfn: Field, order: Field, taken_order: Field, wanted: Field, from: Field, owns: Field },
    CompactionBegin,
    CompactionEnd,
    Migrated { moved: Field, failed: Field },
    ReclaimBegin { order: Field },
    ReclaimEnd { freed: Field },
    KswapdWake { order: Field },
}

impl AllocatorFields {
    /// Looks the fields of all kinds up. They are those of [`sets::ALLOCATOR`](super::sets::ALLOCATOR), or
    /// some of them.
    pub fn new(kinds: &[Kind]) -> Reading<AllocatorFields> {
        let kinds = kinds.iter().map(|kind| fields(&kind.format)).collect::<Reading<_>>()?;
        Ok(AllocatorFields { kinds })
    }

    /// The event in words; `None` if a record is too short or a number is none that a trace can hold: a frame
    /// beyond 2^32, an order beyond 255.
    #[inline]
    pub fn read(&self, event: &Event<'_>) -> Option<TraceWhat> {
        let wide = |field: Field| event.u64(field);
        let frame = |field: Field| wide(field).and_then(|pfn| u32::try_from(pfn).ok());
        let byte = |field: Field| wide(field).and_then(|number| u8::try_from(number).ok());
        Some(match *self.kinds.get(event.kind)? {
            Fields::Alloc { pfn, order, migratetype, gfp } => TraceWhat::Alloc {
                // A failed allocation has the frame -1.
                pfn: match wide(pfn)? {
                    u64::MAX => None,
                    pfn => Some(u32::try_from(pfn).ok()?),
                },
                order: byte(order)?,
                migratetype: byte(migratetype)?,
                gfp: wide(gfp)? as u32,
            },
            Fields::Free { pfn, order } => TraceWhat::Free { pfn: frame(pfn)?, order: byte(order)? },
            Fields::Fallback { pfn, order, taken_order, wanted, from, owns } => TraceWhat::Fallback {
                pfn: frame(pfn)?,
                order: byte(order)?,
                taken_order: byte(taken_order)?,
                wanted: byte(wanted)?,
                from: byte(from)?,
                owns: wide(owns)? != 0,
            },
            Fields::CompactionBegin => TraceWhat::CompactionBegin,
            Fields::CompactionEnd => TraceWhat::CompactionEnd,
            Fields::Migrated { moved, failed } => {
                TraceWhat::Migrated { moved: frame(moved)?, failed: frame(failed)? }
            }
            Fields::ReclaimBegin { order } => TraceWhat::ReclaimBegin { order: byte(order)? },
            Fields::ReclaimEnd { freed } => TraceWhat::ReclaimEnd { freed: frame(freed)? },
            Fields::KswapdWake { order } => TraceWhat::KswapdWake { order: byte(order)? },
        })
    }
}

fn fields(format: &TraceFormat) -> Reading<Fields> {
    let field = |name: &str| {
        format.field(name).ok_or_else(|| {
            let detail = format!("the event has no number `{name}`; this kernel tells it otherwise");
            Absence::new(&format.name, AbsentWhy::NotThere, detail)
        })
    };
    Ok(match format.name.as_str() {
        "mm_page_alloc" => Fields::Alloc {
            pfn: field("pfn")?,
            order: field("order")?,
            migratetype: field("migratetype")?,
            gfp: field("gfp_flags")?,
        },
        "mm_page_free" => Fields::Free { pfn: field("pfn")?, order: field("order")? },
        "mm_page_alloc_extfrag" => Fields::Fallback {
            pfn: field("pfn")?,
            order: field("alloc_order")?,
            taken_order: field("fallback_order")?,
            wanted: field("alloc_migratetype")?,
            from: field("fallback_migratetype")?,
            owns: field("change_ownership")?,
        },
        "mm_compaction_begin" => Fields::CompactionBegin,
        "mm_compaction_end" => Fields::CompactionEnd,
        "mm_compaction_migratepages" => {
            Fields::Migrated { moved: field("nr_migrated")?, failed: field("nr_failed")? }
        }
        "mm_vmscan_direct_reclaim_begin" => Fields::ReclaimBegin { order: field("order")? },
        "mm_vmscan_direct_reclaim_end" => Fields::ReclaimEnd { freed: field("nr_reclaimed")? },
        "mm_vmscan_kswapd_wake" => Fields::KswapdWake { order: field("order")? },
        other => {
            let detail = "no word of a trace stands for it";
            return Err(Absence::new(other, AbsentWhy::NotAsked, detail));
        }
    })
}
