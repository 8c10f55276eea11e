//! All built-in workloads.

use crate::Workload;

/// In the order in which they are listed.
pub const WORKLOADS: &[&Workload] = &[
    &crate::chase::WORKLOAD,
    &crate::hot_regions::WORKLOAD,
    &crate::gups::WORKLOAD,
    &crate::stream::WORKLOAD,
    &crate::quicksort::WORKLOAD,
    &crate::btree::WORKLOAD,
    &crate::hash::WORKLOAD,
    &crate::bfs::WORKLOAD,
    &crate::canneal::WORKLOAD,
    &crate::streamcluster::WORKLOAD,
    &crate::fmm::WORKLOAD,
    &crate::gc::WORKLOAD,
    &crate::mmap_access::WORKLOAD,
    &crate::alloc_storm::WORKLOAD,
    &crate::desktop::WORKLOAD,
];

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Kind, Options};

    #[test]
    fn every_workload_has_a_name_of_its_own_and_good_defaults() {
        for (at, workload) in WORKLOADS.iter().enumerate() {
            assert_eq!(WORKLOADS.iter().position(|other| other.name == workload.name), Some(at));
            Options::defaults(workload.options);
            let names: Vec<&str> = workload.options.iter().map(|head| head.name).collect();
            assert_eq!(&names[..2], ["size", "seed"], "{}", workload.name);
            assert_eq!(workload.options[0].kind, Kind::Size, "{}", workload.name);
            for text in [workload.about, workload.generator] {
                assert!(!text.is_empty() && text.is_ascii(), "{}: {text}", workload.name);
            }
        }
    }
}
