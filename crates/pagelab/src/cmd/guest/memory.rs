//! Check whether this machine has enough memory for a guest.

use std::num::NonZero;

use pagelab_formats::{meminfo, mountinfo};
use pagelab_guest::config::GuestConfig;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, paths};
use pagelab_model::Bytes;
use pagelab_model::size::{format_argument, format_bytes, format_exact};

/// Memory of QEMU itself beside that of the guest: its code and the translated code of the guest.
const QEMU_OVERHEAD: Bytes = Bytes(256 << 20);
/// Memory reserved for all other processes of this machine.
const HOST_RESERVE: Bytes = Bytes(1 << 30);

/// Returns an error if this guest would leave less than the reserve. A guest may use all its memory and all
/// its DIMMs. If the available memory is unknown, it is not checked.
pub fn check_host_memory(guest: &GuestConfig) -> Result<(), String> {
    let [available, room] = read_host_memory();
    check_room(guest.total_memory(), guest.dimms.is_some(), available, room)
}

/// Returns how many guests of this size may run at the same time: as many as requested, else one for each CPU
/// if memory suffices. The error states the sum that is missing.
pub fn count_lanes(guest: Bytes, requested: Option<NonZero<usize>>) -> Result<NonZero<usize>, String> {
    let memory = read_host_memory();
    let cpus = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    fit_lanes(guest, requested, cpus, memory)
}

fn fit_lanes(
    guest: Bytes,
    requested: Option<NonZero<usize>>,
    cpus: NonZero<usize>,
    [available, room]: [Option<Bytes>; 2],
) -> Result<NonZero<usize>, String> {
    let fits = |lanes: NonZero<usize>| {
        let each = guest.0.saturating_add(QEMU_OVERHEAD.0);
        let beside = each.saturating_mul(lanes.get() as u64 - 1);
        let left = |memory: Option<Bytes>| memory.map(|memory| Bytes(memory.0.saturating_sub(beside)));
        check_room(guest, false, left(available), left(room))
    };
    let Some(lanes) = requested else {
        let most = (1..=cpus.get()).rev().filter_map(NonZero::new).find(|&lanes| fits(lanes).is_ok());
        return most.map_or_else(|| fits(NonZero::<usize>::MIN).map(|()| NonZero::<usize>::MIN), Ok);
    };
    fits(lanes).map(|()| lanes).map_err(|why| {
        if lanes.get() == 1 {
            return why;
        }
        let sum = guest.0.saturating_add(QEMU_OVERHEAD.0).saturating_mul(lanes.get() as u64);
        let have = [available, room].into_iter().flatten().min().map_or(String::new(), |memory| {
            format!("; {} is available, and {} is reserved", format_bytes(memory), format_bytes(HOST_RESERVE))
        });
        format!(
            "{lanes} guests with {} need {} including QEMU{have}; hint: use a smaller --lanes or --memory",
            format_exact(guest),
            format_bytes(Bytes(sum))
        )
    })
}

/// Available memory of this machine, and the room of this cgroup.
fn read_host_memory() -> [Option<Bytes>; 2] {
    let root = Root::live();
    let reader = Reader::new(&root);
    let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
    let available = meminfo.ok().and_then(|info| info.bytes("MemAvailable"));
    let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
    let room = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
    [available, room]
}

fn check_room(
    guest: Bytes,
    has_dimms: bool,
    available: Option<Bytes>,
    cgroup_room: Option<Bytes>,
) -> Result<(), String> {
    let (options, smaller) = match has_dimms {
        true => ("--memory and --dimms together", "--memory or --dimms"),
        false => ("--memory", "--memory"),
    };
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
             hint: use {options} up to {most}, or free memory",
            format_bytes(available)
        ));
    }
    match cgroup_room {
        Some(room) if room < wanted => Err(format!(
            "a guest with {size} needs {wants} including QEMU; this cgroup has {} left; hint: use a smaller \
             {smaller}, or raise the limit",
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
        assert_eq!(check_room(Bytes(512 << 20), false, gibibytes(4), None), Ok(()));
        assert_eq!(check_room(Bytes(512 << 20), false, None, None), Ok(()));
        let said = check_room(Bytes(4 << 30), false, gibibytes(4), None).unwrap_err();
        assert!(said.contains("4 GiB needs 4.25 GiB") && said.contains("up to 2816M"), "{said}");
        let said = check_room(Bytes(1 << 30), false, gibibytes(8), gibibytes(1)).unwrap_err();
        assert!(said.contains("this cgroup has 1 GiB left"), "{said}");
        let said = check_room(Bytes(4 << 30), true, gibibytes(4), None).unwrap_err();
        assert!(said.contains("use --memory and --dimms together up to 2816M"), "{said}");
        let said = check_room(Bytes(1 << 30), true, None, gibibytes(1)).unwrap_err();
        assert!(said.contains("use a smaller --memory or --dimms, or raise"), "{said}");
        assert!(check_room(Bytes(u64::MAX), false, gibibytes(8), None).is_err());
    }

    #[test]
    fn as_many_guests_run_as_fit_and_too_many_are_refused_with_the_sum() {
        let gibibytes = |n: u64| Some(Bytes(n << 30));
        let lanes = |n: usize| NonZero::new(n).unwrap();
        let fit = |requested, memory| fit_lanes(Bytes(1 << 30), requested, lanes(4), memory);
        assert_eq!(fit(None, [gibibytes(64), None]), Ok(lanes(4)));
        assert_eq!(fit(None, [None, None]), Ok(lanes(4)));
        // Two guests take 2.5 GiB beside the reserve of 1 GiB.
        assert_eq!(fit(None, [gibibytes(4), None]), Ok(lanes(2)));
        assert_eq!(fit(None, [gibibytes(64), Some(Bytes(3 << 29))]), Ok(lanes(1)));
        assert_eq!(fit(Some(lanes(7)), [gibibytes(64), None]), Ok(lanes(7)));
        let said = fit(Some(lanes(3)), [gibibytes(4), None]).unwrap_err();
        assert!(
            said.starts_with("3 guests with 1 GiB need 3.75 GiB including QEMU; 4 GiB is available"),
            "{said}"
        );
        assert!(fit(None, [gibibytes(2), None]).unwrap_err().contains("a guest with 1 GiB needs 1.25 GiB"));
    }
}
