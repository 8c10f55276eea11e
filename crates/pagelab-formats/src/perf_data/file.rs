//! The head of a file: which form it is, where its parts are, and the events that its records belong to.

use super::feature::number;
use super::record::Decoder;
use super::stream::{Session, cut_feature};
use super::{About, Attr, Endian, Event, EventAbout, Input, Tally, Unpack, at};
use crate::ParseError;

/// `PERFILE2` in the byte order of the machine that wrote it.
const MAGIC: [u8; 8] = *b"PERFILE2";
/// Bytes of `struct perf_file_header` and of `struct perf_pipe_file_header`.
const FILE_HEADER: u64 = 104;
const PIPE_HEADER: u64 = 16;
/// A section of the head, at most. The list of build ids of a large system has some MB.
const SECTION_MAX: u64 = 256 << 20;
/// Events, at most.
const EVENTS_MAX: u64 = 1 << 13;
/// Bytes that a section grows by, so that one that claims more than is there costs nothing.
const PIECE: u64 = 1 << 20;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Written by `perf record -o FILE`: parts by offset.
    File(Endian),
    /// Written by `perf record -o -`: records alone.
    Pipe(Endian),
    /// Written by perf before 2.6.32 or so.
    Ancient,
    /// None that perf writes: perhaps text.
    Other,
}

/// What the first bytes say; 16 of them are enough.
pub fn form(bytes: &[u8]) -> Form {
    let reversed: Vec<u8> = MAGIC.iter().rev().copied().collect();
    let endian = match bytes.get(..8) {
        Some(magic) if magic == MAGIC => Endian::Little,
        Some(magic) if magic == reversed => Endian::Big,
        Some(b"PERFFILE") | Some(b"ELIFFREP") => return Form::Ancient,
        _ => return Form::Other,
    };
    match endian.u64(bytes, 8) {
        Some(PIPE_HEADER) => Form::Pipe(endian),
        _ => Form::File(endian),
    }
}

/// Reads a file or a pipe to its end. Events go to `visit` in the order of time, with what is known about the
/// file by then: all of it in the file form, what came before in the pipe form.
pub fn read(
    input: &mut dyn Input,
    unpack: &mut Unpack<'_>,
    visit: &mut dyn FnMut(&About, Event),
) -> Result<(About, Tally), ParseError> {
    let head = section(input, 0, PIPE_HEADER, "the header")?;
    match form(&head) {
        Form::File(endian) => file(input, endian, unpack, visit),
        Form::Pipe(endian) => {
            let mut session = Session::new(Decoder::new(endian), About::default(), unpack, visit);
            session.run(input, PIPE_HEADER, None)?;
            Ok((session.about, session.tally))
        }
        Form::Ancient => Err(at(0, "written by a perf of 2009 or 2010, in a form that is no longer read")),
        Form::Other => Err(at(0, "it does not begin with PERFILE2, as files of perf record do")),
    }
}

/// A part of the file: `struct perf_file_section`.
#[derive(Clone, Copy, Debug)]
struct Section {
    offset: u64,
    bytes: u64,
}

impl Section {
    fn parse(bytes: &[u8], place: usize, endian: Endian) -> Option<Section> {
        Some(Section { offset: endian.u64(bytes, place)?, bytes: endian.u64(bytes, place + 8)? })
    }

    fn end(self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }
}

/// Reads a part whole.
fn section(input: &mut dyn Input, offset: u64, bytes: u64, what: &str) -> Result<Vec<u8>, ParseError> {
    if bytes > SECTION_MAX {
        return Err(at(
            offset,
            format!("{what} has {bytes} bytes, more than the {SECTION_MAX} that are read"),
        ));
    }
    let mut read = Vec::new();
    while (read.len() as u64) < bytes {
        let old = read.len();
        let from = offset.checked_add(old as u64).ok_or_else(|| at(offset, format!("{what} is nowhere")))?;
        read.resize(old + PIECE.min(bytes - old as u64) as usize, 0);
        let count = input.read_at(from, &mut read[old..]).map_err(|problem| at(from, problem))?;
        read.truncate(old + count);
        if count == 0 {
            return Err(at(from, format!("the file ends within {what}")));
        }
    }
    Ok(read)
}

