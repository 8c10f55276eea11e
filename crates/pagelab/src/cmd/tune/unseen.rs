//! Where accessed bits cannot see a program: tuning goes on with the modelled TLB, which sees every access.

use std::path::Path;
use std::time::Duration;

use pagelab_model::Profile;
use pagelab_model::profile::ProfileSource;
use pagelab_report::quantity::duration;
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

/// Why a profile by accessed bits has nothing to plan; `None` if it has, or is of another source.
pub fn why(profile: &Profile) -> Option<String> {
    if profile.source != ProfileSource::Accessed {
        return None;
    }
    let ranking = rank(profile, Ask { page: profile.huge, by: By::Cost, files: false });
    if ranking.attainable() > 0.0 {
        return None;
    }
    let time = duration(profile.wall_ns);
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    Some(match (misses, profile.effort.sweeps.unwrap_or(0)) {
        (0, 0) => format!("accessed bits saw nothing of it: no sweep was earned in {time}"),
        (0, sweeps) => format!("accessed bits saw no miss of it in {sweeps} sweeps and {time}"),
        _ => "accessed bits saw misses of it in files and stacks alone, which are not planned".to_owned(),
    })
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
        Some(window) => format!(", {window} of its accesses looked at"),
        None => String::new(),
    };
    out::complain(&format!(
        "pagelab: {why}\n  going on with --source exact{part}: {} to {} for a program that took {}, longer \
         where it computes with floating point; --source accessed leaves that out",
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
    fn a_window_follows_from_the_time_alone() {
        let of = |ms: u64| window(Duration::from_millis(ms));
        assert_eq!(of(0), None);
        assert_eq!(of(4000), None);
        assert_eq!(of(4100).as_deref(), Some("200k/10000k"));
        assert_eq!(of(22_500).as_deref(), Some("1060k/53000k"));
        assert!(window(Duration::from_secs(u64::MAX / 2_000)).is_some());
    }
}
