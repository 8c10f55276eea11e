//! How a machine used its memory over the time of a recording: the table of averages.
//!
//! | column | of each reading of meminfo and vmstat |
//! |---|---|
//! | total, free | MemTotal, MemFree |
//! | used | MemTotal − MemFree |
//! | page cache | Buffers + Cached + SwapCached |
//! | used − page cache | what programs and the kernel hold |
//! | minor, major faults | growth of pgfault − pgmajfault and of pgmajfault, per second |
//!
//! A reading of meminfo in which one of the fields failed is left out of all columns, so that what holds for
//! every reading (used = total − free) holds for the means too. How readings are weighed stands in
//! [`crate::over_time`].

use pagelab_model::run::{Run, Series, Unit, Values};
use pagelab_model::{Absence, AbsentWhy, Reading};

use crate::over_time::{OverTime, usual_distance_ns, weights};
use crate::recorded;

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
    pub every_ns: Option<u64>,
    /// The largest distance of two readings.
    pub gap_max_ns: Option<u64>,
    /// MemTotal.
    pub total: OverTime,
    /// MemFree.
    pub free: OverTime,
    /// Total − free.
    pub used: OverTime,
    /// Buffers + Cached + SwapCached.
    pub page_cache: Reading<OverTime>,
    /// Used − page cache.
    pub used_less_page_cache: Reading<OverTime>,
    /// Page faults per second.
    pub faults: Reading<Faults>,
}

/// Page faults per second over the time of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Faults for which nothing was read from a disk: pgfault − pgmajfault.
    pub minor: OverTime,
    /// Faults that waited for a disk: pgmajfault.
    pub major: OverTime,
}

/// One reading of meminfo as the table needs it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Nanoseconds since the start.
    pub at_ns: u64,
    /// MemTotal.
    pub total: i64,
    /// MemFree.
    pub free: i64,
    /// Total − free.
    pub used: i64,
    /// Buffers + Cached + SwapCached; `None` where the recording has no such columns.
    pub page_cache: Option<i64>,
    /// Used − page cache.
    pub used_less_page_cache: Option<i64>,
}

/// The columns of a series from which [`Used`] is computed.
struct Fields<'a> {
    total: &'a Values,
    free: &'a Values,
    /// Buffers and Cached, and SwapCached where there is one.
    cache: Option<Vec<&'a Values>>,
}

impl<'a> Fields<'a> {
    fn of(series: &'a Series) -> Option<Fields<'a>> {
        let column = |name: &str| amounts(series, name);
        let cache = column("Buffers").zip(column("Cached"));
        let cache = cache.map(|(buffers, cached)| {
            [Some(buffers), Some(cached), column("SwapCached")].into_iter().flatten().collect()
        });
        Some(Fields { total: column("MemTotal")?, free: column("MemFree")?, cache })
    }

    fn at(&self, index: usize, at_ns: u64) -> Option<Used> {
        let (total, free) = (self.total.at(index)?, self.free.at(index)?);
        let used = total.checked_sub(free)?;
        let cache =
            |parts: &Vec<&Values>| parts.iter().try_fold(0i64, |sum, part| sum.checked_add(part.at(index)?));
        let page_cache = match &self.cache {
            None => None,
            Some(parts) => Some(cache(parts)?),
        };
        let less = match page_cache {
            None => None,
            Some(cache) => Some(used.checked_sub(cache)?),
        };
        Some(Used { at_ns, total, free, used, page_cache, used_less_page_cache: less })
    }
}

/// A column of amounts in bytes.
fn amounts<'a>(series: &'a Series, name: &str) -> Option<&'a Values> {
    let column = series.columns.iter().find(|column| column.head.name == name)?;
    (column.head.unit.0 == Unit::BYTES).then_some(&column.values)
}

/// The readings of one meminfo series, `None` for one in which a field failed; nothing where the series lacks
/// MemTotal or MemFree.
pub fn used(series: &Series) -> impl Iterator<Item = Option<Used>> + '_ {
    let fields = Fields::of(series);
    let readings = if fields.is_some() { series.at_ns.len() } else { 0 };
    (0..readings).map(move |at| fields.as_ref()?.at(at, series.at_ns[at]))
}

