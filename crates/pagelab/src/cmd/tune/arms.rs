//! From a profile to the arms that are measured: what is planned, what the profile expects of it, and the
//! plan files of all arms.

use std::path::{Path, PathBuf};

use pagelab_formats::plan_toml;
use pagelab_model::gain::Shares;
use pagelab_model::profile::{MappingKind, ProfileSource};
use pagelab_model::tune::{Arm, CurvePoint, On, Tune};
use pagelab_model::{Bytes, HugePlan, Profile};
use pagelab_report::style::bytes;
use pagelab_tlb::plan::{Ask, By, Ranking, Shape, plan, predict, rank};

use super::Args;
use crate::exit::{Exit, Failure};
use crate::out;

/// Points of the predicted curve that are kept.
const POINTS_MAX: usize = 256;
/// The first number of huge pages of a measured curve, which doubles from there.
const CURVE_FIRST: usize = 8;

/// What is measured.
pub struct Chosen {
    /// How it was chosen.
    pub tune: Tune,
    /// The plan of each arm, where it has one.
    pub files: Vec<Option<PathBuf>>,
}

/// Chooses the arms, and writes their plans.
pub fn choose(args: &Args, profile: &Profile, plan_path: &Path) -> Result<Chosen, Failure> {
    let page = profile.huge;
    let ranking = rank(profile, Ask { page, by: By::Cost, files: false });
    let wanted = ranking.count(args.size.wanted(), page);
    let most = ranking.regions.len();
    let is_planned = wanted > 0 && ranking.attainable() > 0.0;
    let mut chosen = Choice { profile, arms: Vec::new(), files: Vec::new(), plan_path };
    chosen.put(Arm { planned: Some(0), ..arm("none", On::Nothing) }, None);
    let mut planned = HugePlan {
        source: Some(profile.source),
        command: profile.command.clone(),
        predicted: None,
        programs: Vec::new(),
    };
    if is_planned {
        planned = chosen.plan(&ranking, wanted, "plan", On::Plan, plan_path)?;
    }
    let all = Arm {
        share_permille: Some(1000),
        walks_permille: Some(1000),
        touched_permille: Some(1000),
        ..arm("all", On::All)
    };
    chosen.put(Arm { saved_ns: saved_ns(&ranking, most), ..all }, None);
    if args.curve {
        chosen.curve(args, &ranking, wanted)?;
    }
    let tune = Tune {
        asked: args.size.words(),
        plan_file: if is_planned { plan_path.display().to_string() } else { String::new() },
        plan: planned,
        huge: page.0,
        arms: chosen.arms,
        after: None,
        curve: points(&ranking),
        knee: match ranking.shape {
            Shape::Knee(pages) => u64::try_from(pages).ok(),
            _ => None,
        },
        pid: None,
        notes: notes(profile, &ranking),
    };
    Ok(Chosen { tune, files: chosen.files })
}

/// The same for a process that runs: none, what the plan has of `there`, and all of it.
pub fn choose_placed(
    args: &Args,
    profile: &Profile,
    there: usize,
    plan_path: &Path,
) -> Result<Chosen, Failure> {
    let mut chosen = choose(args, profile, plan_path)?;
    for arm in chosen.tune.arms.iter_mut().filter(|arm| arm.on == On::All) {
        arm.planned = u64::try_from(there).ok();
    }
    Ok(chosen)
}

/// The addresses of the regions of a plan whose profile is of the process that still runs.
pub fn addresses(plan: &HugePlan) -> std::collections::BTreeSet<u64> {
    let mappings = plan.programs.iter().flat_map(|program| &program.mappings);
    let of = |mapping: &pagelab_model::huge_plan::PlannedMapping| {
        let base = pagelab_tlb::grid::base(&mapping.key, mapping.start);
        let regions: Vec<u64> =
            mapping.regions.iter().map(|region| base.saturating_add(region.offset)).collect();
        regions
    };
    mappings.flat_map(of).collect()
}

/// Whether memory that is planned is known by where it lay alone.
pub fn is_by_address(plan: &HugePlan) -> bool {
    let mut mappings = plan.programs.iter().flat_map(|program| &program.mappings);
    mappings.any(|mapping| mapping.key.kind == MappingKind::Placed)
}

/// The arms that there are before anything is known.
pub fn unplanned(plan: &Path) -> (Vec<Arm>, Vec<Option<PathBuf>>) {
    let arms = vec![arm("none", On::Nothing), arm("plan", On::Plan), arm("all", On::All)];
    (arms, vec![None, Some(plan.to_owned()), None])
}

/// One of which nothing is known yet.
pub fn arm(name: &str, on: On) -> Arm {
    Arm {
        name: name.to_owned(),
        on,
        planned: None,
        saved_ns: None,
        share_permille: None,
        walks_permille: None,
        accesses_permille: None,
        all_walks_ns: None,
        touched_permille: None,
    }
}

/// What was chosen so far.
struct Choice<'c> {
    profile: &'c Profile,
    arms: Vec<Arm>,
    files: Vec<Option<PathBuf>>,
    plan_path: &'c Path,
}

