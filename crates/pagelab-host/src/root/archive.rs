//! Saved tree in a tar archive, indexed in memory within limits, without unpacking.
//!
//! Names are normalised to inside: `/etc/x` and `../etc/x` are `etc/x` of the archive. Symbolic links
//! are followed inside. Hard links, devices, FIFOs and sparse files are not read: opening one is an
//! error that names it, and the rest of the archive can be used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::sync::Arc;

use pagelab_model::Bytes;
use pagelab_model::size::format_bytes;
use rustix::io::Errno;
use tar::EntryType;

use super::{ENTRIES_MAX, EntryKind, TEXT_BYTES_MAX};
use crate::paths::capture_table;

/// Maximum text in an archive, after decompression.
const TOTAL_TEXT_BYTES_MAX: Bytes = Bytes(512 << 20);
/// Maximum of all compressed or binary files in an archive, as stored.
const COMPRESSED_BYTES_MAX: Bytes = Bytes(512 << 20);
/// Bytes of an archive, skipped entries included: bounds the time of a decompression bomb.
const ARCHIVE_BYTES_MAX: Bytes = Bytes(2 << 30);
/// Maximum size of a long name, or of a block of extended headers.
const HEADER_BYTES_MAX: Bytes = Bytes(64 << 10);
/// As in the kernel: NAME_MAX, PATH_MAX, and links on the way of one path (MAXSYMLINKS).
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4_095;
const LINKS_MAX: u32 = 40;

#[derive(Debug)]
pub(super) struct Archive {
    nodes: Vec<ArchiveNode>,
    root: usize,
}

#[derive(Debug)]
enum ArchiveNode {
    Dir(BTreeMap<String, usize>),
    File(Arc<[u8]>),
    Link(String),
    /// An entry of a kind or size that is not read, and why.
    Rejected(String),
}

