//! A program's own advice on huge pages, from its mappings at several moments, or from its calls.

use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::process::Mapping;
use pagelab_model::profile::OwnAdvice;

use crate::accessed::is_private_name;

/// Flags (`VmFlags`, fs/proc/task_mmu.c) of MADV_HUGEPAGE and MADV_NOHUGEPAGE, and of userfaultfd: missing
/// and write-protected pages.
const REQUESTED_FLAG: &str = "hg";
const REFUSED_FLAG: &str = "nh";
const USERFAULTFD_FLAGS: [&str; 2] = ["um", "uw"];

/// Anonymous memory with one advice, adjacent mappings as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdvisedRange {
    pub addresses: Range<u64>,
    /// Whether the advice is MADV_NOHUGEPAGE; else it is MADV_HUGEPAGE.
    pub is_refused: bool,
    pub has_userfaultfd: bool,
    /// Bytes that are mapped, zero pages included.
    pub mapped: u64,
}

/// The advice of an image at its readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdviceRecord {
    advice: Option<OwnAdvice>,
}

impl AdviceRecord {
    /// Records a reading. `zero_bytes` are the bytes of a range on the zero page: `Rss` does not have them.
    pub fn record_reading(
        &mut self,
        mappings: &[Mapping],
        huge: u64,
        zero_bytes: impl Fn(&Range<u64>) -> u64,
    ) {
        self.record(sum_advice(&find_advised_ranges(mappings, zero_bytes), huge));
    }

    /// Records a moment. Of the refused memory, the largest counts, and then the latest: a program fills it.
    fn record(&mut self, now: OwnAdvice) {
        let known = self.advice.get_or_insert_default();
        let requested = known.requested.max(now.requested);
        let disables_thp = known.disables_thp || now.disables_thp;
        let kept = if now.refused >= known.refused { now } else { *known };
        *known = OwnAdvice { requested, disables_thp, ..kept };
    }

    /// Records PR_SET_THP_DISABLE.
    pub fn record_thp_disable(&mut self) {
        self.advice.get_or_insert_default().disables_thp = true;
    }

    /// All that was recorded; `None` without a reading.
    pub fn advice(&self) -> Option<OwnAdvice> {
        self.advice
    }
}

/// The sums of ranges of at least one huge page.
pub(crate) fn sum_advice(ranges: &[AdvisedRange], huge: u64) -> OwnAdvice {
    let mut advice = OwnAdvice::default();
    for range in ranges {
        let bytes = range.addresses.end.saturating_sub(range.addresses.start);
        let add = |sum: &mut Bytes, bytes: u64| sum.0 = sum.0.saturating_add(bytes);
        if bytes < huge {
            continue;
        }
        if !range.is_refused {
            add(&mut advice.requested, bytes);
            continue;
        }
        add(&mut advice.refused, bytes);
        add(&mut advice.refused_unmapped, bytes.saturating_sub(range.mapped));
        if range.mapped < bytes / 2 {
            add(&mut advice.refused_sparse, bytes);
        }
        if range.has_userfaultfd {
            add(&mut advice.refused_userfaultfd, bytes);
        }
    }
    advice
}

fn find_advised_ranges(mappings: &[Mapping], zero_bytes: impl Fn(&Range<u64>) -> u64) -> Vec<AdvisedRange> {
    let mut ranges: Vec<AdvisedRange> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_private_anonymous(mapping)) {
        let has_flag = |flag: &str| mapping.vm_flags.iter().any(|one| one == flag);
        let (is_refused, resident_kib) = (has_flag(REFUSED_FLAG), mapping.fields_kib.get("Rss"));
        let Some(resident_kib) = resident_kib.filter(|_| is_refused || has_flag(REQUESTED_FLAG)) else {
            continue;
        };
        let addresses = mapping.start..mapping.end;
        let mapped = resident_kib
            .saturating_mul(1024)
            .saturating_add(zero_bytes(&addresses))
            .min(mapping.end - mapping.start);
        let has_userfaultfd = USERFAULTFD_FLAGS.into_iter().any(has_flag);
        match ranges.last_mut() {
            Some(last) if last.addresses.end == mapping.start && last.is_refused == is_refused => {
                last.addresses.end = mapping.end;
                last.mapped = last.mapped.saturating_add(mapped);
                last.has_userfaultfd |= has_userfaultfd;
            }
            _ => ranges.push(AdvisedRange { addresses, is_refused, has_userfaultfd, mapped }),
        }
    }
    ranges
}

