//! Sends files and folders of the guest to the host.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::line::Line;
use crate::frame::PAYLOAD_MAX;
use crate::job::Job;
use crate::message::{FileHead, FileKind, Message};
use crate::taken::{name_of, stays_below};

const DEPTH_MAX: usize = 60;

/// Sends what the job wants taken. What cannot be sent is said.
pub fn send(job: &Job, line: &Line) {
    let mut sending = Sending { line, bytes_left: job.take_bytes_max, take: 0 };
    for (take, wish) in (0..).zip(&job.takes) {
        sending.take = take;
        let name = name_of(wish).unwrap_or_default();
        sending.entry(Path::new(wish), &name, 0);
    }
}

struct Sending<'a> {
    line: &'a Line,
    bytes_left: u64,
    take: u32,
}

impl Sending<'_> {
    fn entry(&mut self, path: &Path, name: &str, depth: usize) {
        let done = fs::symlink_metadata(path).and_then(|meta| match meta.file_type() {
            kind if kind.is_dir() && depth < DEPTH_MAX => self.folder(path, name, depth),
            kind if kind.is_dir() => Err(io::Error::other("too many folders in each other")),
            kind if kind.is_file() => self.file(path, name),
            kind if kind.is_symlink() && depth > 0 => self.link(path, name),
            // Nobody asked for it by its name, and the folder is a folder without it.
            _ if depth > 0 => {
                self.line.note(format!("{} stays: neither a plain file nor a folder", path.display()));
                Ok(())
            }
            _ => Err(io::Error::other("is neither a plain file nor a folder")),
        });
        if let Err(error) = done {
            self.not_taken(path, &error.to_string());
        }
    }

    fn not_taken(&self, path: &Path, why: &str) {
        self.line.say(&Message::NotTaken(format!("{}: {why}", path.display())));
    }

    fn begin(&self, name: &str, kind: FileKind) {
        self.line.say(&Message::File(FileHead { take: self.take, path: name.to_owned(), kind }));
    }

    fn folder(&mut self, path: &Path, name: &str, depth: usize) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(path)?.flatten().map(|entry| entry.file_name()).collect();
        entries.sort();
        self.begin(name, FileKind::Folder);
        for entry in entries {
            match entry.to_str() {
                Some(text) => self.entry(&path.join(text), &format!("{name}/{text}"), depth + 1),
                None => self.not_taken(&path.join(entry), "its name is no text"),
            }
        }
        Ok(())
    }

    /// A link that leads out of what is taken would lead nowhere on the host, or somewhere it should not.
    fn link(&self, path: &Path, name: &str) -> io::Result<()> {
        let to = fs::read_link(path)?;
        let to = to.to_str().filter(|to| stays_below(name, to));
        let to = to.ok_or_else(|| io::Error::other("is a link that leads out of what is taken"))?;
        self.begin(name, FileKind::Link(to.to_owned()));
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &str) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
        let file = fs::File::options().read(true).custom_flags(flags).open(path)?;
        // Files of the kernel say 0; what is really there tells only the reading.
        let mut bytes = vec![0; PAYLOAD_MAX];
        let mut from = file.take(self.bytes_left.saturating_add(1));
        let mut count = from.read(&mut bytes)?;
        self.begin(name, FileKind::Plain);
        while count > 0 {
            self.bytes_left = self.bytes_left.saturating_sub(count as u64);
            self.line.say(&Message::Data(bytes[..count].to_vec()));
            // Half of a file is nothing.
            count = from.read(&mut bytes)?;
        }
        self.line.say(&Message::FileDone);
        Ok(())
    }
}
