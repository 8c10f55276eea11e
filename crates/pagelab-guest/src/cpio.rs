//! Writer of an initramfs: the cpio format "newc"
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};

const DIR_MODE: u32 = 0o040_755;
const EXECUTABLE_MODE: u32 = 0o100_755;
const FILE_MODE: u32 = 0o100_644;
const SYMLINK_MODE: u32 = 0o120_777;

/// A file had more or fewer bytes than its size.
#[derive(Debug)]
pub struct SizeMismatch;

impl fmt::Display for SizeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its contents do not match its size: it is growing, or belongs to a virtual file system")
    }
}

impl Error for SizeMismatch {}

/// Writes an archive entry by entry.
#[derive(Debug)]
pub struct CpioWriter<W: Write> {
    writer: W,
    next_inode: u32,
}

impl<W: Write> CpioWriter<W> {
    /// An archive that is written to `writer`.
    pub fn new(writer: W) -> CpioWriter<W> {
        CpioWriter { writer, next_inode: 1 }
    }

    /// A folder. The kernel makes no folders by itself: parents come first.
    pub fn add_dir(&mut self, path: &str) -> io::Result<()> {
        self.write_entry(path, DIR_MODE, 0, &mut io::empty())
    }

    /// A symbolic link.
    pub fn add_symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.write_entry(path, SYMLINK_MODE, target.len() as u64, &mut target.as_bytes())
    }

    /// A file with `size` bytes from `reader`; an error if there are not exactly so many.
    pub fn add_file(&mut self, path: &str, size: u64, reader: &mut dyn Read) -> io::Result<()> {
        self.write_entry(path, FILE_MODE, size, reader)
    }

    /// A file that can be run, with `size` bytes from `reader`.
    pub fn add_executable(&mut self, path: &str, size: u64, reader: &mut dyn Read) -> io::Result<()> {
        self.write_entry(path, EXECUTABLE_MODE, size, reader)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.next_inode = 0;
        self.write_entry("/TRAILER!!!", 0, 0, &mut io::empty())?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn write_entry(&mut self, path: &str, mode: u32, size: u64, reader: &mut dyn Read) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        let Ok(bytes) = u32::try_from(size) else {
            return Err(io::Error::other(format!("{path}: larger than the 4 GiB limit of an initramfs")));
        };
        let links = if mode == DIR_MODE { 2 } else { 1 };
        let (no_time, no_device, no_check) = (0, 0, 0);
        write!(self.writer, "070701{:08x}{mode:08x}{:08x}{:08x}", self.next_inode, 0, 0)?;
        write!(self.writer, "{links:08x}{no_time:08x}{bytes:08x}{no_device:08x}{no_device:08x}")?;
        write!(self.writer, "{no_device:08x}{no_device:08x}{:08x}{no_check:08x}", name.len() + 1)?;
        // 110 bytes of head, then the name with a zero byte, each to the next multiple of four.
        self.writer.write_all(name.as_bytes())?;
        self.write_zeros(1 + padding_bytes(110 + name.len() as u64 + 1))?;
        let copied = io::copy(&mut reader.take(size), &mut self.writer)?;
        let mut more = [0];
        if copied != size || reader.read(&mut more)? != 0 {
            return Err(io::Error::other(SizeMismatch));
        }
        self.write_zeros(padding_bytes(size))?;
        self.next_inode += 1;
        Ok(())
    }

    fn write_zeros(&mut self, count: u64) -> io::Result<()> {
        self.writer.write_all(&[0; 8][..count as usize])
    }
}

/// Bytes from `length` to the next multiple of four.
fn padding_bytes(length: u64) -> u64 {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_layout_of_the_kernels_documentation() {
        let mut cpio = CpioWriter::new(Vec::new());
        cpio.add_dir("/bin").unwrap();
        cpio.add_file("/a", 5, &mut &b"hello"[..]).unwrap();
        cpio.add_symlink("/bin/x", "/init").unwrap();
        let bytes = cpio.finish().unwrap();
        let mut at = 0;
        let mut found = Vec::new();
        loop {
            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + 8 * index..][..8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = &bytes[at + 110..at + 110 + name_size - 1];
            let data = (at + 110 + name_size).next_multiple_of(4);
            let name = String::from_utf8(name.to_vec()).unwrap();
            if name == "TRAILER!!!" {
                break;
            }
            found.push((name, mode, String::from_utf8(bytes[data..data + size].to_vec()).unwrap()));
            at = (data + size).next_multiple_of(4);
        }
        let expected = [("bin", 0o40_755, ""), ("a", 0o100_644, "hello"), ("bin/x", 0o120_777, "/init")];
        let expected = expected.map(|(name, mode, data)| (name.to_owned(), mode, data.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_that_is_not_as_long_as_it_said_is_refused() {
        for size in [4, 6] {
            assert!(CpioWriter::new(Vec::new()).add_file("/a", size, &mut &b"hello"[..]).is_err());
        }
        assert!(CpioWriter::new(Vec::new()).add_file("/a", 1 << 32, &mut &b""[..]).is_err());
    }
}
