//! What a program pays on this machine when an accessed bit is set again: measured once a boot, which takes a
//! part of a second, kept in the cache folder, found there again.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pagelab_formats::checksum;
use pagelab_host::machine::live_page_size;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::Bytes;
use pagelab_model::machine::Machine;
use pagelab_model::profile::AccessedPrice;
use pagelab_packages::store;
use pagelab_report::utc::utc;
use pagelab_sys::clock;
use pagelab_target::accessed::price;

use crate::walk_cost;

/// Larger files are none of ours.
const FILE_MAX: u64 = 1 << 14;

/// The price that is kept, or one that is measured now with up to `room` bytes, or one that says that it was
/// assumed.
/// `reader` starts a child that calls `price::serve`.
pub fn at_hand(of: &Machine, room: Bytes, reader: Command) -> AccessedPrice {
    let key = key(of);
    if let Some(known) = known(&key) {
        return known;
    }
    let Some(page) = live_page_size() else { return price::assumed("the size of a page is not told") };
    let origin = format!("measured {} on {}", utc(clock::realtime_ns()), walk_cost::machine(of));
    match price::measure(reader, page, room, origin) {
        Ok(found) => {
            keep(&key, &found);
            found
        }
        Err(error) => price::assumed(&error.to_string()),
    }
}

/// A virtual machine may wake up on another host after each boot.
fn key(of: &Machine) -> String {
    let boot = Root::live().read(paths::BOOT_ID).unwrap_or_default();
    format!("{}, boot {}", walk_cost::machine(of), String::from_utf8_lossy(boot.trim_ascii()))
}

fn known(key: &str) -> Option<AccessedPrice> {
    let path = place(key)?;
    if fs::metadata(&path).ok()?.len() > FILE_MAX {
        return None;
    }
    let (of, found): (String, AccessedPrice) = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (of == key && is_sane(&found)).then_some(found)
}

fn is_sane(price: &AccessedPrice) -> bool {
    let rises = price.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
    rises && price.points.first().is_some_and(|point| point.1 > 0)
}

/// Without a place to keep it, it is measured again the next time.
fn keep(key: &str, found: &AccessedPrice) {
    let write = || {
        let place = place(key)?;
        fs::create_dir_all(place.parent()?).ok()?;
        let text = serde_json::to_string(&(key, found)).ok()?;
        let new = place.with_extension(std::process::id().to_string());
        fs::write(&new, text).and_then(|()| fs::rename(&new, &place)).ok()
    };
    let _ = write();
}

/// One file for each kind of machine: that of the boot before is written over.
fn place(key: &str) -> Option<PathBuf> {
    let machine = key.rsplit_once(", boot ").map_or(key, |(machine, _)| machine);
    let name = format!("accessed-price-{:08x}.json", checksum::crc32(machine.as_bytes()));
    Some(store::usual_folder()?.join(name))
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
