//! Arms of a tuning, from a profile: the plans, their predictions and their plan files.

use std::path::{Path, PathBuf};

use pagelab_command::atomic_file::check_output;
use pagelab_formats::plan_toml;
use pagelab_model::huge_plan::PlannedMapping;
use pagelab_model::profile::{MappingKind, ProfileSource};
use pagelab_model::time_saved::GainShares;
use pagelab_model::tune::{CurvePoint, HugePageSelection, KneeRange, TuningArm, TuningRun};
use pagelab_model::{Bytes, HugePlan, TlbProfile};
use pagelab_report::plan::knee_absence_text;
use pagelab_report::style::format_bytes;
use pagelab_tlb::plan::{CurveShape, RankBy, RankOptions, Ranking, build_plan, predict, rank_regions};

use super::advice_override::{AdviceOverride, AdvicePolicy, MemoryForecast};
use super::{TuningRequest, format_plan_size};
use pagelab_command::exit::Failure;
use pagelab_command::output;

/// Maximum number of points of the predicted curve that are kept.
const POINTS_MAX: usize = 256;
/// First number of huge pages of a measured curve, which then doubles.
const CURVE_FIRST: usize = 8;

pub struct ArmSelection {
    pub tune: TuningRun,
    /// The plan file of each arm that has one.
    pub files: Vec<Option<PathBuf>>,
    /// Number of arms that a curve adds.
    pub curve_arms: u32,
}

impl ArmSelection {
    /// Whether there is a plan.
    pub fn is_planned(&self) -> bool {
        !self.tune.plan_file.is_empty()
    }

    /// Leaves out an arm.
    pub fn remove_arm(&mut self, selection: HugePageSelection) {
        if let Some(at) = self.tune.arm_index(selection) {
            self.tune.arms.remove(at);
            self.files.remove(at);
        }
    }
}

/// A program's own advice on huge pages, and what becomes of it.
#[derive(Clone, Debug, Default)]
pub struct AdviceHandling {
    /// Its advice against them.
    pub refusal: AdviceOverride,
    /// Whether it requests some itself, so that it is measured without them too.
    pub requests_huge_pages: bool,
}

impl AdviceHandling {
    /// Decides for a program that is started for each trial.
    pub fn decide(policy: AdvicePolicy, profile: &TlbProfile) -> AdviceHandling {
        let advice = profile.own_advice();
        let read_forecast = || MemoryForecast::read(profile, &rank_by_cost(profile));
        AdviceHandling {
            refusal: AdviceOverride::decide(policy, advice, read_forecast),
            requests_huge_pages: advice.is_some_and(|advice| advice.requested.0 > 0 && !advice.disables_thp),
        }
    }

    /// Returns how a run handles it that has these arms.
    pub fn from_arms(tune: &TuningRun) -> AdviceHandling {
        AdviceHandling {
            refusal: AdviceOverride {
                is_active: tune.arms.iter().any(|arm| arm.overrides_advice),
                ..AdviceOverride::default()
            },
            requests_huge_pages: tune.arm_index(HugePageSelection::Never).is_some(),
        }
    }
}

/// The regions that are planned, costliest first.
fn rank_by_cost(profile: &TlbProfile) -> Ranking {
    rank_regions(profile, RankOptions { page: profile.huge, by: RankBy::Cost, include_files: false })
}

/// Chooses the arms and writes their plans.
pub fn choose_arms(
    request: &TuningRequest,
    profile: &TlbProfile,
    advice: &AdviceHandling,
    plan_path: &Path,
) -> Result<ArmSelection, Failure> {
    let page = profile.huge;
    let ranking = rank_by_cost(profile);
    let planned_count = ranking.region_count(request.size, page);
    let most = ranking.regions.len();
    let is_planned = planned_count > 0 && ranking.attainable_saving() > 0.0;
    let mut chosen = ArmBuilder {
        profile,
        arms: Vec::new(),
        files: Vec::new(),
        plan_path,
        replaces_files: request.replaces_files,
        overrides_advice: advice.refusal.is_active,
    };
    chosen.push(TuningArm { planned: Some(0), ..new_arm("none", HugePageSelection::None) }, None);
    let mut planned =
        HugePlan { source: Some(profile.source), command: profile.command.clone(), ..HugePlan::default() };
    if is_planned {
        planned = chosen.push_plan(&ranking, planned_count, "plan", HugePageSelection::Plan, plan_path)?;
    }
    let all_huge = TuningArm {
        share_permille: Some(1000),
        walks_permille: Some(1000),
        touched_permille: Some(1000),
        overrides_advice: advice.refusal.is_active,
        ..new_arm("all", HugePageSelection::All)
    };
    chosen.push(TuningArm { saved_ns: saved_ns(profile, &ranking, most), ..all_huge }, None);
    if advice.requests_huge_pages {
        chosen.push(TuningArm { planned: Some(0), ..new_arm("never", HugePageSelection::Never) }, None);
    }
    if request.measures_curve {
        chosen.push_curve(request, &ranking, planned_count)?;
    }
    let tune = TuningRun {
        plan_arguments: format_plan_size(request.size),
        plan_file: if is_planned { plan_path.display().to_string() } else { String::new() },
        plan: planned,
        huge: page.0,
        arms: chosen.arms,
        after: None,
        curve: curve_points(&ranking),
        knee: ranking.knee.ok().map(|knee| knee.pages as u64),
        knee_range: knee_range(&ranking),
        knee_absence: ranking.knee.err().map(|absence| knee_absence_text(absence).to_owned()),
        most_of_gain: curve_point(&ranking, ranking.most_of_gain()),
        pid: None,
        notes: advice.refusal.note.iter().cloned().chain(profile_notes(profile, &ranking)).collect(),
    };
    let curve_arms = curve_counts(most).map(|n| if n == planned_count { 2 } else { 3 }).sum();
    Ok(ArmSelection { tune, files: chosen.files, curve_arms })
}

