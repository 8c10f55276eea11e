//! A profile on a terminal: where the misses cost time, as a table of regions and a heat map, and what the
//! source could not see.

mod heat;
mod table;

use pagelab_model::profile::{Effort, MappingKind, UnseenWhy, WhatIf};
use pagelab_model::{Bytes, Profile};
use pagelab_tlb::cost::of_what_if;
use pagelab_tlb::plan::{self, Ask, By, Ranked, Ranking};

use crate::plan::{amount, source};
use crate::quantity::duration;
use crate::run::clipped;
use crate::style::{Style, bytes, count, percent, three_digits};
use crate::text::{Column, Page};

pub use heat::{HeatRow, heat, heat_svg};

/// How a profile is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// All regions, not the dearest alone.
    pub verbose: bool,
    /// By the cells of the source instead of by huge page.
    pub by_cell: bool,
}

/// The ranking that is shown: all kinds of mappings, by cost.
pub fn ranking(profile: &Profile, by_cell: bool) -> Ranking {
    let grains = profile.images.iter().flat_map(|image| &image.mappings).map(|of| of.grain.0);
    let grain = grains.min().unwrap_or(profile.huge.0).max(profile.page_size.bytes());
    let page = if by_cell && grain.is_power_of_two() { Bytes(grain) } else { profile.huge };
    plan::rank(profile, Ask { page, by: By::Cost, files: true })
}

/// The whole view.
pub fn render(profile: &Profile, name: &str, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let shown = ranking(profile, view.by_cell);
    head(&mut page, profile, &shown);
    page.gap();
    table::mappings(&mut page, profile, &shown);
    page.gap();
    table::regions(&mut page, profile, &shown, view);
    page.gap();
    heat::show(&mut page, profile, view);
    what_ifs(&mut page, profile);
    unseen(&mut page, &shown, view);
    notes(&mut page, profile, view);
    if shown.total > 0.0 {
        page.hanging("", &format!("→ pagelab plan {}", style.one_line(name)));
    }
    page.finish()
}

/// The lines after a profiling run: where the cost is, and what to do with it.
pub fn summary(profile: &Profile, name: &str, style: Style) -> String {
    let mut page = Page::new(style);
    let shown = ranking(profile, false);
    head(&mut page, profile, &shown);
    if profile.misses().is_none() {
        profile.notes.iter().take(2).for_each(|note| page.hanging_dim("  ", note));
        return page.finish();
    }
    let all = shown.regions.len();
    let needed = plan_count(&shown);
    if shown.total > 0.0 && all > 0 {
        let text = format!(
            "{} of {} touched regions of {}, files and stacks among them, hold 90 % of the {}",
            count(needed as u128),
            count(all as u128),
            bytes(profile.huge),
            if shown.timed { "cost" } else { "misses" }
        );
        page.hanging_bold("", &text);
        for (mapping, cost) in table::by_cost(&shown).into_iter().take(3) {
            let share = percent(cost / shown.total);
            let name = match mapping.key.kind {
                MappingKind::Placed => "memory that is known by its address alone".to_owned(),
                _ => mapping_name(&shown, mapping),
            };
            page.hanging("  ", &format!("{share} in {name}"));
        }
    } else {
        page.hanging_bold("", "no miss was seen that lies in a known mapping");
    }
    unseen(&mut page, &shown, View::default());
    for note in profile.notes.iter().take(2) {
        page.hanging_dim("  ", note);
    }
    let name = style.one_line(name);
    page.hanging("", &format!("→ pagelab plan {name}   → pagelab profile show {name}"));
    page.finish()
}

/// The view as one page of HTML without scripts: the text, and the heat map as a drawing.
pub fn html(profile: &Profile, name: &str, view: View) -> String {
    let text = render(profile, name, view, Style::PLAIN);
    let text: Vec<String> = text.lines().map(heat::escaped).collect();
    let text = text.join("\n");
    let title = heat::escaped(name);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta \
         http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'\">\n<title>{title}: where TLB \
         misses cost time</title></head>\n<body>\n<h1>Where TLB misses cost time: {title}</h1>\n<p>Each \
         cell is a huge page of a mapping; darker costs more, each step twice the one before; hatched was \
         not visible to the source; empty was not touched.</p>\n{}<pre>{text}</pre>\n</body></html>\n",
        heat_svg(profile)
    )
}

