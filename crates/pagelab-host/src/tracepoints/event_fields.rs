//! Page allocator tracepoints as events of a trace.
//!
//! `mm_page_alloc`, `mm_page_free` (include/trace/events/kmem.h, since 2.6.32; frames by number since 4.1),
//! `mm_compaction_*` (compaction.h), `mm_vmscan_*` (vmscan.h). The fields of a record and their
//! offsets are read on the machine; an event without a required field is not recorded.

use pagelab_formats::trace_format::{NumberField, TraceFormat};
use pagelab_model::alloc_trace::TraceEventKind;
use pagelab_model::extfrag::{ExtfragEvent, MigrateType};
use pagelab_model::{Absence, AbsenceReason, Order, Pfn, Reading};

use super::{Event, TracepointKind};

/// Field offsets by kind.
#[derive(Clone, Debug)]
pub struct AllocatorEventFields {
    kinds: Vec<EventFields>,
}

#[derive(Clone, Copy, Debug)]
enum EventFields {
    Alloc { pfn: NumberField, order: NumberField, migratetype: NumberField, gfp: NumberField },
    Free { pfn: NumberField, order: NumberField },
    Fallback(ExtfragEventFields),
    CompactionBegin,
    CompactionEnd,
    Migrated { moved: NumberField, failed: NumberField },
    ReclaimBegin { order: NumberField },
    ReclaimEnd { freed: NumberField },
    KswapdWake { order: NumberField },
}

impl AllocatorEventFields {
    /// Looks up the fields of all kinds: those of [`ALLOCATOR`](super::ALLOCATOR), or some of them.
    pub fn new(kinds: &[TracepointKind]) -> Reading<AllocatorEventFields> {
        let kinds = kinds.iter().map(|kind| find_fields(&kind.format)).collect::<Reading<_>>()?;
        Ok(AllocatorEventFields { kinds })
    }

    /// The decoded event; `None` if a record is too short or a number exceeds what a trace can store: a frame
    /// beyond 2^32, an order beyond 255.
    #[inline]
    pub fn read(&self, event: &Event<'_>) -> Option<TraceEventKind> {
        let wide = |field: NumberField| event.u64(field);
        let frame = |field: NumberField| wide(field).and_then(|pfn| u32::try_from(pfn).ok());
        let byte = |field: NumberField| wide(field).and_then(|number| u8::try_from(number).ok());
        Some(match *self.kinds.get(event.kind)? {
            EventFields::Alloc { pfn, order, migratetype, gfp } => TraceEventKind::Alloc {
                // A failed allocation has the frame -1.
                pfn: match wide(pfn)? {
                    u64::MAX => None,
                    pfn => Some(u32::try_from(pfn).ok()?),
                },
                order: byte(order)?,
                migratetype: byte(migratetype)?,
                gfp_flags: wide(gfp)? as u32,
            },
            EventFields::Free { pfn, order } => {
                TraceEventKind::Free { pfn: frame(pfn)?, order: byte(order)? }
            }
            EventFields::Fallback(of) => TraceEventKind::Fallback {
                pfn: frame(of.pfn)?,
                alloc_order: byte(of.alloc_order)?,
                fallback_order: byte(of.fallback_order)?,
                alloc_migratetype: byte(of.alloc_migratetype)?,
                fallback_migratetype: byte(of.fallback_migratetype)?,
                change_ownership: wide(of.change_ownership)? != 0,
            },
            EventFields::CompactionBegin => TraceEventKind::CompactionBegin,
            EventFields::CompactionEnd => TraceEventKind::CompactionEnd,
            EventFields::Migrated { moved, failed } => {
                TraceEventKind::Migrated { moved: frame(moved)?, failed: frame(failed)? }
            }
            EventFields::ReclaimBegin { order } => TraceEventKind::ReclaimBegin { order: byte(order)? },
            EventFields::ReclaimEnd { freed } => TraceEventKind::ReclaimEnd { freed: frame(freed)? },
            EventFields::KswapdWake { order } => TraceEventKind::KswapdWake { order: byte(order)? },
        })
    }
}