impl Archive {
    /// Reads and indexes an archive: tar, or tar compressed with zstd, recognised by its content.
    pub(super) fn read(mut file: File) -> io::Result<Archive> {
        let mut head = Vec::new();
        (&mut file).take(512).read_to_end(&mut head)?;
        file.rewind()?;
        match &head[..] {
            [] => Err(invalid_data("the file is empty")),
            // A frame of zstd, or one of its skippable frames (RFC 8878).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Archive::build_index(ZstdReader::new(file)?)
            }
            [0x1f, 0x8b, ..] => {
                Err(invalid_data("compressed with gzip, which is not supported; hint: decompress it first"))
            }
            [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                Err(invalid_data("compressed with xz, which is not supported; hint: decompress it first"))
            }
            _ if head.len() == 512 => Archive::build_index(BufReader::with_capacity(1 << 17, file)),
            _ => Err(invalid_data("neither a tar archive nor a directory")),
        }
    }

    fn build_index(reader: impl Read) -> io::Result<Archive> {
        let mut bounded = BoundedReader { inner: reader, bytes_left: ARCHIVE_BYTES_MAX.0 };
        let mut archive = Archive { nodes: vec![ArchiveNode::Dir(BTreeMap::new())], root: 0 };
        let mut filling = ArchiveIndexer {
            archive: &mut archive,
            text_bytes: 0,
            compressed_bytes: 0,
            long_names: LongNames::default(),
        };
        let mut reader = tar::Archive::new(&mut bounded);
        let mut read = 0u64;
        for entry in reader.entries()?.raw(true) {
            let entry = entry.map_err(|error| error_after_entries(read, error))?;
            filling.add_entry(entry).map_err(|error| error_after_entries(read, error))?;
            read += 1;
        }
        // Only padding follows the end mark, but the checksum of the compression comes after it.
        io::copy(&mut bounded, &mut io::sink()).map_err(|error| error_after_entries(read, error))?;
        match archive.nodes.len() {
            1 => Err(invalid_data("the archive contains no files")),
            _ => Ok(archive),
        }
    }

    /// Makes a directory the root if it is the only entry of the archive and looks like a saved tree.
    pub(super) fn enter_single_folder(&mut self) -> Option<String> {
        let ArchiveNode::Dir(names) = &self.nodes[self.root] else { return None };
        let (name, &only) = names.iter().next().filter(|_| names.len() == 1)?;
        let ArchiveNode::Dir(inside) = &self.nodes[only] else { return None };
        let known = |sign: &&str| inside.contains_key(*sign);
        if !capture_table::TREE_MARKERS.iter().chain(capture_table::FLAT_MARKERS).any(known)
            || capture_table::TREE_MARKERS.contains(&&**name)
        {
            return None;
        }
        let name = super::escape(name).into_owned();
        self.root = only;
        Some(name)
    }

    pub(super) fn read_file(&self, path: &str) -> io::Result<Arc<[u8]>> {
        match &self.nodes[self.resolve(path, true)?] {
            ArchiveNode::File(data) => Ok(Arc::clone(data)),
            ArchiveNode::Dir(_) => Err(Errno::ISDIR.into()),
            ArchiveNode::Link(_) => Err(Errno::LOOP.into()),
            ArchiveNode::Rejected(why) => Err(invalid_data(why)),
        }
    }

    pub(super) fn list_dir(&self, path: &str) -> io::Result<Vec<String>> {
        match &self.nodes[self.resolve(path, true)?] {
            ArchiveNode::Dir(names) => Ok(names.keys().cloned().collect()),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn entry_kind(&self, path: &str) -> io::Result<EntryKind> {
        Ok(match &self.nodes[self.resolve(path, false)?] {
            ArchiveNode::Dir(_) => EntryKind::Dir,
            ArchiveNode::File(_) => EntryKind::File,
            ArchiveNode::Link(_) => EntryKind::Link,
            ArchiveNode::Rejected(_) => EntryKind::Other,
        })
    }

    pub(super) fn read_link(&self, path: &str) -> io::Result<String> {
        match &self.nodes[self.resolve(path, false)?] {
            ArchiveNode::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// The node at `path`, with links followed inside the root, the last one only on request.
    fn resolve(&self, path: &str, follow_last: bool) -> io::Result<usize> {
        let mut links = 0;
        // The path from the root to here, for `..`; and the remaining names, the next one last.
        let mut ancestors = vec![self.root];
        let mut pending_names: Vec<&str> = path_components(path).rev().collect();
        while let Some(name) = pending_names.pop() {
            let current = ancestors.last().copied().unwrap_or(self.root);
            if name == ".." {
                if ancestors.len() > 1 {
                    ancestors.pop();
                }
                continue;
            }
            let ArchiveNode::Dir(children) = &self.nodes[current] else { return Err(Errno::NOTDIR.into()) };
            let &next = children.get(name).ok_or(io::Error::from(Errno::NOENT))?;
            let ArchiveNode::Link(target) = &self.nodes[next] else {
                ancestors.push(next);
                continue;
            };
            if pending_names.is_empty() && !follow_last {
                return Ok(next);
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            if target.starts_with('/') {
                ancestors.truncate(1);
            }
            pending_names.extend(path_components(target).rev());
        }
        Ok(ancestors.last().copied().unwrap_or(self.root))
    }

    /// The directory `name` in `dir`, created if it does not exist.
    fn find_or_create_dir(&mut self, dir: usize, name: &str, path: &str) -> io::Result<usize> {
        let known = match &self.nodes[dir] {
            ArchiveNode::Dir(children) => children.get(name).copied(),
            _ => {
                return Err(invalid_data(&format!(
                    "entry {path}: a component of its path is not a directory"
                )));
            }
        };
        match known {
            Some(child) => Ok(child),
            None => self.add_node(dir, name, ArchiveNode::Dir(BTreeMap::new()), path),
        }
    }

    fn add_node(&mut self, dir: usize, name: &str, node: ArchiveNode, path: &str) -> io::Result<usize> {
        if self.nodes.len() > ENTRIES_MAX {
            return Err(invalid_data(&format!("more than {ENTRIES_MAX} entries in the archive")));
        }
        let new = self.nodes.len();
        let ArchiveNode::Dir(children) = &mut self.nodes[dir] else {
            return Err(invalid_data(&format!("entry {path}: a component of its path is not a directory")));
        };
        // A later entry of the same name is the newer file, as when tar appends; a directory stays one.
        if let Some(&old) = children.get(name) {
            return match (&self.nodes[old], &node) {
                (ArchiveNode::Dir(_), ArchiveNode::Dir(_)) => Ok(old),
                (ArchiveNode::Dir(_), _) | (_, ArchiveNode::Dir(_)) => Err(invalid_data(&format!(
                    "entry {path}: present twice, as a directory and as another type"
                ))),
                _ => {
                    self.nodes[old] = node;
                    Ok(old)
                }
            };
        }
        children.insert(name.to_owned(), new);
        self.nodes.push(node);
        Ok(new)
    }

    /// Stores `node` at the normalised `path`.
    fn insert_node(&mut self, path: &str, node: ArchiveNode) -> io::Result<()> {
        let shown = super::escape(path).into_owned();
        let mut parent_names: Vec<&str> = Vec::new();
        for name in path_components(path) {
            if name == ".." {
                parent_names.pop();
            } else {
                parent_names.push(name);
            }
        }
        if path.len() > PATH_MAX
            || parent_names.iter().any(|name| name.len() > NAME_MAX || name.contains('\0'))
        {
            return Err(invalid_data(&format!("entry {}…: invalid file name", truncate_text(&shown))));
        }
        // `./` is the root itself.
        let Some((last, before)) = parent_names.split_last() else { return Ok(()) };
        let mut dir = self.root;
        for name in before {
            dir = self.find_or_create_dir(dir, name, &shown)?;
        }
        self.add_node(dir, last, node, &shown).map(|_| ())
    }
}

/// Sums and pending long names while an archive is read.
struct ArchiveIndexer<'a> {
    archive: &'a mut Archive,
    text_bytes: u64,
    compressed_bytes: u64,
    long_names: LongNames,
}

/// Names too long for the header, from the entries before it (GNU `L`, `K`; pax `x`).
#[derive(Default)]
struct LongNames {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// A pax record that changes the meaning of the data, which is not supported.
    unsupported: Option<String>,
}

impl ArchiveIndexer<'_> {
    fn add_entry<R: Read>(&mut self, mut entry: tar::Entry<'_, R>) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size()?;
        match kind {
            EntryType::GNULongName => {
                return read_name_data(&mut entry, size).map(|t| self.long_names.path = Some(t));
            }
            EntryType::GNULongLink => {
                return read_name_data(&mut entry, size).map(|t| self.long_names.link = Some(t));
            }
            EntryType::XHeader => return self.read_pax_records(&read_name_data(&mut entry, size)?),
            EntryType::XGlobalHeader => return Ok(()),
            _ => {}
        }
        let long = std::mem::take(&mut self.long_names);
        let path = long.path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = String::from_utf8(path).map_err(|error| {
            let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
            invalid_data(&format!("entry {}: its name is not UTF-8", super::escape(&shown)))
        })?;
        let shown = super::escape(&path).into_owned();
        let to_rejected = |what: &str| {
            ArchiveNode::Rejected(format!("entry {} of the archive {what}", truncate_text(&shown)))
        };
        let node = match kind {
            EntryType::Directory => ArchiveNode::Dir(BTreeMap::new()),
            EntryType::Regular | EntryType::Continuous if path.ends_with('/') => {
                ArchiveNode::Dir(BTreeMap::new())
            }
            _ if long.unsupported.is_some() => {
                to_rejected(&format!("has {}", long.unsupported.as_deref().unwrap_or_default()))
            }
            EntryType::Regular | EntryType::Continuous => {
                self.read_data(&mut entry, &path, size, &to_rejected)?
            }
            EntryType::Symlink => {
                let target = long.link.or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
                match String::from_utf8(target.unwrap_or_default()) {
                    Ok(target) if !target.is_empty() && target.len() <= PATH_MAX => ArchiveNode::Link(target),
                    _ => to_rejected("is a symbolic link without a usable target"),
                }
            }
            EntryType::Link => to_rejected("is a hard link, which is not followed"),
            EntryType::Fifo => to_rejected("is a FIFO; expected a file"),
            EntryType::Char | EntryType::Block => to_rejected("is a device; expected a file"),
            EntryType::GNUSparse => {
                to_rejected("is a sparse file, which is not supported; hint: pack it without --sparse")
            }
            other => to_rejected(&format!("has the unknown type {:?}", char::from(other.as_byte()))),
        };
        self.archive.insert_node(&path, node)
    }

    fn read_data<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        path: &str,
        size: u64,
        to_rejected: &dyn Fn(&str) -> ArchiveNode,
    ) -> io::Result<ArchiveNode> {
        let file_name = path.rsplit('/').next().unwrap_or(path);
        let is_compressed = file_name.ends_with(".zst") || capture_table::BINARY_FILES.contains(&file_name);
        let (sum, sum_max, kind_name) = match is_compressed {
            true => (&mut self.compressed_bytes, COMPRESSED_BYTES_MAX, "compressed data"),
            false => (&mut self.text_bytes, TOTAL_TEXT_BYTES_MAX, "text"),
        };
        if !is_compressed && size > TEXT_BYTES_MAX.0 {
            return Ok(to_rejected("is larger than 64 MiB: no kernel prints that much"));
        }
        *sum = sum.saturating_add(size);
        if *sum > sum_max.0 {
            let most = format_bytes(sum_max);
            return Err(invalid_data(&format!(
                "entry {}: more than {most} of {kind_name} in total",
                super::escape(path)
            )));
        }
        let mut data = Vec::new();
        entry.take(size).read_to_end(&mut data)?;
        if data.len() as u64 != size {
            return Err(invalid_data(&format!("entry {}: truncated", super::escape(path))));
        }
        Ok(ArchiveNode::File(data.into()))
    }

    fn read_pax_records(&mut self, text: &[u8]) -> io::Result<()> {
        for record in tar::PaxExtensions::new(text) {
            let record = record?;
            match record.key_bytes() {
                b"path" => self.long_names.path = Some(record.value_bytes().to_vec()),
                b"linkpath" => self.long_names.link = Some(record.value_bytes().to_vec()),
                // The length of the data would no longer be the one in the header.
                b"size" => {
                    return Err(invalid_data("an entry whose size is in a pax header (above 8 GiB)"));
                }
                key if key.starts_with(b"GNU.sparse") => {
                    self.long_names.unsupported = Some(
                        "sparse data, which is not supported; hint: pack it without --sparse".to_owned(),
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The data of an entry that only names the next one, without the NUL at its end.
fn read_name_data<R: Read>(entry: &mut tar::Entry<'_, R>, size: u64) -> io::Result<Vec<u8>> {
    if size > HEADER_BYTES_MAX.0 {
        return Err(invalid_data("a name or an extended header larger than 64 KiB"));
    }
    let mut text = Vec::new();
    entry.take(size).read_to_end(&mut text)?;
    if text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// A reader that fails after a number of bytes instead of ending.
struct BoundedReader<R> {
    inner: R,
    bytes_left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes_left = self.bytes_left.checked_sub(count as u64).ok_or_else(|| {
            invalid_data(&format!("more than {} after decompression", format_bytes(ARCHIVE_BYTES_MAX)))
        })?;
        Ok(count)
    }
}

/// A copy of `data` that can be read like any file.
pub(super) fn create_memory_file(data: &[u8]) -> io::Result<File> {
    let fd = rustix::fs::memfd_create("pagelab-archive", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(data)?;
    file.rewind()?;
    Ok(file)
}

/// The names of a path, without empty ones and `.`; `..` is among them.
fn path_components(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

fn truncate_text(text: &str) -> String {
    text.chars().take(120).collect()
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn error_after_entries(entries: u64, error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    let problem = match entries {
        // The tar reader's message about an invalid header quotes the file, which may contain anything.
        0 if error.to_string().contains("numeric field") => {
            "neither a directory nor a tar archive".to_owned()
        }
        0 => format!("not a readable tar archive: {error}"),
        _ => format!("corrupt after {entries} entries: {error}"),
    };
    invalid_data(&problem)
}

/// Reads zstd data of any number of frames. A window above 128 MiB (`zstd --long=28` and more) is
/// refused, so memory is bounded for any input.
pub(super) struct ZstdReader<R: Read> {
    decoder: zstd::Decoder<'static, BufReader<R>>,
}

/// Base-2 logarithm of the largest window, in bytes: the default limit of zstd itself.
const WINDOW_LOG_MAX: u32 = 27;

impl<R: Read> ZstdReader<R> {
    /// An empty input is an error: compressed empty data has a header.
    pub(super) fn new(inner: R) -> io::Result<ZstdReader<R>> {
        let mut inner = BufReader::with_capacity(1 << 17, inner);
        if inner.fill_buf()?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is empty where zstd data is expected"));
        }
        let mut decoder = zstd::Decoder::with_buffer(inner)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(ZstdReader { decoder })
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::new(io::ErrorKind::InvalidData, "truncated zstd data")
            }
            None => io::Error::new(io::ErrorKind::InvalidData, format!("corrupt zstd data ({error})")),
        })
    }
}
