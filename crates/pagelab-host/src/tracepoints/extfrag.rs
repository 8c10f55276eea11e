//! `kmem:mm_page_alloc_extfrag` with types: an allocation that took memory of another migratetype.
//!
//! Since 3.12 the kernel records what was asked for, the block that was taken, both migratetypes, and whether
//! the pageblock is the allocation's own afterwards (include/trace/events/kmem.h). `fragmenting` is no field
//! but worked out in its print format, from `fallback_order` and the order of a pageblock; perf 6.1 works it
//! out wrongly (it stops at the first operand of the `?:` in there and prints 10).

use pagelab_formats::trace_format::{Field, TraceFormat};
use pagelab_model::extfrag::{ExtfragEvent, MigrateType};
use pagelab_model::{Absence, AbsentWhy, Order, Pfn, Reading};

use super::Event;

/// Where the fields of the event lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtfragFields {
    pfn: Field,
    alloc_order: Field,
    fallback_order: Field,
    alloc_migratetype: Field,
    fallback_migratetype: Field,
    change_ownership: Field,
}

impl ExtfragFields {
    /// Looks the fields up in the event's format.
    pub fn new(format: &TraceFormat) -> Reading<ExtfragFields> {
        let field = |name: &str| {
            format.field(name).ok_or_else(|| {
                let detail = format!("the event has no number `{name}`; this kernel counts otherwise");
                Absence::new(&format.name, AbsentWhy::NotThere, detail)
            })
        };
        Ok(ExtfragFields {
            pfn: field("pfn")?,
            alloc_order: field("alloc_order")?,
            fallback_order: field("fallback_order")?,
            alloc_migratetype: field("alloc_migratetype")?,
            fallback_migratetype: field("fallback_migratetype")?,
            change_ownership: field("change_ownership")?,
        })
    }

    /// The event with its types; `None` if a record is too short or an order is none.
    pub fn read(&self, event: &Event<'_>) -> Option<ExtfragEvent> {
        let order = |field: Field| event.u64(field).and_then(|order| u8::try_from(order).ok()).map(Order);
        let migratetype =
            |field: Field| event.i64(field).and_then(|number| i32::try_from(number).ok()).map(MigrateType);
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
