//! Runs to one self-contained page of HTML: data put into the page that `web/` builds.
//!
//! The page is `web/dist/page.html`, with its style, its program and its content security policy inside. Only
//! data is put in here, at three places: a title, the text for readers without scripts, and the data
//! blocks. What stands in them is written down in `web/src/data.ts`, the contract with the page's program.
//!
//! Nothing that a machine or a file says can become markup: title and text are escaped, everything else is
//! base64 of gzip.

mod blocks;
mod census;
mod decimate;
pub mod maps;
pub mod picture;
mod series;
pub mod sim;

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::derived;
use pagelab_model::Bytes;
use pagelab_model::run::{Event, Log, Run, Series};
use serde_json::Value;

use crate::checkup::headline_facts;
use crate::json::object::{Object, array};
use crate::json::{self, run::run_object};
use crate::run;
use crate::style::{Style, is_unseen};
use blocks::Blocks;
pub(crate) use blocks::base64;
use maps::Maps;

/// The built page, with its places for data.
const TEMPLATE: &str = include_str!("../../../web/dist/page.html");

/// Where the title goes.
const TITLE: &str = "<!--pagelab:title-->";
/// Where the text for readers without scripts goes.
const TEXT: &str = "<!--pagelab:text-->";
/// Where the data blocks go.
const DATA: &str = "<!--pagelab:data-->";

/// Version of the contract with the page's program.
const CONTRACT: u32 = 1;

/// Values of series and samples in one page, at most; beyond it they are shown by their extremes.
pub const POINTS_MAX: usize = 1_000_000;

/// The page of these runs, without what is in their maps.
pub fn page(runs: &[Run]) -> Result<String, serde_json::Error> {
    page_with_maps(runs, &[])
}

/// The page of these runs, and of their maps: those of the first run first. Runs without maps behind the last
/// one with maps need none.
pub fn page_with_maps(runs: &[Run], maps: &[Maps]) -> Result<String, serde_json::Error> {
    page_within(runs, maps, POINTS_MAX)
}

/// The same with another limit of values.
fn page_within(runs: &[Run], maps: &[Maps], points_max: usize) -> Result<String, serde_json::Error> {
    let mut blocks = Blocks::default();
    let derived: Vec<Vec<Series>> = runs.iter().map(derived::series).collect();
    let cap = series::cap(runs, &derived, points_max);
    let texts: Vec<String> = runs.iter().map(text).collect();
    let title = title(runs);
    let mut shown: Vec<Value> = Vec::with_capacity(runs.len());
    for (at, (run, derived)) in runs.iter().zip(&derived).enumerate() {
        let object = run_of(run, derived, &texts[at], cap, &mut blocks);
        let maps = maps.get(at).filter(|_| !run.maps.is_empty());
        let maps = maps.map(|maps| Value::from(maps::maps(run.maps.len(), maps, &mut blocks)));
        shown.push(object.put("maps", maps).into());
    }
    let document: Value =
        Object::new().put("page", CONTRACT).put("title", title.as_str()).put("runs", shown).into();
    blocks.document("page", serde_json::to_string(&document)?.as_bytes());
    Ok(fill(TEMPLATE, &escaped(&title), &escaped(&texts.join("\n\n")), &blocks.into_html()))
}

/// The template with its places filled. What is put in is not searched for further places.
fn fill(template: &str, title: &str, text: &str, data: &str) -> String {
    let mut page = String::with_capacity(template.len() + title.len() + text.len() + data.len());
    let mut rest = template;
    for (place, content) in [(TITLE, title), (TEXT, text), (DATA, data)] {
        if let Some((before, after)) = rest.split_once(place) {
            page.push_str(before);
            page.push_str(content);
            rest = after;
        }
    }
    page.push_str(rest);
    page
}

/// What stands between tags, harmless. What shows nothing is spelt out, but for the line's end.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for sign in text.chars() {
        match sign {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            sign if is_unseen(sign) => out.extend(sign.escape_unicode()),
            sign => out.push(sign),
        }
    }
    out
}

/// Files that a title names.
const TITLE_FILES: usize = 3;

/// What the browser's tab says: the kind and the machine of one run, and the files of all.
fn title(runs: &[Run]) -> String {
    if let [run] = runs {
        let file = file_name(run);
        let is_live = run.snapshot.as_ref().is_some_and(|look| look.taken.euid.is_some());
        let is_look = run.snapshot.as_ref().is_some_and(|look| look.taken.from == run.name);
        return match run.manifest.machine.host_name.as_deref() {
            // Written by the look itself: there is no file.
            Some(host) if is_live && is_look => format!("pagelab {}: {host}", run.manifest.kind),
            Some(host) => format!("pagelab {}: {host}, {file}", run.manifest.kind),
            None => format!("pagelab {}: {file}", run.manifest.kind),
        };
    }
    let named: Vec<&str> = runs.iter().take(TITLE_FILES).map(file_name).collect();
    let more = if runs.len() > TITLE_FILES { ", …" } else { "" };
    format!("pagelab: {} runs: {}{more}", runs.len(), named.join(", "))
}

/// The name of a run's file without its folder.
fn file_name(run: &Run) -> &str {
    run.name.rsplit('/').find(|name| !name.is_empty()).unwrap_or(&run.name)
}

/// The report as a terminal would show it.
fn text(run: &Run) -> String {
    run::render(run, run::View { verbose: true, all: true }, Style::PLAIN)
}

fn run_of(run: &Run, derived: &[Series], text: &str, cap: usize, blocks: &mut Blocks) -> Object {
    let snapshot = run.snapshot.as_deref();
    let total = snapshot.and_then(|snapshot| snapshot.meminfo.as_ref().ok()?.bytes("MemTotal"));
    let checkup = snapshot.map(|snapshot| json::checkup::document(snapshot, &Checkup::of(snapshot)));
    let census = snapshot.and_then(|snapshot| {
        let zones = snapshot.zoneinfo.as_ref().ok();
        Some(census::census(snapshot.census.as_ref().ok()?, zones, snapshot.machine.page_size, blocks))
    });
    Object::new()
        .put("name", run.name.as_str())
        .put("head", head(run, total))
        .put("run", run_object(run))
        .put("checkup", checkup)
        .put("census", census.map(Value::from))
        .put("series", array(&run.series, |series| series::series(series, cap, blocks)))
        .put("derived", array(derived, |series| series::series(series, cap, blocks)))
        .put("streams", array(&run.streams, |stream| series::stream(stream, cap, blocks)))
        .put("events", array(&run.events, event))
        .put(
            "experiment",
            run.experiment.as_deref().map(|of| json::experiment::document_for_page(of, &run.manifest)),
        )
        .put("tune", json::tune::document(run))
        .put("not_shown", run.not_shown.clone())
        .put("log", run.log.as_ref().map(log).map(Value::from))
        .put("text", text)
}

fn head(run: &Run, total: Option<Bytes>) -> Object {
    let machine = &run.manifest.machine;
    let name = machine.host_name.as_deref().unwrap_or(match &run.snapshot {
        Some(snapshot) => &snapshot.taken.from,
        None => &run.name,
    });
    Object::new().put("name", name).put("facts", headline_facts(machine, &run.manifest.settings, total))
}

fn log(log: &Log) -> Object {
    Object::new().put("path", log.path.as_str()).put("is_there", log.is_there)
}

fn event(event: &Event) -> Object {
    Object::new().put("at_ns", event.at_ns).put("kind", event.kind.as_str()).put("text", event.text.as_str())
}

#[cfg(test)]
mod tests;
