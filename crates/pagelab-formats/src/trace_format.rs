//! `events/SYSTEM/NAME/format` of tracefs: the fields of a tracepoint's record (kernel/trace/trace_events.c,
//! `f_show`).
//!
//! ```text
//! name: mm_page_alloc_extfrag
//! ID: 650
//! format:
//!     field:unsigned short common_type;  offset:0;  size:2;  signed:0;
//!
//!     field:unsigned long pfn;  offset:8;  size:8;  signed:0;
//!
//! print fmt: "pfn=0x%lx …", REC->pfn, …
//! ```
//! The layout differs between releases, so it is read on the machine of the records. A [`NumberField`] is
//! looked up once by its name; reading it from a record is then a bounded load.

use crate::ParseError;
use crate::text::{lines, parse_number, split_label, text_to_nul, to_printable};

const FORMAT: &str = "trace event format";

/// Fields of one record, at most; the kernel's longest have a few dozen.
const FIELDS_MAX: usize = 512;

/// The largest record: the size of a perf record is 16 bits wide.
const RECORD_MAX: u64 = 1 << 16;

/// One tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFormat {
    /// Its name within its system.
    pub name: String,
    /// Its number on this machine until the next boot; records begin with it (`common_type`).
    pub id: u16,
    /// Its fields in order, those of every record (`common_…`) first.
    pub fields: Vec<TraceField>,
    /// The kernel's print format, unchanged: a C format and its arguments.
    pub print_fmt: String,
    /// Other lines, unchanged.
    pub other: Vec<String>,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceField {
    /// Its name, without the brackets of an array.
    pub name: String,
    /// Bytes from the record's start.
    pub offset: u32,
    /// Total bytes.
    pub size: u32,
    /// Whether numbers in it have a sign.
    pub is_signed: bool,
    /// Its type.
    pub shape: FieldShape,
    /// Other words of the line, such as `filter_type:1`.
    pub other: Vec<String>,
}

/// Content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldShape {
    /// A number, where its size is 1, 2, 4 or 8 bytes; else opaque bytes, such as a struct.
    Plain,
    /// Elements side by side: `char comm[16]`.
    Array,
    /// Offset from the record's start and length of bytes elsewhere in it: `__data_loc char[] name`.
    DataLoc,
    /// The same with an offset from the end of this field: `__rel_loc char[] name` (5.17 and later).
    RelLoc,
}

/// Position of one number: looked up once, read for each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberField {
    offset: u16,
    size: u8,
    is_signed: bool,
}

/// Position of bytes: an array, or bytes elsewhere in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesField {
    offset: u16,
    size: u16,
    shape: FieldShape,
}

impl NumberField {
    /// The field's value, sign-extended to 64 bits if it has a sign; `None` if the record ends before it.
    #[inline]
    pub fn u64(self, record: &[u8]) -> Option<u64> {
        let bytes = record.get(usize::from(self.offset)..)?;
        Some(match (self.size, self.is_signed) {
            (8, _) => u64::from_ne_bytes(*bytes.first_chunk()?),
            (4, false) => u64::from(u32::from_ne_bytes(*bytes.first_chunk()?)),
            (4, true) => i64::from(i32::from_ne_bytes(*bytes.first_chunk()?)) as u64,
            (2, false) => u64::from(u16::from_ne_bytes(*bytes.first_chunk()?)),
            (2, true) => i64::from(i16::from_ne_bytes(*bytes.first_chunk()?)) as u64,
            (_, false) => u64::from(*bytes.first()?),
            (_, true) => i64::from(*bytes.first()? as i8) as u64,
        })
    }

    /// The field's value as a signed number. An unsigned one of 64 bits above 2^63 comes out negative.
    #[inline]
    pub fn i64(self, record: &[u8]) -> Option<i64> {
        self.u64(record).map(|value| value as i64)
    }
}

impl BytesField {
    /// The field's bytes; `None` if the record does not contain all of them.
    pub fn bytes(self, record: &[u8]) -> Option<&[u8]> {
        let at = usize::from(self.offset);
        let own = record.get(at..at + usize::from(self.size))?;
        if !matches!(self.shape, FieldShape::DataLoc | FieldShape::RelLoc) {
            return Some(own);
        }
        let location = u32::from_ne_bytes(*own.first_chunk()?);
        let base = if self.shape == FieldShape::RelLoc { at + own.len() } else { 0 };
        let start = base + (location & 0xffff) as usize;
        record.get(start..start + (location >> 16) as usize)
    }

    /// The field's bytes as text up to the first zero byte.
    pub fn text(self, record: &[u8]) -> Option<String> {
        self.bytes(record).map(text_to_nul)
    }
}

impl TraceFormat {
    /// The number of a record's tracepoint: `common_type`, with which every record begins.
    #[inline]
    pub fn read_event_id(record: &[u8]) -> Option<u16> {
        Some(u16::from_ne_bytes(*record.first_chunk()?))
    }

