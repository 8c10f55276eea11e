//! The moments that maps can be of: now, and what was saved of another time.

use std::path::{Path, PathBuf};

use pagelab_formats::{duration, meminfo, zoneinfo};
use pagelab_host::page_map::{MapOptions, MapScan, scan_counted};
use pagelab_host::paths;
use pagelab_host::reader::Reader as Files;
use pagelab_host::root::Root;
use pagelab_metrics::balance::FreeBalance;
use pagelab_model::run::{Ending, MapHead, Run};
use pagelab_model::{OffLists, PageMap, Pages};
use pagelab_report::map::MapSource;
use pagelab_report::quantity::duration as duration_text;
use pagelab_runfile::Reader;
use pagelab_sys::clock;

use super::plan::Plan;
use crate::cmd::{unread, usage};
use crate::exit::{Exit, Failure};
use crate::out;

/// The word for this machine as it is.
const NOW: &str = "now";

/// A moment that a map is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This machine, now.
    Now,
    /// A saved tree with kpageflags in it.
    Tree(PathBuf),
    /// A map of a recording (`record --maps`).
    Recorded(PathBuf, At),
}

/// Which map of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// The last one whose scan began at most so many nanoseconds after the start, as times are shown:
    /// one at 70.3 s is shown as, and found by, 1 min 10 s.
    Until(u64),
}

/// The map of a moment, and what is known about it.
#[derive(Debug)]
pub struct Taken {
    /// Where it is from.
    pub source: MapSource,
    /// The map.
    pub map: PageMap,
    /// What must be known to read it rightly.
    pub notes: Vec<String>,
}

