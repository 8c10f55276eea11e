//! Where accessed bits cannot see a program: tuning goes on with the modelled TLB, which sees every access.

use std::path::Path;
use std::time::Duration;

use pagelab_model::profile::{ProfileSource, UnseenWhy};
use pagelab_model::{Bytes, Profile};
use pagelab_report::quantity::duration;
use pagelab_report::style::bytes;
use pagelab_tlb::plan::{Ask, By, rank};

use super::profiling::{self, How};
use crate::cmd::profile::Source;
use crate::exit::Failure;
use crate::out;

/// A program that takes no longer is looked at from its begin to its end.
const WHOLE: Duration = Duration::from_secs(4);
/// Of so many accesses, one is looked at.
const SHARE: u64 = 50;
/// Stretches that are wanted of a run, of which each is a sample.
const STRETCHES: u64 = 64;
/// Accesses of a second, between those of a chase (10 M) and of code that stays in the caches (500 M and
/// more): a slower program has fewer stretches, a faster one more.
const ACCESSES_A_SECOND: u64 = 150_000_000;
/// Accesses of a stretch and of what follows it are a multiple of this.
const GRAIN: u64 = 1_000_000;
/// How many times as long a program takes as alone: QEMU itself and the stretches, measured on hot-regions
/// and python.
const WITH_WINDOW: [u64; 2] = [2, 15];
/// The same without a window, measured on a chase and on hot-regions.
const WITHOUT: [u64; 2] = [2, 50];

/// Where more than one part of so many of the memory that is only read was not looked at, it was too little.
const UNSCANNED_PART: u64 = 8;

/// Why a profile by accessed bits has nothing to plan, or shows too little for that; `None` if neither, or if
/// it is of another source.
pub fn why(profile: &Profile) -> Option<String> {
    if profile.source != ProfileSource::Accessed {
        return None;
    }
    let ranking = rank(profile, Ask { page: profile.huge, by: By::Cost, files: false });
    let time = duration(profile.wall_ns);
    if ranking.attainable() > 0.0 {
        let mappings = profile.images.iter().flat_map(|image| &image.mappings);
        let unseen = mappings.flat_map(|mapping| &mapping.unseen);
        let unscanned: u64 =
            unseen.filter(|part| part.why == UnseenWhy::ZeroPage).map(|part| part.bytes.0).sum();
        let seen = (ranking.regions.len() as u64).saturating_mul(profile.huge.0);
        let all = seen.saturating_add(unscanned);
        return (profile.effort.zero_scans.is_some() && unscanned > all / UNSCANNED_PART).then(|| {
            format!(
                "accessed bits did not show {} of the memory that the program reads and never writes: in \
                 {time} no more could be looked at for 2 % of its time",
                bytes(Bytes(unscanned))
            )
        });
    }
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let beyond = &ranking.beyond;
    Some(match (misses, looks(profile)) {
        (0, None) => format!(
            "accessed bits were not looked at: to clear and read them may cost the program 2 % of its time, \
             and {time} was too short for that"
        ),
        (0, Some(looks)) => format!("accessed bits showed no TLB miss in {time} ({looks})"),
        _ if ranking.regions.is_empty() && beyond.files > beyond.ends => {
            "all TLB misses that accessed bits showed are in files and stacks, for which tune plans no huge \
             pages"
                .to_owned()
        }
        _ if ranking.regions.is_empty() => format!(
            "no mapping in which accessed bits showed TLB misses has room for a whole huge page of {}",
            bytes(profile.huge)
        ),
        _ => "by the TLB misses that accessed bits showed, huge pages would cost as much as they save"
            .to_owned(),
    })
}

/// What a profile by accessed bits rests on; `None`: nothing was looked at.
fn looks(profile: &Profile) -> Option<String> {
    let of = |number: Option<u64>, what: &str| {
        let number = number.filter(|number| *number > 0)?;
        Some(format!("{number} {what}{}", if number == 1 { "" } else { "s" }))
    };
    let sweeps = of(profile.effort.sweeps, "sweep");
    let scans = of(profile.effort.zero_scans, "scan").map(|scans| scans + " of the zero page");
    match (sweeps, scans) {
        (Some(sweeps), Some(scans)) => Some(format!("{sweeps} and {scans}")),
        (sweeps, scans) => sweeps.or(scans),
    }
}

