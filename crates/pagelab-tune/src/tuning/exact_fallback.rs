//! Fallback of a tuning from accessed bits to the modelled TLB, which observes every access.

use std::path::Path;
use std::time::Duration;

use pagelab_model::profile::{OwnAdvice, ProfileSource, UnseenReason};
use pagelab_model::{Bytes, TlbProfile};
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{format_bytes, format_plural};
use pagelab_tlb::plan::{RankBy, RankOptions, rank_regions};

use super::profiling::{self, ProfilingOptions};
use crate::profile::MissSource;
use pagelab_command::exit::Failure;
use pagelab_command::output;

/// A program that takes at most this long is modelled completely.
const FULL_PROFILE_MAX: Duration = Duration::from_secs(4);
/// One of this many accesses is modelled.
const ACCESS_SAMPLE_RATIO: u64 = 50;
/// Minimum number of windows in a run, each of which is a sample.
const WINDOWS_MIN: u64 = 64;
/// Accesses per second, between those of a chase (10 M) and of code that stays in the caches (500 M and
/// more): a slower program has fewer windows, a faster one more.
const ACCESSES_PER_SECOND: u64 = 150_000_000;
/// The accesses of a window and of the gap after it are a multiple of this.
const WINDOW_GRANULARITY: u64 = 1_000_000;
/// Range of the slow-down: QEMU itself and the windows, measured on hot-regions and python.
const SLOWDOWN_WITH_WINDOW: [u64; 2] = [2, 15];
/// Same without windows, measured on a chase and on hot-regions.
const SLOWDOWN_WITHOUT_WINDOW: [u64; 2] = [2, 50];

/// A profile is insufficient if more than this fraction (1/N) of the memory that is only read was not
/// scanned.
const UNSCANNED_DIVISOR: u64 = 8;

/// Returns why a profile by accessed bits has nothing to plan or shows too little; `None` if it is usable or
/// of another source.
pub fn unusable_reason(profile: &TlbProfile) -> Option<String> {
    if profile.source != ProfileSource::Accessed {
        return None;
    }
    if let Some((scanned, resident)) = profile.effort.partly_scanned {
        return Some(format!(
            "scans of accessed bits covered {} of the {} that were resident later",
            format_bytes(scanned),
            format_bytes(resident)
        ));
    }
    let ranking =
        rank_regions(profile, RankOptions { page: profile.huge, by: RankBy::Cost, include_files: false });
    let time = format_duration(profile.wall_ns);
    if ranking.attainable_saving() > 0.0 {
        let mappings = profile.images.iter().flat_map(|image| &image.mappings);
        let unseen = mappings.flat_map(|mapping| &mapping.unseen);
        let unscanned: u64 =
            unseen.filter(|part| part.why == UnseenReason::ZeroPage).map(|part| part.bytes.0).sum();
        let seen = (ranking.regions.len() as u64).saturating_mul(profile.huge.0);
        let all = seen.saturating_add(unscanned);
        return (profile.effort.zero_scans.is_some() && unscanned > all / UNSCANNED_DIVISOR).then(|| {
            format!(
                "accessed bits did not cover {} of the memory that the program only reads: in {time}, more \
                scans would have used more than 2 % of its run time",
                format_bytes(Bytes(unscanned))
            )
        });
    }
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    let beyond = &ranking.uncovered;
    Some(match (misses, coverage_text(profile)) {
        (0, None) => format!(
            "accessed bits were not scanned: scans may use 2 % of the run time, and {time} was too short"
        ),
        (0, Some(looks)) => format!("accessed bits showed no TLB misses in {time} ({looks})"),
        _ if ranking.regions.is_empty() && beyond.files > beyond.mapping_ends => {
            "all TLB misses estimated from accessed bits are in files and stacks, which tune does not plan"
                .to_owned()
        }
        _ if ranking.regions.is_empty() => format!(
            "no mapping with TLB misses estimated from accessed bits contains an aligned huge page of {}",
            format_bytes(profile.huge)
        ),
        _ => "estimated from accessed bits, huge pages would cost as much as they save".to_owned(),
    })
}

/// Describes the observations of a profile by accessed bits; `None`: no scan was made.
fn coverage_text(profile: &TlbProfile) -> Option<String> {
    let of = |number: Option<u64>, what: &str| {
        let number = number.filter(|number| *number > 0)?;
        Some(format_plural(number, what))
    };
    let sweeps = of(profile.effort.sweeps, "sweep");
    let scans = of(profile.effort.zero_scans, "scan").map(|scans| scans + " of the zero page");
    match (sweeps, scans) {
        (Some(sweeps), Some(scans)) => Some(format!("{sweeps} and {scans}")),
        (sweeps, scans) => sweeps.or(scans),
    }
}