fn is_private_anonymous(mapping: &Mapping) -> bool {
    mapping.end > mapping.start
        && mapping.inode == 0
        && mapping.permissions.ends_with('p')
        && is_private_name(&mapping.name)
}

#[cfg(test)]
mod tests {
    use pagelab_formats::smaps;

    use super::*;

    const HUGE: u64 = 2 << 20;

    fn read(record: &mut AdviceRecord, lines: &[(&str, u64, &str)], zero: u64) {
        let one = |(head, rss, flags): &(&str, u64, &str)| {
            format!("{head} 00000000 00:00 0 \nRss: {rss} kB\nVmFlags: {flags}\n")
        };
        let text: String = lines.iter().map(one).collect();
        record.record_reading(&smaps::parse(text.as_bytes()).unwrap(), HUGE, |_| zero);
    }

    #[test]
    fn split_mappings_are_one_and_small_or_shared_ones_do_not_count() {
        let mut record = AdviceRecord::default();
        read(
            &mut record,
            &[
                ("200000-300000 rw-p", 1024, "rd wr nh"),
                ("300000-600000 rw-p", 0, "rd wr nh dd"),
                ("800000-a00000 rw-p", 2048, "rd wr hg"),
                ("a00000-a01000 rw-p", 4, "rd wr nh"),
                ("c00000-1000000 rw-s", 4096, "rd wr sh nh"),
            ],
            0,
        );
        let advice = record.advice().unwrap();
        assert_eq!((advice.refused, advice.requested), (Bytes(4 << 20), Bytes(2 << 20)));
        assert_eq!(advice.refused_sparse, Bytes(4 << 20), "a quarter is mapped");
        assert_eq!(advice.refused_unmapped, Bytes(3 << 20));
        assert_eq!(advice.refused_userfaultfd, Bytes(0));
        assert!(advice.is_refusal());
    }

    #[test]
    fn the_latest_reading_of_the_most_memory_counts() {
        let mut record = AdviceRecord::default();
        assert_eq!(record.advice(), None);
        let dense = [("200000-600000 rw-p", 4096, "rd wr nh")];
        read(&mut record, &[("200000-600000 rw-p", 0, "rd wr nh")], 0);
        assert_eq!(record.advice().unwrap().refused_sparse, Bytes(4 << 20));
        read(&mut record, &dense, 0);
        assert_eq!(record.advice().unwrap().refused_sparse, Bytes(0));
        read(&mut record, &[("200000-400000 rw-p", 0, "rd wr nh um")], 0);
        assert_eq!(record.advice().unwrap().refused_userfaultfd, Bytes(0), "less memory than before");
        read(&mut record, &[("200000-600000 rw-p", 0, "rd wr nh uw")], 4 << 20);
        let advice = record.advice().unwrap();
        assert_eq!((advice.refused_userfaultfd, advice.refused_sparse), (Bytes(4 << 20), Bytes(0)));
    }

    #[test]
    fn a_program_without_advice_refuses_nothing() {
        let mut record = AdviceRecord::default();
        read(&mut record, &[("200000-600000 rw-p", 4096, "rd wr")], 0);
        assert!(!record.advice().unwrap().is_refusal());
        record.record_thp_disable();
        read(&mut record, &[("200000-600000 rw-p", 4096, "rd wr")], 0);
        assert!(record.advice().unwrap().is_refusal(), "the prctl holds");
    }
}
