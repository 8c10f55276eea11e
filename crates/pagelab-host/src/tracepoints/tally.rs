//! Event counts by kind, as columns of a recorded series.

use pagelab_model::extfrag::{ExtfragEvent, MigrateType};

use super::{Event, ExtfragEventFields, Tracepoints};

/// Fallbacks by requested and by used migratetype.
const FALLBACK_PAIRS: [(MigrateType, MigrateType); 6] = [
    (MigrateType::UNMOVABLE, MigrateType::MOVABLE),
    (MigrateType::UNMOVABLE, MigrateType::RECLAIMABLE),
    (MigrateType::MOVABLE, MigrateType::UNMOVABLE),
    (MigrateType::MOVABLE, MigrateType::RECLAIMABLE),
    (MigrateType::RECLAIMABLE, MigrateType::UNMOVABLE),
    (MigrateType::RECLAIMABLE, MigrateType::MOVABLE),
];

/// Counts since the start, a column each.
#[derive(Clone, Debug)]
pub struct EventTally {
    names: Vec<String>,
    values: Vec<u64>,
    first_columns: Vec<usize>,
    extfrag: Option<(usize, ExtfragEventFields)>,
}

impl EventTally {
    /// Columns of the open tracepoints: `extfrag.unmovable_into_movable` …, `extfrag.other`,
    /// `extfrag.polluting`, `extfrag.polluting_claimed` for fallbacks; `compaction.begin`,
    /// `vmscan.kswapd_wake` … for the rest.
    pub fn new(tracepoints: &Tracepoints) -> EventTally {
        let mut tally =
            EventTally { names: Vec::new(), values: Vec::new(), first_columns: Vec::new(), extfrag: None };
        for (place, kind) in tracepoints.kinds().iter().enumerate() {
            tally.first_columns.push(tally.names.len());
            let fields = match (kind.system.as_str(), kind.format.name.as_str()) {
                ("kmem", "mm_page_alloc_extfrag") => ExtfragEventFields::new(&kind.format).ok(),
                _ => None,
            };
            match fields {
                Some(fields) => {
                    tally.extfrag = Some((place, fields));
                    let words = FALLBACK_PAIRS.iter().map(|(alloc, fallback)| {
                        let [alloc, fallback] = [alloc, fallback].map(|kind| kind.name().unwrap_or_default());
                        format!("{alloc}_into_{fallback}")
                    });
                    let more = ["other", "polluting", "polluting_claimed"].map(str::to_owned);
                    tally.names.extend(words.chain(more).map(|word| format!("extfrag.{word}")));
                }
                None => tally.names.push(column_name(&kind.system, &kind.format.name)),
            }
        }
        tally.values = vec![0; tally.names.len()];
        tally
    }

    /// The columns' names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The counts so far, a value for each name.
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// Counts one event. Returns a fallback with its migratetypes.
    pub fn add_event(&mut self, event: &Event<'_>) -> Option<ExtfragEvent> {
        let column = *self.first_columns.get(event.kind)?;
        let Some((_, fields)) = self.extfrag.filter(|(kind, _)| *kind == event.kind) else {
            self.values[column] += 1;
            return None;
        };
        let extfrag = fields.read(event)?;
        let pair = (extfrag.alloc_migratetype, extfrag.fallback_migratetype);
        let place = FALLBACK_PAIRS.iter().position(|known| *known == pair).unwrap_or(FALLBACK_PAIRS.len());
        self.values[column + place] += 1;
        let is_polluting = extfrag.is_polluting();
        self.values[column + FALLBACK_PAIRS.len() + 1] += u64::from(is_polluting);
        self.values[column + FALLBACK_PAIRS.len() + 2] += u64::from(is_polluting && extfrag.change_ownership);
        Some(extfrag)
    }
}

/// `compaction.begin` for `mm_compaction_begin`.
fn column_name(system: &str, name: &str) -> String {
    let short = name.strip_prefix("mm_").unwrap_or(name);
    let short = short.strip_prefix(system).and_then(|rest| rest.strip_prefix('_')).unwrap_or(short);
    format!("{system}.{short}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_called_without_what_the_system_says_already() {
        for (system, name, expected) in [
            ("compaction", "mm_compaction_begin", "compaction.begin"),
            ("vmscan", "mm_vmscan_kswapd_wake", "vmscan.kswapd_wake"),
            ("huge_memory", "mm_collapse_huge_page", "huge_memory.collapse_huge_page"),
            ("kmem", "mm_page_free", "kmem.page_free"),
        ] {
            assert_eq!(column_name(system, name), expected);
        }
    }
}
