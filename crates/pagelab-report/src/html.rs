//! Self-contained HTML page of runs: data inserted into the page that `web/` builds.
//! The page is `web/dist/page.html`, with its style, its program and its content security policy inside. This
//! module inserts only data, at three places: a title, the text for readers without scripts, and the data
//! blocks. `web/src/data.ts` defines their contents, the contract with the page's program.
//!
//! No text of a machine or a file can become markup: title and text are escaped, and everything else is
//! base64 of gzip.

mod census;
pub mod map_page;
pub mod maps;
mod series;
pub mod sim;

use std::io::{Read, Write};
use std::sync::LazyLock;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use maps::RunMaps;
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::derived;
use pagelab_model::Bytes;
use pagelab_model::run::{Run, Series};
use serde_json::Value;

use crate::checkup::list_headline_facts;
use crate::json::object::{JsonObject, to_array};
use crate::json::run::run_json;
use crate::json::{self, CONTRACT_VERSION};
use crate::run;
use crate::style::{TextStyle, is_invisible};

/// Built page, with places for data, as build.rs compressed it.
static TEMPLATE: LazyLock<String> = LazyLock::new(|| {
    let mut page = String::new();
    GzDecoder::new(&include_bytes!(concat!(env!("OUT_DIR"), "/page.html.gz"))[..])
        .read_to_string(&mut page)
        .expect("build.rs compressed this text");
    page
});

const TITLE_MARKER: &str = "<!--pagelab:title-->";
/// Place of the text for readers without scripts.
const TEXT_MARKER: &str = "<!--pagelab:text-->";
const DATA_MARKER: &str = "<!--pagelab:data-->";

/// Values of series and samples in one page, at most; beyond it the page has their extremes.
pub const POINTS_MAX: usize = 1_000_000;

/// Renders the page of one run whose snapshot was judged before: its text and its data show this judgement.
pub fn render_judged_page(run: &Run, checkup: &Checkup) -> Result<String, serde_json::Error> {
    render_runs(std::slice::from_ref(run), &[Some(checkup)], &[])
}

/// Renders the page of these runs and of their maps, in the order of the runs. `maps` may be shorter than
/// `runs`.
pub fn render_page(runs: &[Run], maps: &[RunMaps]) -> Result<String, serde_json::Error> {
    let judged = runs.iter().map(|run| run.snapshot.as_deref().map(Checkup::from_snapshot));
    let judged: Vec<Option<Checkup>> = judged.collect();
    let checkups: Vec<Option<&Checkup>> = judged.iter().map(Option::as_ref).collect();
    render_runs(runs, &checkups, maps)
}

/// Renders the page; `checkups` has the judgement of each run.
fn render_runs(
    runs: &[Run],
    checkups: &[Option<&Checkup>],
    maps: &[RunMaps],
) -> Result<String, serde_json::Error> {
    let mut data_blocks = DataBlocks::default();
    let derived: Vec<Vec<Series>> = runs.iter().map(derived::derive_series).collect();
    let points_per_series = series::points_per_series(runs, &derived, POINTS_MAX);
    let checkup_of = |at: usize| checkups.get(at).copied().flatten();
    let texts: Vec<String> =
        runs.iter().enumerate().map(|(at, run)| report_text(run, checkup_of(at))).collect();
    let title = page_title(runs);
    let mut run_values: Vec<Value> = Vec::with_capacity(runs.len());
    for (at, (run, derived)) in runs.iter().zip(&derived).enumerate() {
        let object =
            page_run_json((run, checkup_of(at)), derived, &texts[at], points_per_series, &mut data_blocks);
        let maps = maps.get(at).filter(|_| !run.maps.is_empty());
        let maps = maps.map(|maps| Value::from(maps::maps_json(run.maps.len(), maps, &mut data_blocks)));
        run_values.push(object.field("maps", maps).into());
    }
    make_page(&title, &texts.join("\n\n"), run_values, None, data_blocks)
}

