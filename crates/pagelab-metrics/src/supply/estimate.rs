//! Counts that were made in full, and estimates from a sample without replacement with their 95 % interval.

/// A count, or an estimate of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The count; from a sample, rounded to the nearest.
    pub value: u64,
    /// Half of the 95 % interval, rounded up; `None` if everything was counted.
    pub plus_minus: Option<u64>,
}

impl Estimate {
    /// A count of everything.
    pub fn exact(value: u64) -> Estimate {
        Estimate { value, plus_minus: None }
    }

    /// The sum of two that were drawn independently.
    pub fn plus(self, other: Estimate) -> Estimate {
        let squares = |a: u64, b: u64| (a as f64).hypot(b as f64).ceil() as u64;
        let plus_minus = match (self.plus_minus, other.plus_minus) {
            (None, None) => None,
            (a, b) => Some(squares(a.unwrap_or(0), b.unwrap_or(0))),
        };
        Estimate { value: self.value.saturating_add(other.value), plus_minus }
    }
}

/// A number between two, because some pages do not say what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The low end.
    pub low: Estimate,
    /// The high end.
    pub high: Estimate,
}

impl Interval {
    /// The sum of two.
    pub fn plus(self, other: Interval) -> Interval {
        Interval { low: self.low.plus(other.low), high: self.high.plus(other.high) }
    }
}

/// Values of units: their number, sum and sum of squares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Series {
    sum: i128,
    squares: i128,
}

impl Series {
    pub fn push(&mut self, value: i64) {
        self.sum += i128::from(value);
        self.squares += i128::from(value) * i128::from(value);
    }
}

/// How many units there are, and how many of them were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Population {
    pub total: u64,
    pub seen: u64,
}

/// The normal distribution's two-sided 95 % point.
const Z95: f64 = 1.959_964;

impl Population {
    pub fn whole(total: u64) -> Population {
        Population { total, seen: total }
    }

    fn is_whole(self) -> bool {
        self.seen >= self.total
    }

    /// Units of which `hits` were seen.
    pub fn count(self, hits: u64) -> Estimate {
        if self.is_whole() {
            return Estimate::exact(hits);
        }
        let (total, seen) = (self.total as f64, self.seen as f64);
        if self.seen == 0 {
            return Estimate { value: 0, plus_minus: Some(self.total) };
        }
        let share = hits as f64 / seen;
        let size = seen * (total - 1.0) / (total - seen);
        let squared = Z95 * Z95;
        let centre = (share + squared / (2.0 * size)) / (1.0 + squared / size);
        let spread = Z95 * (share * (1.0 - share) / size + squared / (4.0 * size * size)).sqrt()
            / (1.0 + squared / size);
        let half = (centre + spread - share).max(share - (centre - spread));
        Estimate { value: (total * share).round() as u64, plus_minus: Some((total * half).ceil() as u64) }
    }

    /// The sum of a value that each unit has.
    pub fn total_of(self, values: impl Iterator<Item = i64>) -> Estimate {
        let mut series = Series::default();
        values.for_each(|value| series.push(value));
        if self.is_whole() {
            return Estimate::exact(u64::try_from(series.sum).unwrap_or(0));
        }
        let (value, half) = self.expanded(&series);
        Estimate { value: value.max(0.0).round() as u64, plus_minus: Some(half.ceil() as u64) }
    }

    /// The smaller of the sum of `usable`, and of the sum of `room` in units of `pages`, rounded down; not
    /// below 0. Where it is not clear which is smaller, the larger error of the two is given.
    pub fn smaller_of(self, usable: &Series, room: &Series, pages: u64) -> Estimate {
        if self.is_whole() {
            let smaller = usable.sum.min(room.sum.div_euclid(i128::from(pages)));
            return Estimate::exact(u64::try_from(smaller).unwrap_or(0));
        }
        let (units, units_half) = self.expanded(usable);
        let (room, room_half) = self.expanded(room);
        let (room, room_half) = (room / pages as f64, room_half / pages as f64);
        let half = if (units - room).abs() <= units_half.max(room_half) {
            units_half.max(room_half)
        } else if units < room {
            units_half
        } else {
            room_half
        };
        let value = units.min(room).max(0.0).round() as u64;
        Estimate { value, plus_minus: Some(half.ceil() as u64) }
    }

    /// The expansion estimate of a sum, and half of its interval.
    fn expanded(self, series: &Series) -> (f64, f64) {
        let (total, seen) = (self.total as f64, self.seen as f64);
        if self.seen < 2 {
            return (0.0, total);
        }
        let sum = series.sum as f64;
        let variance = ((series.squares as f64 - sum * sum / seen) / (seen - 1.0)).max(0.0);
        let freedom = seen - 1.0;
        // Student's t by the first terms of its expansion in 1/ν: 2.26 at ν = 9 (2.262), 2.04 at 30 (2.042).
        let t = Z95 + 2.37 / freedom + 2.8 / (freedom * freedom);
        let half = t * total * ((1.0 - seen / total) * variance / seen).sqrt();
        (total * sum / seen, half)
    }
}