fn file(
    input: &mut dyn Input,
    endian: Endian,
    unpack: &mut Unpack<'_>,
    visit: &mut dyn FnMut(&About, Event),
) -> Result<(About, Tally), ParseError> {
    let head = section(input, 0, FILE_HEADER, "the header")?;
    let bad_head = |what: &str| at(8, format!("the header's {what} makes no sense"));
    let attr_bytes = endian.u64(&head, 16).filter(|bytes| (80..=PIECE).contains(bytes));
    let attr_bytes = attr_bytes.ok_or_else(|| bad_head("size of an event"))?;
    let attrs = Section::parse(&head, 24, endian).ok_or_else(|| bad_head("list of events"))?;
    let data = Section::parse(&head, 40, endian).ok_or_else(|| bad_head("place of the data"))?;
    let data_end = data.end().ok_or_else(|| bad_head("place of the data"))?;
    let (mut decoder, mut about) = (Decoder::new(endian), About::default());
    if attrs.bytes / attr_bytes > EVENTS_MAX {
        return Err(at(attrs.offset, format!("more than {EVENTS_MAX} events")));
    }
    let list = section(input, attrs.offset, attrs.bytes, "the list of events")?;
    for entry in list.chunks_exact(attr_bytes as usize) {
        let read = || Some((Attr::parse(entry, endian)?, Section::parse(entry, entry.len() - 16, endian)?));
        let (attr, ids) = read().ok_or_else(|| at(attrs.offset, "an event that is cut off"))?;
        let ids = section(input, ids.offset, ids.bytes, "the numbers of an event")?;
        decoder.add(attr, (0..ids.len() / 8).filter_map(|place| endian.u64(&ids, 8 * place)));
        about.events.push(EventAbout { name: String::new(), attr });
    }
    // A perf that was killed leaves 0: then the records go on up to the end, and nothing stands behind them.
    let unfinished = data.bytes == 0;
    if !unfinished {
        features(input, &head, data_end, endian, &mut about)?;
    }
    let mut session = Session::new(decoder, about, unpack, visit);
    session.tally.unfinished = unfinished;
    session.run(input, data.offset, (!unfinished).then_some(data_end))?;
    Ok((session.about, session.tally))
}

/// The features stand behind the data: a list of their places in the order of their numbers, then they.
fn features(
    input: &mut dyn Input,
    head: &[u8],
    list_at: u64,
    endian: Endian,
    about: &mut About,
) -> Result<(), ParseError> {
    let has = |feature: &u64| {
        // Words of 8 bytes in the file's order.
        let word = endian.u64(head, 72 + 8 * (feature / 64) as usize).unwrap_or(0);
        word >> (feature % 64) & 1 != 0
    };
    let there: Vec<u64> = (0..number::END).filter(has).collect();
    let list = section(input, list_at, 16 * there.len() as u64, "the list of features")?;
    for (place, feature) in there.into_iter().enumerate() {
        let Some(part) = Section::parse(&list, 16 * place, endian) else { continue };
        let known = [number::BUILD_ID, number::HOSTNAME, number::OSRELEASE, number::ARCH, number::CPUDESC]
            .into_iter()
            .chain([number::CPUID, number::CMDLINE, number::EVENT_DESC, number::PMU_MAPPINGS])
            .chain([number::MEM_TOPOLOGY]);
        if known.into_iter().any(|known| known == feature) {
            let bytes = section(input, part.offset, part.bytes, "a feature")?;
            about.take(feature, &bytes, endian).ok_or_else(|| at(part.offset, cut_feature(feature)))?;
        }
    }
    Ok(())
}
