//! Which classes of pages are told apart in a picture, and by which colours and letters.
//!
//! The colours of the full scheme were chosen so that any two of them differ by 10 or more in CIELAB, also as
//! seen by people without red, green or blue cones (a test computes it), and so that in shades of grey what
//! is free is the lightest and what cannot be moved tends to be the darkest.

use pagelab_model::PageClass;

use super::{Category, Rgb};

/// A way of colouring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Free white, page cache grey, all else black.
    Classic,
    /// A colour for each class.
    Full,
}

const fn category(name: &'static str, label: &'static str, letter: char, rank: u8, colour: u32) -> Category {
    let colour: Rgb = [(colour >> 16) as u8, (colour >> 8) as u8, colour as u8];
    Category { name, label, letter, colour, rank }
}

/// One for each class, in the order of [`PageClass::ALL`].
const FULL: [Category; PageClass::COUNT] = [
    category("free", "free", '.', 1, 0xF7_F7_F2),
    category("anon", "anonymous, shared", 'a', 5, 0x86_C5_F2),
    category("anon_huge", "anonymous, large folio", 'A', 6, 0x1F_78_C8),
    category("file", "page cache", 'f', 3, 0xF0_DC_3C),
    category("movable_other", "other movable", 'm', 4, 0xB7_A3_5A),
    category("hugetlb", "hugetlb", 'H', 7, 0x0B_9A_6D),
    category("slab", "slab", 's', 9, 0xE0_70_1A),
    category("page_table", "page table", 'p', 10, 0xC2_55_9B),
    category("reserved", "reserved", 'r', 12, 0x22_22_22),
    category("kernel", "other kernel memory", 'k', 11, 0x7A_3B_14),
    category("unknown", "unknown: no flags", 'u', 8, 0x8A_8A_8A),
    category("deferred", "free, not initialised", ':', 2, 0xCF_E6_C8),
    category("hole", "no memory", ' ', 0, 0xC9_BF_B2),
    category("offline", "offline, ballooned", 'o', 13, 0x1F_4E_5F),
    category("poisoned", "taken out, bad", 'x', 14, 0xE8_00_3C),
];

const CLASSIC: [Category; 4] = [
    category("free", "free", '.', 1, 0xFF_FF_FF),
    category("cache", "page cache", 'c', 2, 0x80_80_80),
    category("other", "slab, reserved, other", '#', 3, 0x00_00_00),
    category("absent", "no memory, or offline", ' ', 0, 0xB8_CB_E0),
];

impl Scheme {
    /// Both.
    pub const ALL: [Scheme; 2] = [Scheme::Classic, Scheme::Full];

    /// Its name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Classic => "classic",
            Scheme::Full => "full",
        }
    }

    /// What it tells apart.
    pub const fn legend(self) -> &'static [Category] {
        match self {
            Scheme::Classic => &CLASSIC,
            Scheme::Full => &FULL,
        }
    }

    /// The index in the legend of a class.
    pub const fn of(self, class: PageClass) -> u8 {
        match (self, class) {
            (Scheme::Full, class) => class as u8,
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

    #[test]
    fn letters_names_and_ranks_are_told_apart() {
        for scheme in Scheme::ALL {
            let legend = scheme.legend();
            for (at, one) in legend.iter().enumerate() {
                for other in &legend[..at] {
                    assert!(one.letter != other.letter && one.rank != other.rank && one.name != other.name);
                }
                assert!(one.letter.is_ascii());
            }
            assert!(PageClass::ALL.iter().all(|&class| usize::from(scheme.of(class)) < legend.len()));
        }
        for class in PageClass::ALL {
            assert_eq!(FULL[class.index()].name, class.name());
            assert_eq!(Scheme::Full.of(class), class.index() as u8);
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

    /// Machado, Oliveira and Fernandes 2009, severity 1: no cones of one kind; and the eye that has all.
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
        for legend in [Scheme::Full.legend(), Scheme::Classic.legend(), crate::picture::difference::LEGEND] {
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
            for spoils in [PageClass::Slab, PageClass::PageTable, PageClass::Kernel, PageClass::Reserved] {
                assert!(light(movable) > light(spoils), "{movable:?} {spoils:?}");
            }
        }
    }
}