    fn find_field(&self, name: &str) -> Option<&TraceField> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Position of the number `name`; `None` if there is no such field, or if it is not a number.
    pub fn field(&self, name: &str) -> Option<NumberField> {
        let field = self.find_field(name)?;
        let is_number = field.shape == FieldShape::Plain && matches!(field.size, 1 | 2 | 4 | 8);
        let offset = u16::try_from(field.offset).ok()?;
        is_number.then_some(NumberField { offset, size: field.size as u8, is_signed: field.is_signed })
    }

    /// Position of the bytes of `name`, of any type.
    pub fn bytes_field(&self, name: &str) -> Option<BytesField> {
        let field = self.find_field(name)?;
        let (offset, size) = (u16::try_from(field.offset).ok()?, u16::try_from(field.size).ok()?);
        Some(BytesField { offset, size, shape: field.shape })
    }

    /// The words that the kernel prints for the values of `name` by `__print_symbolic` with plain numbers;
    /// empty if it does not.
    pub fn symbols(&self, name: &str) -> Vec<(i64, String)> {
        let head = format!("__print_symbolic(REC->{name},");
        let Some((_, mut rest)) = self.print_fmt.split_once(&head) else { return Vec::new() };
        let mut symbols = Vec::new();
        while let Some(pair) = rest.trim_start().trim_start_matches(',').trim_start().strip_prefix('{') {
            let Some((value, after)) = pair.split_once(',') else { break };
            let Some((word, after)) = after.trim_start().strip_prefix('"').and_then(|w| w.split_once('"'))
            else {
                break;
            };
            let Some(after) = after.trim_start().strip_prefix('}') else { break };
            if let Ok(value) = value.trim().parse() {
                symbols.push((value, word.to_owned()));
            }
            rest = after;
        }
        symbols
    }
}

/// Reads a whole format file.
pub fn parse(text: &[u8]) -> Result<TraceFormat, ParseError> {
    let (mut name, mut id, mut print_fmt) = (None, None, None);
    let (mut fields, mut other_lines): (Vec<TraceField>, Vec<String>) = (Vec::new(), Vec::new());
    for (line_number, line) in lines(text) {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        // The print format comes last, and may have several lines (ext4_fc_stats).
        if let Some(print_fmt) = &mut print_fmt {
            let more: &mut String = print_fmt;
            more.push('\n');
            more.push_str(&to_text(line));
            continue;
        }
        match split_label(line) {
            None if line.trim_ascii().is_empty() => {}
            Some((b"name", word)) if name.is_none() => name = Some(to_text(word)),
            Some((b"ID", word)) if id.is_none() => {
                let known = parse_number(word).and_then(|id| u16::try_from(id).ok());
                let unknown = || fail(format!("`{}` is not an event ID", to_printable(word)));
                id = Some(known.ok_or_else(unknown)?);
            }
            Some((b"format", b"")) => {}
            Some((b"print fmt", rest)) => print_fmt = Some(to_text(rest)),
            Some((b"field" | b"field special", rest)) => {
                if fields.len() == FIELDS_MAX {
                    return Err(fail(format!("more than {FIELDS_MAX} fields")));
                }
                fields.push(parse_field(rest).ok_or_else(|| {
                    fail(format!(
                        "expected `TYPE NAME; offset:N; size:N; signed:0;`, found `{}`",
                        to_printable(rest)
                    ))
                })?);
            }
            _ => other_lines.push(to_text(line)),
        }
    }
    let missing = |what: &str| ParseError::for_input(FORMAT, format!("no {what} found"));
    let (Some(name), Some(id)) = (name, id) else { return Err(missing("`name:` or `ID:`")) };
    Ok(TraceFormat { name, id, fields, print_fmt: print_fmt.unwrap_or_default(), other: other_lines })
}

fn to_text(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// `unsigned long pfn;    offset:8;  size:8;  signed:0;`
pub(crate) fn parse_field(declaration_line: &[u8]) -> Option<TraceField> {
    let mut parts =
        declaration_line.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty());
    let declaration = parts.next()?;
    let (mut offset, mut size, mut is_signed, mut other) = (None, None, false, Vec::new());
    for part in parts {
        match split_label(part) {
            Some((b"offset", value)) => offset = Some(parse_number(value)?),
            Some((b"size", value)) => size = Some(parse_number(value)?),
            Some((b"signed", value)) => is_signed = parse_number(value)? != 0,
            _ => other.push(to_text(part)),
        }
    }
    let (offset, size) = (offset?, size?);
    if offset.checked_add(size)? > RECORD_MAX || size == RECORD_MAX {
        return None;
    }
    let (name, shape) = parse_name_and_shape(declaration)?;
    Some(TraceField { name, offset: offset as u32, size: size as u32, is_signed, shape, other })
}

