//! Classes of pages that a picture distinguishes, with their colours and letters.
//!
//! Any two colours of the full scheme differ by at least 10 in CIELAB, also for viewers without red, green or
//! blue cones (a test computes it). In shades of grey, free memory is the lightest, and unmovable memory
//! tends to be the darkest.

use pagelab_model::PageClass;

use super::Category;

/// Colour scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColourScheme {
    /// Free white, page cache grey, other pages black.
    Classic,
    /// A colour for each class.
    Full,
}

/// A category per class, in the order of [`PageClass::ALL`].
const FULL: [Category; PageClass::COUNT] = [
    Category::new("free", "free", '.', 1, 0xF7_F7_F2),
    Category::new("anon", "anonymous, shared", 'a', 5, 0x86_C5_F2),
    Category::new("anon_huge", "anonymous, large folio", 'A', 6, 0x1F_78_C8),
    Category::new("file", "page cache", 'f', 3, 0xF0_DC_3C),
    Category::new("movable_other", "other movable", 'm', 4, 0xB7_A3_5A),
    Category::new("hugetlb", "hugetlb", 'H', 7, 0x0B_9A_6D),
    Category::new("slab", "slab", 's', 9, 0xE0_70_1A),
    Category::new("page_table", "page table", 'p', 10, 0xC2_55_9B),
    Category::new("reserved", "reserved", 'r', 12, 0x22_22_22),
    Category::new("kernel", "other kernel memory", 'k', 11, 0x7A_3B_14),
    Category::new("unknown", "unknown: no flags", 'u', 8, 0x8A_8A_8A),
    Category::new("deferred", "free, not initialised", ':', 2, 0xCF_E6_C8),
    Category::new("hole", "no memory", ' ', 0, 0xC9_BF_B2),
    Category::new("offline", "offline, ballooned", 'o', 13, 0x1F_4E_5F),
    Category::new("poisoned", "offline, bad", 'x', 14, 0xE8_00_3C),
];

const CLASSIC: [Category; 4] = [
    Category::new("free", "free", '.', 1, 0xFF_FF_FF),
    Category::new("cache", "page cache", 'c', 2, 0x80_80_80),
    Category::new("other", "slab, reserved, other", '#', 3, 0x00_00_00),
    Category::new("absent", "no memory, or offline", ' ', 0, 0xB8_CB_E0),
];

impl ColourScheme {
    /// Both schemes.
    pub const ALL: [ColourScheme; 2] = [ColourScheme::Classic, ColourScheme::Full];

    /// Name on the command line and in JSON.
    pub const fn option_name(self) -> &'static str {
        match self {
            ColourScheme::Classic => "classic",
            ColourScheme::Full => "full",
        }
    }

    /// Returns the categories.
    pub const fn legend(self) -> &'static [Category] {
        match self {
            ColourScheme::Classic => &CLASSIC,
            ColourScheme::Full => &FULL,
        }
    }

    /// Returns the index of a class in the legend.
    pub const fn category_index(self, class: PageClass) -> u8 {
        match (self, class) {
            (ColourScheme::Full, class) => class as u8,
            (_, PageClass::Free | PageClass::Deferred) => 0,
            (_, PageClass::File) => 1,
            (_, PageClass::Hole | PageClass::Offline) => 3,
            _ => 2,
        }
    }
}

const _: () = {
    let mut at = 0;
    while at < PageClass::COUNT {
        assert!(FULL[at].name.len() == PageClass::ALL[at].name().len());
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_picture::Rgb;

    #[test]
    fn letters_names_and_ranks_are_told_apart() {
        for scheme in ColourScheme::ALL {
            let legend = scheme.legend();
            for (at, one) in legend.iter().enumerate() {
                for other in &legend[..at] {
                    assert!(one.letter != other.letter && one.rank != other.rank && one.name != other.name);
                }
                assert!(one.letter.is_ascii());
            }
            assert!(
                PageClass::ALL.iter().all(|&class| usize::from(scheme.category_index(class)) < legend.len())
            );
        }
        for class in PageClass::ALL {
            assert_eq!(FULL[class.index()].name, class.name());
            assert_eq!(ColourScheme::Full.category_index(class), class.index() as u8);
        }
    }

    fn linear(colour: Rgb) -> [f64; 3] {
        colour.map(|value| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn times(matrix: [[f64; 3]; 3], vector: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(vector).map(|(a, b)| a * b).sum::<f64>().max(0.0))
    }

    fn lab(linear: [f64; 3]) -> [f64; 3] {
        const XYZ: [[f64; 3]; 3] =
            [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];
        let white = [0.9505, 1.0, 1.089];
        let root = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let mut at = 0;
        let [x, y, z] = times(XYZ, linear).map(|value| {
            at += 1;
            root(value / white[at - 1])
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// Machado, Oliveira and Fernandes 2009, severity 1: without cones of one type; and the normal eye.
    const EYES: [(&str, [[f64; 3]; 3]); 4] = [
        ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "no red",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "no green",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
        (
            "no blue",
            [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        ),
    ];

    #[test]
    fn no_two_colours_look_alike_to_any_eye() {
        for legend in [
            ColourScheme::Full.legend(),
            ColourScheme::Classic.legend(),
            crate::memory_picture::difference::LEGEND,
        ] {
            for (eye, matrix) in EYES {
                let seen: Vec<[f64; 3]> =
                    legend.iter().map(|one| lab(times(matrix, linear(one.colour)))).collect();
                for (at, one) in seen.iter().enumerate() {
                    for (other, name) in seen[..at].iter().zip(legend) {
                        let distance =
                            one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                        assert!(
                            distance > 10.0,
                            "{eye}: {} and {} differ by {distance:.1}",
                            legend[at].name,
                            name.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn free_is_the_lightest_and_what_cannot_be_moved_is_darker_than_what_can() {
        let light = |class: PageClass| lab(linear(FULL[class.index()].colour))[0];
        let free = light(PageClass::Free);
        assert!(PageClass::ALL.iter().all(|&class| light(class) <= free));
        for movable in [PageClass::Anon, PageClass::File, PageClass::MovableOther] {
            for polluting in [PageClass::Slab, PageClass::PageTable, PageClass::Kernel, PageClass::Reserved] {
                assert!(light(movable) > light(polluting), "{movable:?} {polluting:?}");
            }
        }
    }
}