/// Makes a page of runs, or of other `content` under its name.
fn make_page(
    title: &str,
    text: &str,
    runs: Vec<Value>,
    content: Option<(&str, JsonObject)>,
    mut data_blocks: DataBlocks,
) -> Result<String, serde_json::Error> {
    let mut document =
        JsonObject::new().field("page", CONTRACT_VERSION).field("title", title).field("runs", runs);
    if let Some((name, content)) = content {
        document = document.field(name, content);
    }
    data_blocks.push_element("page", serde_json::to_string(&Value::from(document))?.as_bytes());
    Ok(fill_template(&TEMPLATE, &escape_html(title), &escape_html(text), &data_blocks.html))
}

/// Fills the places of the template. Inserted text is not searched for further places.
fn fill_template(template: &str, title: &str, text: &str, data: &str) -> String {
    let mut page = String::with_capacity(template.len() + title.len() + text.len() + data.len());
    let mut remaining = template;
    for (place, content) in [(TITLE_MARKER, title), (TEXT_MARKER, text), (DATA_MARKER, data)] {
        if let Some((before, after)) = remaining.split_once(place) {
            page.extend([before, content]);
            remaining = after;
        }
    }
    page.push_str(remaining);
    page
}

/// Escapes text between tags. Characters that show nothing are spelled out, except line ends.
fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for sign in text.chars() {
        match sign {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            sign if is_invisible(sign) => out.extend(sign.escape_unicode()),
            sign => out.push(sign),
        }
    }
    out
}

/// Files in a title, at most.
const TITLE_FILES_MAX: usize = 3;

/// Returns the title of the browser tab: type and machine of a single run, and the files of all runs.
fn page_title(runs: &[Run]) -> String {
    if let [run] = runs {
        let file = file_name(run);
        let is_live = run.snapshot.as_ref().is_some_and(|look| look.taken.euid.is_some());
        let is_look = run.snapshot.as_ref().is_some_and(|look| look.taken.source == run.name);
        return match run.manifest.machine.host_name.as_deref() {
            // The snapshot wrote it directly: there is no file.
            Some(host) if is_live && is_look => format!("pagelab {}: {host}", run.manifest.kind),
            Some(host) => format!("pagelab {}: {host}, {file}", run.manifest.kind),
            None => format!("pagelab {}: {file}", run.manifest.kind),
        };
    }
    let named: Vec<&str> = runs.iter().take(TITLE_FILES_MAX).map(file_name).collect();
    let more = if runs.len() > TITLE_FILES_MAX { ", …" } else { "" };
    format!("pagelab: {} runs: {}{more}", runs.len(), named.join(", "))
}

/// Returns the file name of a run without its directory.
fn file_name(run: &Run) -> &str {
    run.name.rsplit('/').find(|name| !name.is_empty()).unwrap_or(&run.name)
}

fn report_text(run: &Run, checkup: Option<&Checkup>) -> String {
    run::render_judged(run, checkup, run::View { verbose: true, shows_all: true }, TextStyle::PLAIN)
}

fn page_run_json(
    (run, checkup): (&Run, Option<&Checkup>),
    derived: &[Series],
    text: &str,
    points_max: usize,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let log = run.write_ahead_log.as_ref().map(|log| {
        Value::from(JsonObject::new().field("path", log.path.as_str()).field("is_there", log.is_present))
    });
    let snapshot = run.snapshot.as_deref();
    let total = snapshot.and_then(|snapshot| snapshot.meminfo.as_ref().ok()?.bytes("MemTotal"));
    let judged = snapshot.zip(checkup);
    let checkup = judged.map(|(snapshot, checkup)| json::checkup::to_document(snapshot, checkup));
    let census = snapshot.and_then(|snapshot| census::census_json(snapshot, data_blocks));
    let experiment =
        run.experiment.as_deref().map(|of| json::experiment::to_page_document(of, &run.manifest));
    JsonObject::new()
        .field("name", run.name.as_str())
        .field("head", header_json(run, total))
        .field("run", run_json(run))
        .field("checkup", checkup)
        .field("census", census.map(Value::from))
        .field("series", to_array(&run.series, |series| series::series_json(series, points_max, data_blocks)))
        .field("derived", to_array(derived, |series| series::series_json(series, points_max, data_blocks)))
        .field(
            "streams",
            to_array(&run.streams, |stream| series::stream_json(stream, points_max, data_blocks)),
        )
        .field("events", json::run::event_fields().array(&run.events))
        .field("experiment", experiment)
        .field("tune", json::tune::to_document(run))
        .field("not_shown", run.unknown_content.clone())
        .field("log", log)
        .field("text", text)
}

