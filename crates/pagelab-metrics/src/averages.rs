//! Averages of a machine's memory use over a recording.
//!
//! | column | of each reading of meminfo and vmstat |
//! |---|---|
//! | total, free | MemTotal, MemFree |
//! | used | MemTotal − MemFree |
//! | page cache | Buffers + Cached + SwapCached |
//! | used − page cache | memory of programs and the kernel |
//! | minor, major faults | growth of pgfault − pgmajfault and of pgmajfault, per second |
//!
//! If a field of a meminfo reading failed, the reading is left out of all columns, so that identities of each
//! reading (used = total − free) hold for the means too. [`crate::statistics`] describes the weights of
//! readings.

use pagelab_model::run::{ColumnValues, Run, Series, Unit};
use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::standard_series;
use crate::statistics::{TimeStatistics, time_weights, typical_interval_ns};

/// The use of memory over the time of one run; amounts in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Averages {
    /// Readings that the amounts are of.
    pub readings: usize,
    /// Readings in which a field failed.
    pub readings_left_out: usize,
    /// From the first of these readings to the last, in nanoseconds.
    pub span_ns: u64,
    /// The usual distance of two readings; `None` for a single one.
    pub typical_interval_ns: Option<u64>,
    /// The largest distance of two readings.
    pub interval_max_ns: Option<u64>,
    /// MemTotal.
    pub total: TimeStatistics,
    /// MemFree.
    pub free: TimeStatistics,
    /// Total − free.
    pub used: TimeStatistics,
    /// Buffers + Cached + SwapCached.
    pub page_cache: Reading<TimeStatistics>,
    /// Used − page cache.
    pub used_less_page_cache: Reading<TimeStatistics>,
    /// Page faults per second.
    pub faults_per_second: Reading<FaultRates>,
}

/// Page faults per second over the time of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRates {
    /// Faults for which nothing was read from a disk: pgfault − pgmajfault.
    pub minor: TimeStatistics,
    /// Faults that waited for a disk: pgmajfault.
    pub major: TimeStatistics,
}

/// One reading of meminfo as the table needs it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReading {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// MemTotal.
    pub total: i64,
    /// MemFree.
    pub free: i64,
    /// Total − free.
    pub used: i64,
    /// Buffers + Cached + SwapCached; `None` if the recording has no such columns.
    pub page_cache: Option<i64>,
    /// Used − page cache.
    pub used_less_page_cache: Option<i64>,
}

impl MemoryReading {
    fn from_amounts(at_ns: u64, total: i64, free: i64, page_cache: Option<i64>) -> Option<MemoryReading> {
        let used = total.checked_sub(free)?;
        let used_less_page_cache = match page_cache {
            None => None,
            Some(cache) => Some(used.checked_sub(cache)?),
        };
        Some(MemoryReading { at_ns, total, free, used, page_cache, used_less_page_cache })
    }
}

/// The columns of a series from which [`MemoryReading`] is computed.
struct MeminfoColumns<'a> {
    total: &'a ColumnValues,
    free: &'a ColumnValues,
    /// Buffers and Cached, and SwapCached if there is one.
    cache: Option<Vec<&'a ColumnValues>>,
}

impl<'a> MeminfoColumns<'a> {
    fn from_series(series: &'a Series) -> Option<MeminfoColumns<'a>> {
        let column = |name: &str| bytes_column(series, name);
        let cache = column("Buffers").zip(column("Cached"));
        let cache = cache.map(|(buffers, cached)| {
            [Some(buffers), Some(cached), column("SwapCached")].into_iter().flatten().collect()
        });
        Some(MeminfoColumns { total: column("MemTotal")?, free: column("MemFree")?, cache })
    }

    fn reading_at(&self, index: usize, at_ns: u64) -> Option<MemoryReading> {
        let (total, free) = (self.total.value_at(index)?, self.free.value_at(index)?);
        let sum_columns = |parts: &Vec<&ColumnValues>| {
            parts.iter().try_fold(0i64, |sum, part| sum.checked_add(part.value_at(index)?))
        };
        let page_cache = match &self.cache {
            None => None,
            Some(parts) => Some(sum_columns(parts)?),
        };
        MemoryReading::from_amounts(at_ns, total, free, page_cache)
    }
}

fn bytes_column<'a>(series: &'a Series, name: &str) -> Option<&'a ColumnValues> {
    let column = series.columns.iter().find(|column| column.header.name == name)?;
    (column.header.unit.0 == Unit::BYTES).then_some(&column.values)
}

/// The readings of one meminfo series, `None` for one in which a field failed; nothing where the series lacks
/// MemTotal or MemFree.
pub fn meminfo_readings(series: &Series) -> impl Iterator<Item = Option<MemoryReading>> + '_ {
    let fields = MeminfoColumns::from_series(series);
    let readings = if fields.is_some() { series.at_ns.len() } else { 0 };
    (0..readings).map(move |at| fields.as_ref()?.reading_at(at, series.at_ns[at]))
}

