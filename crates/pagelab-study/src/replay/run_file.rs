//! Run file of a replay: free memory over time, simulated and sampled, and the error.

use pagelab_host::root::Root;
use pagelab_model::run::{ColumnHeader, RunEnd, RunEvent, Unit};
use pagelab_runfile::{Error, RunWriter};

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::Failure;
use pagelab_command::manifest;

use super::verdict::{ERROR_TOLERANCE, format_index, index_error};
use super::{FreeMemory, ReplayReport};

const SERIES_NAME: &str = "replay";

/// Writes the file.
pub fn write_run_file(file: &NewRunFile, report: &ReplayReport) -> Result<(), Failure> {
    let snapshot = manifest::read_this_machine(&Root::live());
    let manifest = manifest::build_for_process("replay", None, manifest::current_moment(), &snapshot);
    let mut writer = file.create(&manifest)?;
    write_series(&mut writer, report)?;
    Ok(writer.close(RunEnd::Complete { after_ns: report.end_ns })?)
}

fn write_series(writer: &mut RunWriter, report: &ReplayReport) -> Result<(), Error> {
    let order = report.head.pageblock_order;
    let names: Vec<&str> =
        std::iter::once("sampled").chain(report.outcomes.iter().map(|of| of.policy)).collect();
    let head =
        |name: String, unit: &str| ColumnHeader { name, unit: Unit(unit.to_owned()), is_counter: false };
    let unusable = names.iter().map(|name| head(format!("F_u({order}).{name}"), Unit::PPM));
    let free = names.iter().map(|name| head(format!("free.{name}"), Unit::PAGES));
    let heads: Vec<ColumnHeader> = unusable.chain(free).collect();
    for (at_ns, text) in event_texts(report) {
        writer.add_event(&RunEvent { at_ns, kind: SERIES_NAME.to_owned(), text })?;
    }
    if report.samples.is_empty() {
        return Ok(());
    }
    let series = writer.add_series(SERIES_NAME, &report.file, &heads)?;
    for (at, sampled) in report.samples.iter().enumerate() {
        let simulated = report.outcomes.iter().filter_map(|of| of.free.get(at));
        let all: Vec<&FreeMemory> = std::iter::once(&sampled.free).chain(simulated).collect();
        let unusable = all.iter().map(|free| (free.unusable(order) * 1e6).round() as i64);
        let pages = all.iter().map(|free| i64::try_from(free.all_zones.free_pages()).unwrap_or(i64::MAX));
        let values: Vec<Option<i64>> = unusable.chain(pages).map(Some).collect();
        writer.add_row(series, sampled.at_ns, &values)?;
    }
    Ok(())
}

/// Events in words: the trace, and the accuracy of each policy.
fn event_texts(report: &ReplayReport) -> Vec<(u64, String)> {
    let begins = format!("{}: Linux {}; snapshot loaded, starting replay", report.file, report.head.kernel);
    let mut texts = vec![(report.complete_ns, begins)];
    for replayed in &report.outcomes {
        let Some(error) = index_error(report, replayed.free.iter(), None) else { continue };
        texts.push((
            report.end_ns.max(report.complete_ns),
            format!(
                "{}: error of F_u({}): median {}, maximum {}; at most {ERROR_TOLERANCE} in {} of {} samples",
                replayed.policy,
                report.head.pageblock_order,
                format_index(error.median),
                format_index(error.max),
                error.within_tolerance,
                report.samples.len()
            ),
        ));
    }
    texts
}
