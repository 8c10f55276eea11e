//! Check whether this machine has enough memory for a guest.

use std::num::NonZero;
use std::path::PathBuf;

use pagelab_formats::{meminfo, mountinfo};
use pagelab_guest::config::GuestConfig;
use pagelab_guest::disk;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{cgroup, paths};
use pagelab_model::Bytes;
use pagelab_model::size::{format_bytes, format_exact};

/// Memory of QEMU itself beside that of the guest: its code and the translated code of the guest.
const QEMU_OVERHEAD: Bytes = Bytes(256 << 20);
/// Memory reserved for all other processes of this machine.
const HOST_RESERVE: Bytes = Bytes(1 << 30);

/// Returns an error if this guest would leave less than the reserve. A guest may use all its memory, all its
/// DIMMs, and its disks if they are in memory. If the available memory is unknown, it is not checked.
pub fn check_host_memory(guest: &GuestConfig) -> Result<(), String> {
    check_room(&GuestNeed::new(guest), NonZero::<usize>::MIN, HostMemory::read())
}

/// Returns how many guests of these may run at the same time, the largest of them: as many as requested, else
/// one for each CPU if memory suffices. The error states the sum that is missing.
pub fn count_lanes<'c>(
    guests: impl Iterator<Item = &'c GuestConfig>,
    requested: Option<NonZero<usize>>,
) -> Result<NonZero<usize>, String> {
    let largest = guests.map(GuestNeed::new).max_by_key(|need| need.total());
    let cpus = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    largest.map_or(Ok(NonZero::<usize>::MIN), |need| fit_lanes(&need, requested, cpus, HostMemory::read()))
}

/// Memory of so many guests of these, the largest of them, with QEMU.
pub fn sum_of_lanes<'c>(guests: impl Iterator<Item = &'c GuestConfig>, lanes: NonZero<usize>) -> Bytes {
    let largest = guests.map(|guest| GuestNeed::new(guest).total()).max().unwrap_or(Bytes(0));
    Bytes(largest.0.saturating_mul(lanes.get() as u64))
}

fn fit_lanes(
    need: &GuestNeed,
    requested: Option<NonZero<usize>>,
    cpus: NonZero<usize>,
    memory: HostMemory,
) -> Result<NonZero<usize>, String> {
    if let Some(lanes) = requested {
        return check_room(need, lanes, memory).map(|()| lanes);
    }
    let mut sizes = (1..=cpus.get()).rev().filter_map(NonZero::new);
    let most = sizes.find(|&lanes| check_room(need, lanes, memory).is_ok());
    most.map_or_else(|| check_room(need, NonZero::<usize>::MIN, memory).map(|()| NonZero::<usize>::MIN), Ok)
}

/// What a guest may take of the memory of this machine.
#[derive(Clone, Debug, Default)]
struct GuestNeed {
    /// Memory and DIMMs.
    memory: Bytes,
    has_dimms: bool,
    /// Disks, with their directory, if it is in memory.
    disks: Option<(Bytes, PathBuf)>,
}

impl GuestNeed {
    fn new(guest: &GuestConfig) -> GuestNeed {
        let disks = guest.swap.map_or(0, |size| size.0).saturating_add(guest.disk.map_or(0, |size| size.0));
        let tmpfs = disk::find_tmpfs().filter(|_| disks > 0);
        GuestNeed {
            memory: guest.total_memory(),
            has_dimms: guest.dimms.is_some(),
            disks: tmpfs.map(|(dir, size)| (Bytes(disks.min(size.0)), dir)),
        }
    }

    /// With QEMU.
    fn total(&self) -> Bytes {
        let disks = self.disks.as_ref().map_or(0, |(size, _)| size.0);
        Bytes(self.memory.0.saturating_add(QEMU_OVERHEAD.0).saturating_add(disks))
    }
}

/// Memory that may be used.
#[derive(Clone, Copy, Debug, Default)]
struct HostMemory {
    /// Available on this machine.
    available: Option<Bytes>,
    /// Left in this cgroup.
    cgroup_room: Option<Bytes>,
}

impl HostMemory {
    fn read() -> HostMemory {
        let root = Root::live();
        let reader = Reader::new(&root);
        let meminfo = reader.parse(paths::MEMINFO, meminfo::parse);
        let available = meminfo.ok().and_then(|info| info.bytes("MemAvailable"));
        let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        let cgroup_room = cgroup::read(&reader, &mounts).ok().and_then(|group| group.memory_room);
        HostMemory { available, cgroup_room }
    }
}

