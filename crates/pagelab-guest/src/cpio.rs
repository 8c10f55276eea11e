//! An initramfs: the cpio format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// There were more or fewer bytes in a file than its size says.
#[derive(Debug)]
pub struct WrongSize;

impl fmt::Display for WrongSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "has more or fewer bytes than its size says, as a file that grows, or one of the kernel's own",
        )
    }
}

impl Error for WrongSize {}

/// Writes an archive entry by entry.
#[derive(Debug)]
pub struct Cpio<W: Write> {
    out: W,
    inode: u32,
}

impl<W: Write> Cpio<W> {
    /// An archive that is written to `out`.
    pub fn new(out: W) -> Cpio<W> {
        Cpio { out, inode: 1 }
    }

    /// A folder. The kernel makes no folders by itself: parents come first.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, FOLDER, 0, &mut io::empty())
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.entry(path, LINK, to.len() as u64, &mut to.as_bytes())
    }

    /// A program.
    pub fn program(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.entry(path, PROGRAM, bytes.len() as u64, &mut &bytes[..])
    }

    /// A file with `size` bytes from `from`; an error if there are not exactly so many.
    pub fn file(&mut self, path: &str, size: u64, from: &mut dyn Read) -> io::Result<()> {
        self.entry(path, PLAIN, size, from)
    }

    /// A file that can be run, with `size` bytes from `from`.
    pub fn program_from(&mut self, path: &str, size: u64, from: &mut dyn Read) -> io::Result<()> {
        self.entry(path, PROGRAM, size, from)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.entry("/TRAILER!!!", 0, 0, &mut io::empty())?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, size: u64, from: &mut dyn Read) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        let Ok(bytes) = u32::try_from(size) else {
            return Err(io::Error::other(format!(
                "{path}: larger than the 4 GiB that an initramfs can hold"
            )));
        };
        let links = if mode == FOLDER { 2 } else { 1 };
        let (no_time, no_device, no_check) = (0, 0, 0);
        write!(self.out, "070701{:08x}{mode:08x}{:08x}{:08x}", self.inode, 0, 0)?;
        write!(self.out, "{links:08x}{no_time:08x}{bytes:08x}{no_device:08x}{no_device:08x}")?;
        write!(self.out, "{no_device:08x}{no_device:08x}{:08x}{no_check:08x}", name.len() + 1)?;
        // 110 bytes of head, then the name with a zero byte, each to the next multiple of four.
        self.out.write_all(name.as_bytes())?;
        self.zeros(1 + padding(110 + name.len() as u64 + 1))?;
        let copied = io::copy(&mut from.take(size), &mut self.out)?;
        let mut more = [0];
        if copied != size || from.read(&mut more)? != 0 {
            return Err(io::Error::other(WrongSize));
        }
        self.zeros(padding(size))?;
        self.inode += 1;
        Ok(())
    }

    fn zeros(&mut self, count: u64) -> io::Result<()> {
        self.out.write_all(&[0; 8][..count as usize])
    }
}

/// Bytes from `length` to the next multiple of four.
fn padding(length: u64) -> u64 {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_layout_of_the_kernels_documentation() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.folder("/bin").unwrap();
        cpio.file("/a", 5, &mut &b"hello"[..]).unwrap();
        cpio.link("/bin/x", "/init").unwrap();
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
            assert!(Cpio::new(Vec::new()).file("/a", size, &mut &b"hello"[..]).is_err());
        }
        assert!(Cpio::new(Vec::new()).file("/a", 1 << 32, &mut &b""[..]).is_err());
    }
}