/// The table's line for one run. A run without series of meminfo that holds one look at a machine has one
/// reading.
pub fn compute_averages(run: &Run) -> Reading<Averages> {
    let mut readings_left_out = 0;
    let mut readings = Vec::new();
    for reading in standard_series::series_named(run, standard_series::MEMINFO).flat_map(meminfo_readings) {
        match reading {
            Some(reading) => readings.push(reading),
            None => readings_left_out += 1,
        }
    }
    if readings.is_empty() && readings_left_out == 0 {
        readings.extend(snapshot_reading(run));
    }
    let Some((first, last)) = readings.first().zip(readings.last()) else {
        let (why, detail) = match readings_left_out {
            0 => (AbsenceReason::NotThere, "the run has no samples of MemTotal and MemFree"),
            _ => (AbsenceReason::Failed, "every reading failed"),
        };
        return Err(
            Absence::new("meminfo", why, detail).with_hint("record the machine with `pagelab record`")
        );
    };
    let span_ns = last.at_ns.saturating_sub(first.at_ns);
    let at_ns: Vec<u64> = readings.iter().map(|reading| reading.at_ns).collect();
    let weights = time_weights(&at_ns);
    let statistics_of = |of: fn(&MemoryReading) -> Option<i64>| {
        let weighted: Vec<(f64, u64)> = readings
            .iter()
            .zip(&weights)
            .filter_map(|(used, &weight)| Some((of(used)? as f64, weight)))
            .collect();
        TimeStatistics::from_weighted(&weighted).ok_or_else(|| {
            Absence::new("meminfo", AbsenceReason::NotThere, "the run has no samples of Buffers and Cached")
        })
    };
    Ok(Averages {
        readings: readings.len(),
        readings_left_out,
        span_ns,
        typical_interval_ns: typical_interval_ns(&at_ns),
        interval_max_ns: at_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max(),
        total: statistics_of(|used| Some(used.total))?,
        free: statistics_of(|used| Some(used.free))?,
        used: statistics_of(|used| Some(used.used))?,
        page_cache: statistics_of(|used| used.page_cache),
        used_less_page_cache: statistics_of(|used| used.used_less_page_cache),
        faults_per_second: fault_rates(run),
    })
}

fn snapshot_reading(run: &Run) -> Option<MemoryReading> {
    let snapshot = run.snapshot.as_deref()?;
    let meminfo = snapshot.meminfo.as_ref().ok()?;
    let bytes_of = |name: &str| i64::try_from(meminfo.bytes(name)?.0).ok();
    let cache = bytes_of("Buffers").zip(bytes_of("Cached"));
    let page_cache = cache.and_then(|(buffers, cached)| {
        buffers.checked_add(cached)?.checked_add(bytes_of("SwapCached").unwrap_or(0))
    });
    MemoryReading::from_amounts(0, bytes_of("MemTotal")?, bytes_of("MemFree")?, page_cache)
}

/// Rates of page faults between each reading of vmstat and the next.
fn fault_rates(run: &Run) -> Reading<FaultRates> {
    let absent = |why, detail: &str| Absence::new("vmstat", why, detail);
    let mut readings: Vec<(u64, i64, i64)> = Vec::new();
    let mut has_series = false;
    for series in standard_series::series_named(run, standard_series::VMSTAT) {
        let column = |name: &str| series.columns.iter().find(|column| column.header.name == name);
        let Some((all, major)) = column("pgfault").zip(column("pgmajfault")) else { continue };
        has_series = true;
        readings.extend(
            series.at_ns.iter().enumerate().filter_map(|(at, &at_ns)| {
                Some((at_ns, all.values.value_at(at)?, major.values.value_at(at)?))
            }),
        );
    }
    if !has_series {
        return Err(absent(AbsenceReason::NotThere, "the run has no samples of pgfault and pgmajfault"));
    }
    let (mut minor_rates, mut major) = (Vec::new(), Vec::new());
    for pair in readings.windows(2) {
        let ((then_ns, all_then, major_then), (now_ns, all_now, major_now)) = (pair[0], pair[1]);
        let took_ns = now_ns.saturating_sub(then_ns);
        // A counter that decreases was reset, and such a step has no rate.
        if took_ns == 0 || all_now < all_then || major_now < major_then {
            continue;
        }
        let (all_grown, major_grown) = (all_now.abs_diff(all_then), major_now.abs_diff(major_then));
        let per_second = |grown: u64| grown as f64 / (took_ns as f64 / 1e9);
        minor_rates.push((per_second(all_grown.saturating_sub(major_grown)), took_ns));
        major.push((per_second(major_grown), took_ns));
    }
    let rates = TimeStatistics::from_weighted(&minor_rates).zip(TimeStatistics::from_weighted(&major));
    let (minor, major) = rates.ok_or_else(|| {
        absent(AbsenceReason::Undefined, "a rate needs two readings without a counter reset between them")
    })?;
    Ok(FaultRates { minor, major })
}

#[cfg(test)]
mod tests;