impl Choice<'_> {
    fn put(&mut self, arm: Arm, file: Option<PathBuf>) {
        self.arms.push(arm);
        self.files.push(file);
    }

    /// An arm of the first `n` regions of a ranking, with its plan's file.
    fn plan(
        &mut self,
        ranking: &Ranking,
        n: usize,
        name: &str,
        on: On,
        path: &Path,
    ) -> Result<HugePlan, Failure> {
        let planned = plan(self.profile, ranking, n, self.profile.huge, None);
        write(&planned, path)?;
        let shares = predict::shares(ranking, n);
        let in_permille = |share: f64| (share.min(1.0) * 1000.0).round() as u32;
        let permille = |of: fn(&Shares) -> f64| shares.as_ref().map(of).map(in_permille);
        let arm = Arm {
            planned: u64::try_from(n).ok(),
            saved_ns: saved_ns(ranking, n),
            share_permille: permille(|of| of.cost),
            walks_permille: permille(|of| of.walks),
            accesses_permille: shares.and_then(|of| of.accesses).map(in_permille),
            all_walks_ns: shares.and_then(|of| of.walks_ns).map(|ns| ns as u64),
            touched_permille: permille(|of| of.touched),
            ..arm(name, on)
        };
        self.put(arm, Some(path.to_owned()));
        Ok(planned)
    }

    /// 8, 16, 32 … huge pages, and as many by chance and by use.
    fn curve(&mut self, args: &Args, ranking: &Ranking, planned: usize) -> Result<(), Failure> {
        let most = ranking.regions.len();
        let ask = |by| Ask { page: self.profile.huge, by, files: false };
        let by_chance = rank(self.profile, ask(By::Random(args.seed)));
        let by_use = rank(self.profile, ask(By::Accesses));
        let counts = std::iter::successors(Some(CURVE_FIRST), |n| n.checked_mul(2));
        for n in counts.take_while(|n| *n < most) {
            let path = |kind: &str| self.plan_path.with_extension(format!("{n}{kind}.toml"));
            let (dearest, chance, used) = (path(""), path("-by-chance"), path("-by-use"));
            // The plan itself is that point of the curve.
            if n != planned {
                self.plan(ranking, n, &format!("{n}"), On::Dearest, &dearest)?;
            }
            self.plan(&by_chance, n, &format!("{n} by chance"), On::Random, &chance)?;
            self.plan(&by_use, n, &format!("{n} by use"), On::MostUsed, &used)?;
        }
        out::note(&format!("curve: {} arms", self.arms.len()));
        Ok(())
    }
}

/// Writes a plan, where it is not there already.
pub fn write(plan: &HugePlan, path: &Path) -> Result<(), Failure> {
    let text = plan_toml::write(plan, &[]);
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| {
        let text = format!("the plan cannot be written to {}", path.display());
        Failure::new(Exit::Partial, text).because(error)
    })
}

/// Only where a walk has a price.
fn saved_ns(ranking: &Ranking, n: usize) -> Option<u64> {
    ranking.timed.then(|| (ranking.saved(n) / 1000.0) as u64)
}

fn points(ranking: &Ranking) -> Vec<CurvePoint> {
    let step = ranking.curve.len().div_ceil(POINTS_MAX).max(1);
    let last = ranking.curve.len().saturating_sub(1);
    let kept = ranking.curve.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
    let point = |pages: usize| {
        let share_permille = (ranking.share(pages)?.min(1.0) * 1000.0).round() as u32;
        Some(CurvePoint { pages: u64::try_from(pages).ok()?, share_permille })
    };
    kept.filter_map(|(_, of)| point(of.pages)).collect()
}

/// What the profile says that changes how the verdict is to be read.
fn notes(profile: &Profile, ranking: &Ranking) -> Vec<String> {
    let mut notes = profile.notes.clone();
    let unseen: u128 = ranking.mappings.iter().flat_map(|of| &of.unseen).map(|of| u128::from(of.1.0)).sum();
    if unseen > 0 {
        notes.push(format!(
            "{} could not be seen by the profile's source and are not planned: nothing is known of their \
             cost; --source exact sees all of a program's accesses",
            bytes(Bytes(u64::try_from(unseen).unwrap_or(u64::MAX)))
        ));
    }
    match ranking.shape {
        Shape::Flat => notes.push(
            "the profile is flat: each region costs about as much as any other, so few bring little"
                .to_owned(),
        ),
        Shape::AllNeeded => notes.push("nearly all touched regions are needed for most of it".to_owned()),
        // No misses that were seen are not no misses.
        Shape::Nothing if profile.source == ProfileSource::Accessed => notes.push(
            "nothing is planned: the profile saw no misses. Accessed bits are looked at a few times a \
             second, and show little of a program of a second or two; --source exact sees every access"
                .to_owned(),
        ),
        Shape::Nothing => notes.push("the profile has no misses that huge pages could save".to_owned()),
        Shape::Knee(_) => {}
    }
    if !ranking.timed {
        notes.push("a page walk has no price on this machine yet, so no time is predicted".to_owned());
    }
    notes
}
