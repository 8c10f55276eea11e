//! Text of `pagelab map --diff`: how much changed between two maps, into what, and where.

use pagelab_model::{FrameSpan, PageClass, Pages};

use super::{MapSource, text_with_picture, with_swatches};
use crate::memory_picture::difference::{FrameChange, LEGEND, MapDifference};
use crate::memory_picture::drawing::Drawing;
use crate::memory_picture::raster::Raster;
use crate::memory_picture::terminal::{self, TerminalColours};
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Transitions shown on a terminal, at most; JSON has all.
const TRANSITIONS_MAX: usize = 12;

/// Difference with the sources of its maps.
#[derive(Debug)]
pub struct DifferenceReport<'a> {
    /// First map.
    pub before: MapSource,
    /// Second map.
    pub after: MapSource,
    /// Changes.
    pub difference: &'a MapDifference,
    /// Caveats, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

impl DifferenceReport<'_> {
    fn format_size(&self, pages: u64) -> String {
        format_bytes(Pages(pages).to_bytes(self.difference.layout.page_size))
    }

    /// Returns the answer in one sentence.
    pub fn format_headline(&self) -> String {
        let counts = self.difference.count_by_change();
        let total = counts.iter().sum::<u64>() - counts[FrameChange::Absent as usize];
        let changed = self.difference.changed_frames();
        if changed == 0 {
            return format!("no page of {} changed class", self.format_size(total));
        }
        let notes = [
            FrameChange::BecameFree,
            FrameChange::BecameUsed,
            FrameChange::BecameUnmovable,
            FrameChange::BecameHuge,
        ];
        let notes: Vec<String> = notes
            .into_iter()
            .filter(|&change| counts[change as usize] > 0)
            .map(|change| {
                format!("{} {}", self.format_size(counts[change as usize]), LEGEND[change as usize].label)
            })
            .collect();
        let notes = if notes.is_empty() { String::new() } else { format!(": {}", notes.join(", ")) };
        let share = format_percent(changed as f64 / total.max(1) as f64);
        format!("{} of {} ({share}) changed class{notes}", self.format_size(changed), self.format_size(total))
    }

    /// Describes memory that only one of the maps has.
    pub fn hotplug_notes(&self) -> Vec<String> {
        let notes = |runs: &[FrameSpan], what: &str| {
            let pages = runs.iter().map(|run| run.count.0).sum::<u64>();
            let first = runs.first()?;
            Some(format!(
                "the maps cover different memory: {} {what} ({} frame ranges, the first at {:#x}); shown as \
                 added or removed",
                self.format_size(pages),
                runs.len(),
                first.first.0
            ))
        };
        let difference = self.difference;
        [
            notes(&difference.only_before, "only in the first map"),
            notes(&difference.only_after, "only in the second map"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns pairs of different classes with their pages, the most frequent first.
    pub fn list_transitions(&self) -> Vec<(PageClass, PageClass, u64)> {
        let mut total = Vec::new();
        for (from, row) in PageClass::ALL.into_iter().zip(self.difference.transitions.iter()) {
            let pairs = PageClass::ALL.into_iter().zip(row);
            total.extend(
                pairs.filter(|(to, pages)| from != *to && **pages > 0).map(|(to, &pages)| (from, to, pages)),
            );
        }
        total.sort_by_key(|&(.., pages)| std::cmp::Reverse(pages));
        total
    }

    /// Renders the complete text.
    pub fn to_text(
        &self,
        picture: Option<(&Drawing<'_>, &Raster<'_>)>,
        style: &TextStyle,
        colours: TerminalColours,
    ) -> String {
        let mut output = TextReport::new(*style);
        output.add_bold_text(&self.format_headline());
        for (what, source) in [("from", &self.before), ("to", &self.after)] {
            output.add_dim_indented(&format!("{what} {} {}", source.name, source.taken_text()));
        }
        output.add_notes(&self.hotplug_notes());
        output.add_notes(&self.notes);
        text_with_picture(output, picture, style, colours) + &self.format_tables(style, colours)
    }

    fn format_tables(&self, style: &TextStyle, colours: TerminalColours) -> String {
        let counts = self.difference.count_by_change();
        let held: Vec<usize> = (0..LEGEND.len()).filter(|&at| counts[at] > 0).collect();
        let mut output = TextReport::new(*style);
        RowTable::<&usize>::new()
            .left("what", |at| LEGEND[**at].label.to_owned())
            .right("pages", |at| format_count(u128::from(counts[**at])))
            .right("memory", |at| self.format_size(counts[**at]))
            .add_to(&mut output, 0, &held);
        let swatches = held.iter().map(|&at| Some(terminal::legend_swatch(&LEGEND[at], colours)));
        let mut text = with_swatches(&output.into_text(), std::iter::once(None).chain(swatches), colours);
        let transitions = self.list_transitions();
        if transitions.is_empty() {
            return text;
        }
        let mut output = TextReport::new(*style);
        output.add_gap();
        RowTable::<&(PageClass, PageClass, u64)>::new()
            .left("class before", |(from, ..)| from.name().to_owned())
            .left("after", |(_, to, _)| to.name().to_owned())
            .right("pages", |(.., pages)| format_count(u128::from(*pages)))
            .right("memory", |(.., pages)| self.format_size(*pages))
            .add_to(&mut output, 2, transitions.iter().take(TRANSITIONS_MAX));
        if transitions.len() > TRANSITIONS_MAX {
            output
                .add_line(format!("  and {} more class pairs: --json", transitions.len() - TRANSITIONS_MAX));
        }
        text.push('\n');
        text.push_str(&output.into_text());
        text
    }
}
