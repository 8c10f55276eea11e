//! Prefetch of cache lines. The one room of this crate with `unsafe` in it.
#![allow(unsafe_code)]

/// Prefetches the line of an element; nothing is read, and an index out of bounds is ignored.
#[inline]
pub fn prefetch_line<T>(slice: &[T], index: usize) {
    let Some(element) = slice.get(index) else { return };
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint about an address; it reads and writes nothing, and any address would do.
        // JUSTIFICATION: a load would hold up the processor until the line is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = element;
}
