//! Terms that experiments in the simulator add: simulated workloads, the grid of their points, sweeps, and
//! the attachments of their trials.
//!
//! A workload is a machine, its kernelcore, a load and the load's parameters; a variant is a scheme; a round
//! is a seed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::experiment::{
    BetterDirection, Contrast, DEFAULT_LOSS, MeasureHead, Plan, PlannedVariant, PlannedWorkload, Schedule,
    ScheduleSlot, Sequence, TrialRole,
};

/// A load on a simulated machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SimulatedWorkload {
    /// The machine, as `x86`, `ppc64`, `16G`.
    pub machine: String,
    /// Bytes of `kernelcore=`; `None`: the default of the machine.
    pub kernelcore: Option<u64>,
    /// The load.
    pub load: String,
    /// Parameters of the load that differ from the default.
    pub parameters: Vec<(String, u64)>,
}

impl SimulatedWorkload {
    /// Its name in an experiment: `churn on 64M, kernelcore 1073741824, pairs 3000`.
    pub fn name(&self) -> String {
        let core = self.kernelcore.map_or(String::new(), |bytes| format!(", kernelcore {bytes}"));
        let parameters: String =
            self.parameters.iter().map(|(name, value)| format!(", {name} {value}")).collect();
        format!("{} on {}{core}{parameters}", self.load, self.machine)
    }
}

/// A zone of a simulated machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SimulatedZone {
    /// Its name: `HighMem`.
    pub name: String,
    /// Its first frame.
    pub first: u32,
    /// Frames in it.
    pub frames: u32,
}

/// A schedule that computes its slots: every point with every seed, all points of a seed before the next
/// seed, so that an experiment that was stopped has complete rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleGrid {
    /// The points, in any combination of workloads and variants.
    pub points: Vec<GridPoint>,
    /// The seeds, the same for all points; the round of a slot is an index of this list.
    pub seeds: Vec<u64>,
    /// Zones of the simulated machines by address, each combination once.
    pub layouts: Vec<Vec<SimulatedZone>>,
}

/// A workload under a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridPoint {
    /// Index of the workload.
    pub workload: usize,
    /// Index of the variant.
    pub variant: usize,
    /// Index of the machine's zones in the grid's layouts.
    pub layout: usize,
    /// Values of the varied factors of a sweep, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl ScheduleGrid {
    /// Number of slots: points times seeds; `None` if it cannot be represented.
    pub fn count_slots(&self) -> Option<usize> {
        self.points.len().checked_mul(self.seeds.len())
    }

    /// Index of the point and of the seed of a slot.
    pub fn point_and_round(&self, slot: usize) -> Option<(usize, usize)> {
        let round = slot.checked_div(self.points.len())?;
        (round < self.seeds.len()).then_some((slot % self.points.len(), round))
    }

    /// Index of the point of a slot, and the seed.
    pub fn point_and_seed(&self, slot: usize) -> Option<(usize, u64)> {
        let (point, round) = self.point_and_round(slot)?;
        Some((point, *self.seeds.get(round)?))
    }

    /// The computed slot.
    pub fn slot(&self, slot: usize) -> Option<ScheduleSlot> {
        let (point, round) = self.point_and_round(slot)?;
        let GridPoint { workload, variant, .. } = *self.points.get(point)?;
        let round = u32::try_from(round).ok()?;
        Some(ScheduleSlot { workload, variant, round, role: TrialRole::Measured })
    }
}

/// A factor that a sweep varies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepFactor {
    /// `machine`, `scheme`, `load`, `kernelcore`, or a parameter of the load.
    pub name: String,
    /// Whether its values are numbers, which have an order.
    pub is_number: bool,
}

/// A sweep: points that are ranked by one measure, and compared with no baseline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// The varied factors.
    pub varied: Vec<SweepFactor>,
    /// The measure that ranks, as `PHASE/NAME`; `None`: the leading one.
    pub judged: Option<String>,
}

/// A series of values along a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialSeries {
    /// Its name, as `F_u(10) at rest`.
    pub name: String,
    /// The quantity on its axis, as `attempts`.
    pub over: String,
    /// Positions, ascending, and values in millionths.
    pub points: Vec<(u64, i64)>,
}

/// Physical memory at one step of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPicture {
    /// Completed steps of the load.
    pub step: u64,
    /// The phase of the load.
    pub phase: String,
    /// Runs of frames of one use, by address: first frame, frames, and the use's number: 0 free, 1 kernel,
    /// 2 page tables, 3 kernel caches, 4 files, 5 programs, 6 the hugetlb pool.
    pub runs: Vec<(u32, u32, u8)>,
    /// The list that each pageblock belongs to, by address.
    pub owners: Vec<u8>,
}

/// A configuration of the simulator, from which workloads, variants and points of a plan are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedConfiguration {
    /// The workload.
    pub workload: SimulatedWorkload,
    /// The scheme, as `zone+linear`.
    pub scheme: String,
    /// Values of the varied factors of a sweep, in their order.
    pub values: Vec<String>,
    /// Contents of the free lists of its policy, by number: the meaning of [`MemoryPicture::owners`].
    pub lists: Vec<String>,
    /// Its zones by address.
    pub zones: Vec<SimulatedZone>,
}

