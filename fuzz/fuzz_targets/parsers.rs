//! cargo-fuzz target of all parsers: the first byte selects one, the rest is its input (`cargo +nightly fuzz
//! run parsers`).
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelab_formats::fuzz::TARGETS;

fuzz_target!(|data: &[u8]| {
    if let Some((&first, input)) = data.split_first() {
        let target = &TARGETS[usize::from(first) % TARGETS.len()];
        (target.run)(input);
    }
});