impl Moment {
    /// `now`, the name of a saved tree, or `FILE.pagelab` with `@TIME` after it: a length of time since its
    /// start, `first` or `last`, which is meant without it. A tree that is called so is `./now`.
    pub fn parse(text: &Path) -> Result<Moment, Failure> {
        if text.as_os_str() == NOW {
            return Ok(Moment::Now);
        }
        let name = text.to_string_lossy();
        if name.ends_with(RUN_FILE) {
            return Ok(Moment::Recorded(text.to_owned(), At::Last));
        }
        let Some((file, at)) = name.rsplit_once('@').filter(|(file, _)| file.ends_with(RUN_FILE)) else {
            return Ok(Moment::Tree(text.to_owned()));
        };
        let at = match at {
            "first" => At::First,
            "last" => At::Last,
            _ => {
                let wanted = "the time since the recording's start, `first` or `last`";
                let length = duration::parse(at)
                    .map_err(|error| usage(&format!("{name}: behind the @ {wanted} was wanted: {error}")))?;
                At::Until(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        Ok(Moment::Recorded(PathBuf::from(file), at))
    }

    /// The files of the moment; a recording has none beside its maps.
    pub fn root(&self) -> Result<Root, Failure> {
        match self {
            Moment::Now => crate::cmd::root(None),
            Moment::Tree(path) => crate::cmd::root(Some(path)),
            Moment::Recorded(path, _) => Err(usage(&format!(
                "--check {}: a recorded map has no buddyinfo of its own moment beside it; check `now` or a \
                 saved tree",
                path.display()
            ))),
        }
    }

    /// Its map.
    pub fn take(&self, plan: &Plan) -> Result<Taken, Failure> {
        if let Moment::Recorded(path, at) = self {
            return recorded(path, *at);
        }
        let root = self.root()?;
        let (source, scan, notes) = scan(&root, plan)?;
        Ok(Taken { source, map: scan.map, notes })
    }
}

/// The end of a run file's name.
const RUN_FILE: &str = ".pagelab";

/// One map of a recording.
fn recorded(path: &Path, at: At) -> Result<Taken, Failure> {
    let failed = |error| crate::cmd::report::refusal(&error);
    let reader = Reader::open(path).map_err(failed)?;
    let run = reader.run().map_err(failed)?;
    let name = path.display();
    let Some(first) = run.maps.first() else {
        let message = format!("{name}: no map was recorded in it; `pagelab record --maps 1m` records them");
        return Err(Failure::new(Exit::BadInput, message));
    };
    let place = match at {
        At::First => 0,
        At::Last => run.maps.len() - 1,
        At::Until(ns) => until(&run.maps, ns).ok_or_else(|| {
            let (asked, first) = (duration_text(ns), duration_text(first.at_ns));
            let message = format!("{name}: no map was recorded until {asked}; the first one is at {first}");
            Failure::new(Exit::BadInput, message)
        })?,
    };
    let map = reader.map(place).map_err(failed)?;
    let machine = &run.manifest.machine;
    let source = MapSource {
        name: format!("{name} at {}", duration_text(map.started_ns)),
        file: format!("map {} of {}", place + 1, run.maps.len()),
        host: machine.host_name.clone(),
        kernel: machine.kernel_release.as_ref().ok().cloned(),
        taken_realtime_ns: Some(run.manifest.started.realtime_ns.saturating_add(map.started_ns)),
    };
    let notes = beyond(&run, at).into_iter().collect();
    Ok(Taken { source, map, notes })
}

/// What is said of a time after the end of the recording.
fn beyond(run: &Run, at: At) -> Option<String> {
    let last_ns = run.maps.last()?.at_ns;
    let ended_ns = match &run.ending {
        Ending::Complete { after_ns } | Ending::Stopped { after_ns, .. } => *after_ns,
        Ending::NotClosed => last_ns,
    };
    let At::Until(asked_ns) = at else { return None };
    let (asked, last) = (duration_text(asked_ns), duration_text(last_ns));
    (asked_ns > ended_ns && asked != last)
        .then(|| format!("the recording ended before {asked}: this is its last map, at {last}"))
}

/// The last map that began by this time, or at what is shown as this time.
fn until(maps: &[MapHead], ns: u64) -> Option<usize> {
    let asked = duration_text(ns);
    maps.iter().rposition(|map| map.at_ns <= ns || duration_text(map.at_ns) == asked)
}

/// Reads the map of a machine or of a saved tree, with the counts around it.
pub fn scan(root: &Root, plan: &Plan) -> Result<(MapSource, MapScan, Vec<String>), Failure> {
    let reader = Files::new(root);
    let mut options = MapOptions::of(&reader, plan.page_size);
    options.off_lists = off_lists(&reader, &options);
    let taken_realtime_ns = match root.is_live() {
        true => Some(clock::realtime_ns()),
        false => root.manifest().and_then(|manifest| manifest.realtime_ns),
    };
    let scan = scan_counted(&reader, &options).map_err(unread)?;
    let host = reader.line(paths::HOSTNAME).ok().filter(|name| !name.is_empty());
    let kernel = reader.line(paths::OSRELEASE).ok();
    let source = MapSource {
        name: root.name().to_owned(),
        file: root.show(paths::KPAGEFLAGS),
        host,
        kernel,
        taken_realtime_ns,
    };
    let mut notes = Vec::new();
    if options.page_size_source.starts_with("assumed") {
        let page_size = options.page_size.bytes();
        notes.push(format!("pages of {page_size} bytes are assumed; --page-size says otherwise"));
    }
    if reader.parse(paths::IOMEM, pagelab_formats::iomem::parse).is_ok_and(|iomem| iomem.is_hidden()) {
        notes.push("where memory lies is hidden here (iomem): holes may be shown as unknown".to_owned());
    }
    for problem in reader.into_problems() {
        out::complain(&format!("pagelab: {}", problem.message));
    }
    Ok((source, scan, notes))
}

/// Memory that counts as free and stands on no free list.
pub fn off_lists(reader: &Files<'_>, options: &MapOptions) -> OffLists {
    let buddy = reader.parse(paths::BUDDYINFO, pagelab_formats::buddyinfo::parse);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse).ok();
    let (Ok(buddy), Ok(meminfo)) = (buddy, meminfo) else { return OffLists::CannotTell };
    let balance = FreeBalance::of(&buddy, &meminfo, zoneinfo.as_ref(), options.page_size, Pages(0));
    balance.map_or(OffLists::CannotTell, |balance| balance.off_lists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_map_is_found_by_the_time_that_is_shown() {
        let seconds = [0.127, 10.13, 70.3, 7_239.6, 7_299.6];
        let maps = seconds.map(|at| MapHead { at_ns: (at * 1e9) as u64, is_key: false });
        let found = |text: &str| {
            let Moment::Recorded(_, At::Until(ns)) = Moment::parse(Path::new(text)).unwrap() else {
                panic!("{text}");
            };
            until(&maps, ns)
        };
        for (place, map) in maps.iter().enumerate() {
            let shown = duration_text(map.at_ns).replace(' ', "");
            assert_eq!(found(&format!("a.pagelab@{shown}")), Some(place), "{shown}");
        }
        for (text, place) in
            [("0s", None), ("10s", Some(0)), ("11s", Some(1)), ("1h", Some(2)), ("9d", Some(4))]
        {
            assert_eq!(found(&format!("a.pagelab@{text}")), place, "{text}");
        }
    }
}
