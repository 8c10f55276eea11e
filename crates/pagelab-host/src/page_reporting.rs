//! Free page reporting: whether a hypervisor takes free memory back (mm/page_reporting.c, 5.7).
//!
//! A free block of the reporting order or larger is reported some two seconds after it was freed. Its first
//! touch then waits for the host, many times as long as the kernel takes to clear it. A reported block has
//! PG_reported, which is PG_uptodate (include/linux/page-flags.h); kpageflags shows that bit of free pages as
//! of others.

use std::os::unix::fs::FileExt;

use pagelab_formats::buddyinfo;
use pagelab_model::machine::PageReporting;
use pagelab_model::{Bytes, Order, PageFlags, PageSize};

use crate::paths;
use crate::reader::Reader;
use crate::root::Root;

/// virtio's number of a memory balloon, and its feature bit VIRTIO_BALLOON_F_REPORTING
/// (include/uapi/linux/virtio_balloon.h).
const BALLOON_DEVICE_ID: &str = "0x0005";
const REPORTING_FEATURE_BIT: usize = 5;
/// The class of Hyper-V's balloon (include/linux/hyperv.h, HV_DM_GUID), and its driver, which reports free
/// pages since 5.14 (drivers/hv/hv_balloon.c).
const HYPERV_BALLOON_CLASS: &str = "{525074dc-8985-46e2-8057-a307dc18a502}";
const HYPERV_BALLOON_DRIVER: &str = "hv_balloon";
/// The word of the kernel's command line.
const CMDLINE_PARAMETER: &str = "page_reporting.page_reporting_order=";
const DEVICES_MAX: usize = 64;
/// Blocks whose flags are read at most; of a larger machine every second, fourth … is read.
const FREE_BLOCKS_MAX: u64 = 1 << 16;
/// No kernel has larger orders.
const ORDER_MAX: u8 = 63;

/// What `page_reporting_order` states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatedOrder {
    /// Blocks of this order and larger are reported, if a driver is registered.
    Reported(Order),
    /// No block is reported: no zone has blocks of that order.
    Never,
    /// The kernel does not state it (before 5.14), or the file is malformed.
    Unknown,
}

/// Free page reporting of this machine; `None` if free pages are not reported.
///
/// The order alone is no evidence. Before 6.2 it is MAX_ORDER by default, which was one above the largest
/// order then, and means never; later it is -1. The command line or root can set it without a driver. So a
/// device must receive the reports, or free blocks must carry the mark of a report.
pub fn read(reader: &Reader<'_>, page_size: PageSize) -> Option<PageReporting> {
    let orders = read_order_count(reader);
    let order = match read_stated_order(reader, orders) {
        StatedOrder::Reported(order) => Some(order),
        StatedOrder::Never => return None,
        StatedOrder::Unknown => None,
    };
    let requested_order = requested_order(&reader.read_line(paths::KERNEL_CMDLINE).unwrap_or_default());
    let is_requested = requested_order.is_some() && requested_order == order.map(|order| i64::from(order.0));
    // Hyper-V's balloon registers only where the host supports the hint, which no file states. The order that
    // the driver has set does.
    let is_set_by_a_driver = order.is_some() && !is_requested;
    let device =
        find_reporting_balloon(reader).or_else(|| find_hyperv_balloon(reader).filter(|_| is_set_by_a_driver));
    let reported = match reader.root().is_live() {
        true => order.and_then(|order| reported_bytes(reader.root(), page_size, order, orders.unwrap_or(0))),
        false => None,
    };
    let has_any = reported.is_some_and(|bytes| bytes.0 > 0);
    let requested_order = requested_order.filter(|_| !is_requested);
    (device.is_some() || has_any).then_some(PageReporting { order, requested_order, device, reported })
}

/// The number of orders of the largest zone list; `None` if buddyinfo is not readable.
fn read_order_count(reader: &Reader<'_>) -> Option<usize> {
    let info = buddyinfo::parse(&reader.root().read(paths::BUDDYINFO).ok()?).ok()?;
    info.zones.iter().map(|zone| zone.areas.orders()).max().filter(|&orders| orders > 0)
}

fn read_stated_order(reader: &Reader<'_>, orders: Option<usize>) -> StatedOrder {
    let Ok(text) = reader.root().read(paths::PAGE_REPORTING_ORDER) else { return StatedOrder::Unknown };
    let Ok(stated) = String::from_utf8_lossy(&text).trim().parse::<i64>() else {
        return StatedOrder::Unknown;
    };
    let order_max = orders.and_then(|orders| u8::try_from(orders - 1).ok()).unwrap_or(ORDER_MAX);
    match u8::try_from(stated) {
        Ok(order) if order <= order_max.min(ORDER_MAX) => StatedOrder::Reported(Order(order)),
        _ => StatedOrder::Never,
    }
}

/// The order that the kernel's command line asks for. One above the largest order is refused, and the order
/// of a pageblock taken in its place.
fn requested_order(cmdline: &str) -> Option<i64> {
    cmdline.split_whitespace().rev().find_map(|word| word.strip_prefix(CMDLINE_PARAMETER)?.parse().ok())
}

