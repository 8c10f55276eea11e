//! A saved tree in a tar archive, indexed in memory within limits, so that nothing is unpacked.
//!
//! Names are normalised to inside: `/etc/x` and `../etc/x` are `etc/x` of the archive. Symbolic links
//! are followed inside. Hard links, devices, FIFOs and sparse files are not read: opening one is an
//! error that names it, and the rest of the archive can be used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use pagelab_model::Bytes;
use rustix::io::Errno;
use tar::EntryType;

use super::unzstd::Unzstd;
use super::{ENTRIES_MAX, Kind, TEXT_MAX};
use crate::paths::captured;

/// All text in an archive, after decompression.
const TEXTS_MAX: Bytes = Bytes(512 << 20);
/// All compressed or binary files in an archive, as they are stored in it.
const PACKED_MAX: Bytes = Bytes(512 << 20);
/// Everything in an archive, what is passed over included: bounds the time that a bomb can take.
const ARCHIVE_MAX: Bytes = Bytes(2 << 30);
/// A long name, or a block of extended headers.
const HEADER_MAX: Bytes = Bytes(64 << 10);
/// As in the kernel: NAME_MAX, PATH_MAX, and links on the way of one path (MAXSYMLINKS).
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4_095;
const LINKS_MAX: u32 = 40;

#[derive(Debug)]
pub(super) struct Archive {
    nodes: Vec<Node>,
    /// The node that stands for `/`.
    root: usize,
}

#[derive(Debug)]
enum Node {
    Dir(BTreeMap<String, usize>),
    File(Arc<[u8]>),
    Link(String),
    /// An entry of a kind or size that is not read, and why.
    Refused(String),
}

