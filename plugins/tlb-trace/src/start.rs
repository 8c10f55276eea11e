//! What the plugin is told, and what it finds when the program begins.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::arena::{self, word};
use crate::engine::geometry::Geometry;
use crate::engine::layout::{events, head};
use crate::engine::tlb::Window;
use crate::sets::Set;
use crate::{image, sets};

/// Passes at most, the one of base pages among them.
pub const PASSES_MOST: usize = 17;
/// Below are the program's mappings; above are QEMU, its libraries and their heap: a position-independent
/// program of the kernel's lies from two thirds of the address space on (ELF_ET_DYN_BASE, 0x5555_5555_4000).
pub const PROGRAM_END: u64 = 0x5500_0000_0000;

/// What the plugin is told.
pub struct Config {
    pub geometry: Geometry,
    pub passes: u64,
    pub window: Option<Window>,
    /// log2 of a huge page.
    pub huge_shift: u32,
    /// The size of page that the TLBs see where memory lies on huge pages.
    pub huge_code: u8,
    /// What is on huge pages in the passes behind the first.
    pub sets: Vec<Set>,
    /// The place of the account.
    pub account: String,
    /// What QEMU was started with, up to the plugin.
    pub prefix: Vec<Vec<u8>>,
    /// The program as it was given, and its arguments.
    pub program: Vec<Vec<u8>>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
static SEEN_ACCESS: AtomicBool = AtomicBool::new(false);

/// What the plugin was told. [`begin`] comes first.
#[inline]
pub fn config() -> &'static Config {
    // SAFETY: `begin` has put it in before any callback was registered.
    // JUSTIFICATION: it is asked for in the account of an access.
    unsafe { CONFIG.get().unwrap_unchecked() }
}

/// Opens the account, reads what is wanted, and begins the first image.
pub fn begin(account: &str, prefix: usize) -> Option<()> {
    arena::open(account)?;
    let (geometry, sets) = (word(head::GEOMETRY).load(Relaxed), word(head::SETS).load(Relaxed));
    let (decoded, _) = Geometry::decode(&arena::words(head::LENGTH, geometry))?;
    let sets = sets::decode(&arena::words(head::LENGTH + geometry, sets))?;
    let passes = word(head::PASSES).load(Relaxed);
    if passes as usize != sets.len() + 1 || passes as usize > PASSES_MOST {
        return None;
    }
    let (watched, period) = (word(head::WATCHED).load(Relaxed), word(head::PERIOD).load(Relaxed));
    let huge_shift = word(head::HUGE_SHIFT).load(Relaxed) as u32;
    let said = std::fs::read("/proc/self/cmdline").ok()?;
    let mut said: Vec<Vec<u8>> =
        said.strip_suffix(&[0]).unwrap_or(&said).split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    if said.len() < prefix + 3 {
        return None;
    }
    // `-0`, the program's own name, the program, its arguments.
    let mut program = said.split_off(prefix);
    program.remove(0);
    program.swap(0, 1);
    let text: Vec<u8> = program.iter().flat_map(|part| part.iter().copied().chain([0])).collect();
    let huge_code = decoded.code_for(huge_shift);
    let window = (watched > 0).then_some(Window { watched, period });
    let account = account.to_owned();
    let config = Config {
        geometry: decoded,
        passes,
        window,
        huge_shift,
        huge_code,
        sets,
        account,
        prefix: said,
        program,
    };
    CONFIG.set(config).ok()?;
    image::begin(std::process::id(), None, &text);
    Some(())
}

/// With the first access of all, the program's mappings are those that QEMU has made for it; what is accessed
/// first is its stack.
pub fn first_access(address: u64) {
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
            image::event(events::MAPPED, [from, to, events::FILE, offset], path.as_bytes());
            sets::change(&[(from, to)], |ledger| {
                ledger.file_mapped(from..to, path.clone(), offset);
            });
        } else if (from..to).contains(&address) {
            image::event(events::STACK, [from, to, 0, 0], &[]);
            sets::change(&[(from, to)], |ledger| {
                ledger.stack_at(from..to);
            });
        }
    }
}
