//! The configuration of the plugin, and the program's mappings at its first access.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::engine::account_layout::{events, header};
use crate::engine::geometry::Geometry;
use crate::engine::tlb::SamplingWindow;
use crate::huge_page_sets::HugePageSet;
use crate::shared_account::{self, word};
use crate::{huge_page_sets, image};

/// Passes at most, the one of base pages among them.
pub const PASSES_MAX: usize = 17;
/// Below are the program's mappings; above are QEMU, its libraries and their heap: the kernel maps a
/// position-independent program from two thirds of the address space on (ELF_ET_DYN_BASE, 0x5555_5555_4000).
pub const PROGRAM_END: u64 = 0x5500_0000_0000;

pub struct Config {
    pub geometry: Geometry,
    pub passes: u64,
    pub window: Option<SamplingWindow>,
    /// log2 of a huge page.
    pub huge_shift: u32,
    /// The page size that the TLBs hold for huge pages, by its index in the geometry's sizes.
    pub huge_code: u8,
    /// The sets of huge pages of the passes after the first.
    pub sets: Vec<HugePageSet>,
    /// The command line of QEMU up to the plugin.
    pub prefix: Vec<Vec<u8>>,
    /// The program as it was named, and its arguments.
    pub program: Vec<Vec<u8>>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
static SEEN_ACCESS: AtomicBool = AtomicBool::new(false);

/// The configuration. [`initialize`] comes first.
#[inline]
pub fn config() -> &'static Config {
    // SAFETY: `initialize` has put it in before any callback was registered.
    // JUSTIFICATION: it is read at each recorded access.
    unsafe { CONFIG.get().unwrap_unchecked() }
}

/// Maps the account, reads the configuration from it, and begins the first image.
pub fn initialize(account: &str, prefix: usize) -> Option<()> {
    shared_account::map_account(account)?;
    let (geometry, sets) = (word(header::GEOMETRY).load(Relaxed), word(header::SETS).load(Relaxed));
    let (decoded, _) = Geometry::decode(&shared_account::read_words(header::LENGTH, geometry))?;
    let sets = huge_page_sets::decode(&shared_account::read_words(header::LENGTH + geometry, sets))?;
    let passes = word(header::PASSES).load(Relaxed);
    if passes as usize != sets.len() + 1 || passes as usize > PASSES_MAX {
        return None;
    }
    let (sampled, period) = (word(header::SAMPLED).load(Relaxed), word(header::PERIOD).load(Relaxed));
    let huge_shift = word(header::HUGE_SHIFT).load(Relaxed) as u32;
    let command_line = std::fs::read("/proc/self/cmdline").ok()?;
    let mut command_line: Vec<Vec<u8>> = command_line
        .strip_suffix(&[0])
        .unwrap_or(&command_line)
        .split(|&byte| byte == 0)
        .map(<[u8]>::to_vec)
        .collect();
    if command_line.len() < prefix + 3 {
        return None;
    }
    // `-0`, the program's own name, the program, its arguments.
    let mut program = command_line.split_off(prefix);
    program.remove(0);
    program.swap(0, 1);
    let text: Vec<u8> = program.iter().flat_map(|part| part.iter().copied().chain([0])).collect();
    let huge_code = decoded.code_for(huge_shift);
    let window = (sampled > 0).then_some(SamplingWindow { sampled, period });
    let config = Config {
        geometry: decoded,
        passes,
        window,
        huge_shift,
        huge_code,
        sets,
        prefix: command_line,
        program,
    };
    CONFIG.set(config).ok()?;
    image::begin_image(std::process::id(), None, &text);
    Some(())
}

/// At the first access the program's mappings are those that QEMU has made for it; the first access is to the
/// stack.
pub fn record_first_access(address: u64) {
    if SEEN_ACCESS.swap(true, Relaxed) {
        return;
    }
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((from, to)) = range.and_then(|(from, to)| Some((number(from)?, number(to)?))) else {
            continue;
        };
        let offset = words.nth(1).and_then(number).unwrap_or(0);
        let path = words.skip(2).collect::<Vec<_>>().join(" ");
        if to > PROGRAM_END {
            break;
        }
        if path.starts_with('/') {
            image::record_event(events::MMAP, [from, to, events::FILE, offset], path.as_bytes());
            huge_page_sets::update_mappings(&[(from, to)], |table| {
                table.record_file_mmap(from..to, path.clone(), offset)
            });
        } else if (from..to).contains(&address) {
            image::record_event(events::STACK, [from, to, 0, 0], &[]);
            huge_page_sets::update_mappings(&[(from, to)], |table| table.record_stack(from..to));
        }
    }
}
