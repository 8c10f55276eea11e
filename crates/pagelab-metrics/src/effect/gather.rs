//! Values of an experiment by workload, measure and column, and the ends of its trials.

use std::collections::HashMap;
use std::sync::Arc;

use pagelab_model::Absence;
use pagelab_model::experiment::{
    Experiment, Flag, Measure, MeasureHead, Plan, ScheduleSlot, Trial, TrialEnd, TrialRole, measures,
};

use super::{EffectColumn, TrialCounts};
use crate::hit_rates;

pub(super) struct TrialValue {
    pub column: usize,
    pub round: u32,
    pub role: TrialRole,
    pub value: f64,
}

pub(super) struct MeasureValues {
    pub head: Arc<MeasureHead>,
    pub absent: Option<Absence>,
    pub rows: Vec<TrialValue>,
}

/// All values of one workload.
#[derive(Default)]
pub(super) struct GatheredWorkload {
    pub columns: Vec<EffectColumn>,
    pub trials: Vec<TrialCounts>,
    /// In the order to show them.
    pub measures: Vec<MeasureValues>,
}

/// Gathers an experiment. Columns of a grid are its points: a table of all workloads by all variants would
/// have room for many more than a sweep has.
pub(super) fn gather_workloads(experiment: &Experiment) -> Vec<GatheredWorkload> {
    let mut gatherer = Gatherer::new(&experiment.plan);
    for trial in &experiment.trials {
        gatherer.add_trial(trial);
    }
    let mut workloads = gatherer.workloads;
    for measure in workloads.iter_mut().flat_map(|workload| &mut workload.measures) {
        if !measure.rows.is_empty() {
            measure.absent = None;
        }
    }
    workloads
}

struct Gatherer<'p> {
    plan: &'p Plan,
    workloads: Vec<GatheredWorkload>,
    /// In a grid, the column of each point.
    point_columns: Vec<usize>,
    /// Numbers of measures, by their head and by their phase and name.
    head_numbers: HashMap<Arc<MeasureHead>, usize>,
    key_numbers: HashMap<String, usize>,
    /// For each workload the places of its measures, by their number.
    places: Vec<HashMap<usize, usize>>,
}