/// The accesses that are looked at of a program that takes so long alone; `None`: all.
pub fn window(alone: Duration) -> Option<String> {
    if alone <= WHOLE {
        return None;
    }
    let accesses =
        u64::try_from(alone.as_millis()).unwrap_or(u64::MAX).saturating_mul(ACCESSES_A_SECOND / 1000);
    let period = (accesses / STRETCHES).next_multiple_of(GRAIN);
    Some(format!("{}k/{}k", period / SHARE / 1000, period / 1000))
}

/// The profile that is planned from: the one that was made, or where that cannot see, one by `exact`. What
/// stands in its way is told, and then the first one is all there is. `None` after a signal.
pub fn go_on(
    profile: Profile,
    words: &[String],
    at: &Path,
    how: &mut How<'_>,
) -> Result<Option<Profile>, Failure> {
    let Some(why) = why(&profile) else { return Ok(Some(profile)) };
    let alone = Duration::from_nanos(profile.wall_ns);
    how.window = window(alone);
    let [least, most] = if how.window.is_some() { WITH_WINDOW } else { WITHOUT };
    let times = |by: u64| duration(profile.wall_ns.max(1_000_000).saturating_mul(by));
    let part = match &how.window {
        Some(window) => format!(", with one of {SHARE} accesses looked at (--window {window})"),
        None => String::new(),
    };
    out::complain(&format!(
        "pagelab: {why}\n  going on with --source exact{part}: {} to {} for a program that took {}, longer \
         if it computes with floating point\n  hint: --source accessed plans from what accessed bits showed",
        times(least),
        times(most),
        duration(profile.wall_ns)
    ));
    match profiling::make(Source::Exact, words, at, how) {
        Ok(Some(mut exact)) => {
            exact.notes.push(format!("--source auto went on with exact: {why}"));
            Ok(Some(exact))
        }
        Ok(None) => Ok(None),
        Err(failure) => {
            out::complain(&format!("pagelab: {failure}"));
            how.window = None;
            let mut profile = profile;
            profile.notes.push(format!("{why}; --source exact could not go on: {failure}"));
            Ok(Some(profile))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_told_by_its_kind() {
        let mut profile = profile();
        for (sweeps, scans, said) in [
            (None, None, None),
            (Some(0), None, None),
            (Some(1), None, Some("1 sweep")),
            (Some(0), Some(3), Some("3 scans of the zero page")),
            (Some(12), Some(1), Some("12 sweeps and 1 scan of the zero page")),
        ] {
            (profile.effort.sweeps, profile.effort.zero_scans) = (sweeps, scans);
            assert_eq!(looks(&profile).as_deref(), said);
            let why = why(&profile).unwrap();
            let is_told = said.map_or("were not looked at", |said| said);
            assert!(why.contains(is_told) && why.contains("1.50 s"), "{why}");
        }
    }

    fn profile() -> Profile {
        Profile {
            source: ProfileSource::Accessed,
            command: Vec::new(),
            page_size: pagelab_model::PageSize::USUAL,
            huge: Bytes(2 << 20),
            tlb: None,
            walk_cost: None,
            images: Vec::new(),
            wall_ns: 1_500_000_000,
            effort: pagelab_model::profile::Effort::default(),
            lost: 0,
            notes: Vec::new(),
            what_ifs: Vec::new(),
            exit: None,
        }
    }

    #[test]
    fn a_window_follows_from_the_time_alone() {
        let of = |ms: u64| window(Duration::from_millis(ms));
        assert_eq!(of(0), None);
        assert_eq!(of(4000), None);
        assert_eq!(of(4100).as_deref(), Some("200k/10000k"));
        assert_eq!(of(22_500).as_deref(), Some("1060k/53000k"));
        assert!(window(Duration::from_secs(u64::MAX / 2_000)).is_some());
    }
}
