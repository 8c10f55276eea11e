//! Whether a zone's watermark and lowmem reserve allow a request (mm/page_alloc.c, `__zone_watermark_ok`).
//!
//! ```text
//! free − unusable > mark + lowmem_reserve[highest zone of the request]
//! ```
//! `unusable` is 2^order − 1, the highatomic reserve unless the request may use reserves, and free CMA pages
//! unless it is movable. The mark is min: a request that fails has fallen below low before. With
//! `__GFP_HIGH` the lowest mark is taken, 3/8 of min, so that a refusal is certain.

use pagelab_model::failed_request::{FailedRequest, ZoneWatermark};
use pagelab_model::{FreeAreas, Order, ZoneKey};

/// All kinds of zones, in the order of their indices (include/linux/mmzone.h, `enum zone_type`).
const ZONE_KINDS: [&str; 6] = ["DMA", "DMA32", "Normal", "HighMem", "Movable", "Device"];
/// The kinds that every kernel has.
const CONSTANT_KINDS: [&str; 2] = ["Normal", "Movable"];

/// One zone of a report.
#[derive(Clone, Copy, Debug)]
pub struct ReportedZone<'a> {
    /// Node and name of the zone.
    pub key: &'a ZoneKey,
    /// Its watermark, if the report states it.
    pub watermark: Option<&'a ZoneWatermark>,
}

/// Why a zone gives a request a block, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneVerdict {
    /// The watermark allows it.
    Allowed(WatermarkCheck),
    /// The watermark or the lowmem reserve refuses it.
    Refused(WatermarkCheck),
    /// Kernels before 4.4 refuse it: they repeat the check for each order without the smaller blocks.
    RefusedBefore44(WatermarkCheck, SmallerBlocksCheck),
    /// The request may not use the zone.
    NotPermitted {
        /// The highest zone that it may use.
        highest_zone: &'static str,
    },
    /// The migratetypes of the free blocks that are large enough do not serve the request.
    NoUsableType {
        /// Their letters.
        letters: String,
    },
    /// The report does not state enough.
    Unknown {
        /// What is missing.
        reason: &'static str,
    },
}

/// The numbers of a check, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatermarkCheck {
    /// The counter of free pages.
    pub free: u64,
    /// Pages that are subtracted, each with its reason.
    pub unusable: Vec<(u64, String)>,
    /// The lowest mark that the request may use.
    pub mark: u64,
    /// Whether the mark is 3/8 of min, else it is min.
    pub is_reduced: bool,
    /// Pages of the lowmem reserve.
    pub reserve: u64,
    /// The zone that the reserve is for.
    pub highest_zone: &'static str,
}

impl WatermarkCheck {
    /// Free pages that count.
    pub fn usable(&self) -> i128 {
        let unusable: i128 = self.unusable.iter().map(|&(pages, _)| i128::from(pages)).sum();
        i128::from(self.free) - unusable
    }

    /// What they have to exceed.
    pub fn required(&self) -> i128 {
        i128::from(self.mark) + i128::from(self.reserve)
    }
}

/// Numbers of the step in which a kernel before 4.4 refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallerBlocksCheck {
    /// Blocks below this order are left out.
    pub order: Order,
    /// Pages that remain.
    pub usable: i128,
    /// The mark, halved for each order.
    pub mark: u64,
}