fn header_json(run: &Run, total: Option<Bytes>) -> JsonObject {
    let machine = &run.manifest.machine;
    let name = machine.host_name.as_deref().unwrap_or(match &run.snapshot {
        Some(snapshot) => &snapshot.taken.source,
        None => &run.name,
    });
    JsonObject::new()
        .field("name", name)
        .field("facts", list_headline_facts(machine, &run.manifest.settings, total))
}

/// Blocks of a page, in the order of insertion.
#[derive(Debug, Default)]
struct DataBlocks {
    html: String,
    count: usize,
}

impl DataBlocks {
    /// Adds numbers as doubles, and returns the reference that the page uses.
    pub fn push_f64(&mut self, values: &[f64]) -> JsonObject {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.push_typed("f64", values.len(), 8, &bytes)
    }

    /// Adds integers in the smallest type that holds them all.
    pub fn push_integers(&mut self, values: &[u64]) -> JsonObject {
        let max = values.iter().copied().max().unwrap_or(0);
        let narrow = |width: usize| -> Vec<u8> {
            values.iter().flat_map(move |value| value.to_le_bytes().into_iter().take(width)).collect()
        };
        match max {
            0..=0xff => self.push_typed("u8", values.len(), 1, &narrow(1)),
            0x100..=0xffff => self.push_typed("u16", values.len(), 2, &narrow(2)),
            0x1_0000..=0xffff_ffff => self.push_typed("u32", values.len(), 4, &narrow(4)),
            _ => self.push_f64(&values.iter().map(|&value| value as f64).collect::<Vec<_>>()),
        }
    }

    /// Adds bytes unchanged.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> JsonObject {
        self.push_typed("u8", bytes.len(), 1, bytes)
    }

    fn push_typed(&mut self, kind: &str, length: usize, width: usize, bytes: &[u8]) -> JsonObject {
        let id = format!("b{}", self.count);
        self.count += 1;
        self.push_element(&id, &split_byte_planes(bytes, width));
        JsonObject::new().field("block", id).field("type", kind).field("length", length)
    }

    /// `id` is always a fixed name; the content is base64, so it cannot end the element.
    fn push_element(&mut self, id: &str, bytes: &[u8]) {
        self.html.extend(["<script type=\"application/octet-stream\" id=\"", id, "\">"]);
        push_base64(&gzip_bytes(bytes), &mut self.html);
        self.html.push_str("</script>\n");
    }
}

/// Stores all lowest bytes first, then all second bytes, and so on: neighbours in time have similar high
/// bytes, which gzip compresses only if they are adjacent.
fn split_byte_planes(bytes: &[u8], width: usize) -> Vec<u8> {
    if width == 1 {
        return bytes.to_vec();
    }
    (0..width).flat_map(|plane| bytes.iter().skip(plane).step_by(width).copied()).collect()
}

/// Writing to memory does not fail; if it did, the block would be empty and the page would report it.
fn gzip_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    let written = encoder.write_all(bytes);
    written.and_then(|()| encoder.finish()).unwrap_or_default()
}

/// Appends `bytes` in base64 (RFC 4648, section 4).
pub(crate) fn push_base64(bytes: &[u8], output: &mut String) {
    const BASE64_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    output.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = BASE64_ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            output.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests;
