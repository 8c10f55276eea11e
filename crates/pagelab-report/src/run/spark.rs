//! A line of small bars: values over time between their smallest and their largest.

use crate::style::Style;

/// Values over time in `width` bars, each the mean of its share of the time; a blank where there is none.
pub(crate) fn line(points: &[(u64, f64)], width: usize, style: Style) -> String {
    let (Some(&(first, _)), Some(&(last, _))) = (points.first(), points.last()) else { return String::new() };
    let mut sums = vec![(0.0, 0u32); width];
    let span = u128::from(last.saturating_sub(first)) + 1;
    for &(at, value) in points {
        let place = u128::from(at.saturating_sub(first)) * width as u128 / span;
        if let Some((sum, count)) = sums.get_mut(place as usize) {
            *sum += value;
            *count += 1;
        }
    }
    let means: Vec<Option<f64>> =
        sums.iter().map(|&(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect();
    let known = means.iter().flatten();
    let (min, max) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &v| (a.min(v), b.max(v)));
    let bar = |mean: &Option<f64>| match mean {
        Some(mean) if max > min => style.spark((mean - min) / (max - min)),
        Some(_) => style.spark(0.0),
        None => ' ',
    };
    means.iter().map(bar).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_where_their_time_is() {
        let line = |points: &[(u64, f64)], width| line(points, width, Style::PLAIN);
        let rising: Vec<(u64, f64)> = (0..8).map(|n| (n * 10, n as f64)).collect();
        assert_eq!(line(&rising, 8), "▁▂▃▄▅▆▇█");
        assert_eq!(line(&[(0, 1.0), (100, 9.0)], 4), "▁  █", "nothing was measured in between");
        assert_eq!(line(&[(5, 3.0)], 4), "▁");
        assert_eq!(line(&[(0, 3.0), (9, 3.0)], 2), "▁▁");
        assert_eq!(line(&[], 4), "");
        assert_eq!(line(&[(0, 0.0), (u64::MAX, 1.0)], 3), "▁ █");
        let ascii = Style { unicode: false, ..Style::PLAIN };
        assert_eq!(super::line(&rising, 8, ascii), ".:-=+*%@");
    }
}
