//! Complex numbers, with the operations that expansions need.

use std::ops::{Add, AddAssign, Mul, Sub};

/// A complex number as it lies in memory: real part, imaginary part.
pub type Pair = [f64; 2];

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

    /// The number that lies there.
    pub const fn of(pair: Pair) -> Complex {
        Complex { re: pair[0], im: pair[1] }
    }

    /// Adds it to one that lies in memory.
    pub fn add_to(self, sum: &mut Pair) {
        sum[0] += self.re;
        sum[1] += self.im;
    }

    /// The square of its distance from 0.
    pub fn square(self) -> f64 {
        self.re * self.re + self.im * self.im
    }

    /// One divided by it.
    pub fn inverse(self) -> Complex {
        let square = self.square();
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
