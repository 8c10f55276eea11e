//! Transfer of files and directories from the guest to the host.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::host_link::HostLink;
use crate::file_receiver::{is_link_contained, output_name};
use crate::job::GuestJob;
use crate::message::{AgentMessage, EntryKind, FileHeader};
use crate::packet::PAYLOAD_MAX;

const DEPTH_MAX: usize = 60;

/// Sends what the job wants taken. Files that cannot be sent are reported.
pub fn send_files(job: &GuestJob, link: &HostLink) {
    let mut sending = FileSender { link, bytes_left: job.output_bytes_max, pattern_index: 0 };
    for (take, wish) in (0..).zip(&job.output_paths) {
        sending.pattern_index = take;
        let name = output_name(wish).unwrap_or_default();
        sending.send_entry(Path::new(wish), &name, 0);
    }
}

/// Bytes that a step reads of a file at most.
const READ_BYTES_MAX: u64 = 16 << 20;

/// The content of a file, whose size the kernel may not know.
pub fn read_bounded(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

struct FileSender<'a> {
    link: &'a HostLink,
    bytes_left: u64,
    pattern_index: u32,
}

impl FileSender<'_> {
    fn send_entry(&mut self, path: &Path, name: &str, depth: usize) {
        let result = fs::symlink_metadata(path).and_then(|meta| match meta.file_type() {
            kind if kind.is_dir() && depth < DEPTH_MAX => self.send_dir(path, name, depth),
            kind if kind.is_dir() => Err(io::Error::other("too many nested directories")),
            kind if kind.is_file() => self.send_file(path, name),
            kind if kind.is_symlink() && depth > 0 => self.send_link(path, name),
            // It was not requested by name, and the directory is complete without it.
            _ if depth > 0 => {
                self.link.send_note(format!(
                    "{} is skipped: neither a regular file nor a directory",
                    path.display()
                ));
                Ok(())
            }
            _ => Err(io::Error::other("is neither a regular file nor a directory")),
        });
        if let Err(error) = result {
            self.report_not_sent(path, &error.to_string());
        }
    }

    fn report_not_sent(&self, path: &Path, reason: &str) {
        self.link.send(&AgentMessage::FileNotSent(format!("{}: {reason}", path.display())));
    }

    fn begin_entry(&self, name: &str, kind: EntryKind) {
        self.link.send(&AgentMessage::FileStart(FileHeader {
            take: self.pattern_index,
            path: name.to_owned(),
            kind,
        }));
    }

    fn send_dir(&mut self, path: &Path, name: &str, depth: usize) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(path)?.flatten().map(|entry| entry.file_name()).collect();
        entries.sort();
        self.begin_entry(name, EntryKind::Folder);
        for entry in entries {
            match entry.to_str() {
                Some(text) => self.send_entry(&path.join(text), &format!("{name}/{text}"), depth + 1),
                None => self.report_not_sent(&path.join(entry), "its name is not valid UTF-8"),
            }
        }
        Ok(())
    }

    /// A link out of the copied tree would lead nowhere on the host, or to a wrong file.
    fn send_link(&self, path: &Path, name: &str) -> io::Result<()> {
        let to = fs::read_link(path)?;
        let to = to.to_str().filter(|to| is_link_contained(name, to));
        let to = to.ok_or_else(|| io::Error::other("is a link to a file outside the copied tree"))?;
        self.begin_entry(name, EntryKind::Link(to.to_owned()));
        Ok(())
    }

    fn send_file(&mut self, path: &Path, name: &str) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
        let file = fs::File::options().read(true).custom_flags(flags).open(path)?;
        // Files of the kernel report 0; only reading gives the real size.
        let mut bytes = vec![0; PAYLOAD_MAX];
        let mut from = file.take(self.bytes_left.saturating_add(1));
        let mut count = from.read(&mut bytes)?;
        self.begin_entry(name, EntryKind::Plain);
        while count > 0 {
            self.bytes_left = self.bytes_left.saturating_sub(count as u64);
            self.link.send(&AgentMessage::Data(bytes[..count].to_vec()));
            // A partial file is discarded.
            count = from.read(&mut bytes)?;
        }
        self.link.send(&AgentMessage::FileEnd);
        Ok(())
    }
}
