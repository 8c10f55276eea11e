//! Mappings of one process as the kernel prints them, with the readings that explain them. Unlike
//! `process_map` it needs no frame numbers, and so no more rights than the owner of the process has.

use pagelab_formats::{process_status, smaps};
use pagelab_model::process::Mapping;
use pagelab_model::{Absence, AbsenceReason, Reading};

use crate::paths;
use crate::reader::Reader;

/// Readings of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// The kernel's name for it (`comm`).
    pub name: Option<String>,
    /// Its mappings, by address; none of a kernel thread or an exited process.
    pub mappings: Vec<Mapping>,
    /// `THP_enabled` of its status (5.0): `false` after prctl(PR_SET_THP_DISABLE).
    pub thp_enabled: Option<bool>,
}

/// Reads it.
pub fn read(reader: &Reader<'_>, pid: u32) -> Reading<AddressSpace> {
    let gone = |absence: Absence| explain_absence(absence, "run as its owner, or as root");
    let name = reader.read_line(&paths::process_file(pid, "comm")).map_err(gone)?;
    let mappings = reader.parse(&paths::process_file(pid, "smaps"), smaps::parse).map_err(gone)?;
    let status = reader.parse(&paths::process_file(pid, "status"), process_status::parse).ok();
    let thp_enabled = status.and_then(|status| status.thp_enabled);
    Ok(AddressSpace { name: Some(name), mappings, thp_enabled })
}

/// Why a process cannot be read; `hint`: who may read it.
pub(crate) fn explain_absence(absence: Absence, hint: &str) -> Absence {
    match absence.why {
        AbsenceReason::NotThere => Absence { detail: "no such process".to_owned(), ..absence }
            .with_hint("list processes with `ps -e` or `pgrep NAME`"),
        AbsenceReason::NotPermitted => absence.with_hint(hint),
        _ => absence,
    }
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
        assert_eq!(absence.why, AbsenceReason::NotThere);
        assert!(absence.hint.is_some());
    }
}
