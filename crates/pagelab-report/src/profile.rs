//! Report of a profile on a terminal: where misses cost time, as a table of regions and a heat map, and what
//! was not visible to the source.

mod heat_map;
#[cfg(test)]
pub(crate) mod tests;

use pagelab_metrics::grouping::value_of;
use pagelab_model::profile::{MappingKind, MissScenario, ProfilingCost, UnseenReason};
use pagelab_model::{Bytes, TlbProfile};
use pagelab_tlb::cost::compute_scenario_cost;
use pagelab_tlb::plan::{self, RankBy, RankOptions, RankedMapping, Ranking};

use crate::json::plan::RegionRow;
use crate::miss_counts::format_share_of_misses;
use crate::plan::{format_cost_value, source_name};
use crate::quantity_format::format_duration;
use crate::run::clip_name;
use crate::style::{
    TextStyle, format_bytes, format_count, format_percent, format_plural, format_three_digits,
};
use crate::text_report::{RowTable, TextReport};

pub use heat_map::{HeatRow, heat_rows, heat_svg};

/// Display options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Shows all regions, not only the costliest.
    pub verbose: bool,
    /// Shows the cells of the source instead of huge pages.
    pub by_cell: bool,
}

/// The ranking for display: all types of mappings, by cost.
pub fn shown_ranking(profile: &TlbProfile, by_cell: bool) -> Ranking {
    let grains = profile.images.iter().flat_map(|image| &image.mappings).map(|of| of.grain.0);
    let grain = grains.min().unwrap_or(profile.huge.0).max(profile.page_size.bytes());
    let page = if by_cell && grain.is_power_of_two() { Bytes(grain) } else { profile.huge };
    plan::rank_regions(profile, RankOptions { page, by: RankBy::Cost, include_files: true })
}

/// Renders the report.
pub fn render(profile: &TlbProfile, name: &str, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let ranking = shown_ranking(profile, view.by_cell);
    write_header(&mut output, profile, &ranking);
    output.add_gap();
    write_mappings(&mut output, profile, &ranking);
    output.add_gap();
    write_regions(&mut output, profile, &ranking, view);
    output.add_gap();
    heat_map::write_heat_map(&mut output, profile, view);
    write_scenarios(&mut output, profile);
    write_unseen(&mut output, &ranking, view);
    write_notes(&mut output, profile, view);
    if ranking.total > 0.0 {
        output.add_text(&format!("→ pagelab plan {}", style.to_one_line(name)));
    }
    output.into_text()
}

/// Notes of a profile that its summary has.
pub const SUMMARY_NOTES: usize = 2;

/// Renders the lines after a profiling run: where the cost is, the first notes, and the next commands.
pub fn render_summary(profile: &TlbProfile, name: &str, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_summary(&mut output, profile);
    for note in profile.notes.iter().take(SUMMARY_NOTES) {
        output.add_dim_indented(note);
    }
    if profile.is_observed() {
        let name = style.to_one_line(name);
        output.add_text(&format!("→ pagelab plan {name}   → pagelab profile show {name}"));
    }
    output.into_text()
}

/// Renders the lines of a profile that another command requested: it has the notes in its own report, and
/// its own next commands.
pub fn render_passed_summary(profile: &TlbProfile, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_summary(&mut output, profile);
    output.into_text()
}

fn write_summary(output: &mut TextReport, profile: &TlbProfile) {
    let ranking = shown_ranking(profile, false);
    write_header(output, profile, &ranking);
    if !profile.is_observed() {
        return;
    }
    let all = ranking.regions.len();
    let needed = regions_for_plan(&ranking);
    if ranking.total > 0.0 && all > 0 {
        let text = format!(
            "{} of {} touched regions of {}, files and stacks included, account for 90 % of the {}",
            format_count(needed as u128),
            format_count(all as u128),
            format_bytes(profile.huge),
            if ranking.is_timed { "cost" } else { "misses" }
        );
        output.add_bold_text(&text);
        for (mapping, cost) in mappings_by_cost(&ranking).into_iter().take(3) {
            let share = format_percent(cost / ranking.total);
            let name = match mapping.key.kind {
                MappingKind::Placed => "memory identified by address only".to_owned(),
                _ => display_mapping_name(&ranking, mapping),
            };
            output.add_indented(&format!("{share} in {name}"));
        }
    } else {
        output.add_bold_text("none of the observed misses is in a known mapping");
    }
    write_unseen(output, &ranking, View::default());
}

