//! Mapping as values of a plain type, for which every bit pattern is valid.

use crate::mapping::Mapping;

/// Numbers of which every pattern of bits is one, aligned to no more than eight bytes.
pub trait Pod: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($of:ty),*) => {
        $(
            impl sealed::Sealed for $of {}
            impl Pod for $of {}
            const _: () = assert!(align_of::<$of>() <= align_of::<u64>() && size_of::<$of>() > 0);
        )*
    };
}

plain!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl Mapping {
    /// The memory as values of another type. Fresh memory reads as zeros.
    pub fn values<T: Pod>(&self) -> &[T] {
        let words = self.words();
        // SAFETY: the words are aligned at least as strictly as T and initialised, every pattern of bits is a
        // T (the trait is sealed), and the shorter count is rounded down. The lifetime is that of `words`.
        // JUSTIFICATION: workloads on floats and bytes need huge-page-aligned memory of no allocator.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words) / size_of::<T>()) }
    }

    /// The memory as values of another type, to be changed.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        let words = self.words_mut();
        let count = size_of_val(words) / size_of::<T>();
        // SAFETY: as in `values`; `words` is the only view, and it ends here.
        // JUSTIFICATION: as in `values`.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), count) }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;

    use super::*;

    #[test]
    fn values_are_the_same_memory() {
        let mut map = Mapping::anonymous(Bytes(1), Bytes(1)).unwrap();
        map.words_mut()[1] = u64::from_ne_bytes(2.5f64.to_ne_bytes());
        assert_eq!(map.values::<f64>()[1], 2.5);
        assert_eq!(map.values::<u8>().len() as u64, map.len().0);
        *map.values_mut::<u32>().last_mut().unwrap() = u32::MAX;
        assert_ne!(*map.words().last().unwrap(), 0);
    }
}