/// How many regions hold nine tenths of the cost.
fn plan_count(shown: &Ranking) -> usize {
    let mut costs: Vec<f64> = shown.regions.iter().map(|region| region.cost).collect();
    costs.sort_by(|a, b| b.total_cmp(a));
    let wanted = costs.iter().sum::<f64>() * 0.9;
    let mut sum = 0.0;
    let reached = costs.iter().position(|cost| {
        sum += cost;
        sum >= wanted
    });
    reached.map_or(costs.len(), |place| place + 1)
}

fn head(page: &mut Page, profile: &Profile, shown: &Ranking) {
    let command = profile.command.join(" ");
    let what = if command.is_empty() { "a profile".to_owned() } else { clipped(&command, 60) };
    let mut facts = vec![page.style().bold(&what), source(profile.source).to_owned()];
    if profile.wall_ns > 0 {
        facts.push(format!("watched {}", duration(profile.wall_ns)));
    }
    if profile.images.len() > 1 {
        facts.push(format!("{} processes", count(profile.images.len() as u128)));
    }
    if profile.lost > 0 {
        facts.push(format!("{} records lost", count(u128::from(profile.lost))));
    }
    page.facts("", &facts, "   ");
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let mut text = crate::misses::all(profile);
    let about = if profile.is_estimate() { "~" } else { "" };
    let accesses: Option<u128> =
        profile.images.iter().map(|image| image.accesses.map(u128::from)).sum::<Option<u128>>();
    if let Some(accesses) = accesses.filter(|accesses| *accesses > 0) {
        text += &format!(" in {} accesses ({})", count(accesses), percent(misses as f64 / accesses as f64));
    }
    if shown.timed && misses > 0 {
        let each = shown.total / (misses as f64).max(1.0) / 1000.0;
        text += &format!(
            "; their walks cost {about}{} by the model, {} ns each",
            amount(shown.total, true),
            three_digits(each)
        );
        // In picoseconds. A program with one thread cannot wait longer than it runs.
        if profile.wall_ns > 0 && shown.total > profile.wall_ns as f64 * 1000.0 {
            text += " if each waits for the one before: more than the time watched, so they overlap";
        }
    }
    page.hanging("", &text);
    if profile.misses().is_none() {
        page.hanging_bold("", crate::misses::KNOWN_BY);
    }
    if let Some(of) = profile.effort.stretches {
        let text = format!(
            "estimated from {} stretches with {} of the accesses",
            count(u128::from(of.count)),
            percent(of.share())
        );
        page.hanging_dim("", &text);
    }
    if let Some(duty) = profile.effort.duty_permille.filter(|_| profile.misses().is_some()) {
        let share = percent(f64::from(duty) / 1000.0);
        let of = |number: u64| count(u128::from(number));
        let text = match (profile.effort.sweeps, profile.effort.zero_scans) {
            (Some(sweeps), None) => format!("it rests on {} sweeps, {share} of the time", of(sweeps)),
            (Some(sweeps), Some(scans)) => {
                let (sweeps, scans) = (of(sweeps), of(scans));
                format!("it rests on {sweeps} sweeps and {scans} scans of the zero page, {share} of the time")
            }
            (None, _) => format!("sweeps took {share} of the time"),
        };
        let cost = profile.effort.slow_down_ppm.map_or(String::new(), |ppm| slow_down(ppm, &profile.effort));
        page.hanging_dim("", &(text + &cost));
    }
}

/// What sweeps cost the program, by what a cleared page was measured to cost.
fn slow_down(ppm: u64, effort: &Effort) -> String {
    let share = percent(ppm as f64 / 1e6);
    let price = effort.accessed_page_ps.map_or(String::new(), |ps| {
        format!(", by {} ns for each cleared page and its stops", three_digits(ps as f64 / 1000.0))
    });
    format!("; they took at most {share} of the program's time{price}")
}

