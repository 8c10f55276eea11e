//! Linear feedback shift register of 64 bits, which advances by 32 shifts at a time.
//!
//! Galois form with the primitive polynomial x^64 + x^4 + x^3 + x + 1 (E. J. Watson, Primitive Polynomials
//! (Mod 2), Math. Comp. 16, 1962), so that each state but 0 occurs once in a period of 2^64 - 1. Adjacent
//! states of a register are shifted copies of each other, and addresses from their bits would be too; hence
//! the 32 shifts, which cost six instructions, and a multiplication of the output, not of the state.

/// An odd multiplier whose high product bits depend on all bits of the state (2^64 by the golden ratio).
const OUTPUT_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaloisLfsr(u64);

impl GaloisLfsr {
    /// A register that starts at `seed`; 0, which it could never leave, is replaced by another value.
    pub fn new(seed: u64) -> GaloisLfsr {
        GaloisLfsr(if seed == 0 { OUTPUT_MULTIPLIER } else { seed })
    }

    /// The bits that it holds; never 0.
    pub fn state(self) -> u64 {
        self.0
    }

    /// 32 shifts on. The bits that leave at the top come back at the bottom, times x^4 + x^3 + x + 1; they
    /// reach no further than bit 35, so that nothing is left to be reduced.
    fn advance(&mut self) {
        let out = self.0 >> 32;
        self.0 = (self.0 << 32) ^ out ^ (out << 1) ^ (out << 3) ^ (out << 4);
    }

    /// A number below `bound`: the high half of the product with the spread state.
    #[inline]
    pub fn next_below(&mut self, bound: u64) -> u64 {
        self.advance();
        ((u128::from(self.0.wrapping_mul(OUTPUT_MULTIPLIER)) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x^4 + x^3 + x + 1: what x^64 is.
    const LOW: u64 = 0b11011;

    /// The state times x.
    fn one_shift(state: u64) -> u64 {
        (state << 1) ^ if state >> 63 == 1 { LOW } else { 0 }
    }

    fn product(mut left: u64, right: u64) -> u64 {
        let mut sum = 0;
        for bit in 0..64 {
            if right >> bit & 1 == 1 {
                sum ^= left;
            }
            left = one_shift(left);
        }
        sum
    }

    fn power_of_x(mut exponent: u64) -> u64 {
        let (mut square, mut result) = (2, 1);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = product(result, square);
            }
            square = product(square, square);
            exponent >>= 1;
        }
        result
    }

    #[test]
    fn the_period_is_the_longest_there_is() {
        // The prime factors of 2^64 - 1.
        let primes = [3, 5, 17, 257, 641, 65_537, 6_700_417];
        assert_eq!(primes.iter().map(|&prime| u128::from(prime)).product::<u128>(), u128::from(u64::MAX));
        assert_eq!(power_of_x(u64::MAX), 1);
        for prime in primes {
            assert_ne!(power_of_x(u64::MAX / prime), 1, "the order of x divides (2^64 - 1) / {prime}");
        }
    }

    #[test]
    fn a_step_is_32_shifts() {
        let mut register = GaloisLfsr::new(0x0123_4567_89ab_cdef);
        for _ in 0..1000 {
            let mut slow = register.state();
            (0..32).for_each(|_| slow = one_shift(slow));
            register.advance();
            assert_eq!(register.state(), slow);
        }
        assert_ne!(GaloisLfsr::new(0).state(), 0);
    }

    /// Pairs of draws at distances from 1 to 4 are uniform over 16 × 16 cells: chi square with 255 degrees of
    /// freedom is in 170..=360 except for 1 in 10^5.
    #[test]
    fn draws_that_follow_each_other_are_even() {
        for distance in 1..=4 {
            let mut register = GaloisLfsr::new(7);
            let draws: Vec<u64> = (0..256_000).map(|_| register.next_below(16)).collect();
            let mut cells = [0f64; 256];
            for pair in draws.windows(distance + 1) {
                cells[(pair[0] * 16 + pair[distance]) as usize] += 1.0;
            }
            let expected = (draws.len() - distance) as f64 / 256.0;
            let chi: f64 = cells.iter().map(|count| (count - expected).powi(2) / expected).sum();
            assert!((170.0..=360.0).contains(&chi), "distance {distance}: {chi}");
        }
    }
}