/// Returns the addresses of the planned regions if the profiled process still runs.
pub fn region_addresses(plan: &HugePlan) -> std::collections::BTreeSet<u64> {
    let mappings = plan.programs.iter().flat_map(|program| &program.mappings);
    let addresses = |mapping: &PlannedMapping| -> Vec<u64> {
        let base = pagelab_tlb::grid::base_address(&mapping.key, mapping.start);
        mapping.regions.iter().map(|region| base.saturating_add(region.offset)).collect()
    };
    mappings.flat_map(addresses).collect()
}

/// Returns whether planned memory is identified only by its address.
pub fn is_by_address(plan: &HugePlan) -> bool {
    let mut mappings = plan.programs.iter().flat_map(|program| &program.mappings);
    mappings.any(|mapping| mapping.key.kind == MappingKind::Placed)
}

/// Returns the arms before a profile is known.
pub fn arms_without_profile(plan: &Path) -> (Vec<TuningArm>, Vec<Option<PathBuf>>) {
    let arms = vec![
        new_arm("none", HugePageSelection::None),
        new_arm("plan", HugePageSelection::Plan),
        new_arm("all", HugePageSelection::All),
    ];
    (arms, vec![None, Some(plan.to_owned()), None])
}

/// Creates an arm of which nothing else is known yet.
pub fn new_arm(name: &str, selection: HugePageSelection) -> TuningArm {
    TuningArm { name: name.to_owned(), selection, ..TuningArm::default() }
}

struct ArmBuilder<'c> {
    profile: &'c TlbProfile,
    arms: Vec<TuningArm>,
    files: Vec<Option<PathBuf>>,
    plan_path: &'c Path,
    replaces_files: bool,
    overrides_advice: bool,
}

impl ArmBuilder<'_> {
    fn push(&mut self, arm: TuningArm, file: Option<PathBuf>) {
        self.arms.push(arm);
        self.files.push(file);
    }

    /// Adds an arm of the first `region_count` regions of a ranking, with its plan file.
    fn push_plan(
        &mut self,
        ranking: &Ranking,
        region_count: usize,
        name: &str,
        selection: HugePageSelection,
        path: &Path,
    ) -> Result<HugePlan, Failure> {
        let planned = build_plan(self.profile, ranking, region_count, self.profile.huge, None);
        let planned = HugePlan { overrides_advice: self.overrides_advice, ..planned };
        write_plan(&planned, path, self.replaces_files)?;
        let shares = predict::compute_gain_shares(ranking, region_count);
        let in_permille = |share: f64| (share.min(1.0) * 1000.0).round() as u32;
        let permille = |of: fn(&GainShares) -> f64| shares.as_ref().map(of).map(in_permille);
        let arm = TuningArm {
            planned: u64::try_from(region_count).ok(),
            saved_ns: saved_ns(self.profile, ranking, region_count),
            share_permille: permille(|of| of.cost),
            walks_permille: permille(|of| of.walk_count),
            accesses_permille: shares.and_then(|of| of.accesses).map(in_permille),
            all_walks_ns: shares.and_then(|of| of.all_walks_ns).map(|ns| ns as u64),
            touched_permille: permille(|of| of.touched_memory),
            overrides_advice: self.overrides_advice,
            ..new_arm(name, selection)
        };
        self.push(arm, Some(path.to_owned()));
        Ok(planned)
    }

    /// Adds 8, 16, 32 … huge pages, each also at random and by accesses.
    fn push_curve(
        &mut self,
        request: &TuningRequest,
        ranking: &Ranking,
        planned: usize,
    ) -> Result<(), Failure> {
        let (most, plan_path) = (ranking.regions.len(), self.plan_path);
        let ask = |by| RankOptions { page: self.profile.huge, by, include_files: false };
        let random = rank_regions(self.profile, ask(RankBy::Random(request.seed)));
        let most_used = rank_regions(self.profile, ask(RankBy::Accesses));
        for n in curve_counts(most) {
            let path = |kind: &str| plan_path.with_extension(format!("{n}{kind}.toml"));
            // The plan itself is this point of the curve.
            if n != planned {
                self.push_plan(ranking, n, &format!("{n}"), HugePageSelection::Costliest, &path(""))?;
            }
            self.push_plan(&random, n, &format!("{n} random"), HugePageSelection::Random, &path("-random"))?;
            let (name, path) = (format!("{n} most used"), path("-most-used"));
            self.push_plan(&most_used, n, &name, HugePageSelection::MostUsed, &path)?;
        }
        output::print_note(&format!("curve: {} arms", self.arms.len()));
        Ok(())
    }
}

