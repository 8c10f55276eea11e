//! Numbers of one to nine bytes whose first byte tells their length.

/// Bytes behind the last number, so that a word can be read wherever one begins.
pub(super) const PADDING: usize = 8;

/// Appends a number.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, value: u64) {
    let bits = (u64::BITS - (value | 1).leading_zeros()) as usize;
    let bytes = bits.div_ceil(7);
    if bytes <= 8 {
        let word = value << bytes | 1 << (bytes - 1);
        out.extend_from_slice(&word.to_le_bytes()[..bytes]);
    } else {
        out.push(0);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// The number at `at`, which is moved behind it; `None` beyond the end.
#[inline(always)]
pub(super) fn take(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.get(*at..)?.first_chunk()?);
    let count = word.trailing_zeros() + 1;
    if count <= 8 {
        *at += count as usize;
        return Some(word << (64 - 8 * count) >> (64 - 7 * count));
    }
    long(bytes, at)
}

#[cold]
fn long(bytes: &[u8], at: &mut usize) -> Option<u64> {
    // The first byte is 0; which bytes follow does not matter.
    if *bytes.get(*at)? != 0 {
        return None;
    }
    let value = u64::from_le_bytes(*bytes.get(*at + 1..)?.first_chunk()?);
    *at += 9;
    Some(value)
}

/// A difference as a number that is small where the difference is.
#[inline]
pub(super) fn zigzag(difference: i32) -> u32 {
    (difference << 1 ^ difference >> 31) as u32
}

/// The other way round.
#[inline]
pub(super) fn unzigzag(value: u32) -> i32 {
    (value >> 1) as i32 ^ -((value & 1) as i32)
}
