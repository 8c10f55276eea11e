//! Input files of the command line, and standard input: bounded in size, and opened without blocking.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use pagelab_host::root::TEXT_BYTES_MAX;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::exit::Failure;

/// Consumer of a text, which determines the hints of errors.
#[derive(Clone, Copy, Debug)]
pub enum InputConsumer {
    /// `frag --from`; `--root` is the alternative.
    Frag,
    /// `import`, which also accepts directories.
    Import,
    /// A command that reads the file of another command, which is the value.
    RunFileFrom(&'static str),
}

impl InputConsumer {
    /// Hints if the file is a directory, if it is a FIFO or a device, and if there is no such file.
    fn hints(self) -> [String; 3] {
        const MISSING: &str = "give an existing file, or `-` for standard input";
        match self {
            InputConsumer::Frag => {
                ["--root reads a saved tree", "pipe the text to `--from -` instead", MISSING]
                    .map(String::from)
            }
            InputConsumer::Import => {
                ["give the directory name", "pipe the text to pagelab, with `-` as the file name", MISSING]
                    .map(String::from)
            }
            InputConsumer::RunFileFrom(maker) => {
                let create = format!("create one with {maker}");
                [create.clone(), "write the text to a file".to_owned(), create]
            }
        }
    }

    /// Hint with the command that decompresses the file.
    fn decompress_hint(self, program: &str, name: &str) -> String {
        match self {
            InputConsumer::Frag => format!("`{program} {name} | pagelab … --from -`"),
            InputConsumer::Import | InputConsumer::RunFileFrom(_) => {
                format!("`{program} {name} > FILE`, then use FILE")
            }
        }
    }
}

/// Reads a text named on the command line; `-` is standard input. Returns its name for messages and the text.
pub fn read_bounded_input(path: &Path, reader: InputConsumer) -> Result<(String, Vec<u8>), Failure> {
    if path.as_os_str() == "-" {
        return read_stdin("standard input", reader);
    }
    let name = path.display().to_string();
    // Without O_NONBLOCK, opening a FIFO blocks until a writer opens it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let [folder_hint, pipe_hint, missing_hint] = reader.hints();
    let unread = |errno: Errno| {
        let failure = Failure::cannot_read(&name, &io::Error::from(errno));
        if errno == Errno::NOENT { failure.hint(&missing_hint) } else { failure }
    };
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(unread)?;
    let stat = rustix::fs::fstat(&fd).map_err(unread)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return read_bounded(&name, File::from(fd), reader),
        FileType::Fifo | FileType::Socket if is_stdin(&stat) => return read_stdin(&name, reader),
        FileType::Directory => {
            return Err(Failure::expected(name, "a file", "a directory").hint(folder_hint));
        }
        FileType::Fifo => "a FIFO",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "a special file",
    };
    Err(Failure::expected(name, "a file", kind).hint(pipe_hint))
}

/// Whether a file is the pipe of standard input, for example `/dev/stdin`.
fn is_stdin(stat: &rustix::fs::Stat) -> bool {
    let stdin = rustix::fs::fstat(io::stdin().as_fd());
    stdin.is_ok_and(|stdin| (stdin.st_dev, stdin.st_ino) == (stat.st_dev, stat.st_ino))
}

fn read_stdin(name: &str, reader: InputConsumer) -> Result<(String, Vec<u8>), Failure> {
    read_bounded(name, io::stdin().lock(), reader)
}

fn read_bounded(name: &str, source: impl Read, reader: InputConsumer) -> Result<(String, Vec<u8>), Failure> {
    let mut text = Vec::new();
    let limit = TEXT_BYTES_MAX.0 + 1;
    source.take(limit).read_to_end(&mut text).map_err(|error| Failure::cannot_read(name, &error))?;
    if text.len() as u64 >= limit {
        let limit = pagelab_report::style::format_bytes(TEXT_BYTES_MAX);
        let place = format_args!("cannot read {name}");
        return Err(Failure::expected(place, format_args!("at most {limit}"), "more").hint(
            "extract the relevant part, for example the last `page allocation failure` and the 100 \
             lines after it",
        ));
    }
    if let Some(program) = detect_compression(&text) {
        let hint = reader.decompress_hint(program, name);
        return Err(Failure::expected(name, "text", "compressed data").hint(hint));
    }
    Ok((name.to_owned(), text))
}

/// Returns the program that decompresses a text, detected from its first bytes.
fn detect_compression(text: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 4] = [
        (b"\x1f\x8b", "zcat"),
        (b"\x28\xb5\x2f\xfd", "zstdcat"),
        (b"\xfd7zXZ\0", "xzcat"),
        (b"BZh", "bzcat"),
    ];
    MAGIC.iter().find(|(magic, _)| text.starts_with(magic)).map(|&(_, program)| program)
}
