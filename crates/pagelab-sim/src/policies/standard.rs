//! Binary buddies with one list at each order: Linux up to 2.6.23.

use crate::policy::{Policy, Take};
use crate::words::Kind;

/// One list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standard;

impl Policy for Standard {
    fn lists(&self) -> u8 {
        1
    }

    fn wanted(&self, _kind: Kind) -> u8 {
        0
    }

    fn home(&self, _kind: Kind, _block: u8) -> u8 {
        0
    }

    fn others(&self, _wanted: u8) -> &'static [u8] {
        &[]
    }

    fn take(&self, _wanted: u8, _order: u8, _block_order: u8) -> Take {
        Take::Smallest
    }

    fn looks_ahead(&self) -> bool {
        false
    }
}
