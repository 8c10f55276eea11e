//! A replay in a run file: free memory over time, simulated and sampled, and how far they are apart.

use std::path::Path;

use pagelab_host::root::Root;
use pagelab_model::run::{ColumnHead, Ending, Event, Unit};
use pagelab_runfile::{Error, Writer};

use super::apart::{TENTH, apart};
use super::show::four;
use super::{Free, Told};
use crate::cmd::run_file;
use crate::exit::Failure;
use crate::manifest;

/// The name of the series.
const SERIES: &str = "replay";

/// Writes the file.
pub fn write(path: &Path, told: &Told) -> Result<(), Failure> {
    let look = manifest::this_machine(&Root::live());
    let manifest = manifest::of_this_process("replay", None, manifest::now(), &look);
    let mut writer = Writer::create(path, &manifest).map_err(|error| run_file(&error))?;
    fill(&mut writer, told).map_err(|error| run_file(&error))?;
    writer.close(Ending::Complete { after_ns: told.end_ns }).map_err(|error| run_file(&error))
}

fn fill(writer: &mut Writer, told: &Told) -> Result<(), Error> {
    let order = told.head.block_order;
    let names: Vec<&str> =
        std::iter::once("sampled").chain(told.replayed.iter().map(|of| of.policy)).collect();
    let head = |name: String, unit: &str| ColumnHead { name, unit: Unit(unit.to_owned()), is_counter: false };
    let unusable = names.iter().map(|name| head(format!("F_u({order}).{name}"), Unit::PPM));
    let free = names.iter().map(|name| head(format!("free.{name}"), Unit::PAGES));
    let heads: Vec<ColumnHead> = unusable.chain(free).collect();
    for (at_ns, text) in texts(told) {
        writer.event(&Event { at_ns, kind: SERIES.to_owned(), text })?;
    }
    if told.sampled.is_empty() {
        return Ok(());
    }
    let series = writer.series(SERIES, &told.file, &heads)?;
    for (at, sampled) in told.sampled.iter().enumerate() {
        let simulated = told.replayed.iter().filter_map(|of| of.free.get(at));
        let all: Vec<&Free> = std::iter::once(&sampled.free).chain(simulated).collect();
        let unusable = all.iter().map(|free| (free.unusable(order) * 1e6).round() as i64);
        let pages = all.iter().map(|free| i64::try_from(free.all.free_pages()).unwrap_or(i64::MAX));
        let values: Vec<Option<i64>> = unusable.chain(pages).map(Some).collect();
        writer.row(series, sampled.at_ns, &values)?;
    }
    Ok(())
}

/// What happened, in words: the trace, and how true each policy is to it.
fn texts(told: &Told) -> Vec<(u64, String)> {
    let begins =
        format!("{}: Linux {}; the snapshot is complete, the replay begins", told.file, told.head.kernel);
    let mut texts = vec![(told.complete_ns, begins)];
    for replayed in &told.replayed {
        let Some(error) = apart(told, replayed.free.iter(), None) else { continue };
        texts.push((
            told.end_ns.max(told.complete_ns),
            format!(
                "{}: error of F_u({}) {} in the middle, at worst {}; {TENTH} or less at {} of {} samples",
                replayed.policy,
                told.head.block_order,
                four(error.median),
                four(error.worst),
                error.within,
                told.sampled.len()
            ),
        ));
    }
    texts
}
