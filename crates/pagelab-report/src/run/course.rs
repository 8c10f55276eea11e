//! What is said of a quantity over time in one row: where it began, between what it moved, where it ended.

use pagelab_metrics::statistics::Statistics;

use super::spark;
use crate::style::Style;
use crate::text::{Column, Page};

/// Bars of a course, at least and at most.
const SPARK: (usize, usize) = (6, 16);

/// Values over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    /// Times in nanoseconds since the start, ascending, and values.
    pub points: Vec<(u64, f64)>,
}

impl Course {
    /// First, smallest, median, largest and last value; `None` without any.
    pub fn numbers(&self) -> Option<[f64; 5]> {
        let found = Statistics::of(self.points.iter().map(|&(_, value)| value).collect())?;
        let (first, last) = (self.points.first()?.1, self.points.last()?.1);
        Some([first, found.min, found.median, found.max, last])
    }
}

/// Titles of [`Course::numbers`].
pub(super) const TITLES: [&str; 5] = ["start", "min", "median", "max", "end"];

/// A row of a table of courses.
pub(super) struct Row {
    pub lead: Vec<String>,
    pub numbers: Vec<String>,
    pub course: Course,
    /// What stands behind the bars.
    pub tail: Vec<String>,
}

/// A table of courses, with as many bars as there is room for, and without them where there is none.
pub(super) fn table(
    page: &mut Page,
    lead: &[Column<'_>],
    numbers: &[&str],
    tail: &[Column<'_>],
    rows: &[Row],
) {
    let style = page.style();
    let columns = |with_bars: bool| {
        let mut columns = lead.to_vec();
        columns.extend(numbers.iter().map(|title| Column::right(title)));
        columns.extend(with_bars.then(|| Column::left("over time")));
        columns.extend(tail.iter().copied());
        columns
    };
    let cells = |row: &Row, bars: usize| {
        let course = (bars > 0).then(|| bar(&row.course, bars, style));
        row.lead.iter().chain(&row.numbers).cloned().chain(course).chain(row.tail.iter().cloned()).collect()
    };
    let bare: Vec<Vec<String>> = rows.iter().map(|row| cells(row, 0)).collect();
    let room = style.width.saturating_sub(page.table_width(2, &columns(false), &bare) + 2);
    if room >= SPARK.0.max("over time".len()) {
        let bars = room.min(SPARK.1);
        page.table(2, &columns(true), &rows.iter().map(|row| cells(row, bars)).collect::<Vec<_>>());
    } else if !page.table_if_it_fits(2, &columns(false), &bare) {
        // Without the middle: the first column, the first number and the last one.
        let ends = |row: Vec<String>| {
            let (first, last) = (lead.len(), lead.len() + numbers.len() - 1);
            row.into_iter()
                .enumerate()
                .filter(|(at, _)| *at <= first || *at == last)
                .map(|(_, cell)| cell)
                .collect()
        };
        let titles: Vec<Column<'_>> = lead
            .iter()
            .copied()
            .chain([numbers.first(), numbers.last()].into_iter().flatten().map(|title| Column::right(title)))
            .collect();
        page.table(2, &titles, &bare.into_iter().map(ends).collect::<Vec<Vec<String>>>());
    }
}

fn bar(course: &Course, width: usize, style: Style) -> String {
    spark::line(&course.points, width, style)
}
