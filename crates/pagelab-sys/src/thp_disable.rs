//! Whether this process has transparent huge pages switched off (`PR_GET_THP_DISABLE`, Linux 3.15).

/// What `prctl` says of transparent huge pages for this process; a parent hands it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpDisable {
    /// Not switched off.
    Off,
    /// Switched off wholly: `madvise` cannot get huge pages either.
    All,
    /// Switched off except where `madvise` asks (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    ExceptAdvised,
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of include/uapi/linux/prctl.h, as it is returned.
const EXCEPT_ADVISED: libc::c_int = 1 << 1;

/// The state of this process.
pub fn get() -> ThpDisable {
    // SAFETY: PR_GET_THP_DISABLE takes four zeros, touches no memory and returns flags or -1.
    // JUSTIFICATION: rustix has no face for this option of prctl.
    let flags = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    match flags {
        // A kernel without the option (before 3.15, or without THP) cannot have it switched off.
        ..=0 => ThpDisable::Off,
        set if set & EXCEPT_ADVISED != 0 => ThpDisable::ExceptAdvised,
        _ => ThpDisable::All,
    }
}

/// Switches transparent huge pages off for this process and the children it will have, or on again.
pub fn set(disable: bool) -> std::io::Result<()> {
    let disable = libc::c_ulong::from(disable);
    // SAFETY: PR_SET_THP_DISABLE takes one flag and three zeros, and touches no memory of ours.
    // JUSTIFICATION: rustix has no face for this option of prctl.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of include/uapi/linux/prctl.h, as it is given.
const ONLY_ADVISED: libc::c_ulong = 1 << 1;

/// Switches transparent huge pages off for this process and the children it will have, but where a program
/// asks by `madvise` (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18; before that it is EINVAL).
pub fn set_except_advised() -> std::io::Result<()> {
    // SAFETY: PR_SET_THP_DISABLE takes flags and zeros, and touches no memory of ours.
    // JUSTIFICATION: as in `set`.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, ONLY_ADVISED, 0, 0) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