impl Archive {
    /// Reads and indexes an archive: tar, or tar compressed with zstd, told by its content.
    pub(super) fn read(mut file: File) -> io::Result<Archive> {
        let mut head = Vec::new();
        (&mut file).take(512).read_to_end(&mut head)?;
        file.rewind()?;
        match &head[..] {
            [] => Err(bad("the file is empty")),
            // A frame of zstd, or one of its skippable frames (RFC 8878).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Archive::index(Unzstd::new(file)?)
            }
            [0x1f, 0x8b, ..] => Err(bad("compressed with gzip, which is not read here; unpack it first")),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => {
                Err(bad("compressed with xz, which is not read here; unpack it first"))
            }
            _ if head.len() == 512 => Archive::index(io::BufReader::with_capacity(1 << 17, file)),
            _ => Err(bad("neither a tar archive nor a folder")),
        }
    }

    fn index(reader: impl Read) -> io::Result<Archive> {
        let mut bounded = Bounded { inner: reader, left: ARCHIVE_MAX.0 };
        let mut archive = Archive { nodes: vec![Node::Dir(BTreeMap::new())], root: 0 };
        let mut filling = Filling { archive: &mut archive, texts: 0, packed: 0, long: LongNames::default() };
        let mut reader = tar::Archive::new(&mut bounded);
        let mut read = 0u64;
        for entry in reader.entries()?.raw(true) {
            let entry = entry.map_err(|error| after(read, error))?;
            filling.take(entry).map_err(|error| after(read, error))?;
            read += 1;
        }
        // What follows the end mark is only padding, but the checksum of the compression stands behind it.
        io::copy(&mut bounded, &mut io::sink()).map_err(|error| after(read, error))?;
        match archive.nodes.len() {
            1 => Err(bad("an archive without a file in it")),
            _ => Ok(archive),
        }
    }

    /// Makes a folder the root if it is all that the archive has and looks like a saved tree.
    pub(super) fn enter_single_folder(&mut self) -> Option<String> {
        let Node::Dir(names) = &self.nodes[self.root] else { return None };
        let (name, &only) = names.iter().next().filter(|_| names.len() == 1)?;
        let Node::Dir(inside) = &self.nodes[only] else { return None };
        let known = |sign: &&str| inside.contains_key(*sign);
        if !captured::TREE_SIGNS.iter().chain(captured::FLAT_SIGNS).any(known)
            || captured::TREE_SIGNS.contains(&&**name)
        {
            return None;
        }
        let name = super::escape(name).into_owned();
        self.root = only;
        Some(name)
    }

    pub(super) fn file(&self, path: &str) -> io::Result<Arc<[u8]>> {
        match &self.nodes[self.resolve(path, true)?] {
            Node::File(data) => Ok(Arc::clone(data)),
            Node::Dir(_) => Err(Errno::ISDIR.into()),
            Node::Link(_) => Err(Errno::LOOP.into()),
            Node::Refused(why) => Err(bad(why)),
        }
    }

    pub(super) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        match &self.nodes[self.resolve(path, true)?] {
            Node::Dir(names) => Ok(names.keys().cloned().collect()),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    pub(super) fn kind(&self, path: &str) -> io::Result<Kind> {
        Ok(match &self.nodes[self.resolve(path, false)?] {
            Node::Dir(_) => Kind::Dir,
            Node::File(_) => Kind::File,
            Node::Link(_) => Kind::Link,
            Node::Refused(_) => Kind::Other,
        })
    }

    pub(super) fn link(&self, path: &str) -> io::Result<String> {
        match &self.nodes[self.resolve(path, false)?] {
            Node::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// The node at `path`, with links followed inside the root, the last one only if asked for.
    fn resolve(&self, path: &str, follow_last: bool) -> io::Result<usize> {
        let mut links = 0;
        // The way from the root to here, for `..`; and the names still to go, the next one last.
        let mut way = vec![self.root];
        let mut to_go: Vec<&str> = names(path).rev().collect();
        while let Some(name) = to_go.pop() {
            let here = way.last().copied().unwrap_or(self.root);
            if name == ".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let Node::Dir(children) = &self.nodes[here] else { return Err(Errno::NOTDIR.into()) };
            let &next = children.get(name).ok_or(io::Error::from(Errno::NOENT))?;
            let Node::Link(target) = &self.nodes[next] else {
                way.push(next);
                continue;
            };
            if to_go.is_empty() && !follow_last {
                return Ok(next);
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            if target.starts_with('/') {
                way.truncate(1);
            }
            to_go.extend(names(target).rev());
        }
        Ok(way.last().copied().unwrap_or(self.root))
    }

    /// The folder called `name` in the folder `dir`, made if it is not there.
    fn make_dir(&mut self, dir: usize, name: &str, path: &str) -> io::Result<usize> {
        let known = match &self.nodes[dir] {
            Node::Dir(children) => children.get(name).copied(),
            _ => return Err(bad(&format!("entry {path}: a part of its path is not a folder"))),
        };
        match known {
            Some(child) => Ok(child),
            None => self.add(dir, name, Node::Dir(BTreeMap::new()), path),
        }
    }

    fn add(&mut self, dir: usize, name: &str, node: Node, path: &str) -> io::Result<usize> {
        if self.nodes.len() > ENTRIES_MAX {
            return Err(bad(&format!("more than {ENTRIES_MAX} files and folders in one archive")));
        }
        let new = self.nodes.len();
        let Node::Dir(children) = &mut self.nodes[dir] else {
            return Err(bad(&format!("entry {path}: a part of its path is not a folder")));
        };
        // A later entry of the same name is the newer file, as when tar appends; a folder stays one.
        if let Some(&old) = children.get(name) {
            return match (&self.nodes[old], &node) {
                (Node::Dir(_), Node::Dir(_)) => Ok(old),
                (Node::Dir(_), _) | (_, Node::Dir(_)) => {
                    Err(bad(&format!("entry {path}: stands twice, as a folder and as something else")))
                }
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

    /// Puts `node` at the normalised `path`.
    fn put(&mut self, path: &str, node: Node) -> io::Result<()> {
        let shown = super::escape(path).into_owned();
        let mut way: Vec<&str> = Vec::new();
        for name in names(path) {
            if name == ".." {
                way.pop();
            } else {
                way.push(name);
            }
        }
        if path.len() > PATH_MAX || way.iter().any(|name| name.len() > NAME_MAX || name.contains('\0')) {
            return Err(bad(&format!("entry {}…: no file can have this name", cut(&shown))));
        }
        // `./` is the root itself.
        let Some((last, before)) = way.split_last() else { return Ok(()) };
        let mut dir = self.root;
        for name in before {
            dir = self.make_dir(dir, name, &shown)?;
        }
        self.add(dir, last, node, &shown).map(|_| ())
    }
}

/// Sums and pending long names while an archive is read.
struct Filling<'a> {
    archive: &'a mut Archive,
    texts: u64,
    packed: u64,
    long: LongNames,
}

/// Names too long for the header, from the entries before it (GNU `L`, `K`; pax `x`).
#[derive(Default)]
struct LongNames {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    /// A pax record that changes what the data mean, which is not followed.
    odd: Option<String>,
}

impl Filling<'_> {
    fn take<R: Read>(&mut self, mut entry: tar::Entry<'_, R>) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let size = entry.header().entry_size()?;
        match kind {
            EntryType::GNULongName => return header_text(&mut entry, size).map(|t| self.long.path = Some(t)),
            EntryType::GNULongLink => return header_text(&mut entry, size).map(|t| self.long.link = Some(t)),
            EntryType::XHeader => return self.extended(&header_text(&mut entry, size)?),
            EntryType::XGlobalHeader => return Ok(()),
            _ => {}
        }
        let long = std::mem::take(&mut self.long);
        let path = long.path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = String::from_utf8(path).map_err(|error| {
            let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
            bad(&format!("entry {}: its name is not UTF-8", super::escape(&shown)))
        })?;
        let shown = super::escape(&path).into_owned();
        let refused = |what: &str| Node::Refused(format!("entry {} of the archive {what}", cut(&shown)));
        let node = match kind {
            EntryType::Directory => Node::Dir(BTreeMap::new()),
            EntryType::Regular | EntryType::Continuous if path.ends_with('/') => Node::Dir(BTreeMap::new()),
            _ if long.odd.is_some() => refused(&format!("has {}", long.odd.as_deref().unwrap_or_default())),
            EntryType::Regular | EntryType::Continuous => self.data(&mut entry, &path, size, &refused)?,
            EntryType::Symlink => {
                let target = long.link.or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
                match String::from_utf8(target.unwrap_or_default()) {
                    Ok(target) if !target.is_empty() && target.len() <= PATH_MAX => Node::Link(target),
                    _ => refused("is a symbolic link without a usable target"),
                }
            }
            EntryType::Link => refused("is a hard link, which is not followed"),
            EntryType::Fifo => refused("is a FIFO where a file is expected"),
            EntryType::Char | EntryType::Block => refused("is a device where a file is expected"),
            EntryType::GNUSparse => refused("is a sparse file, which is not read; pack it without --sparse"),
            other => refused(&format!("is of the unknown kind {:?}", char::from(other.as_byte()))),
        };
        self.archive.put(&path, node)
    }

    fn data<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        path: &str,
        size: u64,
        refused: &dyn Fn(&str) -> Node,
    ) -> io::Result<Node> {
        let file_name = path.rsplit('/').next().unwrap_or(path);
        let packed = file_name.ends_with(".zst") || captured::BINARY.contains(&file_name);
        let (sum, sum_max, what) = match packed {
            true => (&mut self.packed, PACKED_MAX, "compressed data"),
            false => (&mut self.texts, TEXTS_MAX, "text"),
        };
        if !packed && size > TEXT_MAX.0 {
            return Ok(refused("is larger than 64 MiB, which no kernel prints"));
        }
        *sum = sum.saturating_add(size);
        if *sum > sum_max.0 {
            let most = sum_max.0 >> 20;
            return Err(bad(&format!(
                "entry {}: more than {most} MiB of {what} in all",
                super::escape(path)
            )));
        }
        let mut data = Vec::new();
        entry.take(size).read_to_end(&mut data)?;
        if data.len() as u64 != size {
            return Err(bad(&format!("entry {}: cut off", super::escape(path))));
        }
        Ok(Node::File(data.into()))
    }

    fn extended(&mut self, text: &[u8]) -> io::Result<()> {
        for record in tar::PaxExtensions::new(text) {
            let record = record?;
            match record.key_bytes() {
                b"path" => self.long.path = Some(record.value_bytes().to_vec()),
                b"linkpath" => self.long.link = Some(record.value_bytes().to_vec()),
                // The length of the data would no longer be the one in the header.
                b"size" => return Err(bad("an entry with a size of its own in a pax header (above 8 GiB)")),
                key if key.starts_with(b"GNU.sparse") => {
                    self.long.odd =
                        Some("sparse data, which are not read; pack it without --sparse".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The data of an entry that only names the next one, without the NUL at its end.
fn header_text<R: Read>(entry: &mut tar::Entry<'_, R>, size: u64) -> io::Result<Vec<u8>> {
    if size > HEADER_MAX.0 {
        return Err(bad("a name or an extended header of more than 64 KiB"));
    }
    let mut text = Vec::new();
    entry.take(size).read_to_end(&mut text)?;
    if text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// A reader that fails, rather than ends, after so many bytes.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| bad(&format!("more than {} GiB after decompression", ARCHIVE_MAX.0 >> 30)))?;
        Ok(count)
    }
}

/// A copy of `data` that can be read like any file.
pub(super) fn memory_file(data: &[u8]) -> io::Result<File> {
    let fd = rustix::fs::memfd_create("pagelab-archive", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(data)?;
    file.rewind()?;
    Ok(file)
}

/// The names of a path, without empty ones and `.`; `..` is among them.
fn names(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

fn cut(text: &str) -> String {
    text.chars().take(120).collect()
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn after(entries: u64, error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() {
        return error;
    }
    let problem = match entries {
        // The tar reader's words for a header that is none quote the file, which may be anything.
        0 if error.to_string().contains("numeric field") => "neither a folder nor a tar archive".to_owned(),
        0 => format!("not a readable tar archive: {error}"),
        _ => format!("broken after {entries} entries: {error}"),
    };
    bad(&problem)
}
