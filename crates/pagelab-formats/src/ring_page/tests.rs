//! Tests of captured trace buffer pages.

use super::*;
use crate::trace_format::NumberField;

/// A page of Linux 6.18.44 on x86-64 (EPYC 9V74, in a VM): `trace_pipe_raw` of an instance with
/// `kmem:mm_page_alloc` (653) and `mm_page_free`, clock `boot`, while `/bin/true` was started. The rest of
/// its 4096 bytes is zero.
const CAPTURED: &str = "
    019074f727210000b8010000000000000a0000008d020000a4700000c5461000000000000000000000000000c00d4400
    0000000000000000000000004a7310008d020000a4700000c7461000000000000000000000000000c00d440000000000
    0000000000000000aa1401008d020000a4700000c8461000000000000000000000000000c00d44000000000000000000
    00000000ca2801008d020000a4700000cd461000000000000000000000000000c00d4400000000000000000000000000
    eabe01008d020000a4700000edba1d00000000000000000000000000ca0d1400000000000100000000000000eae4b502
    8d020000a570000024841000000000000000000000000000c00d44000000000000000000000000006a1a06008d020000
    a570000026841000000000000000000000000000c00d44000000000000000000000000002a1701008d020000a5700000
    2d841000000000000000000000000000c00d44000000000000000000000000008a2701008d020000a57000002f841000
    000000000000000000000000c00d44000000000000000000000000002a8e01008d020000a5700000ecba1d0000000000
    0000000000000000ca0d1400000000000100000000000000";

/// The same with two longer distances in time.
const EXTENDED: &[u8] = include_bytes!("extended.bin");

/// The same from a buffer that was not read in time: 10 268 earlier records were lost, according to
/// `per_cpu/cpu0/stats`.
const LOST: &[u8] = include_bytes!("lost.bin");

fn captured() -> Vec<u8> {
    let digits: Vec<u8> = CAPTURED.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn layout() -> RingPageLayout {
    parse_header_page(SAMPLE_HEADER_PAGE).unwrap()
}

fn records(page: &[u8]) -> Result<Vec<RingPageRecord>, ParseError> {
    let (_, mut cursor) = layout().read_header(page)?;
    let mut found = Vec::new();
    while let Some(record) = cursor.next(page)? {
        found.push(record);
    }
    Ok(found)
}

fn word(record: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*record[at..].first_chunk().unwrap())
}

#[test]
fn a_page_of_a_kernel_has_its_events_with_their_times() {
    let page = captured();
    let (head, _) = layout().read_header(&page).unwrap();
    assert_eq!((head.time_ns, head.end, head.missed_events), (36_455_539_052_545, 456, None));
    let found = records(&page).unwrap();
    assert_eq!(found.len(), 10);
    // The first and the last: number of the tracepoint, thread, frame, order, time since the page's.
    let told = [found[0], found[9]].map(|record| {
        let data = record.data_in(&page);
        let (id, tid) = (u16::from_ne_bytes([data[0], data[1]]), word(data, 0) >> 32);
        (id, tid, word(data, 8), word(data, 16) as u32, record.time_ns - head.time_ns)
    });
    assert_eq!(told[0], (653, 0x70a4, 0x10_46c5, 0, 0));
    assert_eq!((told[1].0, told[1].1, told[1].2, told[1].3), (653, 0x70a5, 0x1d_baec, 0));
    assert_eq!(found[1].time_ns - head.time_ns, 33_690);
    assert!(found.is_sorted_by_key(|record| record.time_ns));
}

#[test]
fn long_distances_in_time_are_added_up() {
    let found = records(EXTENDED).unwrap();
    assert_eq!(found.len(), 30);
    let longest = found.windows(2).map(|pair| pair[1].time_ns - pair[0].time_ns).max().unwrap();
    assert!((100_000_000..1_000_000_000).contains(&longest), "{longest}");
}

#[test]
fn lost_records_are_told_with_their_number() {
    let (head, _) = layout().read_header(LOST).unwrap();
    assert_eq!((head.missed_events, head.end), (Some(MissedEvents::Events(10_268)), 16 + 0xfdc));
    assert!(records(LOST).unwrap().len() > 90);
    // A page that is full up to its end has no room for the number of lost events.
    let mut full = LOST.to_vec();
    full[11] = 0x80;
    full[12..16].fill(0xff);
    assert_eq!(layout().read_header(&full).unwrap().0.missed_events, Some(MissedEvents::Unknown));
}

