//! Sources of maps: this machine now, saved trees and recordings.

use std::path::{Path, PathBuf};

use pagelab_command::exit::{Failure, FailureKind, absence_failure, usage_error};
use pagelab_command::output;
use pagelab_formats::duration;
use pagelab_host::census::CensusOptions;
use pagelab_host::page_map::{PageMapScan, scan_with_counts};
use pagelab_host::paths;
use pagelab_host::reader::Reader as Files;
use pagelab_host::root::Root;
use pagelab_model::PageMap;
use pagelab_model::run::{MapHeader, Run, RunEnd};
use pagelab_record::maps::read_off_lists;
use pagelab_report::map::MapSource;
use pagelab_report::quantity_format::format_duration as duration_text;
use pagelab_runfile::RunReader;
use pagelab_sys::clock;

use super::plan::{MapPlan, MapSelector, MapSourceArg};

const NOW: &str = "now";

/// A map with its source.
#[derive(Debug)]
pub struct LoadedMap {
    pub source: MapSource,
    pub map: PageMap,
    /// Notes for the interpretation.
    pub notes: Vec<String>,
}

impl MapSourceArg {
    /// Parses `now`, the name of a saved tree, or `FILE.pagelab`, optionally with `@TIME`: a length of time
    /// since its start, `first`, or `last` (the default). `./now` is a tree with that name.
    pub fn parse(text: &Path) -> Result<MapSourceArg, Failure> {
        if text.as_os_str() == NOW {
            return Ok(MapSourceArg::Now);
        }
        let name = text.to_string_lossy();
        if name.ends_with(RUN_FILE) {
            return Ok(MapSourceArg::Recorded(text.to_owned(), MapSelector::Last));
        }
        let Some((file, at)) = name.rsplit_once('@').filter(|(file, _)| file.ends_with(RUN_FILE)) else {
            return Ok(MapSourceArg::Tree(text.to_owned()));
        };
        let selector = match at {
            "first" => MapSelector::First,
            "last" => MapSelector::Last,
            _ => {
                let wanted = "a time since the start of the recording, `first` or `last`";
                let length = duration::parse(at).map_err(|error| {
                    usage_error(&format!("{name}: expected {wanted} after the @: `{at}`: {error}"))
                })?;
                MapSelector::Until(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
            }
        };
        Ok(MapSourceArg::Recorded(PathBuf::from(file), selector))
    }

    /// Returns the file tree; a recording has only its maps.
    pub fn root(&self) -> Result<Root, Failure> {
        match self {
            MapSourceArg::Now => pagelab_command::arguments::open_root(None),
            MapSourceArg::Tree(path) => pagelab_command::arguments::open_root(Some(path)),
            MapSourceArg::Recorded(path, _) => Err(usage_error(&format!(
                "--check {}: a recorded map has no buddyinfo from the same time; hint: use `now` or a \
                 saved tree",
                path.display()
            ))),
        }
    }

    /// Loads the map.
    pub fn load(&self, plan: &MapPlan) -> Result<LoadedMap, Failure> {
        if let MapSourceArg::Recorded(path, at) = self {
            return load_recorded(path, *at);
        }
        let root = self.root()?;
        let (source, scan, notes) = scan_map(&root, plan)?;
        Ok(LoadedMap { source, map: scan.map, notes })
    }
}

const RUN_FILE: &str = ".pagelab";

fn load_recorded(path: &Path, selector: MapSelector) -> Result<LoadedMap, Failure> {
    let reader = RunReader::open(path)?;
    let run = reader.read_run()?;
    let name = path.display();
    let Some(first) = run.maps.first() else {
        let failure =
            Failure::cannot(FailureKind::BadInput, format_args!("draw {name}"), "it contains no maps");
        return Err(failure.hint("record them with `pagelab record --maps 1m`"));
    };
    let index = match selector {
        MapSelector::First => 0,
        MapSelector::Last => run.maps.len() - 1,
        MapSelector::Until(ns) => last_until(&run.maps, ns).ok_or_else(|| {
            let (requested, first) = (duration_text(ns), duration_text(first.at_ns));
            let reason = format_args!("no map at or before {requested}");
            Failure::cannot(FailureKind::BadInput, format_args!("draw {name}"), reason)
                .hint(format!("the first map is at {first}"))
        })?,
    };
    let map = reader.read_map(index)?;
    let machine = &run.manifest.machine;
    let source = MapSource {
        name: format!("{name} at {}", duration_text(map.started_ns)),
        file: format!("map {} of {}", index + 1, run.maps.len()),
        host: machine.host_name.clone(),
        kernel: machine.kernel_release.as_ref().ok().cloned(),
        taken_realtime_ns: Some(run.manifest.started.realtime_ns.saturating_add(map.started_ns)),
    };
    let notes = beyond_end_note(&run, selector).into_iter().collect();
    Ok(LoadedMap { source, map, notes })
}

/// Note about a time after the end of the recording.
fn beyond_end_note(run: &Run, selector: MapSelector) -> Option<String> {
    let last_ns = run.maps.last()?.at_ns;
    let ended_ns = match &run.ending {
        RunEnd::Complete { after_ns } | RunEnd::Stopped { after_ns, .. } => *after_ns,
        RunEnd::NotClosed => last_ns,
    };
    let MapSelector::Until(requested_ns) = selector else { return None };
    let (requested, last) = (duration_text(requested_ns), duration_text(last_ns));
    (requested_ns > ended_ns && requested != last)
        .then(|| format!("the recording ended before {requested}; showing its last map, at {last}"))
}

/// Finds the last map that began at or before this time, as displayed.
fn last_until(maps: &[MapHeader], ns: u64) -> Option<usize> {
    let requested = duration_text(ns);
    maps.iter().rposition(|map| map.at_ns <= ns || duration_text(map.at_ns) == requested)
}

/// Reads the map of a machine or of a saved tree, with the counters before and after the scan.
pub fn scan_map(root: &Root, plan: &MapPlan) -> Result<(MapSource, PageMapScan, Vec<String>), Failure> {
    let reader = Files::new(root);
    let (mut options, page_size_source) = CensusOptions::for_page_map(&reader, plan.page_size);
    options.off_lists = read_off_lists(&reader, &options);
    let taken_realtime_ns = match root.is_live() {
        true => Some(clock::realtime_ns()),
        false => root.manifest().and_then(|manifest| manifest.realtime_ns),
    };
    let scan = scan_with_counts(&reader, &options).map_err(absence_failure)?;
    let host = reader.read_line(paths::HOSTNAME).ok().filter(|name| !name.is_empty());
    let kernel = reader.read_line(paths::OSRELEASE).ok();
    let source = MapSource {
        name: root.name().to_owned(),
        file: root.display_path(paths::KPAGEFLAGS),
        host,
        kernel,
        taken_realtime_ns,
    };
    let mut notes = Vec::new();
    if page_size_source.starts_with("assumed") {
        let page_size = options.page_size.bytes();
        notes.push(format!("assuming a page size of {page_size} bytes; hint: use --page-size"));
    }
    if reader.parse(paths::IOMEM, pagelab_formats::iomem::parse).is_ok_and(|iomem| iomem.is_hidden()) {
        notes.push("iomem hides physical addresses: holes may be shown as unknown".to_owned());
    }
    for problem in reader.problems() {
        output::warn(&format!("warning: {}", problem.message));
    }
    Ok((source, scan, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_map_is_found_by_the_time_that_is_shown() {
        let seconds = [0.127, 10.13, 70.3, 7_239.6, 7_299.6];
        let maps = seconds.map(|at| MapHeader { at_ns: (at * 1e9) as u64, is_keyframe: false });
        let find = |text: &str| {
            let MapSourceArg::Recorded(_, MapSelector::Until(ns)) =
                MapSourceArg::parse(Path::new(text)).unwrap()
            else {
                panic!("{text}");
            };
            last_until(&maps, ns)
        };
        for (place, map) in maps.iter().enumerate() {
            let shown = duration_text(map.at_ns);
            assert_eq!(find(&format!("a.pagelab@{shown}")), Some(place), "{shown}");
        }
        for (text, place) in
            [("0s", None), ("10s", Some(0)), ("11s", Some(1)), ("1h", Some(2)), ("9d", Some(4))]
        {
            assert_eq!(find(&format!("a.pagelab@{text}")), place, "{text}");
        }
    }
}