/// The virtio balloon that reports free pages. `features` has those that were agreed on, as a text of 0 and 1
/// from bit 0 on.
fn find_reporting_balloon(reader: &Reader<'_>) -> Option<String> {
    let line = |name: &str, file: &str| read_device_line(reader, paths::VIRTIO_DEVICES, name, file);
    let devices = reader.root().list_dir(paths::VIRTIO_DEVICES).unwrap_or_default();
    devices.into_iter().take(DEVICES_MAX).find(|name| {
        line(name, "device").as_deref() == Some(BALLOON_DEVICE_ID)
            && line(name, "features")
                .is_some_and(|bits| bits.as_bytes().get(REPORTING_FEATURE_BIT) == Some(&b'1'))
    })
}

/// The name of the driver of Hyper-V's balloon, if there is one; the device's own name is a GUID.
fn find_hyperv_balloon(reader: &Reader<'_>) -> Option<String> {
    let devices = reader.root().list_dir(paths::VMBUS_DEVICES).unwrap_or_default();
    let has_balloon = devices.iter().take(DEVICES_MAX).any(|name| {
        read_device_line(reader, paths::VMBUS_DEVICES, name, "class_id").as_deref()
            == Some(HYPERV_BALLOON_CLASS)
    });
    has_balloon.then(|| HYPERV_BALLOON_DRIVER.to_owned())
}

fn read_device_line(reader: &Reader<'_>, bus: &str, name: &str, file: &str) -> Option<String> {
    let text = reader.root().read(&format!("{bus}/{name}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
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
    /// Orders 0 to 10, as x86 has them.
    const BUDDYINFO: (&str, &str) =
        (paths::BUDDYINFO, "Node 0, zone   Normal  9  8  7  6  5  4  3  2  1  1  3\n");

    fn check(files: &[(&str, &str)], expected: Option<(Option<u8>, Option<i64>, Option<&str>)>) {
        let tree = FakeTree::new(files);
        tree.add_file(BUDDYINFO.0, BUDDYINFO.1.as_bytes());
        let root = tree.root();
        let found = read(&Reader::new(&root), PageSize::DEFAULT);
        let found = found
            .as_ref()
            .map(|of| (of.order.map(|order| order.0), of.requested_order, of.device.as_deref()));
        assert_eq!(found, expected, "{files:?}");
    }

    const VIRTIO: (&str, &str) = ("/sys/bus/virtio/devices/virtio0/device", "0x0005\n");
    const HYPERV: (&str, &str) = (
        "/sys/bus/vmbus/devices/1eccfd72-4b41-45ef-b73a-4a6e44c12924/class_id",
        "{525074dc-8985-46e2-8057-a307dc18a502}\n",
    );

    fn features(bits: &str) -> (&str, &str) {
        ("/sys/bus/virtio/devices/virtio0/features", bits)
    }

    #[test]
    fn a_device_reports_and_an_order_alone_does_not() {
        let cmdline = ("/proc/cmdline", "quiet page_reporting.page_reporting_order=11 console=ttyS0\n");
        let (agreed, refused) = (features("01100101\n"), features("01100000\n"));
        check(&[], None);
        check(&[(ORDER, "-1\n")], None);
        // Written by root or from the command line, without a driver.
        check(&[(ORDER, "9\n")], None);
        check(&[(ORDER, "9\n"), cmdline], None);
        check(&[(ORDER, "-1\n"), VIRTIO, refused], None);
        check(&[(ORDER, "-1\n"), VIRTIO, agreed], None);
        check(&[(ORDER, "9\n"), VIRTIO, refused], None);
        check(&[(ORDER, "9\n"), VIRTIO, agreed], Some((Some(9), None, Some("virtio0"))));
        // 11 is above the largest order of this kernel, which took a pageblock's.
        check(&[(ORDER, "9\n"), VIRTIO, agreed, cmdline], Some((Some(9), Some(11), Some("virtio0"))));
        // Before 5.14 the kernel does not state the order.
        check(&[VIRTIO, agreed], Some((None, None, Some("virtio0"))));
        check(&[VIRTIO, features("0000\n")], None);
        check(&[(ORDER, "rubbish"), VIRTIO, agreed], Some((None, None, Some("virtio0"))));
    }

    /// 5.14 to 6.1: the default is MAX_ORDER, 11, one above the largest order.
    #[test]
    fn the_default_order_of_6_1_means_never() {
        let agreed = features("01100101\n");
        check(&[(ORDER, "11\n")], None);
        check(&[(ORDER, "11\n"), VIRTIO, features("01100000\n")], None);
        // Root has switched it off after the driver had registered.
        check(&[(ORDER, "11\n"), VIRTIO, agreed], None);
        check(&[(ORDER, "4294967295\n"), VIRTIO, agreed], None);
        check(&[(ORDER, "10\n"), VIRTIO, agreed], Some((Some(10), None, Some("virtio0"))));
        check(&[(ORDER, "11\n"), HYPERV], None);
    }

    #[test]
    fn the_balloon_of_hyper_v_reports_once_its_driver_has_set_the_order() {
        let cmdline = ("/proc/cmdline", "page_reporting.page_reporting_order=9\n");
        check(&[HYPERV], None);
        check(&[(ORDER, "-1\n"), HYPERV], None);
        check(&[(ORDER, "9\n"), HYPERV, cmdline], None);
        check(&[(ORDER, "9\n"), HYPERV], Some((Some(9), None, Some("hv_balloon"))));
        let other = (HYPERV.0, "{f8615163-df3e-46c5-913f-f2d2f965ed0e}\n");
        check(&[(ORDER, "9\n"), other], None);
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