/// Renders the report as an HTML page without scripts: the text, and the heat map as a drawing.
pub fn render_html(profile: &TlbProfile, name: &str, view: View) -> String {
    let text = render(profile, name, view, TextStyle::PLAIN);
    let text = text.lines().map(heat_map::escape_xml).collect::<Vec<_>>().join("\n");
    let title = heat_map::escape_xml(name);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta \
         http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'\">\n<title>{title}: where TLB \
         misses cost time</title></head>\n<body>\n<h1>Where TLB misses cost time: {title}</h1>\n<p>Each cell \
         is one huge page of a mapping; darker cells cost more, doubling at each step; hatched: not visible \
         to the source; empty: not touched.</p>\n{}<pre>{text}</pre>\n</body></html>\n",
        heat_svg(profile)
    )
}

/// Returns the number of regions with nine tenths of the cost.
fn regions_for_plan(ranking: &Ranking) -> usize {
    let mut costs: Vec<f64> = ranking.regions.iter().map(|region| region.cost).collect();
    costs.sort_by(|a, b| b.total_cmp(a));
    let wanted = costs.iter().sum::<f64>() * 0.9;
    let mut sum = 0.0;
    let reached = costs.iter().position(|cost| {
        sum += cost;
        sum >= wanted
    });
    reached.map_or(costs.len(), |place| place + 1)
}

/// The command that was profiled, shortened.
pub(crate) fn command_text(profile: &TlbProfile) -> String {
    let command = profile.command.join(" ");
    if command.is_empty() { "a profile".to_owned() } else { clip_name(&command, 60) }
}

fn write_header(output: &mut TextReport, profile: &TlbProfile, ranking: &Ranking) {
    let what = output.style().paint_bold(&command_text(profile));
    let mut facts = vec![what, source_name(profile.source).to_owned()];
    let (processes, lost) = (profile.images.len(), profile.lost);
    facts.extend((profile.wall_ns > 0).then(|| format!("observed {}", format_duration(profile.wall_ns))));
    facts.extend((processes > 1).then(|| format!("{} processes", format_count(processes as u128))));
    facts.extend((lost > 0).then(|| format!("{} records lost", format_count(lost.into()))));
    output.add_fact_line(&facts);
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let mut text = crate::miss_counts::format_misses(profile);
    let about = match (profile.lower_bound_reason(), profile.is_estimated()) {
        (Some(_), _) => "at least ",
        (None, true) => "~",
        (None, false) => "",
    };
    let accesses: Option<u128> =
        profile.images.iter().map(|image| image.accesses.map(u128::from)).sum::<Option<u128>>();
    if let Some(accesses) = accesses.filter(|accesses| *accesses > 0) {
        text += &format!(
            " in {} accesses ({})",
            format_count(accesses),
            format_percent(misses as f64 / accesses as f64)
        );
    }
    if ranking.is_timed && misses > 0 {
        let each = ranking.total / (misses as f64).max(1.0) / 1000.0;
        text += &format!(
            "; modelled walk cost {about}{}, {} ns each",
            format_cost_value(ranking.total * profile.lower_bound_factor(), true),
            format_three_digits(each)
        );
        // In picoseconds. A program with one thread cannot wait longer than it runs.
        if profile.wall_ns > 0 && ranking.total > profile.wall_ns as f64 * 1000.0 {
            text += " if serialised: more than the observed time, so they overlap";
        }
    }
    output.add_text(&text);
    if !profile.is_observed() {
        output.add_bold_text(crate::miss_counts::MISSES_HINT);
    }
    if profile.lower_bound_reason().is_some() {
        output.add_bold_text(crate::miss_counts::LOWER_BOUND_HINT);
    }
    if let Some(mapping) = profile.effort.stretches {
        let text = format!(
            "estimated from {} stretches with {} of the accesses",
            format_count(u128::from(mapping.count)),
            format_percent(mapping.counted_share())
        );
        output.add_dim_text(&text);
    }
    write_scan_cost(output, profile);
}

