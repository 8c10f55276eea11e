//! Series and streams as data blocks, complete or reduced to their extremes.

use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::run::{Column, ColumnValues, Run, SampleStream, Series};
use serde_json::Value;

use super::DataBlocks;
use crate::json::object::{JsonObject, to_array};

/// Returns how many values a column or stream may keep so that the page stays within `points_max`.
pub(super) fn points_per_series(runs: &[Run], derived: &[Vec<Series>], points_max: usize) -> usize {
    let series = runs.iter().flat_map(|run| &run.series).chain(derived.iter().flatten());
    let columns = series.flat_map(|series| &series.columns);
    let varying = columns.filter_map(|column| match &column.values {
        ColumnValues::Constant(_) => None,
        ColumnValues::Varying(values) => Some(values.len()),
    });
    let streams = runs.iter().flat_map(|run| run.streams.iter().map(|stream| stream.values.len()));
    points_per_column(varying.chain(streams).collect(), points_max)
}

fn to_seconds(at_ns: u64) -> f64 {
    at_ns as f64 / 1e9
}

/// Adds one series. Complete columns share one block of times.
pub(super) fn series_json(series: &Series, points_max: usize, data_blocks: &mut DataBlocks) -> JsonObject {
    let mut times = None;
    let columns = to_array(&series.columns, |column| {
        column_json(column, &series.at_ns, points_max, &mut times, data_blocks)
    });
    let span = series.at_ns.first().zip(series.at_ns.last());
    JsonObject::new()
        .field("name", series.name.as_str())
        .field("source", series.source.as_str())
        .field("readings", series.at_ns.len())
        .field("from_s", span.map(|(first, _)| to_seconds(*first)))
        .field("to_s", span.map(|(_, last)| to_seconds(*last)))
        .field("columns", columns)
}

fn column_json(
    column: &Column,
    at_ns: &[u64],
    points_max: usize,
    times: &mut Option<Value>,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let head = &column.header;
    let object = JsonObject::new()
        .field("name", head.name.as_str())
        .field("unit", head.unit.0.as_str())
        .field("is_counter", head.is_counter);
    let values = match &column.values {
        ColumnValues::Constant(value) => {
            let constant = JsonObject::new().field("value", *value);
            return object
                .field("constant", constant)
                .field("at_s", Value::Null)
                .field("values", Value::Null)
                .field("decimated_from", Value::Null);
        }
        ColumnValues::Varying(values) => values,
    };
    // A truncated file may have fewer values than times.
    let length = values.len().min(at_ns.len());
    let values: Vec<Option<f64>> = values[..length].iter().map(|value| value.map(|v| v as f64)).collect();
    let kept_indices = extreme_indices(&values, points_max);
    let is_whole = kept_indices.len() == at_ns.len();
    let at_s: Value = match times {
        Some(shared) if is_whole => shared.clone(),
        _ => data_blocks
            .push_f64(&kept_indices.iter().map(|&at| to_seconds(at_ns[at])).collect::<Vec<_>>())
            .into(),
    };
    if is_whole {
        *times = Some(at_s.clone());
    }
    let kept_values: Vec<f64> = kept_indices.iter().map(|&at| values[at].unwrap_or(f64::NAN)).collect();
    object
        .field("constant", Value::Null)
        .field("at_s", at_s)
        .field("values", data_blocks.push_f64(&kept_values))
        .field("decimated_from", (kept_indices.len() < length).then_some(length))
}

/// Adds one stream, by time, with the summary of all its samples.
pub(super) fn stream_json(
    stream: &SampleStream,
    points_max: usize,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let length = stream.values.len().min(stream.at_ns.len());
    let mut order: Vec<usize> = (0..length).collect();
    if !stream.at_ns[..length].is_sorted() {
        order.sort_by_key(|&at| stream.at_ns[at]);
    }
    let values: Vec<Option<f64>> = order.iter().map(|&at| Some(stream.values[at])).collect();
    let kept_indices = extreme_indices(&values, points_max);
    let at_s: Vec<f64> = kept_indices.iter().map(|&at| to_seconds(stream.at_ns[order[at]])).collect();
    let kept_values: Vec<f64> = kept_indices.iter().map(|&at| stream.values[order[at]]).collect();
    let labels: Vec<Value> =
        stream.header.labels.iter().map(|(key, value)| vec![key.as_str(), value.as_str()].into()).collect();
    JsonObject::new()
        .field("name", stream.header.name.as_str())
        .field("unit", stream.header.unit.0.as_str())
        .field("labels", labels)
        .field("summary", summary_json(&stream.values[..length]).map(Value::from))
        .field("at_s", data_blocks.push_f64(&at_s))
        .field("values", data_blocks.push_f64(&kept_values))
        .field("decimated_from", (kept_indices.len() < length).then_some(length))
}

