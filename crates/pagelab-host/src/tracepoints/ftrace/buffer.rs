//! One processor's buffer: its pages one after another, and what was lost between them.

use std::os::fd::OwnedFd;

use pagelab_formats::ring_page::{self, BufferStats, Cursor, Missed, PageLayout, PageRecord};

use crate::tracepoints::Tracefs;
use crate::tracepoints::drain::State;

/// A processor's buffer, while it is read.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) cpu: u32,
    pipe: OwnedFd,
    page: Vec<u8>,
    cursor: Cursor,
    /// A record that was looked at and not taken.
    pending: Option<PageRecord>,
    /// What was lost before the page's first record.
    missed: Option<Missed>,
    /// Lost records that were told so far.
    pub(super) told: u64,
    /// Whether a page did not say how many were lost before it: from then on the kernel's count is taken,
    /// which may be ahead of the pages.
    is_counted: bool,
}

impl Buffer {
    pub(super) fn new(cpu: u32, pipe: OwnedFd, layout: &PageLayout) -> Buffer {
        let (page, cursor) = (vec![0; layout.page_bytes()], Cursor::default());
        Buffer { cpu, pipe, page, cursor, pending: None, missed: None, told: 0, is_counted: false }
    }

    /// What the kernel counted for it.
    pub(super) fn stats(&self, tracefs: &Tracefs, at: &str) -> Option<BufferStats> {
        let text = tracefs.read(&format!("{at}/per_cpu/cpu{}/stats", self.cpu)).ok()?;
        ring_page::parse_stats(&text).ok()
    }

    /// Whether every record that was read out of the kernel was taken.
    pub(super) fn is_read(&self) -> bool {
        self.pending.is_none()
    }

    /// The next record, which stays the next one until it is taken.
    #[inline]
    pub(super) fn peek(
        &mut self,
        layout: &PageLayout,
        state: &mut State,
        counted_at: (&Tracefs, &str),
    ) -> Option<PageRecord> {
        loop {
            if self.pending.is_some() {
                return self.pending;
            }
            match self.cursor.next(&self.page) {
                Ok(Some(record)) => {
                    if let Some(missed) = self.missed.take() {
                        self.tell(missed, record.time_ns, state, counted_at);
                    }
                    self.pending = Some(record);
                }
                Ok(None) if !self.refill(layout, state) => return None,
                Ok(None) => {}
                Err(_) => {
                    // What else the page had is not known.
                    state.losses.malformed += 1;
                    self.cursor = Cursor::default();
                }
            }
        }
    }

    /// Takes the record that was looked at.
    #[inline]
    pub(super) fn take(&mut self, record: PageRecord) -> &[u8] {
        self.pending = None;
        record.of(&self.page)
    }

    /// Reads the next page; `false` if there is none now.
    fn refill(&mut self, layout: &PageLayout, state: &mut State) -> bool {
        let Ok(bytes @ 1..) = rustix::io::read(&self.pipe, &mut self.page) else { return false };
        match layout.head(&self.page[..bytes]) {
            Ok((head, cursor)) => {
                self.cursor = cursor;
                self.missed = head.missed.or(self.missed);
            }
            Err(_) => {
                state.losses.malformed += 1;
                self.cursor = Cursor::default();
            }
        }
        true
    }

    #[cold]
    fn tell(&mut self, missed: Missed, time_ns: u64, state: &mut State, (tracefs, at): (&Tracefs, &str)) {
        let by_page = match missed {
            Missed::Events(events) if !self.is_counted => Some(events),
            _ => None,
        };
        let events = by_page.unwrap_or_else(|| {
            self.is_counted = true;
            self.stats(tracefs, at).map_or(0, |stats| stats.lost().saturating_sub(self.told))
        });
        if events > 0 {
            self.told += events;
            state.losses.records = state.losses.records.saturating_add(events);
            state.tell(time_ns, self.cpu, events);
        }
    }
}
