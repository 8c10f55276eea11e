//! What the model of one virtual CPU tells, written into the account.

use std::ffi::c_uint;
use std::sync::atomic::Ordering::Relaxed;

use crate::arena::{self, fetch, word};
use crate::engine::layout::{BUCKETS, chunk, image, thread};
use crate::engine::pass::{FIRST, Walk};
use crate::engine::tlb::Account;
use crate::image::{add, chunk_of, count, count_half};
use crate::{pace, sets};

/// The account as one virtual CPU sees it.
pub struct Book {
    /// Its block; 0 if there is none.
    pub block: u64,
    pub passes: u64,
    /// Its number.
    pub vcpu: c_uint,
}

impl Book {
    /// Adds to a word that only this virtual CPU writes.
    #[inline(always)]
    fn own(&self, field: u64, by: u64) {
        let counter = word(self.block + field);
        counter.store(counter.load(Relaxed) + by, Relaxed);
    }
}

impl Account for Book {
    #[inline]
    fn code(&mut self, pass: usize, page: u64) -> u8 {
        sets::code(pass, page)
    }

    #[inline]
    fn expect(&mut self, page: u64) {
        if let Some(chunk) = chunk_of(page, self.passes) {
            let in_chunk = page % chunk::PAGES;
            fetch(chunk + chunk::cell(in_chunk));
            // Distances from 2^12 on, which cost most, are in the upper half.
            fetch(chunk + chunk::reuse(in_chunk));
            if self.passes > 1 && sets::code(1, page) == 0 {
                // Two pages a word; further passes lie elsewhere. A page on a huge one hardly ever misses.
                fetch(chunk + chunk::OTHERS + in_chunk / 2);
            }
        }
    }

    #[inline]
    fn fetch(&self, word: &u64) {
        arena::fetch_word(word);
    }

    #[inline]
    fn touched(&mut self, page: u64, accesses: u64, written: bool) {
        if self.block != 0 {
            self.own(thread::ACCESSES, accesses);
        }
        let Some(chunk) = chunk_of(page, self.passes) else { return add(image::UNPLACED, accesses) };
        let cell = chunk + chunk::cell(page % chunk::PAGES);
        count(cell, accesses);
        if written && word(cell).load(Relaxed) & chunk::WRITTEN == 0 {
            word(cell).fetch_or(chunk::WRITTEN, Relaxed);
        }
    }

    #[inline]
    fn walked(&mut self, pass: usize, page: u64, walk: &Walk) {
        let bucket = if walk.bucket == FIRST { BUCKETS - 1 } else { u64::from(walk.bucket).min(BUCKETS - 2) };
        if self.block != 0 {
            let of_pass = thread::PASSES + pass as u64 * thread::PASS;
            self.own(of_pass + thread::WALKS + u64::from(walk.code), 1);
            self.own(of_pass + thread::REUSE + u64::from(walk.code) * BUCKETS + bucket, 1);
            for (level, _) in walk.upper.iter().enumerate().filter(|(_, read)| **read) {
                self.own(of_pass + thread::UPPER_READS + level as u64, 1);
            }
        }
        let place = chunk_of(page, self.passes);
        let in_chunk = page % chunk::PAGES;
        match (place, pass) {
            (Some(chunk), 0) => {
                count(chunk + chunk::cell(in_chunk) + 1, 1);
                count_half(chunk + chunk::reuse(in_chunk), bucket);
            }
            (Some(chunk), _) => {
                count_half(chunk + chunk::OTHERS, (pass as u64 - 1) * chunk::PAGES + in_chunk);
            }
            (None, 0) => add(image::UNPLACED_MISSES, 1),
            (None, _) => {}
        }
    }
    #[cold]
    fn stretched(&mut self, walks: u64, accesses: u64) {
        if self.block != 0 {
            // A thread that does not end by itself has no other occasion.
            let counted = word(self.block + thread::ACCESSES).load(Relaxed);
            word(self.block + thread::SKIPPED).store(accesses.saturating_sub(counted), Relaxed);
            self.own(thread::WINDOWS, 1);
            self.own(thread::WINDOW_WALKS, walks);
            let squares = word(self.block + thread::WINDOW_SQUARES);
            let sum = f64::from_bits(squares.load(Relaxed)) + (walks as f64).powi(2);
            squares.store(sum.to_bits(), Relaxed);
        }
        pace::rest(self.vcpu, accesses);
    }
}