/// Numbers of huge pages of a curve: 8, 16, 32 … below those of all regions.
fn curve_counts(most: usize) -> impl Iterator<Item = usize> {
    let counts = std::iter::successors(Some(CURVE_FIRST), |n| n.checked_mul(2));
    counts.take_while(move |n| *n < most)
}

/// Writes a plan. An existing file with another content is refused unless it is replaced.
pub fn write_plan(plan: &HugePlan, path: &Path, replaces: bool) -> Result<(), Failure> {
    let text = plan_toml::write_plan(plan, &[]);
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    check_output(path, replaces)?.write(text.as_bytes())
}

/// Returns the saved time, only if the page walk cost is known; at least this, from a lower bound of misses.
fn saved_ns(profile: &TlbProfile, ranking: &Ranking, n: usize) -> Option<u64> {
    ranking.is_timed.then(|| (ranking.saving_at(n) * profile.lower_bound_factor() / 1000.0) as u64)
}

fn curve_points(ranking: &Ranking) -> Vec<CurvePoint> {
    let step = ranking.curve.len().div_ceil(POINTS_MAX).max(1);
    let last = ranking.curve.len().saturating_sub(1);
    let kept = ranking.curve.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
    kept.filter_map(|(_, of)| curve_point(ranking, of.pages)).collect()
}

fn curve_point(ranking: &Ranking, pages: usize) -> Option<CurvePoint> {
    let share_permille = (ranking.saving_share(pages)?.min(1.0) * 1000.0).round() as u32;
    Some(CurvePoint { pages: u64::try_from(pages).ok()?, share_permille })
}

fn knee_range(ranking: &Ranking) -> Option<KneeRange> {
    let knee = ranking.knee.ok()?;
    let share_permille = curve_point(ranking, knee.pages)?.share_permille;
    Some(KneeRange { low: knee.low as u64, high: knee.high as u64, share_permille })
}

/// Returns notes on the profile that affect the verdict.
fn profile_notes(profile: &TlbProfile, ranking: &Ranking) -> Vec<String> {
    let mut notes = profile.notes.clone();
    let unseen: u128 = ranking.mappings.iter().flat_map(|of| &of.unseen).map(|of| u128::from(of.1.0)).sum();
    if unseen > 0 {
        notes.push(format!(
            "{} were not visible to the profile source and are not planned: their cost is unknown; hint: use \
            --source exact, which observes all accesses",
            format_bytes(Bytes(u64::try_from(unseen).unwrap_or(u64::MAX)))
        ));
    }
    let mut add = |note: &str| notes.push(note.to_owned());
    match ranking.shape {
        CurveShape::Flat => {
            add("the profile is flat: all regions cost about the same, so a few huge pages gain little")
        }
        CurveShape::AllNeeded => add("most of the gain requires huge pages in nearly all touched regions"),
        // No misses that were seen are not no misses.
        CurveShape::NoGain if profile.source == ProfileSource::Accessed => {
            add("nothing to plan: the profile observed no misses. Accessed bits are scanned a few times per \
             second, and show little of a program that runs for a second or two; hint: use --source exact, \
             which observes every access")
        }
        CurveShape::NoGain => add("the profile has no misses that huge pages could save"),
        CurveShape::Knee | CurveShape::Gradual => {}
    }
    if !ranking.is_timed {
        add("the cost of a page walk has not been measured on this machine, so no time is predicted");
    }
    notes
}