/// Chooses the modelled accesses of a program from its time alone; `None`: all.
pub fn choose_window(native_time: Duration) -> Option<String> {
    if native_time <= FULL_PROFILE_MAX {
        return None;
    }
    let accesses =
        u64::try_from(native_time.as_millis()).unwrap_or(u64::MAX).saturating_mul(ACCESSES_PER_SECOND / 1000);
    let period = (accesses / WINDOWS_MIN).next_multiple_of(WINDOW_GRANULARITY);
    Some(format!("{}k/{}k", period / ACCESS_SAMPLE_RATIO / 1000, period / 1000))
}

/// Returns the profile for the plan: the given one, or one by `exact` if the given one shows too little. If
/// `exact` fails, reports that and returns the given one. Returns `None` after a signal.
pub fn profile_or_fall_back(
    profile: TlbProfile,
    words: &[String],
    profile_path: &Path,
    options: &mut ProfilingOptions<'_>,
) -> Result<Option<TlbProfile>, Failure> {
    let Some(why) = unusable_reason(&profile) else { return Ok(Some(profile)) };
    let alone = Duration::from_nanos(profile.wall_ns);
    options.window = choose_window(alone);
    let [least, most] = if options.window.is_some() { SLOWDOWN_WITH_WINDOW } else { SLOWDOWN_WITHOUT_WINDOW };
    let times = |by: u64| format_duration(profile.wall_ns.max(1_000_000).saturating_mul(by));
    let part = match &options.window {
        Some(window) => format!(", modelling one of {ACCESS_SAMPLE_RATIO} accesses (--window {window})"),
        None => String::new(),
    };
    output::warn(&format!(
        "note: {why}\n  continuing with --source exact{part}: {} to {} for a program that took {}, longer if \
        it computes with floating point\n  hint: use --source accessed to plan from accessed bits alone",
        times(least),
        times(most),
        format_duration(profile.wall_ns)
    ));
    match profiling::profile_command(MissSource::Exact, words, profile_path, options) {
        Ok(Some(mut exact)) => {
            exact.notes.push(format!("--source auto continued with exact: {why}"));
            join_advice(&mut exact, profile.own_advice());
            Ok(Some(exact))
        }
        Ok(None) => Ok(None),
        Err(failure) => {
            output::warn(&format!("warning: {failure}"));
            options.window = None;
            let mut profile = profile;
            profile.notes.push(format!("{why}; cannot continue with --source exact: {failure}"));
            Ok(Some(profile))
        }
    }
}

/// Completes the advice that the model saw by that of the kernel: QEMU has no userfaultfd.
fn join_advice(exact: &mut TlbProfile, seen: Option<OwnAdvice>) {
    let (Some(seen), Some(modelled)) = (seen, exact.own_advice()) else { return };
    let known = if modelled.refused.0 > 0 { modelled } else { seen };
    let joined = OwnAdvice {
        requested: modelled.requested.max(seen.requested),
        refused_userfaultfd: seen.refused_userfaultfd,
        disables_thp: modelled.disables_thp || seen.disables_thp,
        ..known
    };
    for (at, image) in exact.images.iter_mut().enumerate() {
        image.advice = (at == 0).then_some(joined);
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
            assert_eq!(coverage_text(&profile).as_deref(), said);
            let why = unusable_reason(&profile).unwrap();
            let is_told = said.map_or("were not scanned", |said| said);
            assert!(why.contains(is_told) && why.contains("1.50 s"), "{why}");
        }
    }

    fn profile() -> TlbProfile {
        TlbProfile {
            source: ProfileSource::Accessed,
            command: Vec::new(),
            page_size: pagelab_model::PageSize::DEFAULT,
            huge: Bytes(2 << 20),
            tlb: None,
            walk_cost: None,
            images: Vec::new(),
            wall_ns: 1_500_000_000,
            effort: pagelab_model::profile::ProfilingCost::default(),
            lost: 0,
            notes: Vec::new(),
            what_ifs: Vec::new(),
            exit: None,
        }
    }

    #[test]
    fn a_window_follows_from_the_time_alone() {
        let of = |ms: u64| choose_window(Duration::from_millis(ms));
        assert_eq!(of(0), None);
        assert_eq!(of(4000), None);
        assert_eq!(of(4100).as_deref(), Some("200k/10000k"));
        assert_eq!(of(22_500).as_deref(), Some("1060k/53000k"));
        assert!(choose_window(Duration::from_secs(u64::MAX / 2_000)).is_some());
    }
}
