//! The mappings of one process as the kernel prints them, with what it takes to explain them. Unlike
//! `process_map` it needs no frame numbers, and so no more rights than the owner of the process has.

use pagelab_formats::{smaps, status};
use pagelab_model::process::Mapping;
use pagelab_model::{Absence, AbsentWhy, Reading};

use crate::paths;
use crate::reader::Reader;

/// What was read of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// The kernel's name for it (`comm`).
    pub name: Option<String>,
    /// Its mappings, by address; none of a kernel thread or a process that has ended.
    pub mappings: Vec<Mapping>,
    /// `THP_enabled` of its status (5.0): `false` after prctl(PR_SET_THP_DISABLE).
    pub thp_enabled: Option<bool>,
}

/// Reads it.
pub fn read(reader: &Reader<'_>, pid: u32) -> Reading<AddressSpace> {
    let gone = |absence: Absence| match absence.why {
        AbsentWhy::NotThere => Absence { detail: "there is no such process".to_owned(), ..absence }
            .or("`ps -e` and `pgrep NAME` list those there are"),
        AbsentWhy::NotPermitted => absence.or("run as its owner, or as root"),
        _ => absence,
    };
    let name = reader.line(&paths::process(pid, "comm")).map_err(gone)?;
    let mappings = reader.parse(&paths::process(pid, "smaps"), smaps::parse).map_err(gone)?;
    let status = reader.parse(&paths::process(pid, "status"), status::parse).ok();
    let thp_enabled = status.and_then(|status| status.thp_enabled);
    Ok(AddressSpace { name: Some(name), mappings, thp_enabled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;

    #[test]
    fn this_process_has_a_stack_and_a_number_without_process_is_absent() {
        let root = Root::live();
        let reader = Reader::new(&root);
        let space = read(&reader, std::process::id()).unwrap();
        assert!(space.mappings.iter().any(|mapping| mapping.name == "[stack]"), "{space:?}");
        let absence = read(&reader, u32::MAX).unwrap_err();
        assert_eq!(absence.why, AbsentWhy::NotThere);
        assert!(absence.way_out.is_some());
    }
}
