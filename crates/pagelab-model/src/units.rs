//! Types for each index space and unit, so that a page frame cannot be added to a byte count.

use serde::{Deserialize, Serialize};

use std::fmt;

/// A page frame number: a physical address divided by the base page size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pfn(pub u64);

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

impl Pfn {
    /// Whether this frame is the first of a naturally aligned block of `order`.
    pub fn is_aligned(self, order: Order) -> bool {
        order.0 >= 64 || self.0 & ((1u64 << order.0) - 1) == 0
    }

    /// The frame `pages` after this one; saturates at the end of the address space.
    pub fn saturating_add(self, pages: Pages) -> Pfn {
        Pfn(self.0.saturating_add(pages.0))
    }
}

/// A count of base pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Pages(pub u64);

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}

impl Pages {
    /// The same amount in bytes; saturates instead of wrapping on a hostile count.
    pub fn to_bytes(self, page_size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(page_size.bytes()))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Bytes(pub u64);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl Bytes {
    /// `kib` times 1024; saturates.
    pub fn from_kib(kib: u64) -> Bytes {
        Bytes(kib.saturating_mul(1024))
    }

    /// Whole base pages in this amount.
    pub fn to_pages(self, page_size: PageSize) -> Pages {
        Pages(self.0 / page_size.bytes())
    }
}

/// An allocation order: a block of order j is 2^j contiguous base pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Order(pub u8);

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

impl Order {
    /// Base pages in a block of this order.
    pub fn to_pages(self) -> Pages {
        Pages(1u64.checked_shl(u32::from(self.0)).unwrap_or(u64::MAX))
    }

    /// This order as an index into an array by order.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A NUMA node, as the kernel numbers it. Numbers may have gaps and come in any order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The base page size of a machine: a power of two of at least 1 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

impl fmt::Debug for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B pages", self.0)
    }
}

impl TryFrom<u64> for PageSize {
    type Error = &'static str;

    fn try_from(bytes: u64) -> Result<PageSize, Self::Error> {
        PageSize::new(bytes).ok_or("a page size must be a power of two from 1 KiB to 1 GiB")
    }
}

impl From<PageSize> for u64 {
    fn from(size: PageSize) -> u64 {
        size.0
    }
}

impl PageSize {
    /// The most common page size, assumed for text without one; the assumption is always reported.
    pub const DEFAULT: PageSize = PageSize(4 << 10);

    /// A page size in bytes, if it is a power of two between 1 KiB and 1 GiB.
    pub fn new(bytes: u64) -> Option<PageSize> {
        (bytes.is_power_of_two() && (1 << 10..=1 << 30).contains(&bytes)).then_some(PageSize(bytes))
    }

    /// Bytes in one page.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Binary logarithm of the page size.
    pub fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// The order whose blocks are `size` large, where one is.
    pub fn order_for_size(self, size: Bytes) -> Option<Order> {
        let is_block_size = size.0.is_power_of_two() && size.0 >= self.0;
        is_block_size.then(|| Order((size.0.trailing_zeros() - self.shift()) as u8))
    }

    /// The size of a block of `order`; saturates.
    pub fn block_bytes(self, order: Order) -> Bytes {
        order.to_pages().to_bytes(self)
    }

    /// The size that one PMD entry maps with this page size on 64-bit machines: a page-table page holds `page
    /// size / 8` entries (x86-64 and arm64: 2 MiB at 4 KiB, 32 MiB at 16 KiB, 512 MiB at 64 KiB). The
    /// kernel's own `hpage_pmd_size` takes precedence.
    pub fn default_pmd_order(self) -> Order {
        Order((self.shift() - 3) as u8)
    }

    /// The order of a huge page of the PMD size that the kernel reports; the default where it reports none,
    /// or one that is not a block size.
    pub fn pmd_order(self, reported: Option<Bytes>) -> Order {
        reported.and_then(|size| self.order_for_size(size)).unwrap_or_else(|| self.default_pmd_order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_powers_of_two_and_name_their_pmd_order() {
        let reported = |size| PageSize::DEFAULT.pmd_order(Some(Bytes(size)));
        assert_eq!((reported(4 << 20), reported(3 << 20), reported(0)), (Order(10), Order(9), Order(9)));
        assert_eq!(PageSize::DEFAULT.pmd_order(None), Order(9));
        assert_eq!(PageSize::new(0), None);
        assert_eq!(PageSize::new(3000), None);
        let orders: Vec<u8> =
            [4, 16, 64].map(|kib| PageSize::new(kib << 10).unwrap().default_pmd_order().0).to_vec();
        assert_eq!(orders, [9, 11, 13]);
    }

    #[test]
    fn alignment_of_frames() {
        assert!(Pfn(512).is_aligned(Order(9)));
        assert!(!Pfn(513).is_aligned(Order(9)));
        assert!(Pfn(513).is_aligned(Order(0)));
        assert!(Pfn(0).is_aligned(Order(63)));
    }

    #[test]
    fn hostile_counts_saturate() {
        assert_eq!(Pages(u64::MAX).to_bytes(PageSize::DEFAULT), Bytes(u64::MAX));
        assert_eq!(Order(200).to_pages(), Pages(u64::MAX));
        assert_eq!(Bytes::from_kib(u64::MAX), Bytes(u64::MAX));
    }
}
