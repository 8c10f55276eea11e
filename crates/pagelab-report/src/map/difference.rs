//! What `pagelab map --diff` says: how much changed between two maps, into what, and where.

use pagelab_model::{Frames, PageClass, Pages};

use super::{MapSource, beside, picture_text};
use crate::picture::difference::{Change, Difference, LEGEND};
use crate::picture::drawing::Drawing;
use crate::picture::raster::Raster;
use crate::picture::terminal::{self, Colours};
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// Transitions shown on a terminal; all of them stand in JSON.
const TRANSITIONS_SHOWN: usize = 12;

/// A difference, and where its maps are from.
#[derive(Debug)]
pub struct DifferenceReport<'a> {
    /// The first map.
    pub before: MapSource,
    /// The second.
    pub after: MapSource,
    /// What changed.
    pub difference: &'a Difference,
    /// What must be known to read it rightly, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

impl DifferenceReport<'_> {
    fn size(&self, pages: u64) -> String {
        bytes(Pages(pages).bytes(self.difference.layout.page_size))
    }

    /// The answer in one sentence.
    pub fn headline(&self) -> String {
        let counts = self.difference.counts();
        let all = counts.iter().sum::<u64>() - counts[Change::Absent as usize];
        let changed = self.difference.changed();
        if changed == 0 {
            return format!("no page of {} is of another class", self.size(all));
        }
        let told = [Change::BecameFree, Change::BecameUsed, Change::BecameUnmovable, Change::BecameHuge];
        let told: Vec<String> = told
            .into_iter()
            .filter(|&change| counts[change as usize] > 0)
            .map(|change| format!("{} {}", self.size(counts[change as usize]), LEGEND[change as usize].label))
            .collect();
        let told = if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) };
        let share = percent(changed as f64 / all.max(1) as f64);
        format!("{} of {} ({share}) changed class{told}", self.size(changed), self.size(all))
    }

    /// What is to be said about memory that came or went.
    pub fn plugged(&self) -> Vec<String> {
        let told = |runs: &[Frames], what: &str| {
            let pages = runs.iter().map(|run| run.count.0).sum::<u64>();
            let first = runs.first()?;
            Some(format!(
                "the two do not have the same memory: {} {what} ({} runs of frames, the first at {:#x}); \
                 it is shown as came or went",
                self.size(pages),
                runs.len(),
                first.first.0
            ))
        };
        let difference = self.difference;
        [
            told(&difference.only_before, "is only in the first"),
            told(&difference.only_after, "is only in the second"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Pairs of different classes with their pages, the most frequent first.
    pub fn transitions(&self) -> Vec<(PageClass, PageClass, u64)> {
        let mut all = Vec::new();
        for (from, row) in PageClass::ALL.into_iter().zip(self.difference.transitions.iter()) {
            let pairs = PageClass::ALL.into_iter().zip(row);
            all.extend(
                pairs.filter(|(to, pages)| from != *to && **pages > 0).map(|(to, &pages)| (from, to, pages)),
            );
        }
        all.sort_by_key(|&(.., pages)| std::cmp::Reverse(pages));
        all
    }

    /// The whole text.
    pub fn text(
        &self,
        picture: Option<(&Drawing<'_>, &Raster<'_>)>,
        style: &Style,
        colours: Colours,
    ) -> String {
        let mut page = Page::new(*style);
        page.hanging_bold("", &self.headline());
        for (what, source) in [("from", &self.before), ("to", &self.after)] {
            page.hanging_dim("  ", &format!("{what} {} {}", source.name, source.taken()));
        }
        for note in self.plugged().iter().chain(&self.notes) {
            page.hanging("  ", &format!("note: {note}"));
        }
        let mut text = page.finish();
        text.push('\n');
        if let Some((drawing, raster)) = picture {
            text.push_str(&picture_text(drawing, raster, style, colours));
            text.push('\n');
        }
        text.push_str(&self.tables(style, colours));
        text
    }

    fn tables(&self, style: &Style, colours: Colours) -> String {
        let counts = self.difference.counts();
        let held: Vec<usize> = (0..LEGEND.len()).filter(|&at| counts[at] > 0).collect();
        let row = |&at: &usize| {
            vec![LEGEND[at].label.to_owned(), count(u128::from(counts[at])), self.size(counts[at])]
        };
        let columns = [Column::left("what"), Column::right("pages"), Column::right("memory")];
        let mut page = Page::new(*style);
        page.table(0, &columns, &held.iter().map(row).collect::<Vec<_>>());
        let swatches = held.iter().map(|&at| Some(terminal::swatch(&LEGEND[at], colours)));
        let mut text = beside(&page.finish(), std::iter::once(None).chain(swatches), colours);
        let transitions = self.transitions();
        if transitions.is_empty() {
            return text;
        }
        let mut page = Page::new(*style);
        page.gap();
        let rows: Vec<Vec<String>> = transitions
            .iter()
            .take(TRANSITIONS_SHOWN)
            .map(|&(from, to, pages)| {
                vec![from.name().to_owned(), to.name().to_owned(), count(u128::from(pages)), self.size(pages)]
            })
            .collect();
        let columns = [
            Column::left("class before"),
            Column::left("after"),
            Column::right("pages"),
            Column::right("memory"),
        ];
        page.table(2, &columns, &rows);
        if transitions.len() > TRANSITIONS_SHOWN {
            page.line(format!(
                "  and {} more pairs of classes: --json",
                transitions.len() - TRANSITIONS_SHOWN
            ));
        }
        text.push('\n');
        text.push_str(&page.finish());
        text
    }
}
