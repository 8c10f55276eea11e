//! Complex numbers, and the multipole and local expansions over them.

use std::ops::{Add, AddAssign, Mul, Sub};

/// A complex number in memory: real part, imaginary part.
pub type ComplexPair = [f64; 2];

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex {
    /// Real part.
    pub re: f64,
    /// Imaginary part.
    pub im: f64,
}

impl Complex {
    /// Of both parts.
    pub const fn new(re: f64, im: f64) -> Complex {
        Complex { re, im }
    }

    /// Reads the number.
    pub const fn from_pair(pair: ComplexPair) -> Complex {
        Complex { re: pair[0], im: pair[1] }
    }

    /// Adds it to a number in memory.
    pub fn add_to(self, target: &mut ComplexPair) {
        target[0] += self.re;
        target[1] += self.im;
    }

    /// The square of its distance from 0.
    pub fn norm_squared(self) -> f64 {
        self.re * self.re + self.im * self.im
    }

    /// One divided by it.
    pub fn inverse(self) -> Complex {
        let square = self.norm_squared();
        Complex::new(self.re / square, -self.im / square)
    }
}

impl Add for Complex {
    type Output = Complex;
    fn add(self, other: Complex) -> Complex {
        Complex::new(self.re + other.re, self.im + other.im)
    }
}

impl AddAssign for Complex {
    fn add_assign(&mut self, other: Complex) {
        *self = *self + other;
    }
}

impl Sub for Complex {
    type Output = Complex;
    fn sub(self, other: Complex) -> Complex {
        Complex::new(self.re - other.re, self.im - other.im)
    }
}

impl Mul for Complex {
    type Output = Complex;
    fn mul(self, other: Complex) -> Complex {
        Complex::new(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)
    }
}

impl Mul<f64> for Complex {
    type Output = Complex;
    fn mul(self, factor: f64) -> Complex {
        Complex::new(self.re * factor, self.im * factor)
    }
}

/// The most terms. With them, powers of the distance between the smallest boxes stay far from the ends of a
/// float's range.
pub const TERMS_MAX: usize = 30;

/// Binomial coefficients up to twice the number of terms.
#[derive(Clone, Debug)]
pub struct Binomials {
    term_count: usize,
    /// Row n has those of n over 0 … n, and zeros.
    rows: Vec<[f64; 2 * TERMS_MAX]>,
    /// Row l has those of k+l over l for all k.
    diagonals: Vec<[f64; TERMS_MAX]>,
}

/// Terms of an expansion on the stack.
type TermArray = [Complex; TERMS_MAX];

impl Binomials {
    /// For expansions of this number of terms, at most [`TERMS_MAX`].
    pub fn new(terms: usize) -> Binomials {
        let terms = terms.clamp(1, TERMS_MAX);
        let mut row = [0.0; 2 * TERMS_MAX];
        row[0] = 1.0;
        let mut rows = vec![row];
        while rows.len() < 2 * terms {
            for at in (1..row.len()).rev() {
                row[at] += row[at - 1];
            }
            rows.push(row);
        }
        let diagonal = |l: usize| std::array::from_fn(|k| if k < terms { rows[k + l][l] } else { 0.0 });
        let diagonals = (0..terms).map(diagonal).collect();
        Binomials { term_count: terms, rows, diagonals }
    }

    /// Moves an outer expansion by `shift` (old centre less new centre) and adds it: b_k += Σ_j C(k, j)
    /// by^(k−j) b'_j.
    pub fn add_outer(&self, outer: &mut [ComplexPair], source: &[ComplexPair], shift: Complex) {
        let powers = self.powers_of(shift);
        for (k, sum) in outer.iter_mut().enumerate() {
            for j in 0..=k {
                (powers[k - j] * Complex::from_pair(source[j]) * self.rows[k][j]).add_to(sum);
            }
        }
    }

