//! Outer and inner expansions of the field, made and moved.

use super::complex::{Complex, Pair};

/// The most terms. With them, powers of the distance between the smallest boxes stay far from the ends of a
/// float's range.
pub const TERMS_MAX: usize = 30;

/// Binomial coefficients up to twice the number of terms.
#[derive(Clone, Debug)]
pub struct Binomials {
    terms: usize,
    /// Row n has those of n over 0 … n, and zeros.
    rows: Vec<[f64; 2 * TERMS_MAX]>,
    /// Row l has those of k+l over l for all k.
    diagonals: Vec<[f64; TERMS_MAX]>,
}

/// Terms of an expansion on the stack.
type Terms = [Complex; TERMS_MAX];

impl Binomials {
    /// For expansions of so many terms, at most [`TERMS_MAX`].
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
        Binomials { terms, rows, diagonals }
    }

    /// Moves an outer expansion by `by` (old centre less new centre) and adds it: b_k += Σ_j C(k, j) by^(k−j)
    /// b'_j.
    pub fn add_outer(&self, outer: &mut [Pair], from: &[Pair], by: Complex) {
        let powers = self.powers(by);
        for (k, sum) in outer.iter_mut().enumerate() {
            for j in 0..=k {
                (powers[k - j] * Complex::of(from[j]) * self.rows[k][j]).add_to(sum);
            }
        }
    }

    /// Turns an outer expansion into an inner one about a centre that lies `by` from its own, and adds it:
    /// a_l += (−1)^l by^−(l+1) Σ_k C(k+l, l) b_k by^−k.
    pub fn add_inner_of_outer(&self, inner: &mut [Pair], outer: &[Pair], by: Complex) {
        let inverse = by.inverse();
        let powers = self.powers(inverse);
        let mut scaled: Terms = [Complex::default(); TERMS_MAX];
        for ((scaled, term), power) in scaled.iter_mut().zip(outer).zip(powers) {
            *scaled = Complex::of(*term) * power;
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

    /// Moves an inner expansion by `by` (new centre less old centre) and adds it: a'_l += Σ_m C(m, l) a_m
    /// by^(m−l).
    pub fn add_inner(&self, inner: &mut [Pair], from: &[Pair], by: Complex) {
        let powers = self.powers(by);
        for (l, sum) in inner.iter_mut().enumerate() {
            for m in l..self.terms {
                (powers[m - l] * Complex::of(from[m]) * self.rows[m][l]).add_to(sum);
            }
        }
    }

    /// Adds a charge at `place` (less the centre) to an outer expansion.
    pub fn add_charge(&self, outer: &mut [Pair], place: Complex, charge: f64) {
        let mut term = Complex::new(charge, 0.0);
        for sum in outer.iter_mut() {
            term.add_to(sum);
            term = term * place;
        }
    }

    /// What an inner expansion says at `place` (less the centre), by Horner's rule.
    pub fn at(&self, inner: &[Pair], place: Complex) -> Complex {
        inner.iter().rev().fold(Complex::default(), |sum, term| sum * place + Complex::of(*term))
    }

    /// Terms of each expansion.
    pub fn terms(&self) -> usize {
        self.terms
    }

    fn powers(&self, of: Complex) -> Terms {
        let mut powers = [Complex::new(1.0, 0.0); TERMS_MAX];
        for at in 1..self.terms {
            powers[at] = powers[at - 1] * of;
        }
        powers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an outer expansion says at `place` (less its centre).
    fn outer_at(outer: &[Pair], place: Complex) -> Complex {
        let inverse = place.inverse();
        outer.iter().rev().fold(Complex::default(), |sum, term| (sum + Complex::of(*term)) * inverse)
    }

    fn is_near(found: Complex, exact: Complex) -> bool {
        (found - exact).square() < 1e-16 * exact.square()
    }

    #[test]
    fn expansions_say_what_the_charge_does_wherever_they_are_moved() {
        let binomials = Binomials::new(TERMS_MAX);
        let mut outer = [Pair::default(); TERMS_MAX];
        let charge = Complex::new(0.1, -0.05);
        binomials.add_charge(&mut outer, charge, 1.5);
        let far = Complex::new(2.0, 1.0);
        let exact = (far - charge).inverse() * 1.5;
        assert!(is_near(outer_at(&outer, far), exact));

        // About another centre: the same place is `far - to` from there.
        let to = Complex::new(-0.1, 0.1);
        let mut moved = [Pair::default(); TERMS_MAX];
        binomials.add_outer(&mut moved, &outer, Complex::default() - to);
        assert!(is_near(outer_at(&moved, far - to), exact));

        // An inner expansion about a place near by, and moved from there.
        let about = Complex::new(2.1, 0.8);
        let mut inner = [Pair::default(); TERMS_MAX];
        binomials.add_inner_of_outer(&mut inner, &moved, about - to);
        assert!(is_near(binomials.at(&inner, far - about), exact));
        let next = Complex::new(2.05, 0.95);
        let mut again = [Pair::default(); TERMS_MAX];
        binomials.add_inner(&mut again, &inner, next - about);
        assert!(is_near(binomials.at(&again, far - next), exact));
    }

    #[test]
    fn binomials_are_those_of_the_triangle() {
        let binomials = Binomials::new(5);
        assert_eq!(binomials.rows[4][..6], [1.0, 4.0, 6.0, 4.0, 1.0, 0.0]);
        assert_eq!(binomials.diagonals[2][..5], [1.0, 3.0, 6.0, 10.0, 15.0]);
        assert_eq!(binomials.rows[9][4], 126.0);
    }
}
