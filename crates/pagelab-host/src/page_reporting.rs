//! Free page reporting: whether a hypervisor takes free memory back (mm/page_reporting.c, 5.7).
//!
//! A free block of the reporting order or larger is reported some two seconds after it was freed. Its first
//! touch then waits for the host, many times as long as the kernel takes to clear it. A reported block has
//! PG_reported, which is PG_uptodate (include/linux/page-flags.h); kpageflags shows that bit of free pages as
//! of others.

use std::os::unix::fs::FileExt;

use pagelab_model::machine::PageReporting;
use pagelab_model::{Bytes, Order, PageFlags, PageSize};

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// virtio's number of a memory balloon, and its feature bit VIRTIO_BALLOON_F_REPORTING
/// (include/uapi/linux/virtio_balloon.h).
const BALLOON_DEVICE_ID: &str = "0x0005";
const REPORTING_FEATURE_BIT: usize = 5;
/// The word of the kernel's command line.
const CMDLINE_PARAMETER: &str = "page_reporting.page_reporting_order=";
const DEVICES_MAX: usize = 64;
/// Blocks whose flags are read at most; of a larger machine every second, fourth … is read.
const FREE_BLOCKS_MAX: u64 = 1 << 16;
/// No kernel has larger orders.
const ORDER_MAX: u8 = 63;

/// Free page reporting of this machine; `None` if free pages are not reported.
///
/// The order alone is no proof if the command line sets it: it is set without a driver too. Without one it is
/// -1.
pub fn read(reader: &Reader<'_>, page_size: PageSize, orders: usize) -> Option<PageReporting> {
    let order = reader.root().read(paths::PAGE_REPORTING_ORDER).ok();
    let order = order.and_then(|text| String::from_utf8_lossy(&text).trim().parse::<u8>().ok());
    let order = order.filter(|&order| order <= ORDER_MAX);
    let requested_order = requested_order(&reader.read_line(paths::KERNEL_CMDLINE).unwrap_or_default());
    let device = find_reporting_balloon(reader);
    let reported = match reader.root().is_live() {
        true => order.and_then(|order| reported_bytes(reader.root(), page_size, Order(order), orders)),
        false => None,
    };
    let has_any = reported.is_some_and(|bytes| bytes.0 > 0);
    let is_set_by_a_driver =
        order.is_some_and(|order| order > 0 && requested_order != Some(i64::from(order)));
    let is_on = device.is_some() || has_any || is_set_by_a_driver;
    let requested_order =
        requested_order.filter(|&requested_order| Some(requested_order) != order.map(i64::from));
    is_on.then(|| PageReporting { order: order.map(Order), requested_order, device, reported })
}

/// The order that the kernel's command line asks for. One above the largest order is refused, and the order
/// of a pageblock taken in its place.
fn requested_order(cmdline: &str) -> Option<i64> {
    cmdline.split_whitespace().rev().find_map(|word| word.strip_prefix(CMDLINE_PARAMETER)?.parse().ok())
}

/// The balloon that reports free pages: the features that were agreed on, as a text of 0 and 1 from bit 0 on.
fn find_reporting_balloon(reader: &Reader<'_>) -> Option<String> {
    let root = reader.root();
    let line = |name: &str, file: &str| {
        let text = root.read(&format!("{}/{name}/{file}", paths::VIRTIO_DEVICES)).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    };
    let devices = root.list_dir(paths::VIRTIO_DEVICES).unwrap_or_default();
    devices.into_iter().take(DEVICES_MAX).find(|name| {
        line(name, "device").as_deref() == Some(BALLOON_DEVICE_ID)
            && line(name, "features")
                .is_some_and(|bits| bits.as_bytes().get(REPORTING_FEATURE_BIT) == Some(&b'1'))
    })
}