/// Writes how many scans an estimate is based on, and what they cost.
fn write_scan_cost(output: &mut TextReport, profile: &TlbProfile) {
    if let Some(duty) = profile.effort.duty_permille.filter(|_| profile.is_observed()) {
        let share = format_percent(f64::from(duty) / 1000.0);
        let mapping = |number: u64| format_count(u128::from(number));
        let text = match (profile.effort.sweeps, profile.effort.zero_scans) {
            (Some(sweeps), None) => {
                format!("based on {} scans, which took {share} of the time", mapping(sweeps))
            }
            (Some(sweeps), Some(scans)) => {
                let (sweeps, scans) = (mapping(sweeps), mapping(scans));
                format!(
                    "based on {sweeps} scans and {scans} scans of the zero page, which took {share} of the \
                     time"
                )
            }
            (None, _) => format!("scans took {share} of the time"),
        };
        let cost =
            profile.effort.slowdown_ppm.map_or(String::new(), |ppm| slowdown_text(ppm, &profile.effort));
        output.add_dim_text(&(text + &cost));
    }
}

/// Describes the cost of sweeps for the program, from the measured cost of a cleared page.
fn slowdown_text(ppm: u64, effort: &ProfilingCost) -> String {
    let share = format_percent(ppm as f64 / 1e6);
    let page_cost = effort.accessed_page_ps.map_or(String::new(), |ps| {
        format!(", from {} ns per cleared page and its stops", format_three_digits(ps as f64 / 1000.0))
    });
    format!("; they slowed the program by at most {share}{page_cost}")
}

/// Writes the misses of the same accesses with other memory on huge pages.
fn write_scenarios(output: &mut TextReport, profile: &TlbProfile) {
    if profile.what_ifs.len() < 2 {
        return;
    }
    output.add_gap();
    RowTable::<&MissScenario>::new()
        .left("on huge pages", |of| of.name.clone())
        .right("misses", |of| format_count(u128::from(of.misses)))
        .right("cost", |of| {
            let cost = compute_scenario_cost(of, profile.walk_cost.as_ref());
            cost.map_or(String::new(), |cost| format_cost_value(cost, true))
        })
        .add_to(output, 1, &profile.what_ifs);
}

fn write_unseen(output: &mut TextReport, ranking: &Ranking, view: View) {
    let mut by_why: Vec<(UnseenReason, (u64, usize))> = Vec::new();
    for &(_, length, reason) in ranking.mappings.iter().flat_map(|mapping| &mapping.unseen) {
        let (bytes, places) = value_of(&mut by_why, reason);
        (*bytes, *places) = (bytes.saturating_add(length.0), *places + 1);
    }
    for (reason, (length, places)) in by_why {
        let places = format_plural(places, "place");
        output.add_paragraph(
            "not observed: ",
            &format!("{} in {places}, {}", format_bytes(Bytes(length)), unseen_reason_text(reason)),
        );
    }
    if view.verbose {
        for mapping in &ranking.mappings {
            for &(offset, length, reason) in &mapping.unseen {
                let name = display_mapping_name(ranking, mapping);
                let text =
                    format!("{name} {offset:#x}, {}: {}", format_bytes(length), unseen_reason_text(reason));
                output.add_dim_indented(&text);
            }
        }
    }
}

/// Explains why a part was not visible, and which source sees it.
pub fn unseen_reason_text(reason: UnseenReason) -> &'static str {
    match reason {
        UnseenReason::AlreadyHuge => {
            "already on huge pages: only one accessed bit per huge page (hint: use --source exact)"
        }
        UnseenReason::ZeroPage => "only read: the zero page has no accessed bits (hint: use --source exact)",
        UnseenReason::NotPermitted => {
            "not permitted: it belongs to another user, or the kernel denies access"
        }
        UnseenReason::Changed => "mapped or unmapped during profiling",
        UnseenReason::OutOfRange => "outside the requested range, or without addresses",
        UnseenReason::NotFromProgram => "accessed by the kernel or a device, not by the program",
    }
}

fn write_notes(output: &mut TextReport, profile: &TlbProfile, view: View) {
    let walk_cost = match &profile.walk_cost {
        Some(curve) => format!("cost of a page walk: {}", curve.origin),
        None => "the cost of a page walk is unknown, so misses have no time; hint: measure it with `pagelab \
                 plan --calibrate`"
            .to_owned(),
    };
    output.add_gap();
    output.add_dim_text(&walk_cost);
    let most = if view.verbose { usize::MAX } else { 4 };
    profile.notes.iter().take(most).for_each(|note| output.add_dim_text(note));
}