/// The error names what does not suffice: the memory of the machine beside the reserve, or the cgroup.
fn check_room(need: &GuestNeed, lanes: NonZero<usize>, memory: HostMemory) -> Result<(), String> {
    let sum = Bytes(need.total().0.saturating_mul(lanes.get() as u64));
    let size = format_exact(need.memory);
    let mut wanted = match lanes.get() {
        1 => format!("a guest with {size} needs {} including QEMU", format_bytes(sum)),
        lanes => format!("{lanes} guests with {size} need {} including QEMU", format_bytes(sum)),
    };
    if let Some((disks, dir)) = &need.disks {
        let each = if lanes.get() == 1 { "" } else { " for each" };
        let disks = format_bytes(*disks);
        wanted.push_str(&format!(
            " and {disks} of disks{each}, which are in memory ({}, a tmpfs)",
            dir.display()
        ));
    }
    let smaller = match (lanes.get(), need.has_dimms) {
        (1, false) => "--memory",
        (1, true) => "--memory or --dimms",
        _ => "--lanes or --memory",
    };
    let other_dir = if need.disks.is_some() { ", or set TMPDIR to a directory on a disk" } else { "" };
    if let Some(available) = memory.available
        && available.0 < sum.0.saturating_add(HOST_RESERVE.0)
    {
        let most = available.0.saturating_sub(need.total().0 - need.memory.0 + HOST_RESERVE.0) >> 20;
        let hint = match (lanes.get(), need.has_dimms) {
            (1, _) if most == 0 => "free memory".to_owned(),
            (1, false) => format!("use --memory up to {most}M, or free memory"),
            (1, true) => format!("use --memory and --dimms together up to {most}M, or free memory"),
            _ => format!("use a smaller {smaller}"),
        };
        return Err(format!(
            "{wanted}; {} is available, and {} is reserved; hint: {hint}{other_dir}",
            format_bytes(available),
            format_bytes(HOST_RESERVE)
        ));
    }
    match memory.cgroup_room {
        Some(room) if room < sum => Err(format!(
            "{wanted}; the limit of this cgroup leaves {}; hint: use a smaller {smaller}, or raise the \
             limit{other_dir}",
            format_bytes(room)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(memory: u64) -> GuestNeed {
        GuestNeed { memory: Bytes(memory), ..GuestNeed::default() }
    }

    fn gibibytes(available: Option<u64>, cgroup_room: Option<u64>) -> HostMemory {
        let bytes = |of: Option<u64>| of.map(|of| Bytes(of << 30));
        HostMemory { available: bytes(available), cgroup_room: bytes(cgroup_room) }
    }

    fn lanes(n: usize) -> NonZero<usize> {
        NonZero::new(n).unwrap()
    }

    #[test]
    fn a_guest_that_does_not_fit_is_refused_with_what_there_is_and_the_way_out() {
        let check = |need: &GuestNeed, memory| check_room(need, lanes(1), memory);
        assert_eq!(check(&need(512 << 20), gibibytes(Some(4), None)), Ok(()));
        assert_eq!(check(&need(512 << 20), HostMemory::default()), Ok(()));
        let said = check(&need(4 << 30), gibibytes(Some(4), None)).unwrap_err();
        assert!(said.contains("4 GiB needs 4.25 GiB") && said.contains("up to 2816M"), "{said}");
        let said = check(&need(1 << 30), gibibytes(Some(8), Some(1))).unwrap_err();
        assert!(
            said.contains("the limit of this cgroup leaves 1 GiB; hint: use a smaller --memory,"),
            "{said}"
        );
        assert!(!said.contains("reserved"), "{said}");
        let dimms = |memory| GuestNeed { has_dimms: true, ..need(memory) };
        let said = check(&dimms(4 << 30), gibibytes(Some(4), None)).unwrap_err();
        assert!(said.contains("use --memory and --dimms together up to 2816M"), "{said}");
        let said = check(&dimms(1 << 30), gibibytes(None, Some(1))).unwrap_err();
        assert!(said.contains("use a smaller --memory or --dimms, or raise"), "{said}");
        assert!(check(&need(u64::MAX), gibibytes(Some(8), None)).is_err());
    }

    #[test]
    fn as_many_guests_run_as_fit_and_too_many_are_refused_with_the_sum() {
        let fit = |requested, memory| fit_lanes(&need(1 << 30), requested, lanes(4), memory);
        assert_eq!(fit(None, gibibytes(Some(64), None)), Ok(lanes(4)));
        assert_eq!(fit(None, HostMemory::default()), Ok(lanes(4)));
        // Two guests take 2.5 GiB beside the reserve of 1 GiB.
        assert_eq!(fit(None, gibibytes(Some(4), None)), Ok(lanes(2)));
        assert_eq!(fit(None, gibibytes(Some(64), Some(2))), Ok(lanes(1)));
        assert_eq!(fit(Some(lanes(7)), gibibytes(Some(64), None)), Ok(lanes(7)));
        let said = fit(Some(lanes(3)), gibibytes(Some(4), None)).unwrap_err();
        assert_eq!(
            said,
            "3 guests with 1 GiB need 3.75 GiB including QEMU; 4 GiB is available, and 1 GiB is reserved; \
             hint: use a smaller --lanes or --memory"
        );
        // The cgroup is the cause, although the machine has more.
        let said = fit(Some(lanes(3)), gibibytes(Some(64), Some(2))).unwrap_err();
        assert!(
            said.contains("; the limit of this cgroup leaves 2 GiB; hint: use a smaller --lanes"),
            "{said}"
        );
        assert!(
            fit(None, gibibytes(Some(2), None)).unwrap_err().contains("a guest with 1 GiB needs 1.25 GiB")
        );
    }

    #[test]
    fn disks_in_a_tmpfs_count_as_memory() {
        let disks = Some((Bytes(2 << 30), PathBuf::from("/run/x")));
        let need = GuestNeed { disks, ..need(1 << 30) };
        assert_eq!(fit_lanes(&need, None, lanes(4), gibibytes(Some(8), None)), Ok(lanes(2)));
        let said = fit_lanes(&need, Some(lanes(3)), lanes(4), gibibytes(Some(8), None)).unwrap_err();
        assert_eq!(
            said,
            "3 guests with 1 GiB need 9.75 GiB including QEMU and 2 GiB of disks for each, which are in \
             memory (/run/x, a tmpfs); 8 GiB is available, and 1 GiB is reserved; hint: use a smaller --lanes or \
             --memory, or set TMPDIR to a directory on a disk"
        );
    }
}