/// Order statistics of all samples, as in the terminal's table; `None` without samples.
fn summary_json(values: &[f64]) -> Option<JsonObject> {
    let statistics = SampleStatistics::from_samples(values.to_vec())?;
    Some(
        JsonObject::new()
            .field("count", statistics.count)
            .field("min", statistics.min)
            .field("p5", statistics.percentile_5)
            .field("median", statistics.median)
            .field("p95", statistics.percentile_95)
            .field("max", statistics.max),
    )
}
/// Returns indices of at most `points_max` of `values` that show the same picture: the first and the last,
/// and of each stretch of equal length the minimum, the maximum and, if a value is absent, one gap;
/// ascending.
///
/// `points_max` below 5 counts as 5.
pub(super) fn extreme_indices(values: &[Option<f64>], points_max: usize) -> Vec<usize> {
    let length = values.len();
    let points_max = points_max.max(5);
    if length <= points_max {
        return (0..length).collect();
    }
    let has_gap = values.iter().any(Option::is_none);
    // The first and the last may be in addition to those of their stretches.
    let stretches = (points_max - 2) / if has_gap { 3 } else { 2 };
    let mut kept_indices = Vec::with_capacity(points_max.min(length));
    kept_indices.push(0);
    for stretch in 0..stretches {
        let (start, end) = (length * stretch / stretches, length * (stretch + 1) / stretches);
        let known = (start..end).filter_map(|index| Some((index, values[index]?)));
        let low = known.clone().reduce(|least, next| if next.1 < least.1 { next } else { least });
        let high = known.reduce(|most, next| if next.1 > most.1 { next } else { most });
        let gap_index = (start..end).find(|&index| values[index].is_none());
        let mut found: Vec<usize> =
            [low.map(|(at, _)| at), high.map(|(at, _)| at), gap_index].into_iter().flatten().collect();
        found.sort_unstable();
        kept_indices.extend(found);
    }
    kept_indices.push(length - 1);
    kept_indices.dedup();
    kept_indices
}

/// Returns how many values each of several columns may keep so that all together keep at most `budget`: large
/// columns share what small ones leave. `usize::MAX` if all fit.
pub(super) fn points_per_column(mut column_lengths: Vec<usize>, budget: usize) -> usize {
    column_lengths.sort_unstable();
    let mut left = budget;
    for (index, &length) in column_lengths.iter().enumerate() {
        let each = left / (column_lengths.len() - index);
        if length > each {
            return each;
        }
        left -= length;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_the_terminal() {
        assert!(summary_json(&[]).is_none());
        let values: Vec<f64> = (1..=64).rev().map(f64::from).collect();
        let statistics = Value::from(summary_json(&values).unwrap());
        let text = serde_json::to_string(&statistics).unwrap();
        // numpy.percentile(range(1, 65), [0, 5, 50, 95, 100])
        assert_eq!(text, r#"{"count":64,"min":1.0,"p5":4.15,"median":32.5,"p95":60.85,"max":64.0}"#);
    }

    /// Random generator that is sufficient for test data.
    fn noise(seed: u64, count: usize) -> Vec<Option<f64>> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 33) as f64;
            (seed.is_multiple_of(2) || !(state >> 20).is_multiple_of(97)).then_some(value)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn few_values_stay_as_they_are() {
        assert_eq!(extreme_indices(&[], 10), Vec::<usize>::new());
        assert_eq!(extreme_indices(&[Some(1.0), None, Some(2.0)], 4), [0, 1, 2]);
        assert_eq!(extreme_indices(&[Some(1.0); 5], 0).len(), 5);
        assert_eq!(extreme_indices(&[Some(1.0); 6], 0), [0, 5]);
    }

    #[test]
    fn extremes_first_last_and_gaps_survive_within_the_cap() {
        for seed in 0..40 {
            let values = noise(seed, 1000 + seed as usize * 37);
            for points_max in [4, 5, 10, 99, 500] {
                let kept_indices = extreme_indices(&values, points_max);
                let context = format!("seed {seed} cap {points_max}: {}", kept_indices.len());
                assert!(kept_indices.len() <= points_max.max(5), "{context}");
                assert!(kept_indices.windows(2).all(|pair| pair[0] < pair[1]), "{context}");
                assert_eq!(
                    (kept_indices[0], *kept_indices.last().unwrap()),
                    (0, values.len() - 1),
                    "{context}"
                );
                let all = values.iter().copied().flatten();
                let shown = || kept_indices.iter().filter_map(|&at| values[at]);
                assert_eq!(shown().fold(f64::MAX, f64::min), all.clone().fold(f64::MAX, f64::min));
                assert_eq!(shown().fold(f64::MIN, f64::max), all.fold(f64::MIN, f64::max), "{context}");
                let gaps = values.iter().any(Option::is_none);
                assert_eq!(kept_indices.iter().any(|&at| values[at].is_none()), gaps, "{context}");
            }
        }
    }

    #[test]
    fn the_budget_is_shared_by_the_large() {
        assert_eq!(points_per_column(vec![], 10), usize::MAX);
        assert_eq!(points_per_column(vec![5, 5], 10), usize::MAX);
        assert_eq!(points_per_column(vec![5, 6], 10), 5);
        assert_eq!(points_per_column(vec![100, 2, 100], 10), 4);
        for column_lengths in [vec![1, 2, 3, 400, 500], vec![7; 30], vec![1000, 1]] {
            let points_max = points_per_column(column_lengths.clone(), 100);
            assert!(
                column_lengths.iter().map(|&length| length.min(points_max)).sum::<usize>() <= 100,
                "{column_lengths:?}"
            );
        }
    }
}
