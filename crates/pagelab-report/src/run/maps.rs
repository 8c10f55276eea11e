//! Maps of physical memory: which there are, and how to look at one.

use pagelab_model::run::Run;

use super::{View, plural};
use crate::quantity::duration;
use crate::style::{Style, count};
use crate::text::Page;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let (Some(first), Some(last)) = (run.maps.first(), run.maps.last()) else { return page.finish() };
    let mut facts = vec![style.bold("maps"), plural(run.maps.len(), "map")];
    let span = last.at_ns.saturating_sub(first.at_ns);
    if span > 0 {
        let every = span / (run.maps.len() as u64 - 1);
        facts.push(format!("in {}, one every {}", duration(span), duration(every)));
    }
    let keys = run.maps.iter().filter(|map| map.is_key).count();
    if keys < run.maps.len() {
        facts.push(format!("{} whole, the others as changes", count(keys as u128)));
    }
    page.facts("", &facts, "   ");
    if view.verbose {
        let times: Vec<String> = run.maps.iter().map(|map| duration(map.at_ns)).collect();
        page.hanging_dim("  ", &format!("begun at {}", times.join(", ")));
    }
    let file = style.one_line(&run.name);
    page.hanging("  ", &format!("→ pagelab map {file}@last"));
    if run.maps.len() > 1 {
        page.hanging("  ", &format!("→ pagelab map --diff {file}@first {file}@last"));
    }
    page.hanging("  ", &format!("→ pagelab report --html maps.html {file}"));
    page.finish()
}
