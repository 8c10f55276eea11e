//! Whether this machine has the memory for a guest.

use pagelab_formats::{meminfo, mountinfo};
use pagelab_guest::shape::show;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, paths};
use pagelab_model::Bytes;
use pagelab_report::style::bytes;

/// What QEMU itself takes beside the guest's memory: its code, and what it makes of the guest's.
const QEMU: Bytes = Bytes(256 << 20);
/// What stays for everybody else on this machine.
const RESERVE: Bytes = Bytes(1 << 30);

/// An error if a guest of this size would leave less than the reserve. A machine that does not say what it
/// has is not asked further.
pub fn check(guest: Bytes) -> Result<(), String> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let available = meminfo.ok().and_then(|info| info.bytes("MemAvailable"));
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let room = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
    enough(guest, available, room)
}

fn enough(guest: Bytes, available: Option<Bytes>, room: Option<Bytes>) -> Result<(), String> {
    let wanted = Bytes(guest.0.saturating_add(QEMU.0));
    let (wants, size) = (bytes(wanted), show(guest));
    let reserve = bytes(RESERVE);
    if let Some(available) = available
        && available.0 < wanted.0.saturating_add(RESERVE.0)
    {
        let most = show(Bytes((available.0.saturating_sub(QEMU.0 + RESERVE.0) >> 20) << 20));
        return Err(format!(
            "a guest of {size} wants {wants} with QEMU, and {} are available here, of which {reserve} stay \
             for others: --memory up to {most}, or end other programs",
            bytes(available)
        ));
    }
    match room {
        Some(room) if room < wanted => Err(format!(
            "a guest of {size} wants {wants} with QEMU, and this control group has room for {}: a smaller \
             --memory, or a larger limit",
            bytes(room)
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
        assert_eq!(enough(Bytes(512 << 20), gibibytes(4), None), Ok(()));
        assert_eq!(enough(Bytes(512 << 20), None, None), Ok(()));
        let said = enough(Bytes(4 << 30), gibibytes(4), None).unwrap_err();
        assert!(said.contains("4 GiB wants 4.25 GiB") && said.contains("up to 2816 MiB"), "{said}");
        let said = enough(Bytes(1 << 30), gibibytes(8), gibibytes(1)).unwrap_err();
        assert!(said.contains("this control group has room for 1 GiB"), "{said}");
        assert!(enough(Bytes(u64::MAX), gibibytes(8), None).is_err());
    }
}
