//! One kernel file that is kept open, read again and again, and parsed in place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagelab_formats::ParseError;
use pagelab_model::{Absence, AbsentWhy, Reading};

use crate::root::{Root, TEXT_MAX};

/// Bytes of the first buffer of each file: more than any of them has on a machine of few nodes.
pub(super) const BUFFER_FIRST: usize = 16 << 10;

/// How the end of a file is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// A read that returns nothing: the file can get further lines while the kernel runs.
    AtZero,
    /// The last known line: which lines there are is fixed when the kernel is built, and the read that
    /// returns nothing, for which vmstat sums up all CPUs once more, is spared.
    WithShape,
}

/// One file that is kept open, and its value.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    file: File,
    /// The file's name for messages.
    shown: String,
    ends: Ends,
    /// The text of the last read in its first `filled` bytes.
    buffer: Vec<u8>,
    filled: usize,
    /// Whether `filled` is known to reach to the end.
    ended: bool,
    /// Reads since the start of the text that returned something.
    done: usize,
    /// The same when the file was last read to its end; at least 1.
    reads: usize,
    pub value: T,
    /// Grows with every text that was not of the known shape.
    pub shape: u64,
    parse: fn(&[u8]) -> Result<T, ParseError>,
    parse_again: fn(&[u8], &mut T) -> bool,
}

impl<T> Kept<T> {
    pub fn open(
        root: &Root,
        path: &str,
        ends: Ends,
        parse: fn(&[u8]) -> Result<T, ParseError>,
        parse_again: fn(&[u8], &mut T) -> bool,
    ) -> Reading<Kept<T>> {
        let mut text = Kept {
            file: root.file(path)?,
            shown: root.show(path),
            ends,
            buffer: vec![0; BUFFER_FIRST],
            filled: 0,
            ended: false,
            done: 0,
            reads: usize::MAX,
            value: (),
            shape: 0,
            parse: |_| Ok(()),
            parse_again: |_, ()| true,
        };
        text.read()?;
        let value = parse(&text.buffer[..text.filled]).map_err(|error| text.malformed(&error))?;
        let Kept { file, shown, ends, buffer, filled, ended, done, reads, .. } = text;
        Ok(Kept {
            file,
            shown,
            ends,
            buffer,
            filled,
            ended,
            done,
            reads,
            value,
            shape: 0,
            parse,
            parse_again,
        })
    }

    /// Reads the text into the buffer: to its end, or as many times as gave something when it was last read
    /// to its end.
    pub fn read(&mut self) -> Reading<()> {
        (self.filled, self.done, self.ended) = (0, 0, false);
        let reads = match self.ends {
            Ends::AtZero => usize::MAX,
            Ends::WithShape => self.reads,
        };
        self.read_on(reads)
    }

    /// More reads, until `reads` have given something since the start of the text, or its end.
    fn read_on(&mut self, reads: usize) -> Reading<()> {
        while self.done < reads && !self.ended {
            if self.filled == self.buffer.len() {
                self.buffer.resize((2 * self.filled).min(TEXT_MAX.0 as usize + 1), 0);
            }
            match self.file.read_at(&mut self.buffer[self.filled..], self.filled as u64) {
                Ok(0) => {
                    self.ended = true;
                    self.reads = self.done.max(1);
                }
                Ok(count) => {
                    self.filled += count;
                    self.done += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Absence::new(&self.shown, AbsentWhy::Failed, error.to_string()));
                }
            }
            if self.filled as u64 > TEXT_MAX.0 {
                let detail = "larger than 64 MiB, which no kernel prints";
                return Err(Absence::new(&self.shown, AbsentWhy::Malformed, detail));
            }
        }
        Ok(())
    }

    /// Brings the value up to the text that was read.
    pub fn update(&mut self) -> Reading<()> {
        let full = self.filled == self.buffer.len() && !self.ended;
        if !full && (self.parse_again)(&self.buffer[..self.filled], &mut self.value) {
            return Ok(());
        }
        if !self.ended {
            // Either the shape is another, or the kernel cut the text at other places than last time.
            self.read_on(usize::MAX)?;
            if (self.parse_again)(&self.buffer[..self.filled], &mut self.value) {
                return Ok(());
            }
        }
        self.value = (self.parse)(&self.buffer[..self.filled]).map_err(|error| self.malformed(&error))?;
        self.shape += 1;
        Ok(())
    }

    fn malformed(&self, error: &ParseError) -> Absence {
        Absence::new(&self.shown, AbsentWhy::Malformed, error.in_file(&self.shown))
    }
}
