//! Check whether this machine has enough memory for a guest.

use pagelab_formats::{meminfo, mountinfo};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, paths};
use pagelab_model::Bytes;
use pagelab_model::size::{format_argument, format_bytes, format_exact};

/// Memory of QEMU itself beside that of the guest: its code and the translated code of the guest.
const QEMU_OVERHEAD: Bytes = Bytes(256 << 20);
/// Memory reserved for all other processes of this machine.
const HOST_RESERVE: Bytes = Bytes(1 << 30);

/// Returns an error if a guest of this size would leave less than the reserve. If the available memory is
/// unknown, it is not checked.
pub fn check_host_memory(guest: Bytes) -> Result<(), String> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let available = meminfo.ok().and_then(|info| info.bytes("MemAvailable"));
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let room = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
    check_room(guest, available, room)
}

fn check_room(guest: Bytes, available: Option<Bytes>, cgroup_room: Option<Bytes>) -> Result<(), String> {
    let wanted = Bytes(guest.0.saturating_add(QEMU_OVERHEAD.0));
    let (wants, size) = (format_bytes(wanted), format_exact(guest));
    let reserve = format_bytes(HOST_RESERVE);
    if let Some(available) = available
        && available.0 < wanted.0.saturating_add(HOST_RESERVE.0)
    {
        let most = format_argument(Bytes(
            (available.0.saturating_sub(QEMU_OVERHEAD.0 + HOST_RESERVE.0) >> 20) << 20,
        ));
        return Err(format!(
            "a guest with {size} needs {wants} including QEMU; {} is available, and {reserve} is reserved; \
             hint: use --memory up to {most}, or free memory",
            format_bytes(available)
        ));
    }
    match cgroup_room {
        Some(room) if room < wanted => Err(format!(
            "a guest with {size} needs {wants} including QEMU; this cgroup has {} left; hint: use a smaller \
             --memory, or raise the limit",
            format_bytes(room)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_does_not_fit_is_refused_with_what_there_is_and_the_way_out() {
        let gibibytes = |n: u64| Some(Bytes(n << 30));
        assert_eq!(check_room(Bytes(512 << 20), gibibytes(4), None), Ok(()));
        assert_eq!(check_room(Bytes(512 << 20), None, None), Ok(()));
        let said = check_room(Bytes(4 << 30), gibibytes(4), None).unwrap_err();
        assert!(said.contains("4 GiB needs 4.25 GiB") && said.contains("up to 2816M"), "{said}");
        let said = check_room(Bytes(1 << 30), gibibytes(8), gibibytes(1)).unwrap_err();
        assert!(said.contains("this cgroup has 1 GiB left"), "{said}");
        assert!(check_room(Bytes(u64::MAX), gibibytes(8), None).is_err());
    }
}