/// A mapping in a few words: `heap 8 MiB`, `anonymous 64 MiB #2`, the file's name; with its program in front
/// if there are several.
pub fn display_mapping_name(ranking: &Ranking, mapping: &RankedMapping) -> String {
    let size = format_bytes(mapping.bytes);
    let name = match &mapping.key.kind {
        MappingKind::Anonymous => format!("anonymous {size}"),
        MappingKind::Shared => format!("shared {size}"),
        MappingKind::Heap => format!("heap {size}"),
        MappingKind::Stack => format!("stack {size}"),
        MappingKind::File(path) => format!("file {}", clip_name(path.rsplit('/').next().unwrap_or(path), 30)),
        MappingKind::Placed => "by address".to_owned(),
    };
    let is_alone = ranking.mappings.iter().all(|other| other.program == mapping.program);
    let program = if is_alone { "" } else { mapping.program.path.rsplit('/').next().unwrap_or_default() };
    let number = if mapping.key.nth > 0 { format!(" #{}", mapping.key.nth + 1) } else { String::new() };
    if program.is_empty() { name + &number } else { format!("{}: {name}{number}", clip_name(program, 20)) }
}

/// Rows of the summary, at most.
const MAPPINGS_MAX: usize = 8;
const REGIONS_MAX: usize = 16;

fn mappings_by_cost(ranking: &Ranking) -> Vec<(&RankedMapping, f64)> {
    let cost = |mapping: &RankedMapping| mapping.cells.iter().map(|cell| cell.cost).sum::<f64>();
    let mut mappings: Vec<_> = ranking.mappings.iter().map(|mapping| (mapping, cost(mapping))).collect();
    mappings.sort_by(|a, b| b.1.total_cmp(&a.1));
    mappings
}

/// The title of a column of misses.
fn misses_title(profile: &TlbProfile) -> &'static str {
    if profile.lower_bound_reason().is_some() { "misses, at least" } else { "misses" }
}

fn write_mappings(output: &mut TextReport, profile: &TlbProfile, ranking: &Ranking) {
    if !profile.is_observed() {
        return;
    }
    let mut costly = mappings_by_cost(ranking);
    costly.retain(|(_, cost)| *cost > 0.0);
    if costly.is_empty() {
        output.add_text("none of the observed misses is in a known mapping");
        return;
    }
    RowTable::<&(&RankedMapping, f64)>::new()
        .left("mapping", |(mapping, _)| display_mapping_name(ranking, mapping))
        .right("touched", |(mapping, _)| {
            format_bytes(Bytes(mapping.cells.iter().fold(0u64, |sum, cell| sum.saturating_add(cell.bytes))))
        })
        .right(misses_title(profile), |(mapping, _)| {
            let misses: u128 = mapping.cells.iter().map(|cell| u128::from(cell.misses)).sum();
            format_share_of_misses(profile, misses)
        })
        .right_if(ranking.is_timed, "cost", |(_, cost)| {
            format_cost_value(*cost * profile.lower_bound_factor(), true)
        })
        .right("share", |(_, cost)| format_percent(cost / ranking.total))
        .add_to(output, 1, costly.iter().take(MAPPINGS_MAX));
    if costly.len() > MAPPINGS_MAX {
        let more = format_count((costly.len() - MAPPINGS_MAX) as u128);
        output.add_dim_paragraph(" ", &format!("and {more} more"));
    }
}

fn write_regions(output: &mut TextReport, profile: &TlbProfile, ranking: &Ranking, view: View) {
    let rows_max = if view.verbose { usize::MAX } else { REGIONS_MAX };
    let regions = ranking.regions.iter().filter(|region| region.misses > 0.0);
    let count = regions.clone().count();
    if count == 0 {
        return;
    }
    RowTable::<RegionRow<'_>>::new()
        .left("region of", |row| row.mapping().map_or(String::new(), |of| display_mapping_name(ranking, of)))
        .right("offset", |row| format!("{:#x}", row.region.offset))
        .right("address", |row| format!("{:#x}", row.address()))
        .right(misses_title(profile), |row| {
            format_share_of_misses(profile, row.region.misses.round() as u128)
        })
        .right_if(ranking.is_timed, "cost", |row| {
            format_cost_value(row.region.cost * profile.lower_bound_factor(), true)
        })
        .right("share", |row| format_percent(row.region.cost / ranking.total))
        .left("", |row| {
            row.region.written.map_or("", |written| if written { "written" } else { "read" }).to_owned()
        })
        .add_to(output, 1, regions.take(rows_max).map(|region| RegionRow { ranking, region }));
    let left = count.saturating_sub(rows_max);
    if left > 0 {
        output.add_dim_paragraph(" ", &format!("and {} more: -v", format_count(left as u128)));
    }
}
