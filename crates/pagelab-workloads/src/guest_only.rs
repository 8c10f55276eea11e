//! Check for workloads that take memory from all other programs: they run in a guest of pagelab only.

use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::guest_marker;

use crate::WorkloadError;

/// An error if the kernel was not booted as a guest of pagelab. `action` is what the workload does, and
/// `command` its command line.
pub(crate) fn check_guest(root: &Root, action: &str, command: &str) -> Result<(), WorkloadError> {
    let hint = format!("hint: pagelab guest run -- workload {command}");
    let line = root.read(paths::KERNEL_CMDLINE).map_err(|absence| {
        WorkloadError::NotAvailable(format!("whether this is a guest is not known: {absence}; {hint}"))
    })?;
    match guest_marker::is_marked(&String::from_utf8_lossy(&line)) {
        true => Ok(()),
        false => Err(WorkloadError::NotAvailable(format!(
            "it {action}, so it runs in a guest of pagelab only, and this is none; {hint}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command_line: Option<&str>) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        if let Some(line) = command_line {
            std::fs::write(folder.path().join("proc/cmdline"), line).unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        let checked = check_guest(&root, "takes all memory", "hugetlb-capability");
        checked.map_err(|error| {
            assert!(matches!(error, WorkloadError::NotAvailable(_)), "{error:?}");
            error.to_string()
        })
    }

    #[test]
    fn a_machine_that_is_no_guest_is_refused_with_the_command_that_works() {
        assert_eq!(check(Some("quiet pagelab_guest=1 x=2\n")), Ok(()));
        for line in [Some("quiet\n"), Some(""), Some("pagelab_guest=0\n"), None] {
            let text = check(line).unwrap_err();
            assert!(text.contains("hint: pagelab guest run -- workload hugetlb-capability"), "{text}");
            assert!(line.is_none() || text.contains("takes all memory"), "{text}");
            assert!(line.is_some() || text.contains("cmdline"), "{text}");
        }
    }

    /// Tests run on machines that must not lose their memory.
    #[test]
    fn this_machine_is_no_guest() {
        assert!(check_guest(&Root::live(), "", "").is_err());
    }
}
