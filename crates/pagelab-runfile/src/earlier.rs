//! Records of earlier versions, and their conversion to an experiment: simulated studies (blobs `study` and
//! `study_trial`), and trials with the heads of their measures (`trial`). Nothing else knows them.

use pagelab_model::Reading;
use pagelab_model::experiment::{Flag, Fraction, Measure, MeasureHead, Plan, Trial, TrialEnd};
use pagelab_model::run::Series;
use pagelab_model::simulation::{
    MemoryPicture, SimulatedConfiguration, SimulatedWorkload, SimulatedZone, Sweep, SweepFactor, TrialSeries,
    figure_head,
};
use serde::Deserialize;

use crate::trials::HeadTable;

/// The plan of a study: cells times seeds.
#[derive(Deserialize)]
pub(crate) struct StudyPlan {
    name: String,
    question: String,
    explanation: String,
    simulator: String,
    cells: Vec<StudyCell>,
    seeds: Vec<u64>,
    pictures: u32,
    varied: Vec<SweepFactor>,
    judged: Option<String>,
}

#[derive(Deserialize)]
struct StudyCell {
    #[serde(flatten)]
    workload: SimulatedWorkload,
    scheme: String,
    values: Vec<String>,
    #[serde(default)]
    lists: Vec<String>,
    #[serde(default)]
    zones: Vec<SimulatedZone>,
}

impl StudyPlan {
    /// The plan of the same experiment: cells become points, in their order, so that slots keep their
    /// numbers.
    pub fn into_plan(mut self) -> Plan {
        self.judged.iter_mut().for_each(rename_measure_key);
        let configuration = |cell: StudyCell| {
            let StudyCell { workload, scheme, values, lists, zones } = cell;
            SimulatedConfiguration { workload, scheme, values, lists, zones }
        };
        let configurations = self.cells.into_iter().map(configuration).collect();
        let plan = Plan::for_simulator(&self.name, &self.simulator, configurations, self.seeds);
        let plan =
            Plan { question: self.question, explanation: self.explanation, pictures: self.pictures, ..plan };
        match self.varied.is_empty() {
            true => plan,
            false => plan.into_sweep(Sweep { varied: self.varied, judged: self.judged }),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct StudyTrial {
    slot: usize,
    figures: Vec<StudyFigure>,
    series: Vec<TrialSeries>,
    pictures: Vec<MemoryPicture>,
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct StudyFigure {
    phase: String,
    name: String,
    value: u64,
    per: u64,
    unit: String,
}

impl StudyTrial {
    /// The trial, stored at this time.
    pub fn into_trial(self, at_ns: u64, heads: &mut HeadTable) -> Trial {
        let measure = |of: StudyFigure| {
            let head = heads.share(figure_head(of.phase, of.name, &of.unit));
            Measure::from_fraction(head, Fraction { numerator: of.value, denominator: of.per })
        };
        let measures = self.figures.into_iter().map(measure).collect();
        let StudyTrial { slot, mut series, notes, .. } = self;
        let pictures = self.pictures.len();
        series.iter_mut().for_each(|one| rename_measure(&mut one.name));
        Trial { measures, series, pictures, notes, ..Trial::new(slot, at_ns) }
    }

    /// Its slot and its pictures.
    pub fn into_pictures(self) -> (usize, Vec<MemoryPicture>) {
        (self.slot, self.pictures)
    }
}

/// A trial of an experiment, each measure with its own head.
#[derive(Deserialize)]
pub(crate) struct HeadedTrial {
    slot: usize,
    began_ns: u64,
    ended_ns: u64,
    end: TrialEnd,
    measures: Vec<HeadedMeasure>,
    flags: Vec<Flag>,
    last_output: String,
}

#[derive(Deserialize)]
struct HeadedMeasure {
    #[serde(flatten)]
    head: MeasureHead,
    value: Reading<f64>,
}

impl HeadedTrial {
    pub fn into_trial(self, heads: &mut HeadTable) -> Trial {
        let measure =
            |of: HeadedMeasure| Measure { head: heads.share(of.head), value: of.value, exact: None };
        let measures = self.measures.into_iter().map(measure).collect();
        let HeadedTrial { slot, began_ns, ended_ns, end, flags, last_output, .. } = self;
        Trial { ended_ns, end, measures, flags, last_output, ..Trial::new(slot, began_ns) }
    }
}

/// Columns of series: the series, the earlier name and the present name.
const SERIES_COLUMNS: [(&str, &str, &str); 3] = [
    ("tracepoints", "extfrag.spoiling", "extfrag.polluting"),
    ("tracepoints", "extfrag.spoiling_claimed", "extfrag.polluting_claimed"),
    ("tracepoints", "late", "out_of_order"),
];

/// Measures of trials, and series along a trial: the earlier name and the present name.
const MEASURES: [(&str, &str); 5] = [
    ("mixed pageblocks", "polluted pageblocks"),
    ("plan.got", "plan.allocated"),
    ("plan.wanted", "plan.requested"),
    ("probe.last_look", "probe.last_scan"),
    ("probe.looks", "probe.scans"),
];

/// Kinds of events: the earlier name and the present name.
const EVENT_KINDS: [(&str, &str); 1] = [("put back", "restored")];

/// Gives the columns of a series their present names. A column keeps its name if another one has the present
/// name already.
pub(crate) fn rename_columns(series: &mut Series) {
    for (_, earlier, present) in SERIES_COLUMNS.iter().filter(|(name, ..)| *name == series.name) {
        if series.columns.iter().any(|column| column.header.name == *present) {
            continue;
        }
        let renamed = series.columns.iter_mut().filter(|column| column.header.name == *earlier);
        renamed.for_each(|column| (*present).clone_into(&mut column.header.name));
    }
}

/// Gives a measure its present name.
pub(crate) fn rename_measure(name: &mut String) {
    rename(&MEASURES, name);
}

/// Gives the kind of an event its present name.
pub(crate) fn rename_event_kind(kind: &mut String) {
    rename(&EVENT_KINDS, kind);
}

fn rename(table: &[(&str, &str)], name: &mut String) {
    if let Some((_, present)) = table.iter().find(|(earlier, _)| earlier == name) {
        (*present).clone_into(name);
    }
}

/// Gives the measure of a key `PHASE/NAME` its present name.
pub(crate) fn rename_measure_key(key: &mut String) {
    let start = key.rfind('/').map_or(0, |slash| slash + 1);
    let mut name = key.split_off(start);
    rename_measure(&mut name);
    key.push_str(&name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measure_of_a_key_is_renamed_and_its_phase_is_kept() {
        for (earlier, present) in [
            ("at rest/mixed pageblocks", "at rest/polluted pageblocks"),
            ("mixed pageblocks", "polluted pageblocks"),
            ("plan.wanted/cpu", "plan.wanted/cpu"),
            ("F_u(9)", "F_u(9)"),
        ] {
            let mut key = earlier.to_owned();
            rename_measure_key(&mut key);
            assert_eq!(key, present);
        }
    }
}
