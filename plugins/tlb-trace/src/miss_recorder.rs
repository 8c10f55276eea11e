//! The recorder of a virtual CPU: it writes what the TLB model counts into the account.

use std::ffi::c_uint;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::account_layout::{BUCKETS, chunk, image, thread};
use crate::engine::tlb::AccessSink;
use crate::engine::tlb_pass::{FIRST_WALK, PageWalk};
use crate::image::{add_count, add_to_field, find_or_add_chunk, increment_u32};
use crate::shared_account::{self, prefetch, word};
use crate::{huge_page_sets, sampling_window};

pub struct MissRecorder {
    /// Its thread block; 0 if there is none.
    pub block: u64,
    pub passes: u64,
    pub vcpu: c_uint,
}

impl MissRecorder {
    /// Adds to a word that only this virtual CPU writes.
    #[inline(always)]
    fn add_to_own(&self, field: u64, by: u64) {
        let counter = word(self.block + field);
        counter.store(counter.load(Relaxed) + by, Relaxed);
    }
}

impl AccessSink for MissRecorder {
    #[inline]
    fn page_size_code(&mut self, pass: usize, page: u64) -> u8 {
        huge_page_sets::page_size_code(pass, page)
    }

    #[inline]
    fn prefetch_page(&mut self, page: u64) {
        if let Some(chunk) = find_or_add_chunk(page, self.passes) {
            let in_chunk = page % chunk::PAGES;
            prefetch(chunk + chunk::page_cell(in_chunk));
            // Distances from 2^12 on, which cost most, are in the upper half.
            prefetch(chunk + chunk::reuse_histogram(in_chunk));
            if self.passes > 1 && huge_page_sets::page_size_code(1, page) == 0 {
                // Two pages a word; further passes have other words. A page in a huge page rarely misses.
                prefetch(chunk + chunk::OTHER_PASSES + in_chunk / 2);
            }
        }
    }

    #[inline]
    fn prefetch_word(&self, word: &u64) {
        shared_account::prefetch_word(word);
    }

    #[inline]
    fn record_accesses(&mut self, page: u64, accesses: u64, written: bool) {
        if self.block != 0 {
            self.add_to_own(thread::ACCESSES, accesses);
        }
        let Some(chunk) = find_or_add_chunk(page, self.passes) else {
            return add_to_field(image::UNRECORDED_ACCESSES, accesses);
        };
        let cell = chunk + chunk::page_cell(page % chunk::PAGES);
        add_count(cell, accesses);
        if written && word(cell).load(Relaxed) & chunk::WRITTEN == 0 {
            word(cell).fetch_or(chunk::WRITTEN, Relaxed);
        }
    }

    #[inline]
    fn record_walk(&mut self, pass: usize, page: u64, walk: &PageWalk) {
        let bucket =
            if walk.bucket == FIRST_WALK { BUCKETS - 1 } else { u64::from(walk.bucket).min(BUCKETS - 2) };
        if self.block != 0 {
            let pass_counts = thread::PASSES + pass as u64 * thread::PASS;
            self.add_to_own(pass_counts + thread::WALKS + u64::from(walk.code), 1);
            self.add_to_own(pass_counts + thread::REUSE + u64::from(walk.code) * BUCKETS + bucket, 1);
            for (level, _) in walk.upper.iter().enumerate().filter(|(_, read)| **read) {
                self.add_to_own(pass_counts + thread::UPPER_READS + level as u64, 1);
            }
        }
        let place = find_or_add_chunk(page, self.passes);
        let in_chunk = page % chunk::PAGES;
        match (place, pass) {
            (Some(chunk), 0) => {
                add_count(chunk + chunk::page_cell(in_chunk) + 1, 1);
                increment_u32(chunk + chunk::reuse_histogram(in_chunk), bucket);
            }
            (Some(chunk), _) => {
                increment_u32(chunk + chunk::OTHER_PASSES, (pass as u64 - 1) * chunk::PAGES + in_chunk);
            }
            (None, 0) => add_to_field(image::UNRECORDED_MISSES, 1),
            (None, _) => {}
        }
    }
    #[cold]
    fn record_window(&mut self, walks: u64, accesses: u64) {
        if self.block != 0 {
            // A thread that is killed does not flush.
            let counted = word(self.block + thread::ACCESSES).load(Relaxed);
            word(self.block + thread::SKIPPED).store(accesses.saturating_sub(counted), Relaxed);
            self.add_to_own(thread::WINDOWS, 1);
            self.add_to_own(thread::WINDOW_WALKS, walks);
            let squares = word(self.block + thread::WINDOW_SQUARES);
            let sum = f64::from_bits(squares.load(Relaxed)) + (walks as f64).powi(2);
            squares.store(sum.to_bits(), Relaxed);
        }
        sampling_window::begin_skip(self.vcpu, accesses);
    }
}
