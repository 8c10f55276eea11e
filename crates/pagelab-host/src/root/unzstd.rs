//! Decompression whose errors say that the input is broken, not that the machine failed.

use std::io::{self, BufRead, BufReader, Read};

/// Reads zstd data of any number of frames. A window above 128 MiB (`zstd --long=28` and more) is
/// refused, so memory is bounded whatever the input says.
pub(super) struct Unzstd<R: Read> {
    decoder: zstd::Decoder<'static, BufReader<R>>,
}

/// Base-2 logarithm of the largest window, in bytes: the default limit of zstd itself.
const WINDOW_LOG_MAX: u32 = 27;

impl<R: Read> Unzstd<R> {
    /// An empty input is an error: even nothing, compressed, has a header.
    pub(super) fn new(inner: R) -> io::Result<Unzstd<R>> {
        let mut inner = BufReader::with_capacity(1 << 17, inner);
        if inner.fill_buf()?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is empty where zstd data is expected"));
        }
        let mut decoder = zstd::Decoder::with_buffer(inner)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(Unzstd { decoder })
    }
}

impl<R: Read> Read for Unzstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::new(io::ErrorKind::InvalidData, "zstd data that is cut off")
            }
            None => io::Error::new(io::ErrorKind::InvalidData, format!("broken zstd data ({error})")),
        })
    }
}
