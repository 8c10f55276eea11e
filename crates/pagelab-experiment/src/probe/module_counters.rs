//! Counters of pagelab's kernel module during the trial. They exist only in guests that have loaded it.

use pagelab_formats::vmstat;
use pagelab_host::paths::MODULE_COUNTERS;
use pagelab_host::root::Root;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::{Absence, AbsenceReason, Counters, Reading};

use super::ProbeReadings;

/// Counters before the trial; none without the module.
#[derive(Debug, Default)]
pub(super) struct ModuleCounters(Option<Counters>);

impl ModuleCounters {
    pub(super) fn read(root: &Root) -> ModuleCounters {
        ModuleCounters(read_counters(root).ok())
    }

    pub(super) fn add_measures(&self, root: &Root, readings: &mut ProbeReadings) {
        let Some(before) = &self.0 else { return };
        let after = read_counters(root);
        for (name, before) in before.iter() {
            let value = after.as_ref().map_err(Clone::clone).and_then(|after| {
                let gone = || Absence::new(MODULE_COUNTERS, AbsenceReason::NotThere, format!("no {name}"));
                after.get(name).map(|after| after.saturating_sub(before)).ok_or_else(gone)
            });
            let source = format!("{MODULE_COUNTERS}, whole machine");
            let name = format!("module.{name}");
            match name.ends_with("_ns") {
                true => readings.push_ns(&name, BetterDirection::Neither, value, &source),
                false => readings.push_count(&name, BetterDirection::Neither, value, &source),
            }
        }
    }
}

fn read_counters(root: &Root) -> Reading<Counters> {
    let text = root.read(MODULE_COUNTERS)?;
    let to_absence = |error: pagelab_formats::ParseError| {
        Absence::new(MODULE_COUNTERS, AbsenceReason::Malformed, error.message_in_file(MODULE_COUNTERS))
    };
    vmstat::parse_counters(&text).map_err(to_absence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_difference_and_times_have_their_unit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(MODULE_COUNTERS.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let values = |before: &ModuleCounters| {
            let mut readings = ProbeReadings::default();
            before.add_measures(&root, &mut readings);
            let named = |m: &pagelab_model::experiment::Measure| {
                (m.name.clone(), m.unit.clone(), m.value.clone().ok())
            };
            readings.measures.iter().map(named).collect::<Vec<_>>()
        };
        assert_eq!(values(&ModuleCounters::read(&root)), [], "without the module");
        std::fs::write(&file, "references_ignored 5\nlinear_ns 100\n").unwrap();
        let before = ModuleCounters::read(&root);
        std::fs::write(&file, "references_ignored 12\nlinear_ns 350\n").unwrap();
        let count = |name: &str, unit: &str, value| (name.to_owned(), unit.into(), Some(value));
        assert_eq!(
            values(&before),
            [count("module.references_ignored", "count", 7.0), count("module.linear_ns", "ns", 250.0)]
        );
        std::fs::write(&file, "linear_ns 350\n").unwrap();
        assert_eq!(values(&before)[0].2, None, "a counter that is gone is absent, not 0");
    }
}