/// Free memory that was reported and not used since: the host may have reclaimed it. `None` where kpageflags
/// cannot be read. One word of each block of the reporting order is read, about ten milliseconds for 24 GiB.
pub fn reported_bytes(root: &Root, page_size: PageSize, order: Order, orders: usize) -> Option<Bytes> {
    let flags = root.open_regular_file(paths::KPAGEFLAGS).ok()?;
    let block = 1u64.checked_shl(u32::from(order.0))?;
    let largest = u32::try_from(orders.saturating_sub(1)).unwrap_or(0).max(u32::from(order.0));
    let largest = 1u64.checked_shl(largest)?;
    let entry = |frame: u64| {
        let mut word = [0; 8];
        flags.read_exact_at(&mut word, frame.checked_mul(8)?).ok()?;
        Some(PageFlags(u64::from_ne_bytes(word)))
    };
    // The file has no length: its end is searched in steps of the largest block.
    let end = (0..63)
        .map(|shift| largest << shift)
        .take_while(|at| *at < 1 << 50)
        .find(|&at| entry(at.saturating_sub(1)).is_none())?;
    let stride = (end / largest / FREE_BLOCKS_MAX.max(1)).max(1).next_power_of_two();
    let (mut blocks, mut next_frame) = (0u64, 0);
    'machine: while next_frame < end {
        let mut head_until = 0;
        for frame in (next_frame..next_frame + largest).step_by(usize::try_from(block).ok()?) {
            let Some(found) = entry(frame) else { break 'machine };
            let is_free = found.has_any(PageFlags::BUDDY);
            if is_free && found.has_any(PageFlags::UPTODATE) {
                // Free to the end of its alignment at most.
                head_until = frame + largest_alignment(frame, largest);
            } else if !is_free || frame >= head_until {
                head_until = 0;
            }
            blocks += u64::from(head_until > 0);
        }
        next_frame += largest.saturating_mul(stride);
    }
    let frames = blocks.saturating_mul(stride).saturating_mul(block);
    Some(Bytes(frames.saturating_mul(page_size.bytes())))
}

/// The largest power of two that divides a frame's number, up to `limit`.
fn largest_alignment(frame: u64, limit: u64) -> u64 {
    if frame == 0 { limit } else { (1 << frame.trailing_zeros()).min(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    const ORDER: &str = paths::PAGE_REPORTING_ORDER;

    fn check(files: &[(&str, &str)], expected: Option<(Option<u8>, Option<i64>, Option<&str>)>) {
        let tree = FakeTree::new(files);
        let root = tree.root();
        let found = read(&Reader::new(&root), PageSize::DEFAULT, 11);
        let found = found
            .as_ref()
            .map(|of| (of.order.map(|order| order.0), of.requested_order, of.device.as_deref()));
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn a_driver_or_a_device_reports_and_a_command_line_alone_does_not() {
        let cmdline = ("/proc/cmdline", "quiet page_reporting.page_reporting_order=11 console=ttyS0\n");
        let device = ("/sys/bus/virtio/devices/virtio0/device", "0x0005\n");
        let features = |bits: &'static str| ("/sys/bus/virtio/devices/virtio0/features", bits);
        check(&[], None);
        check(&[(ORDER, "-1\n")], None);
        check(&[(ORDER, "9\n")], Some((Some(9), None, None)));
        check(&[(ORDER, "11\n"), cmdline], None);
        // 11 is above the largest order of this kernel, which took a pageblock's.
        check(&[(ORDER, "9\n"), cmdline], Some((Some(9), Some(11), None)));
        check(&[(ORDER, "-1\n"), device, features("01100000\n")], None);
        check(
            &[(ORDER, "9\n"), device, features("01100101\n"), cmdline],
            Some((Some(9), Some(11), Some("virtio0"))),
        );
        check(&[device, features("0000\n")], None);
        check(&[(ORDER, "rubbish"), device, features("01100101")], Some((None, None, Some("virtio0"))));
    }

    #[test]
    fn reported_blocks_are_counted_with_their_tails() {
        let dir = tempfile::tempdir().unwrap();
        let (buddy, uptodate) = (1u64 << 10, 1u64 << 3);
        // Blocks of order 1, the largest of order 2: one of order 2 that is reported, one of order 1 that is
        // and one that is not, a used block, a reported one of order 1 before a used one.
        let words = [
            [buddy | uptodate, buddy, buddy, buddy],
            [buddy, buddy, buddy | uptodate, buddy],
            [uptodate, uptodate, buddy, buddy],
            [buddy | uptodate, buddy, 0, 0],
        ];
        let bytes: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let file = dir.path().join("proc");
        std::fs::create_dir_all(&file).unwrap();
        std::fs::write(file.join("kpageflags"), bytes).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let found = reported_bytes(&root, PageSize::DEFAULT, Order(1), 3);
        assert_eq!(found, Some(Bytes((4 + 2 + 2) * PageSize::DEFAULT.bytes())));
    }
}
