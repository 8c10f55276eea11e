//! Quantiles of Student's t distribution, by its incomplete beta function.

/// Steps of the continued fraction at most; it ends after some ten where it is used.
const STEPS_MAX: usize = 500;
/// Degrees of freedom beyond which the distribution is the normal one to five digits; more would cancel out.
const DEGREES_OF_FREEDOM_MAX: f64 = 1e6;
/// Where a factor of the continued fraction would be 0.
const TINY: f64 = 1e-300;

/// The logarithm of the gamma function above 0 (Lanczos 1964, g = 7, 9 terms: 15 digits).
fn ln_gamma(x: f64) -> f64 {
    const G: f64 = 7.0;
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        // Euler's reflection.
        return (std::f64::consts::PI / (std::f64::consts::PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let terms = TERMS.iter().enumerate().map(|(at, term)| term / (x + at as f64 + 1.0));
    let sum: f64 = 0.999_999_999_999_809_9 + terms.sum::<f64>();
    let t = x + G + 0.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularised incomplete beta function I_x(a, b) (its continued fraction, by Lentz's method).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // The fraction converges fast on this side only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    let kept = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / kept(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for step in 1..STEPS_MAX {
        let m = step as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut last = 1.0;
        for factor in [even, odd] {
            d = 1.0 / kept(1.0 + factor * d);
            c = kept(1.0 + factor / c);
            last = c * d;
            fraction *= last;
        }
        if (last - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    front.exp() * fraction / a
}

/// The probability that |T| is above `t` in Student's distribution with this many degrees of freedom.
pub fn two_sided_p(t: f64, degrees_of_freedom: f64) -> f64 {
    incomplete_beta(degrees_of_freedom / 2.0, 0.5, degrees_of_freedom / (degrees_of_freedom + t * t))
}

/// The `t` that |T| stays below with probability `level`, such as 0.95: 12.7 with 1 degree of freedom, 2.26
/// with 9, 1.96 with very many. `None` unless 0 < level < 1 and the degrees are a positive number.
pub fn quantile(level: f64, degrees_of_freedom: f64) -> Option<f64> {
    if !(level > 0.0 && level < 1.0 && degrees_of_freedom.is_finite() && degrees_of_freedom > 0.0) {
        return None;
    }
    let (outside, freedom) = (1.0 - level, degrees_of_freedom.min(DEGREES_OF_FREEDOM_MAX));
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided_p(high, freedom) > outside {
        (low, high) = (high, high * 2.0);
        if !f64::is_finite(high) {
            return None;
        }
    }
    // False position with the Illinois rule: an end that stays twice counts half, so both ends move.
    let (mut above, mut below) = (two_sided_p(low, freedom) - outside, two_sided_p(high, freedom) - outside);
    for _ in 0..STEPS_MAX {
        let middle = (low * below - high * above) / (below - above);
        if !(low < middle && middle < high) || high - low < 1e-14 * high {
            break;
        }
        let found = two_sided_p(middle, freedom) - outside;
        if found > 0.0 {
            (low, above, below) = (middle, found, below / 2.0);
        } else {
            (high, below, above) = (middle, found, above / 2.0);
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // scipy.stats.t.ppf((1 + level) / 2, freedom); the last one is close to the normal distribution's.
        let cases = [
            (0.95, 1.0, 12.706_204_736_432_095),
            (0.95, 2.0, 4.302_652_729_696_142),
            (0.95, 3.0, 3.182_446_305_284_263),
            (0.95, 5.0, 2.570_581_835_636_315_5),
            (0.95, 6.0, 2.446_911_851_144_969),
            (0.95, 9.0, 2.262_157_162_854_099_3),
            (0.95, 10.0, 2.228_138_851_964_938_5),
            (0.95, 30.0, 2.042_272_456_301_237_3),
            (0.95, 100.0, 1.983_971_518_449_633_4),
            (0.90, 9.0, 1.833_112_932_653_633_5),
            (0.99, 9.0, 3.249_835_541_592_126_2),
            (0.99, 1.0, 63.656_741_162_871_526),
        ];
        for (level, freedom, expected) in cases {
            let found = quantile(level, freedom).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{level} {freedom}: {found}, not {expected}");
        }
        // The normal distribution's, to which all greater numbers of degrees lead.
        assert!((quantile(0.95, 1e30).unwrap() - 1.959_963_985).abs() < 1e-5);
    }

    #[test]
    fn with_one_and_two_degrees_the_closed_forms_hold() {
        for t in [0.01f64, 0.5, 1.0, 3.0, 40.0] {
            let one = 1.0 - 2.0 / std::f64::consts::PI * t.atan();
            let two = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided_p(t, 1.0) - one).abs() < 1e-12, "{t}");
            assert!((two_sided_p(t, 2.0) - two).abs() < 1e-12, "{t}");
        }
        assert_eq!(two_sided_p(0.0, 5.0), 1.0);
    }

    #[test]
    fn what_is_no_level_has_no_quantile() {
        for (level, freedom) in [(0.0, 5.0), (1.0, 5.0), (0.95, 0.0), (0.95, f64::NAN), (f64::NAN, 5.0)] {
            assert_eq!(quantile(level, freedom), None, "{level} {freedom}");
        }
    }
}
