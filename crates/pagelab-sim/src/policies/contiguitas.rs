//! What cannot be moved is confined to one region, whose border moves by pageblocks: the part of Contiguitas
//! that is software (Zhao et al., ISCA 2023).
//!
//! The region lies at the low end of the zone. Kernel memory that can be shrunk lies in it too: it cannot be
//! moved. When a request finds the region full, the border goes up: a machine moves the pages away that lie
//! beside it, all or none of a pageblock (`machine/way.rs`; an allocator without a machine has only what is
//! free there). It comes down over pageblocks that are free again: in the background as long as another one
//! is left free, and at once when programs find nothing else. Simplified: the paper moves the border ahead of
//! need, by the pressure on either side (PSI), here need itself moves it. So that there is room beside the
//! border, movable memory is given from the far end at the start. The hardware that moves pages in use is not
//! modelled: what the kernel holds stays where it is.

use crate::policy::{Policy, Short, Take};
use crate::words::Kind;

/// The part of the zone that the region takes at the start: one in so many pageblocks. Ours: the paper sets
/// it by what its machines need.
const START: u32 = 8;

/// Confined.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contiguitas;

impl Policy for Contiguitas {
    fn lists(&self) -> u8 {
        2
    }

    fn wanted(&self, kind: Kind) -> u8 {
        u8::from(kind == Kind::Movable)
    }

    fn home(&self, _kind: Kind, block: u8) -> u8 {
        block
    }

    fn others(&self, _wanted: u8) -> &'static [u8] {
        &[]
    }

    fn take(&self, _wanted: u8, _order: u8, _block_order: u8) -> Take {
        Take::Pageblock
    }

    fn short(&self) -> Short {
        Short::Border
    }

    fn owner_at_start(&self, block: u32, blocks: u32) -> u8 {
        u8::from(block >= (blocks / START).max(1))
    }
}
