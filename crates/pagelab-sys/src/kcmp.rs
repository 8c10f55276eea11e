//! Comparison of two threads: same address space, same descriptor table (kcmp, Linux 3.5).

use std::io;

/// Resource that two processes may share (`enum kcmp_type` of include/uapi/linux/kcmp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The address space.
    Memory = 1,
    /// The table of descriptors.
    Descriptors = 2,
}

/// Whether the threads or processes `a` and `b` have it in common. Needs the right to look into both; a
/// kernel without CONFIG_KCMP answers `ENOSYS`.
pub fn is_shared(resource: Resource, a: u32, b: u32) -> io::Result<bool> {
    let numbers = (a as libc::pid_t, b as libc::pid_t, resource as libc::c_int);
    // SAFETY: numbers alone. JUSTIFICATION: neither std nor rustix wraps kcmp.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, numbers.0, numbers.1, numbers.2, 0usize, 0usize) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer == 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_all_in_common_with_itself_and_nothing_with_its_child() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for resource in [Resource::Memory, Resource::Descriptors] {
            match is_shared(resource, own, own) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                    eprintln!("skipped: no-kcmp: the kernel has no kcmp");
                    break;
                }
                answer => assert!(answer.unwrap(), "{resource:?}"),
            }
            assert!(!is_shared(resource, own, child.id()).unwrap(), "{resource:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
