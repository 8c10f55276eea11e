//! What a program pays on this machine when an accessed bit is set again: measured once a boot, which takes a
//! part of a second, kept in the cache folder, found there again.

use std::process::Command;

use pagelab_host::machine::live_page_size;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use pagelab_model::machine::Machine;
use pagelab_model::profile::AccessedPrice;
use pagelab_report::utc::utc;
use pagelab_sys::clock;
use pagelab_target::accessed::price;

use crate::kept_price::Place;
use crate::walk_cost;

/// The price that is kept, or one that is measured now with up to `room` bytes, or one that says that it was
/// assumed.
/// `reader` starts a child that calls `price::serve`.
pub fn at_hand(of: &Machine, room: Bytes, reader: Command) -> AccessedPrice {
    // A virtual machine may wake up on another host after each boot.
    let boot = Root::live().read(paths::BOOT_ID).unwrap_or_default();
    let machine = walk_cost::machine(of);
    let key = format!("{machine}, boot {}", String::from_utf8_lossy(boot.trim_ascii()));
    let place = Place { name: "accessed-price", machine: &machine, key: &key };
    if let Some(known) = place.known().filter(is_sane) {
        return known;
    }
    let Some(page) = live_page_size() else { return price::assumed("the size of a page is not told") };
    let origin = format!("measured {} on {}", utc(clock::realtime_ns()), machine);
    match price::measure(reader, page, room, origin) {
        Ok(found) => {
            place.keep(&found);
            found
        }
        Err(error) => price::assumed(&error.to_string()),
    }
}

fn is_sane(price: &AccessedPrice) -> bool {
    let rises = price.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
    rises && price.points.first().is_some_and(|point| point.1 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_that_falls_or_is_nothing_is_none_of_ours() {
        let with = |points: &[(u64, u64)]| AccessedPrice { points: points.to_vec(), origin: String::new() };
        assert!(is_sane(&with(&[(1, 5), (2, 5), (3, 9)])));
        for bad in [&[][..], &[(1, 0)], &[(2, 5), (1, 6)], &[(1, 5), (2, 4)]] {
            assert!(!is_sane(&with(bad)), "{bad:?}");
        }
    }
}