/// The table's line for one run. A run without series of meminfo that holds one look at a machine has one
/// reading.
pub fn averages(run: &Run) -> Reading<Averages> {
    let mut left_out = 0;
    let mut known = Vec::new();
    for reading in recorded::named(run, recorded::MEMINFO).flat_map(used) {
        match reading {
            Some(reading) => known.push(reading),
            None => left_out += 1,
        }
    }
    if known.is_empty() && left_out == 0 {
        known.extend(look(run));
    }
    let Some((first, last)) = known.first().zip(known.last()) else {
        let why = if left_out > 0 { AbsentWhy::Failed } else { AbsentWhy::NotThere };
        let detail = if left_out > 0 {
            "every reading of it failed"
        } else {
            "the run has no readings of MemTotal and MemFree"
        };
        return Err(Absence::new("meminfo", why, detail).or("record the machine with `pagelab record`"));
    };
    let span_ns = last.at_ns.saturating_sub(first.at_ns);
    let at_ns: Vec<u64> = known.iter().map(|reading| reading.at_ns).collect();
    let weights = weights(&at_ns);
    let over = |of: fn(&Used) -> Option<i64>| {
        let weighted: Vec<(f64, u64)> = known
            .iter()
            .zip(&weights)
            .filter_map(|(used, &weight)| Some((of(used)? as f64, weight)))
            .collect();
        OverTime::of(&weighted)
            .ok_or_else(|| Absence::new("meminfo", AbsentWhy::NotThere, "the run has no Buffers and Cached"))
    };
    Ok(Averages {
        readings: known.len(),
        readings_left_out: left_out,
        span_ns,
        every_ns: usual_distance_ns(&at_ns),
        gap_max_ns: at_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max(),
        total: over(|used| Some(used.total))?,
        free: over(|used| Some(used.free))?,
        used: over(|used| Some(used.used))?,
        page_cache: over(|used| used.page_cache),
        used_less_page_cache: over(|used| used.used_less_page_cache),
        faults: faults(run),
    })
}

/// The one reading of a look at a machine.
fn look(run: &Run) -> Option<Used> {
    let look = run.snapshot.as_deref()?;
    let meminfo = look.meminfo.as_ref().ok()?;
    let at = |name: &str| i64::try_from(meminfo.bytes(name)?.0).ok();
    let (total, free) = (at("MemTotal")?, at("MemFree")?);
    let used = total.checked_sub(free)?;
    let cache = at("Buffers").zip(at("Cached"));
    let page_cache = cache.and_then(|(buffers, cached)| {
        buffers.checked_add(cached)?.checked_add(at("SwapCached").unwrap_or(0))
    });
    let less = page_cache.and_then(|cache| used.checked_sub(cache));
    Some(Used { at_ns: 0, total, free, used, page_cache, used_less_page_cache: less })
}

/// Rates of page faults between each reading of vmstat and the next.
fn faults(run: &Run) -> Reading<Faults> {
    let absent = |why, detail: &str| Absence::new("vmstat", why, detail);
    let mut readings: Vec<(u64, i64, i64)> = Vec::new();
    let mut is_there = false;
    for series in recorded::named(run, recorded::VMSTAT) {
        let column = |name: &str| series.columns.iter().find(|column| column.head.name == name);
        let Some((all, major)) = column("pgfault").zip(column("pgmajfault")) else { continue };
        is_there = true;
        readings.extend(
            series
                .at_ns
                .iter()
                .enumerate()
                .filter_map(|(at, &at_ns)| Some((at_ns, all.values.at(at)?, major.values.at(at)?))),
        );
    }
    if !is_there {
        return Err(absent(AbsentWhy::NotThere, "the run has no readings of pgfault and pgmajfault"));
    }
    let (mut minor, mut major) = (Vec::new(), Vec::new());
    for pair in readings.windows(2) {
        let ((then, all_then, major_then), (now, all_now, major_now)) = (pair[0], pair[1]);
        let took_ns = now.saturating_sub(then);
        // A counter that went back was reset, and such a step has no rate.
        if took_ns == 0 || all_now < all_then || major_now < major_then {
            continue;
        }
        let (all_grown, major_grown) = (all_now.abs_diff(all_then), major_now.abs_diff(major_then));
        let per_second = |grown: u64| grown as f64 / (took_ns as f64 / 1e9);
        minor.push((per_second(all_grown.saturating_sub(major_grown)), took_ns));
        major.push((per_second(major_grown), took_ns));
    }
    let found = OverTime::of(&minor).zip(OverTime::of(&major));
    let (minor, major) = found.ok_or_else(|| {
        absent(AbsentWhy::Undefined, "a rate takes two readings between which counters grew")
    })?;
    Ok(Faults { minor, major })
}

#[cfg(test)]
mod tests;
