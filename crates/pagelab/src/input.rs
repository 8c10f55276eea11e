//! Files that the command line names, and standard input: bounded, and never waited for in vain.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use pagelab_host::root::TEXT_MAX;
use rustix::fs::{FileType, Mode, OFlags};

use crate::exit::{Exit, Failure};

/// Who reads a text: what else can be given there, for the way out of a refusal.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// `frag --from`, beside `--root`.
    From,
    /// `import`, which takes folders too.
    Import,
    /// A command whose file another command makes: this one.
    Made(&'static str),
}

impl Reader {
    /// Instead of a folder.
    fn no_folder(self) -> String {
        match self {
            Reader::From => "--root reads a saved tree".to_owned(),
            Reader::Import => "give the folder by its own name".to_owned(),
            Reader::Made(maker) => format!("{maker} makes one"),
        }
    }

    /// Instead of a FIFO or a device.
    fn no_pipe(self) -> &'static str {
        match self {
            Reader::From => "pipe the text to `--from -` instead",
            Reader::Import => "pipe the text to it and name it `-` instead",
            Reader::Made(_) => "put the text into a file",
        }
    }

    /// Where there is no such file.
    fn no_file(self) -> String {
        match self {
            Reader::From | Reader::Import => "give an existing file, or `-` for standard input".to_owned(),
            Reader::Made(maker) => format!("{maker} makes one"),
        }
    }

    /// How this program unpacks it.
    fn unpacked(self, program: &str, name: &str) -> String {
        match self {
            Reader::From => format!("`{program} {name} | pagelab … --from -`"),
            Reader::Import | Reader::Made(_) => format!("`{program} {name} > FILE`, and give that"),
        }
    }
}

/// Reads a text that was named on the command line; `-` is standard input. The name for messages comes
/// with it.
pub fn read(path: &Path, reader: Reader) -> Result<(String, Vec<u8>), Failure> {
    if path.as_os_str() == "-" {
        return from_stdin("standard input", reader);
    }
    let name = path.display().to_string();
    // Without O_NONBLOCK, opening a FIFO waits until somebody writes to it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unopened(&name, e.into(), reader))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| unopened(&name, e.into(), reader))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return bounded(&name, File::from(fd), reader),
        FileType::Fifo | FileType::Socket if is_stdin(&stat) => return from_stdin(&name, reader),
        FileType::Directory => {
            let message = format!("{name}: is a directory, a file was wanted: {}", reader.no_folder());
            return Err(Failure::new(Exit::BadInput, message));
        }
        FileType::Fifo => "a FIFO",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "no file",
    };
    let message = format!("{name}: is {kind}, a file was wanted: {}", reader.no_pipe());
    Err(Failure::new(Exit::BadInput, message))
}

/// Whether a file is the very pipe that standard input is, such as `/dev/stdin`.
fn is_stdin(stat: &rustix::fs::Stat) -> bool {
    let stdin = rustix::fs::fstat(io::stdin().as_fd());
    stdin.is_ok_and(|stdin| (stdin.st_dev, stdin.st_ino) == (stat.st_dev, stat.st_ino))
}

fn from_stdin(name: &str, reader: Reader) -> Result<(String, Vec<u8>), Failure> {
    bounded(name, io::stdin().lock(), reader)
}

fn bounded(name: &str, from: impl Read, reader: Reader) -> Result<(String, Vec<u8>), Failure> {
    let mut text = Vec::new();
    let limit = TEXT_MAX.0 + 1;
    from.take(limit)
        .read_to_end(&mut text)
        .map_err(|error| Failure::new(Exit::NotAvailable, format!("cannot read {name}")).because(error))?;
    if text.len() as u64 >= limit {
        let message = format!(
            "{name}: larger than {}, which is too large for a text of this kind: cut out the part that is \
             wanted, such as the last `page allocation failure` with the 100 lines behind it",
            pagelab_report::style::bytes(TEXT_MAX)
        );
        return Err(Failure::new(Exit::BadInput, message));
    }
    if let Some(program) = compressed(&text) {
        let way_out = reader.unpacked(program, name);
        let message = format!("{name}: is compressed, a text was wanted: {way_out}");
        return Err(Failure::new(Exit::BadInput, message));
    }
    Ok((name.to_owned(), text))
}

/// The program that would unpack a text that is compressed, told by its first bytes.
fn compressed(text: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 4] = [
        (b"\x1f\x8b", "zcat"),
        (b"\x28\xb5\x2f\xfd", "zstdcat"),
        (b"\xfd7zXZ\0", "xzcat"),
        (b"BZh", "bzcat"),
    ];
    MAGIC.iter().find(|(magic, _)| text.starts_with(magic)).map(|&(_, program)| program)
}

fn unopened(name: &str, error: io::Error, reader: Reader) -> Failure {
    let (exit, message) = match error.kind() {
        io::ErrorKind::NotFound => {
            (Exit::BadInput, format!("{name}: there is no such file: {}", reader.no_file()))
        }
        io::ErrorKind::PermissionDenied => {
            (Exit::NotAvailable, format!("{name}: permission denied: run as a user who may read it"))
        }
        _ => return Failure::new(Exit::BadInput, format!("cannot open {name}")).because(error),
    };
    Failure::new(exit, message)
}