/// The same accesses with other memory on huge pages.
fn what_ifs(page: &mut Page, profile: &Profile) {
    if profile.what_ifs.len() < 2 {
        return;
    }
    page.gap();
    let row = |of: &WhatIf| {
        let misses: u128 = u128::from(of.misses);
        let cost = of_what_if(of, profile.walk_cost.as_ref());
        vec![of.name.clone(), count(misses), cost.map_or(String::new(), |cost| amount(cost, true))]
    };
    let rows: Vec<Vec<String>> = profile.what_ifs.iter().map(row).collect();
    let columns = [Column::left("on huge pages"), Column::right("misses"), Column::right("cost")];
    page.table(1, &columns, &rows);
}

fn unseen(page: &mut Page, shown: &Ranking, view: View) {
    let mut by_why: Vec<(UnseenWhy, u64, usize)> = Vec::new();
    for &(_, length, why) in shown.mappings.iter().flat_map(|mapping| &mapping.unseen) {
        match by_why.iter_mut().find(|(known, _, _)| *known == why) {
            Some(known) => (known.1, known.2) = (known.1.saturating_add(length.0), known.2 + 1),
            None => by_why.push((why, length.0, 1)),
        }
    }
    for (why, length, places) in by_why {
        let places = format!("{} place{}", count(places as u128), if places == 1 { "" } else { "s" });
        page.hanging("not seen: ", &format!("{} in {places}, {}", bytes(Bytes(length)), unseen_words(why)));
    }
    if view.verbose {
        for mapping in &shown.mappings {
            for &(offset, length, why) in &mapping.unseen {
                let name = mapping_name(shown, mapping);
                let text = format!("{name} {offset:#x}, {}: {}", bytes(length), unseen_words(why));
                page.hanging_dim("  ", &text);
            }
        }
    }
}

/// Why a part was not seen, and what sees it.
pub fn unseen_words(why: UnseenWhy) -> &'static str {
    match why {
        UnseenWhy::AlreadyHuge => "on huge pages already: one bit for all of a page (--source exact sees it)",
        UnseenWhy::ZeroPage => "read and never written: the zero page has no bits (--source exact sees it)",
        UnseenWhy::NotPermitted => "not permitted: it belongs to another user, or the kernel refuses",
        UnseenWhy::Changed => "came or went while it was watched",
        UnseenWhy::OutOfRange => "outside of the range that was asked for, or without addresses",
        UnseenWhy::NotByProgram => "used by the kernel or a device, not by the program's own accesses",
    }
}

fn notes(page: &mut Page, profile: &Profile, view: View) {
    let price = match &profile.walk_cost {
        Some(price) => format!("price of a walk: {}", price.origin),
        None => "no price of a walk is known, so misses are no times: `pagelab plan --calibrate`".to_owned(),
    };
    page.gap();
    page.hanging_dim("", &price);
    let most = if view.verbose { usize::MAX } else { 4 };
    profile.notes.iter().take(most).for_each(|note| page.hanging_dim("", note));
}

/// A mapping in a few words: `heap 8 MiB`, `anonymous 64 MiB #2`, the file's name; with its program in front
/// where there are several.
pub fn mapping_name(shown: &Ranking, mapping: &Ranked) -> String {
    let size = bytes(mapping.bytes);
    let name = match &mapping.key.kind {
        MappingKind::Anonymous => format!("anonymous {size}"),
        MappingKind::Shared => format!("shared {size}"),
        MappingKind::Heap => format!("heap {size}"),
        MappingKind::Stack => format!("stack {size}"),
        MappingKind::File(path) => format!("file {}", clipped(path.rsplit('/').next().unwrap_or(path), 30)),
        MappingKind::Placed => "by address".to_owned(),
    };
    let is_alone = shown.mappings.iter().all(|other| other.program == mapping.program);
    let program = if is_alone { "" } else { mapping.program.path.rsplit('/').next().unwrap_or_default() };
    let number = if mapping.key.nth > 0 { format!(" #{}", mapping.key.nth + 1) } else { String::new() };
    if program.is_empty() { name + &number } else { format!("{}: {name}{number}", clipped(program, 20)) }
}

#[cfg(test)]
pub(crate) mod tests;
