//! Series and streams as data blocks, in full or by their extremes.

use pagelab_metrics::statistics::Statistics;
use pagelab_model::run::{Column, Run, Series, Stream, Values};
use serde_json::Value;

use super::blocks::Blocks;
use super::decimate::{extremes, share};
use crate::json::object::Object;

/// How many values a column or a stream may keep so that the page stays within `points_max`.
pub(super) fn cap(runs: &[Run], derived: &[Vec<Series>], points_max: usize) -> usize {
    let series = runs.iter().flat_map(|run| &run.series).chain(derived.iter().flatten());
    let columns = series.flat_map(|series| &series.columns);
    let varying = columns.filter_map(|column| match &column.values {
        Values::Constant(_) => None,
        Values::Varying(values) => Some(values.len()),
    });
    let streams = runs.iter().flat_map(|run| run.streams.iter().map(|stream| stream.values.len()));
    share(varying.chain(streams).collect(), points_max)
}

fn seconds(at_ns: u64) -> f64 {
    at_ns as f64 / 1e9
}

/// One series. Columns in full share one block of times.
pub(super) fn series(series: &Series, cap: usize, blocks: &mut Blocks) -> Object {
    let mut times = None;
    let columns: Vec<Value> = series
        .columns
        .iter()
        .map(|column| self::column(column, &series.at_ns, cap, &mut times, blocks).into())
        .collect();
    let span = series.at_ns.first().zip(series.at_ns.last());
    Object::new()
        .put("name", series.name.as_str())
        .put("source", series.source.as_str())
        .put("readings", series.at_ns.len())
        .put("from_s", span.map(|(first, _)| seconds(*first)))
        .put("to_s", span.map(|(_, last)| seconds(*last)))
        .put("columns", columns)
}

fn column(
    column: &Column,
    at_ns: &[u64],
    cap: usize,
    times: &mut Option<Value>,
    blocks: &mut Blocks,
) -> Object {
    let head = &column.head;
    let object = Object::new()
        .put("name", head.name.as_str())
        .put("unit", head.unit.0.as_str())
        .put("is_counter", head.is_counter);
    let values = match &column.values {
        Values::Constant(value) => {
            let constant = Object::new().put("value", *value);
            return object
                .put("constant", constant)
                .put("at_s", Value::Null)
                .put("values", Value::Null)
                .put("decimated_from", Value::Null);
        }
        Values::Varying(values) => values,
    };
    // A file that was cut off may have fewer values than times.
    let length = values.len().min(at_ns.len());
    let values: Vec<Option<f64>> = values[..length].iter().map(|value| value.map(|v| v as f64)).collect();
    let kept = extremes(&values, cap);
    let is_whole = kept.len() == at_ns.len();
    let at_s: Value = match times {
        Some(shared) if is_whole => shared.clone(),
        _ => blocks.f64(&kept.iter().map(|&at| seconds(at_ns[at])).collect::<Vec<_>>()).into(),
    };
    if is_whole {
        *times = Some(at_s.clone());
    }
    let shown: Vec<f64> = kept.iter().map(|&at| values[at].unwrap_or(f64::NAN)).collect();
    object
        .put("constant", Value::Null)
        .put("at_s", at_s)
        .put("values", blocks.f64(&shown))
        .put("decimated_from", (kept.len() < length).then_some(length))
}

/// One stream, by time, with the summary of all its samples.
pub(super) fn stream(stream: &Stream, cap: usize, blocks: &mut Blocks) -> Object {
    let length = stream.values.len().min(stream.at_ns.len());
    let mut order: Vec<usize> = (0..length).collect();
    if !stream.at_ns[..length].is_sorted() {
        order.sort_by_key(|&at| stream.at_ns[at]);
    }
    let values: Vec<Option<f64>> = order.iter().map(|&at| Some(stream.values[at])).collect();
    let kept = extremes(&values, cap);
    let at_s: Vec<f64> = kept.iter().map(|&at| seconds(stream.at_ns[order[at]])).collect();
    let shown: Vec<f64> = kept.iter().map(|&at| stream.values[order[at]]).collect();
    let labels: Vec<Value> =
        stream.head.labels.iter().map(|(key, value)| vec![key.as_str(), value.as_str()].into()).collect();
    Object::new()
        .put("name", stream.head.name.as_str())
        .put("unit", stream.head.unit.0.as_str())
        .put("labels", labels)
        .put("summary", summary(&stream.values[..length]).map(Value::from))
        .put("at_s", blocks.f64(&at_s))
        .put("values", blocks.f64(&shown))
        .put("decimated_from", (kept.len() < length).then_some(length))
}

/// Order statistics of all samples, as the terminal's table has them; `None` without any.
fn summary(values: &[f64]) -> Option<Object> {
    let found = Statistics::of(values.to_vec())?;
    Some(
        Object::new()
            .put("count", found.count)
            .put("min", found.min)
            .put("p5", found.percentile_5)
            .put("median", found.median)
            .put("p95", found.percentile_95)
            .put("max", found.max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_the_terminal() {
        assert!(summary(&[]).is_none());
        let values: Vec<f64> = (1..=64).rev().map(f64::from).collect();
        let found = Value::from(summary(&values).unwrap());
        let text = serde_json::to_string(&found).unwrap();
        // numpy.percentile(range(1, 65), [0, 5, 50, 95, 100])
        assert_eq!(text, r#"{"count":64,"min":1.0,"p5":4.15,"median":32.5,"p95":60.85,"max":64.0}"#);
    }
}
