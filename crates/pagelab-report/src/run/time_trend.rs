//! Summary of a quantity over time in one row: start, range, end.

use pagelab_metrics::statistics::SampleStatistics;

use crate::style::TextStyle;
use crate::text_report::{TableColumn, TextReport};

/// Bars of a trend, at least and at most.
pub(super) const SPARK_WIDTHS: (usize, usize) = (6, 16);

/// Times in nanoseconds since the start, ascending, and values.
pub(super) type TrendPoints = Vec<(u64, f64)>;

/// First, smallest, median, largest and last value; `None` if there are none.
pub(super) fn summary_numbers(points: &[(u64, f64)]) -> Option<[f64; 5]> {
    let found = SampleStatistics::from_samples(points.iter().map(|&(_, value)| value).collect())?;
    Some([points.first()?.1, found.min, found.median, found.max, points.last()?.1])
}

/// Titles of [`summary_numbers`].
pub(super) const NUMBER_TITLES: [&str; 5] = ["start", "min", "median", "max", "end"];

pub(super) struct TrendRow {
    pub leading_cells: Vec<String>,
    pub number_cells: Vec<String>,
    pub points: TrendPoints,
    /// Text after the bars.
    pub trailing_cells: Vec<String>,
}

impl TrendRow {
    /// Makes a row without text after the bars.
    pub fn new(leading_cells: Vec<String>, number_cells: Vec<String>, points: TrendPoints) -> TrendRow {
        TrendRow { leading_cells, number_cells, points, trailing_cells: Vec::new() }
    }
}

/// Writes a table of trends, with as many bars as fit, and without bars if none fit.
pub(super) fn write_table(
    output: &mut TextReport,
    leading_columns: &[TableColumn<'_>],
    number_columns: &[&str],
    trailing_columns: &[TableColumn<'_>],
    rows: &[TrendRow],
) {
    let style = output.style();
    let columns = |with_bars: bool| {
        let mut columns = leading_columns.to_vec();
        columns.extend(number_columns.iter().map(|title| TableColumn::right(title)));
        columns.extend(with_bars.then(|| TableColumn::left("over time")));
        columns.extend(trailing_columns.iter().copied());
        columns
    };
    let cells = |row: &TrendRow, bars: usize| {
        let trend = (bars > 0).then(|| sparkline(&row.points, bars, style));
        row.leading_cells
            .iter()
            .chain(&row.number_cells)
            .cloned()
            .chain(trend)
            .chain(row.trailing_cells.iter().cloned())
            .collect()
    };
    let width_without_bars: Vec<Vec<String>> = rows.iter().map(|row| cells(row, 0)).collect();
    let room = style.width.saturating_sub(output.table_width(2, &columns(false), &width_without_bars) + 2);
    if room >= SPARK_WIDTHS.0.max("over time".len()) {
        let bars = room.min(SPARK_WIDTHS.1);
        output.add_table(2, &columns(true), &rows.iter().map(|row| cells(row, bars)).collect::<Vec<_>>());
    } else {
        let all: Vec<usize> = (0..columns(false).len()).collect();
        // Without the middle: the first column, the first number and the last one.
        let (first, last) = (leading_columns.len(), leading_columns.len() + number_columns.len() - 1);
        let ends: Vec<usize> = (0..=first).chain([last]).collect();
        output.add_narrowed_table(2, &columns(false), &width_without_bars, &[&all, &ends]);
    }
}

/// Draws values over time in `width` bars, each the mean of its share of the time; a blank where there is no
/// value.
pub(crate) fn sparkline(points: &[(u64, f64)], width: usize, style: TextStyle) -> String {
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
        Some(mean) if max > min => style.spark_char((mean - min) / (max - min)),
        Some(_) => style.spark_char(0.0),
        None => ' ',
    };
    means.iter().map(bar).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_where_their_time_is() {
        let line = |points: &[(u64, f64)], width| sparkline(points, width, TextStyle::PLAIN);
        let rising: Vec<(u64, f64)> = (0..8).map(|n| (n * 10, n as f64)).collect();
        assert_eq!(line(&rising, 8), "▁▂▃▄▅▆▇█");
        assert_eq!(line(&[(0, 1.0), (100, 9.0)], 4), "▁  █", "nothing was measured in between");
        assert_eq!(line(&[(5, 3.0)], 4), "▁");
        assert_eq!(line(&[(0, 3.0), (9, 3.0)], 2), "▁▁");
        assert_eq!(line(&[], 4), "");
        assert_eq!(line(&[(0, 0.0), (u64::MAX, 1.0)], 3), "▁ █");
        let ascii = TextStyle { unicode: false, ..TextStyle::PLAIN };
        assert_eq!(sparkline(&rising, 8, ascii), ".:-=+*%@");
    }
}
