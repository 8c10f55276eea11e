//! Cost of setting an accessed bit again on this machine: measured once per boot, which takes less than a
//! second, and stored in the cache directory.

use std::process::Command;

use pagelab_host::machine::live_page_size;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use pagelab_model::machine::Machine;
use pagelab_model::profile::AccessedBitCost;
use pagelab_report::utc::format_utc;
use pagelab_sys::clock;
use pagelab_target::accessed::cost_calibration;

use crate::calibration_cache::CacheEntry;
use crate::walk_cost;

/// Returns the cached cost, or measures it with up to `buffer_max` bytes, or returns an assumed cost.
/// `reader` starts a child that calls `measure_walk_cost::serve`.
pub fn load_or_measure(hardware: &Machine, buffer_max: Bytes, reader: Command) -> AccessedBitCost {
    // Each boot of a virtual machine may be on another host.
    let boot = Root::live().read(paths::BOOT_ID).unwrap_or_default();
    let machine = walk_cost::machine_key(hardware);
    let key = format!("{machine}, boot {}", String::from_utf8_lossy(boot.trim_ascii()));
    let place = CacheEntry { name: "accessed-bit-cost", machine: &machine, key: &key };
    if let Some(known) = place.load().filter(is_plausible) {
        return known;
    }
    let Some(page) = live_page_size() else {
        return cost_calibration::assume_cost("the page size is unknown");
    };
    let origin = format!("measured {} on {}", format_utc(clock::realtime_ns()), machine);
    match cost_calibration::measure_cost(reader, page, buffer_max, origin) {
        Ok(found) => {
            place.save(&found);
            found
        }
        Err(error) => cost_calibration::assume_cost(&error.to_string()),
    }
}

fn is_plausible(cost: &AccessedBitCost) -> bool {
    let rises = cost.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
    rises && cost.points.first().is_some_and(|point| point.1 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falling_and_zero_costs_are_rejected() {
        let with = |points: &[(u64, u64)]| AccessedBitCost { points: points.to_vec(), origin: String::new() };
        assert!(is_plausible(&with(&[(1, 5), (2, 5), (3, 9)])));
        for bad in [&[][..], &[(1, 0)], &[(2, 5), (1, 6)], &[(1, 5), (2, 4)]] {
            assert!(!is_plausible(&with(bad)), "{bad:?}");
        }
    }
}