impl<'p> Gatherer<'p> {
    fn new(plan: &'p Plan) -> Gatherer<'p> {
        let mut workloads: Vec<GatheredWorkload> =
            plan.workloads.iter().map(|_| GatheredWorkload::default()).collect();
        let mut point_columns = Vec::new();
        match plan.schedule.grid() {
            None => {
                let all = (0..plan.variants.len()).map(|variant| EffectColumn { variant, point: None });
                let all: Vec<EffectColumn> = all.collect();
                workloads.iter_mut().for_each(|workload| workload.columns.clone_from(&all));
            }
            Some(grid) => {
                for (point, of) in grid.points.iter().enumerate() {
                    let columns = &mut workloads[of.workload].columns;
                    point_columns.push(columns.len());
                    columns.push(EffectColumn { variant: of.variant, point: Some(point) });
                }
            }
        }
        for workload in &mut workloads {
            workload.trials = vec![TrialCounts::default(); workload.columns.len()];
        }
        let (head_numbers, key_numbers) = (HashMap::new(), HashMap::new());
        let places = vec![HashMap::new(); workloads.len()];
        let mut gatherer = Gatherer { plan, workloads, point_columns, head_numbers, key_numbers, places };
        gatherer.count_planned();
        gatherer
    }

    fn count_planned(&mut self) {
        let Some(grid) = self.plan.schedule.grid() else {
            for slot in self.plan.schedule.iter().filter(|slot| slot.role == TrialRole::Measured) {
                let workload = self.workloads.get_mut(slot.workload);
                if let Some(counts) = workload.and_then(|of| of.trials.get_mut(slot.variant)) {
                    counts.planned += 1;
                }
            }
            return;
        };
        for workload in &mut self.workloads {
            workload.trials.iter_mut().for_each(|counts| counts.planned = grid.seeds.len());
        }
    }

    /// The slot of a trial, and its column.
    fn find_column(&self, slot: usize) -> Option<(ScheduleSlot, usize)> {
        let planned = self.plan.schedule.get(slot)?;
        let column = match self.plan.point_and_seed(slot) {
            Some((point, _)) => *self.point_columns.get(point)?,
            None => planned.variant,
        };
        let has_column = column < self.workloads.get(planned.workload)?.columns.len();
        has_column.then_some((planned, column))
    }

    fn add_trial(&mut self, trial: &Trial) {
        let Some((slot, column)) = self.find_column(trial.slot) else { return };
        if slot.role == TrialRole::Measured {
            count_end(&mut self.workloads[slot.workload].trials[column], trial);
        }
        if slot.role == TrialRole::WarmUp || trial.end != TrialEnd::Done {
            return;
        }
        let rates = match self.plan.is_simulated() {
            true => Vec::new(),
            false => hit_rates::compute_hit_rates(&trial.measures),
        };
        let mut previous = None;
        for measure in trial.measures.iter().chain(&rates) {
            let place = self.find_place(slot.workload, measure, previous);
            previous = Some(place);
            let measure_values = &mut self.workloads[slot.workload].measures[place];
            // A model was run once for each variant, and its result is in the first trial.
            let round = if measure.name.starts_with(measures::MODEL_PREFIX) { 0 } else { slot.round };
            let role = slot.role;
            match &measure.value {
                // A value in another unit is another thing.
                Ok(value) if value.is_finite() && measure.unit == measure_values.head.unit => {
                    measure_values.rows.push(TrialValue { column, round, role, value: *value });
                }
                Ok(_) => {}
                Err(absence) => {
                    measure_values.absent.get_or_insert_with(|| absence.clone());
                }
            }
        }
    }

    /// The place of a measure among those of its workload. A new measure of a phase follows the measure that
    /// it follows in its trial; any other is appended.
    fn find_place(&mut self, workload: usize, measure: &Measure, previous: Option<usize>) -> usize {
        let number = match self.head_numbers.get(&measure.head) {
            Some(number) => *number,
            None => {
                let next = self.key_numbers.len();
                let number = *self.key_numbers.entry(measure.key()).or_insert(next);
                self.head_numbers.insert(measure.head.clone(), number);
                number
            }
        };
        let places = &mut self.places[workload];
        if let Some(place) = places.get(&number) {
            return *place;
        }
        let measures = &mut self.workloads[workload].measures;
        let place = match measure.phase.is_empty() {
            true => measures.len(),
            false => previous.map_or(0, |place| place + 1),
        };
        places.values_mut().filter(|at| **at >= place).for_each(|at| *at += 1);
        measures.insert(place, MeasureValues { head: measure.head.clone(), absent: None, rows: Vec::new() });
        places.insert(number, place);
        place
    }
}

fn count_end(counts: &mut TrialCounts, trial: &Trial) {
    let is_done = trial.end == TrialEnd::Done;
    let has_flag = |kind| trial.flags.iter().any(|flag| flag.kind == kind);
    counts.completed += usize::from(is_done);
    counts.failed += usize::from(!is_done);
    counts.out_of_memory += usize::from(trial.end == TrialEnd::OutOfMemory);
    // Unobserved huge pages do not count as allocated. Whether a workload asks at all under its variant was
    // settled when the trial was flagged.
    let unseen = has_flag(Flag::HUGE_PAGES_UNKNOWN);
    counts.without_huge_pages += usize::from(is_done && (has_flag(Flag::NO_HUGE_PAGES) || unseen));
    counts.huge_pages_unknown += usize::from(is_done && unseen);
    counts.not_applied += usize::from(is_done && has_flag(Flag::NOT_APPLIED));
}