/// The last word of a declaration without its brackets, and its shape by the rest.
fn parse_name_and_shape(declaration: &[u8]) -> Option<(String, FieldShape)> {
    let whole = std::str::from_utf8(declaration).ok()?;
    let (plain, has_brackets) = match whole.strip_suffix(']').and_then(|open| open.rsplit_once('[')) {
        Some((plain, _)) => (plain.trim_end(), true),
        None => (whole, false),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = plain.rsplit(|c| !is_part(c)).next().filter(|name| !name.is_empty())?;
    let shape = match whole.split_ascii_whitespace().next()? {
        "__data_loc" => FieldShape::DataLoc,
        "__rel_loc" => FieldShape::RelLoc,
        _ if has_brackets => FieldShape::Array,
        _ => FieldShape::Plain,
    };
    Some((name.to_owned(), shape))
}

/// Any bytes: reads through a parsed format stay within the record.
pub fn fuzz(data: &[u8]) -> Result<TraceFormat, ParseError> {
    let format = parse(data)?;
    for field in &format.fields {
        assert!(u64::from(field.offset) + u64::from(field.size) <= RECORD_MAX);
        format.symbols(&field.name);
        if let Some(number) = format.field(&field.name) {
            number.u64(data);
        }
        if let Some(bytes) = format.bytes_field(&field.name) {
            assert!(bytes.bytes(data).is_none_or(|bytes| bytes.len() <= data.len()));
        }
    }
    Ok(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name: odd\nID: 650\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:int order;\toffset:4;\tsize:4;\tsigned:1;\n\
        \tfield:char comm[4];\toffset:8;\tsize:4;\tsigned:0;\tnew:1;\n\
        \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:__rel_loc char[] rel;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:const void * ptr;\toffset:24;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"%s\", __print_symbolic(REC->order, {0, \"none\"}, {-1, \"any\"}, { 2 , \"two\" })\n\tmore\n";

    fn record() -> Vec<u8> {
        let mut record = vec![0u8; 40];
        record[..2].copy_from_slice(&650u16.to_ne_bytes());
        record[4..8].copy_from_slice(&(-3i32).to_ne_bytes());
        record[8..12].copy_from_slice(b"ab\0x");
        record[12..16].copy_from_slice(&(32u32 | 5 << 16).to_ne_bytes());
        record[16..20].copy_from_slice(&(12u32 | 4 << 16).to_ne_bytes());
        record[24..32].copy_from_slice(&u64::MAX.to_ne_bytes());
        record[32..37].copy_from_slice(b"home\0");
        record
    }

    #[test]
    fn fields_are_read_where_the_format_says() {
        let format = parse(TEXT.as_bytes()).unwrap();
        assert_eq!((format.name.as_str(), format.id, format.fields.len()), ("odd", 650, 6));
        assert!(format.print_fmt.ends_with(")\n\tmore"), "{}", format.print_fmt);
        assert_eq!(format.fields[2].other, ["new:1"], "what a later kernel adds is kept");
        let record = record();
        let at = |name: &str| format.field(name).unwrap();
        assert_eq!(TraceFormat::read_event_id(&record), Some(650));
        assert_eq!(at("common_type").u64(&record), Some(650));
        assert_eq!((at("order").i64(&record), at("ptr").u64(&record)), (Some(-3), Some(u64::MAX)));
        let text = |name: &str| format.bytes_field(name).unwrap().text(&record);
        assert_eq!(text("comm").as_deref(), Some("ab"));
        assert_eq!(text("name").as_deref(), Some("home"));
        assert_eq!(text("rel").as_deref(), Some("home"), "32 is 20 and 12 more");
        assert_eq!((format.field("name"), format.field("comm"), format.field("none")), (None, None, None));
        let words: Vec<_> = format.symbols("order").into_iter().map(|(value, _)| value).collect();
        assert_eq!((words, format.symbols("ptr")), (vec![0, -1, 2], vec![]));
    }

    #[test]
    fn a_short_record_has_no_field_rather_than_a_wrong_one() {
        let format = parse(TEXT.as_bytes()).unwrap();
        let record = record();
        let order = format.field("order").unwrap();
        assert_eq!((order.u64(&record[..7]), order.u64(&record[..8])), (None, Some(-3i64 as u64)));
        let name = format.bytes_field("name").unwrap();
        assert_eq!((name.bytes(&record[..36]), name.bytes(&record[..13])), (None, None));
    }

    #[test]
    fn bad_lines_are_named() {
        let error = |text: &str| parse(text.as_bytes()).unwrap_err().message_in_file("f");
        assert_eq!(error(""), "f: no `name:` or `ID:` found (read as trace event format)");
        assert!(error("name: a\nID: 65536\n").starts_with("f:2: `65536` is not an event ID"));
        for field in ["int a; offset:1;", "int a; offset:65535; size:2;", "; offset:1; size:1;", "int a[; "] {
            let text = format!("name: a\nID: 1\nfield:{field}\n");
            assert!(error(&text).starts_with("f:3: expected `TYPE NAME; "), "{field}");
        }
        let many = "field:int a; offset:0; size:4;\n".repeat(513);
        assert!(error(&many).contains("513: more than 512 fields"));
    }
}
