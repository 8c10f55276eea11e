//! `pagelab map --pid`: the physical memory behind one process.

use pagelab_host::page_map::MapOptions;
use pagelab_host::process_map;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_report::json;
use pagelab_report::map::process::ProcessReport;

use super::plan::Plan;
use super::{print, print_json};
use crate::cmd::unread;
use crate::exit::{Exit, Outcome};
use crate::out;

/// Looks and prints. A process that ended meanwhile was seen in part only.
pub fn run(plan: &Plan, pid: u32) -> Outcome {
    let root = Root::live();
    let reader = Reader::new(&root);
    let options = MapOptions::of(&reader, None);
    let map = process_map::read(&reader, pid, options.page_size, options.pmd_order).map_err(unread)?;
    let report = ProcessReport { map, all: plan.all };
    match plan.json {
        true => print_json(&json::map::process(&report))?,
        false => print(&report.text(&out::style()))?,
    };
    Ok(if report.map.tear.ended { Exit::Partial } else { Exit::Done })
}
