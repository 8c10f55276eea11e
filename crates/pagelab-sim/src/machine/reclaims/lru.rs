//! The oldest pages, wherever they lie.

use super::Reclaim;

/// Nothing beside the oldest pages.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

impl Reclaim for Lru {}
