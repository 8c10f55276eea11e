//! Lines of a report with the watermarks of its zones, and the lowmem reserves behind them.
//!
//! ```text
//! Node 0 DMA free:15908kB boost:0kB min:28kB low:32kB … reserved_highatomic:0KB … free_cma:0kB
//! lowmem_reserve[]: 0 2965 3975 3975
//! ```

use pagelab_model::failed_request::ZoneWatermark;
use pagelab_model::{Bytes, NodeId, PageSize, Pages, ZoneFreeAreas};

use super::parse_trailing_node;
use crate::text::{find_bytes, lines, parse_number, split_number, words};

/// Most entries of a lowmem reserve that are read; a kernel has one for each kind of zone.
const KINDS_MAX: usize = 16;
const RESERVE_LABEL: &[u8] = b"lowmem_reserve[]:";

/// Whether a line states the watermark of a zone.
pub(super) fn is_zone_detail(line: &[u8]) -> bool {
    find_bytes(line, b" min:").is_some() && split_detail(line).is_some()
}

/// The watermark of each of the zones, where `text` states it: the last statement for a zone counts.
pub(super) fn find_watermarks(
    text: &[u8],
    zones: &[ZoneFreeAreas],
    page_size: PageSize,
) -> Vec<Option<ZoneWatermark>> {
    let mut watermarks = vec![None; zones.len()];
    let mut current: Option<usize> = None;
    for (_, line) in lines(text) {
        if is_zone_detail(line) {
            current = split_detail(line).and_then(|(node, name, _)| {
                zones.iter().position(|zone| zone.key.node == node && zone.key.zone.as_bytes() == name)
            });
            if let Some(at) = current {
                watermarks[at] = parse_watermark(line, page_size);
            }
        } else if let Some(reserve) = parse_reserve(line)
            && let Some(at) = current.take()
            && let Some(watermark) = &mut watermarks[at]
        {
            watermark.lowmem_reserve = Some(reserve);
        }
    }
    watermarks
}

/// Node and name of the zone of `… Node 0 DMA free:15908kB …`, and the text from `free:` on.
fn split_detail(line: &[u8]) -> Option<(NodeId, &[u8], &[u8])> {
    let at = find_bytes(line, b" free:")?;
    let (before, values) = (&line[..at], &line[at..]);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let start = before.iter().rposition(|byte| !is_name(byte)).map_or(0, |at| at + 1);
    let name = before.get(start..).filter(|name| name.iter().any(u8::is_ascii_alphabetic))?;
    let node = parse_trailing_node(&before[..start]).unwrap_or(NodeId(0));
    Some((node, name, values))
}

fn parse_watermark(line: &[u8], page_size: PageSize) -> Option<ZoneWatermark> {
    let (_, _, values) = split_detail(line)?;
    let pages = |label: &str| -> Option<Pages> {
        let label = format!(" {label}:");
        let (kib, rest) = split_number(&values[find_bytes(values, label.as_bytes())? + label.len()..])?;
        let is_kib = rest.starts_with(b"kB") || rest.starts_with(b"KB");
        is_kib.then(|| Bytes::from_kib(kib).to_pages(page_size))
    };
    Some(ZoneWatermark {
        free: pages("free")?,
        min: pages("min")?,
        // 6.12 subtracts the free pages of the reserve, earlier kernels the whole reserve.
        highatomic: pages("free_highatomic").or_else(|| pages("reserved_highatomic")),
        free_cma: pages("free_cma"),
        lowmem_reserve: None,
    })
}

fn parse_reserve(line: &[u8]) -> Option<Vec<Pages>> {
    let values = &line[find_bytes(line, RESERVE_LABEL)? + RESERVE_LABEL.len()..];
    let pages: Option<Vec<Pages>> =
        words(values).take(KINDS_MAX).map(|word| parse_number(word).map(Pages)).collect();
    pages.filter(|pages| !pages.is_empty())
}

#[cfg(test)]
mod tests {
    use crate::show_mem::{find_reports, parse};

    #[test]
    fn watermarks_are_those_of_the_zones_of_the_same_report() {
        let report = |free: u64| {
            format!(
                "[ 1.0] x: page allocation failure: order:1, mode:0x40cc0(GFP_KERNEL)\n\
                 [ 1.0] Mem-Info:\n[ 1.0]  free:1000 free_pcp:3 free_cma:0\n\
                 [ 1.1] Node 0 DMA free:{free}kB min:28kB low:32kB reserved_highatomic:2048KB free_cma:4kB\n\
                 [ 1.1] lowmem_reserve[]: 0 2965 3975 3975\n\
                 [ 1.1] Node 1 Normal free:660kB low:2552kB\n[ 1.1] lowmem_reserve[]: 0 0 0 0\n\
                 [ 1.2] Node 0 DMA: 3*4kB = 12kB\n[ 1.2] Node 1 Normal: 3*4kB = 12kB\n"
            )
        };
        let text = report(15_908) + &report(12);
        let spans = find_reports(text.as_bytes());
        let free = spans.iter().map(|span| {
            let found = parse(text.as_bytes(), span).unwrap();
            assert_eq!(found.trigger.unwrap().request.unwrap().gfp_mask, 0x40cc0);
            // The line of Normal was cut.
            let [Some(dma), None] = &found.watermarks[..] else { panic!("{:?}", found.watermarks) };
            assert_eq!((dma.min.0, dma.highatomic.unwrap().0, dma.free_cma.unwrap().0), (7, 512, 1));
            let reserve: Vec<u64> = dma.lowmem_reserve.iter().flatten().map(|pages| pages.0).collect();
            assert_eq!(reserve, [0, 2965, 3975, 3975]);
            dma.free.0
        });
        assert_eq!(free.collect::<Vec<_>>(), [3977, 3]);
    }
}