/// Records that the captured pages lack: a separate length, padding, an absolute time.
#[test]
fn every_type_of_record_is_read() {
    let base = 5u64 << 59 | 1000;
    let words: [(u32, &[u32]); 6] = [
        (7 << 5, &[12, 0xaaaa, 0xbbbb]), // length in the next word, which counts itself
        (2 << 5 | 29, &[8, 1]),          // taken back: its time counts
        (1 << 5 | 29, &[8, 1]),          // taken back, with no time
        (3 << 5 | 31, &[1]),             // absolute: 2^27 + 3
        (10 << 5 | 1, &[0xcccc]),        // one word
        (29, &[0xffff_ffff]),            // the rest
    ];
    let mut page = base.to_ne_bytes().to_vec();
    let data: Vec<u8> = words
        .iter()
        .flat_map(|(head, more)| [head].into_iter().chain(*more).flat_map(|word| word.to_ne_bytes()))
        .collect();
    page.extend((data.len() as u64).to_ne_bytes());
    page.extend(data);
    let found = records(&page).unwrap();
    let times: Vec<u64> = found.iter().map(|record| record.time_ns).collect();
    assert_eq!(times, [base + 7, (5 << 59) + (1 << 27) + 3 + 10]);
    assert_eq!((found[0].data_in(&page).len(), found[1].data_in(&page)), (8, &0xccccu32.to_ne_bytes()[..]));
    assert_eq!(complete_time_stamp((1 << 59) - 5, 3), 3, "below 2^59 a time may step back");
    assert_eq!(complete_time_stamp((2 << 59) - 5, 3), (2 << 59) + 3, "above it, that is a carry");
}

#[test]
fn a_page_cut_or_changed_anywhere_is_an_error_or_shorter_and_never_more() {
    for page in [&captured()[..], EXTENDED, LOST] {
        let whole = records(page).unwrap();
        for end in 0..page.len() {
            if let Ok(found) = records(&page[..end]) {
                // Only bytes after the records may be missing.
                assert_eq!(found, whole, "{end}");
            }
        }
        let mut changed = page.to_vec();
        for at in 0..page.len() {
            for bit in 0..8 {
                changed[at] ^= 1 << bit;
                let _ = fuzz(&changed);
                changed[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn layouts_are_read_and_strange_ones_refused() {
    assert_eq!(layout(), RingPageLayout { commit_field: (8, 8), data_offset: 16, page_bytes: 4096 });
    let old = "field: u64 timestamp; offset:0; size:8; signed:0;\nfield: local_t commit; offset:8; size:4; \
        signed:1;\nfield: char data; offset:12; size:65524; signed:1;\n";
    assert_eq!(parse_header_page(old.as_bytes()).unwrap().page_bytes(), 65536);
    assert_eq!(layout().with_page_bytes(65536).unwrap().page_bytes(), 65536);
    assert_eq!((layout().with_page_bytes(16), layout().with_page_bytes(u32::MAX)), (None, None));
    for (from, to, said) in [
        ("commit", "promise", "no `timestamp`"),
        ("offset:16", "offset:9", "unsupported layout of the ring buffer page"),
        ("offset:0", "offset:4", "unsupported layout of the ring buffer page"),
        ("size:8;\tsigned:0", "size:x;\tsigned:0", "expected `TYPE NAME"),
    ] {
        let text = std::str::from_utf8(SAMPLE_HEADER_PAGE).unwrap().replace(from, to);
        let error = parse_header_page(text.as_bytes()).unwrap_err().message_in_file("f");
        assert!(error.contains(said), "{from}: {error}");
    }
    let event = "# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\tarray       :   \
        32 bits\n\n\tpadding     : type == 29\n\ttime_extend : type == 30\n\ttime_stamp : type == 31\n\tdata max \
        type_len  == 28\n";
    assert!(check_header_event(event.as_bytes()).is_ok());
    assert!(check_header_event(event.replace("27", "28").as_bytes()).is_err());
    assert!(check_header_event(b"").is_err());
}

#[test]
fn fields_of_a_format_read_a_record() {
    let format =
        "name: mm_page_alloc\nID: 653\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
    let pid: NumberField = trace_format::parse(format.as_bytes()).unwrap().field("common_pid").unwrap();
    let page = captured();
    let tids: Vec<_> =
        records(&page).unwrap().iter().filter_map(|record| pid.u64(record.data_in(&page))).collect();
    assert_eq!((tids.len(), tids[0], tids[9]), (10, 0x70a4, 0x70a5));
}

#[test]
fn counts_of_a_buffer_are_read() {
    let text = "entries: 2\noverrun: 10268\ncommit overrun: 0\nbytes: 0\noldest event ts: 36481.380988\n\
        now ts: 36481.705140\ndropped events: 1\nread events: 721\n";
    let stats = parse_stats(text.as_bytes()).unwrap();
    assert_eq!((stats.lost_records(), stats.total_events(), stats.read), (10_269, 10_992, 721));
    assert!(parse_stats(b"entries: 2\n").is_err() && parse_stats(b"entries: x\noverrun: 1\n").is_err());
}