/// Judges whether a zone of a report would have given the request a block of an order. `letters` are those of
/// the migratetypes with free blocks, by order.
pub fn judge_zone(
    request: FailedRequest,
    order: Order,
    zones: &[ReportedZone<'_>],
    at: usize,
    areas: &FreeAreas,
    letters: Option<&[String]>,
) -> ZoneVerdict {
    let unknown = |reason| ZoneVerdict::Unknown { reason };
    let Some(zone) = zones.get(at) else { return unknown("the report has no such zone") };
    let Some(watermark) = zone.watermark else {
        return unknown("the report lacks the watermarks of this zone");
    };
    let Some(reserves) = &watermark.lowmem_reserve else {
        return unknown("the report lacks the lowmem reserve of this zone");
    };
    let mut verdicts = zone_layouts(zones, reserves.len()).into_iter().filter_map(|kinds| {
        let index_of = |name: &str| kinds.iter().position(|&kind| kind == name);
        let highest = request.highest_zone();
        // A kernel without the zone uses Normal in its place.
        let (highest, index) = match index_of(highest) {
            Some(index) => (highest, index),
            None => ("Normal", index_of("Normal")?),
        };
        if index_of(&zone.key.zone)? > index {
            return Some(ZoneVerdict::NotPermitted { highest_zone: highest });
        }
        let reserve = reserves.get(index)?.0;
        Some(check_watermark(request, order, watermark, (reserve, highest), areas))
    });
    let Some(first) = verdicts.next() else {
        return unknown("the lowmem reserves do not match the zone names");
    };
    if verdicts.any(|other| other != first) {
        return unknown("the zones of this kernel are unknown, and thus which lowmem reserve applies");
    }
    match (first, letters) {
        (ZoneVerdict::Allowed(check), Some(letters)) => {
            match unusable_letters(request, order, areas, letters) {
                Some(letters) => ZoneVerdict::NoUsableType { letters },
                None => ZoneVerdict::Allowed(check),
            }
        }
        (verdict, _) => verdict,
    }
}

/// The possible lists of a kernel's zones: all that are named, as many as the reserve has entries. Up to a
/// zone's own index its reserve is 0, and from there on only the zones of its node that have memory add to it
/// (`setup_per_zone_lowmem_reserve`).
fn zone_layouts(zones: &[ReportedZone<'_>], entries: usize) -> Vec<Vec<&'static str>> {
    let is_named = |kind: &str| zones.iter().any(|zone| zone.key.zone == kind);
    let is_required = |kind: &&str| CONSTANT_KINDS.contains(kind) || is_named(kind);
    let layouts = (0u32..1 << ZONE_KINDS.len()).map(|mask| {
        let chosen = ZONE_KINDS.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
        chosen.map(|(_, kind)| *kind).collect::<Vec<_>>()
    });
    let fits = |kinds: &Vec<&'static str>| {
        let is_consistent = |zone: &ReportedZone<'_>| {
            let own = kinds.iter().position(|&kind| kind == zone.key.zone);
            let has_memory = |kind: &str| {
                zones.iter().any(|other| other.key.node == zone.key.node && other.key.zone == kind)
            };
            let reserves = zone.watermark.and_then(|watermark| watermark.lowmem_reserve.as_ref());
            own.zip(reserves).is_none_or(|(own, reserves)| {
                let steps = reserves.windows(2).zip(kinds.iter().skip(1));
                reserves.len() == kinds.len()
                    && reserves.iter().take(own + 1).all(|pages| pages.0 == 0)
                    && steps.into_iter().all(|(step, kind)| step[0] == step[1] || has_memory(kind))
            })
        };
        // DMA32 is of 64-bit kernels, HighMem of 32-bit ones.
        let is_built = !(kinds.contains(&"DMA32") && kinds.contains(&"HighMem"));
        kinds.len() == entries
            && is_built
            && ZONE_KINDS.iter().filter(|kind| is_required(kind)).all(|kind| kinds.contains(kind))
            && zones.iter().all(is_consistent)
    };
    layouts.filter(fits).collect()
}

fn check_watermark(
    request: FailedRequest,
    order: Order,
    watermark: &ZoneWatermark,
    (reserve, highest_zone): (u64, &'static str),
    areas: &FreeAreas,
) -> ZoneVerdict {
    let is_reduced = request.may_use_reserves();
    let min = watermark.min.0;
    let half = min - min / 2;
    let mark = if is_reduced { half - half / 4 } else { min };
    let mut unusable = Vec::new();
    if order > Order(0) {
        unusable.push((order.to_pages().0 - 1, format!("2^{} − 1", order.0)));
    }
    if let Some(pages) = watermark.highatomic.filter(|pages| pages.0 > 0 && !is_reduced) {
        unusable.push((pages.0, "highatomic reserve".to_owned()));
    }
    if let Some(pages) = watermark.free_cma.filter(|pages| pages.0 > 0 && !request.is_movable()) {
        unusable.push((pages.0, "free CMA".to_owned()));
    }
    let check = WatermarkCheck { free: watermark.free.0, unusable, mark, is_reduced, reserve, highest_zone };
    if check.usable() <= check.required() {
        return ZoneVerdict::Refused(check);
    }
    // A report with the highatomic reserve is of 4.4 or later.
    match watermark.highatomic {
        Some(_) => ZoneVerdict::Allowed(check),
        None => match check_smaller_blocks(&check, order, areas) {
            Some(step) => ZoneVerdict::RefusedBefore44(check, step),
            None => ZoneVerdict::Allowed(check),
        },
    }
}

/// The step in which a kernel before 4.4 refuses the request, if it does: for each order below that of the
/// request it takes the free blocks of the order out, and halves the mark.
fn check_smaller_blocks(
    check: &WatermarkCheck,
    order: Order,
    areas: &FreeAreas,
) -> Option<SmallerBlocksCheck> {
    let (mut usable, mut mark) = (check.usable(), check.mark);
    for smaller in 0..order.0 {
        usable -= i128::from(areas.blocks(Order(smaller))) << smaller.min(63);
        mark /= 2;
        if usable <= i128::from(mark) {
            return Some(SmallerBlocksCheck { order: Order(smaller + 1), usable, mark });
        }
    }
    None
}

/// The letters of the large enough blocks, if none of them serves the request.
fn unusable_letters(
    request: FailedRequest,
    order: Order,
    areas: &FreeAreas,
    letters: &[String],
) -> Option<String> {
    let serves = |letter: char| match letter {
        'C' => request.is_movable(),
        'H' => request.may_use_reserves(),
        'I' => false,
        _ => true,
    };
    let mut found = String::new();
    for at in order.index()..areas.orders() {
        if areas.blocks(Order(at as u8)) == 0 {
            continue;
        }
        // Kernels before 3.8 print no letters.
        let of_order = letters.get(at).filter(|letters| !letters.is_empty())?;
        if of_order.chars().any(serves) {
            return None;
        }
        found.extend(of_order.chars().filter(|&letter| !found.contains(letter)).collect::<Vec<_>>());
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use pagelab_model::Pages;

    use super::*;

    fn watermark(free: u64, min: u64, reserve: &[u64]) -> ZoneWatermark {
        ZoneWatermark {
            free: Pages(free),
            min: Pages(min),
            highatomic: Some(Pages(0)),
            free_cma: Some(Pages(0)),
            lowmem_reserve: Some(reserve.iter().map(|&pages| Pages(pages)).collect()),
        }
    }

    fn key(name: &str) -> ZoneKey {
        ZoneKey { zone: name.to_owned(), ..ZoneKey::default() }
    }

    /// Verdict for a zone with one free block of order 10.
    fn judge(gfp_mask: u64, order: u8, zones: &[(&str, ZoneWatermark)], name: &str) -> ZoneVerdict {
        let keys: Vec<_> = zones.iter().map(|(name, _)| key(name)).collect();
        let with_watermarks = keys.iter().zip(zones);
        let reported: Vec<_> = with_watermarks
            .map(|(key, (_, watermark))| ReportedZone { key, watermark: Some(watermark) })
            .collect();
        let at = zones.iter().position(|(zone, _)| *zone == name).unwrap();
        let areas = FreeAreas::new(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        judge_zone(FailedRequest { gfp_mask }, Order(order), &reported, at, &areas, None)
    }

    fn x86(free: [u64; 3]) -> Vec<(&'static str, ZoneWatermark)> {
        let reserves: [&[u64]; 3] =
            [&[0, 2305, 15_744, 15_744, 15_744], &[0, 0, 13_439, 13_439, 13_439], &[0; 5]];
        let mins = [16, 2471, 36_935];
        ["DMA", "DMA32", "Normal"]
            .into_iter()
            .enumerate()
            .map(|(at, name)| (name, watermark(free[at], mins[at], reserves[at])))
            .collect()
    }

    #[test]
    fn the_reserve_of_the_highest_zone_of_the_request_counts() {
        let zones = x86([3327, 15_902, 60_000]);
        const KERNEL: u64 = 0xcc0;
        let ZoneVerdict::Refused(check) = judge(KERNEL, 5, &zones, "DMA") else { panic!() };
        assert_eq!((check.usable(), check.required(), check.reserve), (3296, 15_760, 15_744));
        assert!(matches!(judge(KERNEL, 5, &zones, "DMA32"), ZoneVerdict::Refused(_)));
        assert!(matches!(judge(KERNEL, 5, &zones, "Normal"), ZoneVerdict::Allowed(_)));
        // GFP_DMA32: the reserve against Normal does not count, and Normal is not permitted.
        assert!(matches!(judge(KERNEL | 4, 5, &zones, "DMA32"), ZoneVerdict::Allowed(_)));
        let ZoneVerdict::Allowed(check) = judge(KERNEL | 4, 5, &zones, "DMA") else { panic!() };
        assert_eq!((check.reserve, check.highest_zone), (2305, "DMA32"));
        let not_permitted = ZoneVerdict::NotPermitted { highest_zone: "DMA32" };
        assert_eq!(judge(KERNEL | 4, 5, &zones, "Normal"), not_permitted);
        // GFP_HIGHUSER_MOVABLE, and GFP_HIGHUSER, which a kernel without HighMem serves from Normal.
        for (bits, highest) in [(0b1010, "Movable"), (0b0010, "Normal")] {
            let ZoneVerdict::Refused(check) = judge(KERNEL | bits, 5, &zones, "DMA") else { panic!() };
            assert_eq!((check.reserve, check.highest_zone), (15_744, highest));
        }
    }

    #[test]
    fn the_zones_of_the_kernel_are_those_that_fit_the_reserves() {
        let reason = |reserve: &[u64], zones: &[&str]| {
            let zones: Vec<_> = zones.iter().map(|&name| (name, watermark(1000, 4, reserve))).collect();
            match judge(0xcc0, 5, &zones, "Normal") {
                ZoneVerdict::Unknown { reason } => reason,
                other => panic!("{other:?}"),
            }
        };
        // Normal is the second zone at most: an entry of its own cannot be above 0.
        assert!(reason(&[5, 5], &["Normal"]).contains("do not match"));
        // DMA or DMA32 may be the zone below Normal, or none; Movable and Device above it.
        assert!(reason(&[0, 0, 0], &["Normal", "DMA", "DMA32"]).contains("do not match"));
        // With HighMem in place of DMA32, Normal would have the second entry, and a zone without memory the
        // third.
        let dma = ("DMA", watermark(16, 4, &[0, 0, 20, 20, 20]));
        let normal = ("Normal", watermark(100, 20, &[0; 5]));
        let ZoneVerdict::Refused(check) = judge(0xcc0, 2, &[dma, normal], "DMA") else { panic!() };
        assert_eq!((check.reserve, check.highest_zone), (20, "Normal"));
        let zone = ZoneWatermark { lowmem_reserve: None, ..watermark(1000, 4, &[0]) };
        let verdict = judge(0xcc0, 5, &[("Normal", zone)], "Normal");
        assert!(matches!(verdict, ZoneVerdict::Unknown { reason } if reason.contains("lowmem reserve")));
    }

    #[test]
    fn blocks_of_migratetypes_that_do_not_serve_the_request_are_none() {
        let zone = watermark(1000, 4, &[0, 0]);
        let zones = [ReportedZone { key: &key("Normal"), watermark: Some(&zone) }];
        let areas = FreeAreas::new(vec![3, 1, 2]).unwrap();
        let judge = |gfp_mask: u64, letters: [&str; 3]| {
            let letters = letters.map(str::to_owned);
            judge_zone(FailedRequest { gfp_mask }, Order(1), &zones, 0, &areas, Some(&letters))
        };
        for (gfp_mask, letters, refused) in [
            (0xcc0, ["UME", "H", "C"], Some("HC")),
            (0xcc0, ["UME", "HE", "C"], None),
            (0xcca, ["UME", "H", "C"], None),
            (0xa20, ["UME", "H", "I"], None),
            (0xcc0, ["UME", "I", "I"], Some("I")),
            (0xcc0, ["", "", ""], None),
        ] {
            match (judge(gfp_mask, letters), refused) {
                (ZoneVerdict::NoUsableType { letters }, Some(refused)) => assert_eq!(letters, refused),
                (ZoneVerdict::Allowed(_), None) => {}
                other => panic!("{gfp_mask:#x} {letters:?}: {other:?}"),
            }
        }
    }

    /// A report of 2.6.32: DMA32 has 1 680 free pages, of which 1 398 are single pages.
    #[test]
    fn kernels_before_44_repeat_the_check_without_the_smaller_blocks() {
        let mut zone = watermark(1680, 1501, &[0, 0, 1010, 1010]);
        zone.highatomic = None;
        let dma = ZoneWatermark { highatomic: None, ..watermark(3977, 7, &[0, 2965, 3975, 3975]) };
        let normal = ZoneWatermark { highatomic: None, ..watermark(165, 511, &[0; 4]) };
        let keys = ["DMA", "DMA32", "Normal"].map(key);
        let watermarks = [&dma, &zone, &normal];
        let zones: [ReportedZone<'_>; 3] =
            std::array::from_fn(|at| ReportedZone { key: &keys[at], watermark: Some(watermarks[at]) });
        let areas = FreeAreas::new(vec![1398, 5, 4, 0, 0, 0, 0, 0, 1]).unwrap();
        let judge = |at| judge_zone(FailedRequest { gfp_mask: 0x4020 }, Order(3), &zones, at, &areas, None);
        let ZoneVerdict::RefusedBefore44(check, step) = judge(1) else { panic!() };
        assert_eq!((check.usable(), check.required()), (1673, 564 + 1010));
        assert_eq!((step.order, step.usable, step.mark), (Order(1), 275, 282));
        let ZoneVerdict::Refused(check) = judge(0) else { panic!() };
        assert_eq!((check.usable(), check.required()), (3970, 3 + 3975));
        assert!(matches!(judge(2), ZoneVerdict::Refused(_)));
    }

    #[test]
    fn free_pages_that_the_request_may_not_use_are_subtracted() {
        let mut zone = watermark(1000, 400, &[0, 0]);
        (zone.highatomic, zone.free_cma) = (Some(Pages(200)), Some(Pages(400)));
        let at = |gfp_mask, order| judge(gfp_mask, order, &[("Normal", zone.clone())], "Normal");
        let ZoneVerdict::Refused(check) = at(0xcc0, 3) else { panic!() };
        assert_eq!((check.usable(), check.required()), (1000 - 7 - 200 - 400, 400));
        // Movable: CMA counts. Atomic: the highatomic reserve counts, and the mark is lower.
        assert!(matches!(at(0xcca, 3), ZoneVerdict::Allowed(_)));
        let ZoneVerdict::Allowed(check) = at(0xa20, 3) else { panic!() };
        assert_eq!((check.usable(), check.required(), check.is_reduced), (593, 150, true));
    }
}