    /// Turns an outer expansion into an inner one about a centre at distance `shift` from its own, and adds
    /// it: a_l += (−1)^l by^−(l+1) Σ_k C(k+l, l) b_k by^−k.
    pub fn add_outer_as_inner(&self, inner: &mut [ComplexPair], outer: &[ComplexPair], shift: Complex) {
        let inverse = shift.inverse();
        let powers = self.powers_of(inverse);
        let mut scaled: TermArray = [Complex::default(); TERMS_MAX];
        for ((scaled, term), power) in scaled.iter_mut().zip(outer).zip(powers) {
            *scaled = Complex::from_pair(*term) * power;
        }
        let scaled = &scaled[..outer.len()];
        let mut factor = inverse;
        for (sum, diagonal) in inner.iter_mut().zip(&self.diagonals) {
            let mut term = Complex::default();
            for (scaled, binomial) in scaled.iter().zip(diagonal) {
                term += *scaled * *binomial;
            }
            (term * factor).add_to(sum);
            factor = factor * inverse * -1.0;
        }
    }

    /// Moves an inner expansion by `shift` (new centre less old centre) and adds it: a'_l += Σ_m C(m, l) a_m
    /// by^(m−l).
    pub fn add_inner(&self, inner: &mut [ComplexPair], source: &[ComplexPair], shift: Complex) {
        let powers = self.powers_of(shift);
        for (l, sum) in inner.iter_mut().enumerate() {
            for m in l..self.term_count {
                (powers[m - l] * Complex::from_pair(source[m]) * self.rows[m][l]).add_to(sum);
            }
        }
    }

    /// Adds a charge at `position` (less the centre) to an outer expansion.
    pub fn add_charge(&self, outer: &mut [ComplexPair], position: Complex, charge: f64) {
        let mut term = Complex::new(charge, 0.0);
        for sum in outer.iter_mut() {
            term.add_to(sum);
            term = term * position;
        }
    }

    /// Value of an inner expansion at `position` (less the centre), by Horner's rule.
    pub fn evaluate_inner(&self, inner: &[ComplexPair], position: Complex) -> Complex {
        inner.iter().rev().fold(Complex::default(), |sum, term| sum * position + Complex::from_pair(*term))
    }

    /// Terms of each expansion.
    pub fn term_count(&self) -> usize {
        self.term_count
    }

    fn powers_of(&self, base: Complex) -> TermArray {
        let mut powers = [Complex::new(1.0, 0.0); TERMS_MAX];
        for at in 1..self.term_count {
            powers[at] = powers[at - 1] * base;
        }
        powers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value of an outer expansion at `position` (less its centre).
    fn outer_at(outer: &[ComplexPair], position: Complex) -> Complex {
        let inverse = position.inverse();
        outer.iter().rev().fold(Complex::default(), |sum, term| (sum + Complex::from_pair(*term)) * inverse)
    }

    fn is_near(found: Complex, exact: Complex) -> bool {
        (found - exact).norm_squared() < 1e-16 * exact.norm_squared()
    }

    #[test]
    fn expansions_say_what_the_charge_does_wherever_they_are_moved() {
        let binomials = Binomials::new(TERMS_MAX);
        let mut outer = [ComplexPair::default(); TERMS_MAX];
        let charge = Complex::new(0.1, -0.05);
        binomials.add_charge(&mut outer, charge, 1.5);
        let far = Complex::new(2.0, 1.0);
        let exact = (far - charge).inverse() * 1.5;
        assert!(is_near(outer_at(&outer, far), exact));

        // About another centre: the same place is `far - to` from there.
        let to = Complex::new(-0.1, 0.1);
        let mut moved = [ComplexPair::default(); TERMS_MAX];
        binomials.add_outer(&mut moved, &outer, Complex::default() - to);
        assert!(is_near(outer_at(&moved, far - to), exact));

        // An inner expansion about a place near by, and moved from there.
        let about = Complex::new(2.1, 0.8);
        let mut inner = [ComplexPair::default(); TERMS_MAX];
        binomials.add_outer_as_inner(&mut inner, &moved, about - to);
        assert!(is_near(binomials.evaluate_inner(&inner, far - about), exact));
        let next = Complex::new(2.05, 0.95);
        let mut again = [ComplexPair::default(); TERMS_MAX];
        binomials.add_inner(&mut again, &inner, next - about);
        assert!(is_near(binomials.evaluate_inner(&again, far - next), exact));
    }

    #[test]
    fn binomials_are_those_of_the_triangle() {
        let binomials = Binomials::new(5);
        assert_eq!(binomials.rows[4][..6], [1.0, 4.0, 6.0, 4.0, 1.0, 0.0]);
        assert_eq!(binomials.diagonals[2][..5], [1.0, 3.0, 6.0, 10.0, 15.0]);
        assert_eq!(binomials.rows[9][4], 126.0);
    }
}
