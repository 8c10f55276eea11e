//! Data blocks of a page: base64 of gzip, in script elements that no browser runs.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::json::object::Object;

/// The blocks of a page, in the order in which they were put.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    html: String,
    count: usize,
}

impl Blocks {
    /// Puts a document under a name of our own.
    pub fn document(&mut self, id: &str, bytes: &[u8]) {
        self.push(id, bytes);
    }

    /// Puts numbers as doubles, and returns what the page finds them by.
    pub fn f64(&mut self, values: &[f64]) -> Object {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.typed("f64", values.len(), 8, &bytes)
    }

    /// Puts whole numbers in the smallest type that holds them all.
    pub fn whole(&mut self, values: &[u64]) -> Object {
        let max = values.iter().copied().max().unwrap_or(0);
        let narrow = |width: usize| -> Vec<u8> {
            values.iter().flat_map(move |value| value.to_le_bytes().into_iter().take(width)).collect()
        };
        match max {
            0..=0xff => self.typed("u8", values.len(), 1, &narrow(1)),
            0x100..=0xffff => self.typed("u16", values.len(), 2, &narrow(2)),
            0x1_0000..=0xffff_ffff => self.typed("u32", values.len(), 4, &narrow(4)),
            _ => self.f64(&values.iter().map(|&value| value as f64).collect::<Vec<_>>()),
        }
    }

    /// Puts bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Object {
        self.typed("u8", bytes.len(), 1, bytes)
    }

    fn typed(&mut self, kind: &str, length: usize, width: usize, bytes: &[u8]) -> Object {
        let id = format!("b{}", self.count);
        self.count += 1;
        self.push(&id, &planes(bytes, width));
        Object::new().put("block", id).put("type", kind).put("length", length)
    }

    /// `id` is always ours; the content is base64, so that nothing in it can end the element.
    fn push(&mut self, id: &str, bytes: &[u8]) {
        self.html.push_str("<script type=\"application/octet-stream\" id=\"");
        self.html.push_str(id);
        self.html.push_str("\">");
        base64(&gzip(bytes), &mut self.html);
        self.html.push_str("</script>\n");
    }

    /// The script elements.
    pub fn into_html(self) -> String {
        self.html
    }
}

/// All lowest bytes first, then all second bytes, and so on: neighbours in time are alike in their high
/// bytes, and gzip finds that only where they stand together.
fn planes(bytes: &[u8], width: usize) -> Vec<u8> {
    if width == 1 {
        return bytes.to_vec();
    }
    (0..width).flat_map(|plane| bytes.iter().skip(plane).step_by(width).copied()).collect()
}

/// Writing to memory does not fail; if it did, the block would be empty and the page would say so.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    let written = encoder.write_all(bytes);
    written.and_then(|()| encoder.finish()).unwrap_or_default()
}

/// Appends `bytes` in base64 (RFC 4648, section 4).
pub(crate) fn base64(bytes: &[u8], out: &mut String) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = String::new();
            base64(plain.as_bytes(), &mut out);
            assert_eq!(out, coded);
        }
        let mut all = String::new();
        base64(&[0xff, 0xef, 0xbe, 0xfb], &mut all);
        assert_eq!(all, "/++++w==");
    }

    #[test]
    fn numbers_take_the_smallest_type_and_their_bytes_lie_in_planes() {
        let mut blocks = Blocks::default();
        let kind = |object: Object| serde_json::Value::from(object)["type"].as_str().map(str::to_owned);
        assert_eq!(kind(blocks.whole(&[])).as_deref(), Some("u8"));
        assert_eq!(kind(blocks.whole(&[255])).as_deref(), Some("u8"));
        assert_eq!(kind(blocks.whole(&[256])).as_deref(), Some("u16"));
        assert_eq!(kind(blocks.whole(&[1 << 16])).as_deref(), Some("u32"));
        assert_eq!(kind(blocks.whole(&[1 << 32])).as_deref(), Some("f64"));
        assert_eq!(planes(&[1, 2, 3, 4, 5, 6], 2), [1, 3, 5, 2, 4, 6]);
    }
}