fn find_field(format: &TraceFormat, name: &str) -> Reading<NumberField> {
    format.field(name).ok_or_else(|| {
        let detail = format!("the event has no integer field `{name}` on this kernel");
        Absence::new(&format.name, AbsenceReason::NotThere, detail)
    })
}

fn find_fields(format: &TraceFormat) -> Reading<EventFields> {
    let field = |name: &str| find_field(format, name);
    Ok(match format.name.as_str() {
        "mm_page_alloc" => EventFields::Alloc {
            pfn: field("pfn")?,
            order: field("order")?,
            migratetype: field("migratetype")?,
            gfp: field("gfp_flags")?,
        },
        "mm_page_free" => EventFields::Free { pfn: field("pfn")?, order: field("order")? },
        "mm_page_alloc_extfrag" => EventFields::Fallback(ExtfragEventFields::new(format)?),
        "mm_compaction_begin" => EventFields::CompactionBegin,
        "mm_compaction_end" => EventFields::CompactionEnd,
        "mm_compaction_migratepages" => {
            EventFields::Migrated { moved: field("nr_migrated")?, failed: field("nr_failed")? }
        }
        "mm_vmscan_direct_reclaim_begin" => EventFields::ReclaimBegin { order: field("order")? },
        "mm_vmscan_direct_reclaim_end" => EventFields::ReclaimEnd { freed: field("nr_reclaimed")? },
        "mm_vmscan_kswapd_wake" => EventFields::KswapdWake { order: field("order")? },
        other => {
            let detail = "pagelab does not record this event";
            return Err(Absence::new(other, AbsenceReason::NotRequested, detail));
        }
    })
}

// `kmem:mm_page_alloc_extfrag` with migratetypes: an allocation that fell back to another migratetype.
//
// Since 3.12 the kernel records the request, the allocated block, both migratetypes, and whether the
// pageblock changes to the type of the allocation (include/trace/events/kmem.h). `fragmenting` is no field:
// its print format computes it from `fallback_order` and the order of a pageblock. perf 6.1 computes it
// wrongly (it stops at the first operand of the `?:` and prints 10).

/// Field offsets of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtfragEventFields {
    pfn: NumberField,
    alloc_order: NumberField,
    fallback_order: NumberField,
    alloc_migratetype: NumberField,
    fallback_migratetype: NumberField,
    change_ownership: NumberField,
}

impl ExtfragEventFields {
    /// Looks up the fields in the event's format.
    pub fn new(format: &TraceFormat) -> Reading<ExtfragEventFields> {
        let field = |name: &str| find_field(format, name);
        Ok(ExtfragEventFields {
            pfn: field("pfn")?,
            alloc_order: field("alloc_order")?,
            fallback_order: field("fallback_order")?,
            alloc_migratetype: field("alloc_migratetype")?,
            fallback_migratetype: field("fallback_migratetype")?,
            change_ownership: field("change_ownership")?,
        })
    }

    /// The event with its types; `None` if a record is too short or an order is invalid.
    pub fn read(&self, event: &Event<'_>) -> Option<ExtfragEvent> {
        let order =
            |field: NumberField| event.u64(field).and_then(|order| u8::try_from(order).ok()).map(Order);
        let migratetype = |field: NumberField| {
            event.i64(field).and_then(|number| i32::try_from(number).ok()).map(MigrateType)
        };
        Some(ExtfragEvent {
            pfn: Pfn(event.u64(self.pfn)?),
            alloc_order: order(self.alloc_order)?,
            fallback_order: order(self.fallback_order)?,
            alloc_migratetype: migratetype(self.alloc_migratetype)?,
            fallback_migratetype: migratetype(self.fallback_migratetype)?,
            change_ownership: event.u64(self.change_ownership)? != 0,
        })
    }
}
