//! Whether plan and all override a program's own advice against huge pages.

use pagelab_contig::reserve::Reserve;
use pagelab_contig::thp_request::read_available_memory;
use pagelab_host::root::Root;
use pagelab_model::profile::OwnAdvice;
use pagelab_model::{Bytes, TlbProfile};
use pagelab_report::plan::describe_refusal;
use pagelab_report::style::format_bytes;
use pagelab_tlb::plan::Ranking;

/// What to do with a program's own advice against huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdvicePolicy {
    /// Override it where that needs little more memory, and nothing but speed depends on it.
    #[default]
    Auto,
    /// Respect it.
    Respect,
    /// Override it in any case.
    Override,
}

/// The decision on a program's own advice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdviceOverride {
    /// Whether plan and all override it.
    pub is_active: bool,
    /// What is done and why, for the user; `None` if the program refuses nothing.
    pub note: Option<String>,
}

/// Memory that huge pages may need, and that there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryForecast {
    /// All touched regions on huge pages.
    pub peak: Bytes,
    /// Available memory less the reserve; `None` if it cannot be read.
    pub headroom: Option<Bytes>,
}

impl MemoryForecast {
    /// Reads the available memory.
    pub fn read(profile: &TlbProfile, ranking: &Ranking) -> MemoryForecast {
        let root = Root::live();
        let available = read_available_memory(&root).ok();
        MemoryForecast {
            peak: Bytes((ranking.regions.len() as u64).saturating_mul(profile.huge.0)),
            headroom: available.map(|available| Reserve::read(&root).headroom(available)),
        }
    }
}

impl AdviceOverride {
    /// Decides for a program that is started for each trial. The forecast is read only where it decides.
    pub fn decide(
        policy: AdvicePolicy,
        advice: Option<OwnAdvice>,
        read_forecast: impl FnOnce() -> MemoryForecast,
    ) -> AdviceOverride {
        let Some(advice) = advice.filter(OwnAdvice::is_refusal) else {
            // A source that sees no advice cannot tell; the user may.
            return AdviceOverride {
                is_active: policy == AdvicePolicy::Override,
                ..AdviceOverride::default()
            };
        };
        let refusal = describe_refusal(&advice);
        let obstacle = match policy {
            AdvicePolicy::Respect => {
                return AdviceOverride {
                    note: Some(format!("{refusal}; no arm overrides that (--respect)")),
                    ..AdviceOverride::default()
                };
            }
            AdvicePolicy::Override => None,
            AdvicePolicy::Auto => find_obstacle(&advice, read_forecast),
        };
        match obstacle {
            Some(obstacle) => AdviceOverride {
                note: Some(format!("{refusal}; no arm overrides that: {obstacle}; hint: use --override")),
                ..AdviceOverride::default()
            },
            None => AdviceOverride {
                is_active: true,
                note: Some(format!(
                    "{refusal}; the arms plan and all override that, none does not; hint: use --respect to \
                     leave it in all arms"
                )),
            },
        }
    }
}

/// The note on a running process that refuses huge pages; `None` if it refuses none.
pub fn running_process_note(advice: Option<OwnAdvice>) -> Option<String> {
    let advice = advice.filter(OwnAdvice::is_refusal)?;
    let refusal = describe_refusal(&advice);
    Some(format!(
        "{refusal}; the advice of a running process is not overridden; hint: use `pagelab tune -- COMMAND`"
    ))
}

/// Why the advice is not overridden without a request; `None` if it may be.
fn find_obstacle(advice: &OwnAdvice, read_forecast: impl FnOnce() -> MemoryForecast) -> Option<String> {
    if advice.refused_userfaultfd.0 > 0 {
        let bytes = format_bytes(advice.refused_userfaultfd);
        return Some(format!("{bytes} of it is under userfaultfd, which handles faults of base pages"));
    }
    if advice.refused_sparse.0 > 0 {
        let bytes = format_bytes(advice.refused_sparse);
        return Some(format!("less than half of {bytes} of it is mapped, so memory could more than double"));
    }
    let MemoryForecast { peak, headroom } = read_forecast();
    let headroom = headroom?;
    (peak > headroom).then(|| {
        format!(
            "on huge pages its touched regions are {}, and {} is available above the reserve",
            format_bytes(peak),
            format_bytes(headroom)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Bytes = Bytes(1 << 30);
    const FORECAST: MemoryForecast = MemoryForecast { peak: GIB, headroom: Some(Bytes(2 << 30)) };

    fn refused() -> OwnAdvice {
        OwnAdvice { refused: GIB, ..OwnAdvice::default() }
    }

    /// Whether advice stays, so that some memory gets no huge pages.
    fn is_respected(decided: &AdviceOverride) -> bool {
        decided.note.is_some() && !decided.is_active
    }

    #[test]
    fn dense_memory_is_overridden_and_the_first_line_says_so() {
        let decided = AdviceOverride::decide(AdvicePolicy::Auto, Some(refused()), || FORECAST);
        assert!(decided.is_active && !is_respected(&decided));
        assert_eq!(
            decided.note.unwrap(),
            "the program refuses huge pages for 1 GiB (MADV_NOHUGEPAGE); the arms plan and all override that, \
             none does not; hint: use --respect to leave it in all arms"
        );
    }

    #[test]
    fn whatever_could_cost_more_than_speed_needs_a_request() {
        let cases = [
            (OwnAdvice { refused_sparse: GIB, ..refused() }, FORECAST, "less than half of 1 GiB"),
            (OwnAdvice { refused_userfaultfd: GIB, ..refused() }, FORECAST, "userfaultfd"),
            (refused(), MemoryForecast { peak: Bytes(3 << 30), ..FORECAST }, "available above the reserve"),
        ];
        for (advice, forecast, reason) in cases {
            let auto = AdviceOverride::decide(AdvicePolicy::Auto, Some(advice), || forecast);
            assert!(!auto.is_active && is_respected(&auto), "{auto:?}");
            let note = auto.note.unwrap();
            assert!(note.contains(reason) && note.ends_with("hint: use --override"), "{note}");
            assert!(AdviceOverride::decide(AdvicePolicy::Override, Some(advice), || forecast).is_active);
        }
        let respected = AdviceOverride::decide(AdvicePolicy::Respect, Some(refused()), || FORECAST);
        assert!(!respected.is_active && is_respected(&respected), "{respected:?}");
    }

    #[test]
    fn a_program_that_refuses_nothing_is_left_alone() {
        for advice in [None, Some(OwnAdvice { requested: GIB, ..OwnAdvice::default() })] {
            for policy in [AdvicePolicy::Auto, AdvicePolicy::Respect] {
                let decided = AdviceOverride::decide(policy, advice, || FORECAST);
                assert_eq!(decided, AdviceOverride::default());
            }
        }
        let disables = OwnAdvice { disables_thp: true, ..OwnAdvice::default() };
        let note = AdviceOverride::decide(AdvicePolicy::Auto, Some(disables), || FORECAST).note.unwrap();
        assert!(
            note.starts_with("the program disables huge pages for itself (PR_SET_THP_DISABLE)"),
            "{note}"
        );
    }
}