impl SimulatedConfiguration {
    /// A configuration whose values, lists and zones are not yet known.
    pub fn new(workload: SimulatedWorkload, scheme: impl Into<String>) -> SimulatedConfiguration {
        let (values, lists, zones) = (Vec::new(), Vec::new(), Vec::new());
        SimulatedConfiguration { workload, scheme: scheme.into(), values, lists, zones }
    }
}

/// The configuration of a point, as stored in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointView<'p> {
    /// The workload.
    pub workload: &'p SimulatedWorkload,
    /// The scheme.
    pub scheme: &'p str,
    /// Values of the varied factors.
    pub values: &'p [String],
    /// Contents of the free lists of its policy, by number.
    pub lists: &'p [String],
    /// Its zones by address.
    pub zones: &'p [SimulatedZone],
}

impl Plan {
    /// A plan of the simulator: every configuration with every seed. The first scheme is the baseline, unless
    /// it becomes a sweep.
    pub fn for_simulator(
        name: &str,
        simulator: &str,
        configurations: Vec<SimulatedConfiguration>,
        seeds: Vec<u64>,
    ) -> Plan {
        let mut builder = PlanBuilder::default();
        let points = configurations.into_iter().map(|of| builder.add_configuration(of)).collect();
        let PlanBuilder { workloads, variants, layouts, .. } = builder;
        Plan {
            name: name.to_owned(),
            question: String::new(),
            explanation: String::new(),
            origin: "command line".to_owned(),
            recipe: String::new(),
            place: Plan::SIMULATOR.to_owned(),
            simulator: Some(simulator.to_owned()),
            workloads,
            baseline: (!variants.is_empty()).then_some(0),
            variants,
            sequence: Sequence::BySeed,
            seed: seeds.first().copied().unwrap_or_default(),
            loss: DEFAULT_LOSS,
            schedule: Schedule::Grid(ScheduleGrid { points, seeds, layouts }),
            sweep: None,
            pictures: 0,
            early_end: None,
            dropped_variants: Default::default(),
        }
    }

    /// The same plan as a sweep, which has no baseline.
    pub fn into_sweep(self, sweep: Sweep) -> Plan {
        Plan { sweep: Some(sweep), baseline: None, ..self }
    }

    /// The points of a grid; empty for a schedule that is a list.
    pub fn points(&self) -> &[GridPoint] {
        self.schedule.grid().map_or(&[], |grid| &grid.points)
    }

    /// The seeds of a grid; empty for a schedule that is a list.
    pub fn seeds(&self) -> &[u64] {
        self.schedule.grid().map_or(&[], |grid| &grid.seeds)
    }

    /// The configuration of a point; `None` if there is no such point, or it is not simulated.
    pub fn point(&self, point: usize) -> Option<PointView<'_>> {
        let grid = self.schedule.grid()?;
        let GridPoint { workload, variant, layout, values } = grid.points.get(point)?;
        let variant = self.variants.get(*variant)?;
        Some(PointView {
            workload: self.workloads.get(*workload)?.simulated.as_ref()?,
            scheme: &variant.name,
            values,
            lists: &variant.lists,
            zones: grid.layouts.get(*layout).map_or(&[], Vec::as_slice),
        })
    }

    /// Index of the point of a slot, and the seed.
    pub fn point_and_seed(&self, slot: usize) -> Option<(usize, u64)> {
        self.schedule.grid()?.point_and_seed(slot)
    }

    /// The varied factors of a sweep; empty for a comparison.
    pub fn varied(&self) -> &[SweepFactor] {
        self.sweep.as_ref().map_or(&[], |sweep| &sweep.varied)
    }
}

/// Workloads, variants and layouts of a plan, each once.
#[derive(Default)]
struct PlanBuilder {
    workloads: Vec<PlannedWorkload>,
    variants: Vec<PlannedVariant>,
    layouts: Vec<Vec<SimulatedZone>>,
    workload_indices: HashMap<SimulatedWorkload, usize>,
    variant_indices: HashMap<String, usize>,
    layout_indices: HashMap<Vec<SimulatedZone>, usize>,
}

impl PlanBuilder {
    fn add_configuration(&mut self, configuration: SimulatedConfiguration) -> GridPoint {
        let SimulatedConfiguration { workload, scheme, values, lists, zones } = configuration;
        let next = self.workloads.len();
        let workload_index = *self.workload_indices.entry(workload.clone()).or_insert(next);
        if workload_index == next {
            self.workloads.push(PlannedWorkload {
                name: workload.name(),
                command: Vec::new(),
                generator: String::new(),
                merit: None,
                simulated: Some(workload),
            });
        }
        let next = self.variants.len();
        let variant = *self.variant_indices.entry(scheme.clone()).or_insert(next);
        if variant == next {
            let settings = vec![("scheme".to_owned(), scheme.clone())];
            self.variants.push(PlannedVariant { name: scheme, settings, asks_for_huge_pages: false, lists });
        }
        let next = self.layouts.len();
        let layout = *self.layout_indices.entry(zones).or_insert_with_key(|zones| {
            self.layouts.push(zones.clone());
            next
        });
        GridPoint { workload: workload_index, variant, layout, values }
    }
}

/// The head of a figure of the simulator. Its values may be 0, so they are compared by differences.
pub fn figure_head(phase: String, name: String, unit: &str) -> MeasureHead {
    MeasureHead {
        phase,
        name,
        unit: unit.into(),
        better: BetterDirection::Neither,
        source: "the simulator".to_owned(),
        contrast: Contrast::Difference,
    }
}
