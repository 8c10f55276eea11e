//! THP opt-out of this process (`PR_GET_THP_DISABLE`, Linux 3.15).

use crate::wait::check_zero;

/// Setting of `prctl` for transparent huge pages of this process; children inherit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpDisable {
    /// Not switched off.
    Off,
    /// Switched off wholly: `madvise` cannot get huge pages either.
    All,
    /// Switched off except where `madvise` asks (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18).
    ExceptAdvised,
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of include/uapi/linux/prctl.h.
const EXCEPT_ADVISED: libc::c_int = 1 << 1;

/// The state of this process.
pub fn read_thp_disable() -> ThpDisable {
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
pub fn set_thp_disable(disable: bool) -> std::io::Result<()> {
    let disable = libc::c_ulong::from(disable);
    // SAFETY: PR_SET_THP_DISABLE takes one flag and three zeros, and touches no memory of this process.
    // JUSTIFICATION: rustix has no face for this option of prctl.
    check_zero(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, 0, 0, 0) })
}

/// Switches transparent huge pages off for this process and the children it will have, but where a program
/// asks by `madvise` (`PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18; before that it is EINVAL).
pub fn set_thp_except_advised() -> std::io::Result<()> {
    let (disable, flags) = (1 as libc::c_ulong, EXCEPT_ADVISED as libc::c_ulong);
    // SAFETY: PR_SET_THP_DISABLE takes flags and zeros, and touches no memory of this process.
    // JUSTIFICATION: as in `set_thp_disable`.
    check_zero(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, flags, 0, 0) })
}
