//! `pagelab profile --source perf-data`.

use std::ops::Range;

use pagelab_formats::size;
use pagelab_model::{PageSize, Profile};
use pagelab_target::sampled::{self, file};

use super::Ask;
use crate::cmd::target_failure;
use crate::exit::{Exit, Failure};

const HEADING: &str = "With --source perf-data";

/// Options of this source.
#[derive(Debug, Default, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Addresses that are looked at, in hexadecimal: those of one mapping
    #[arg(long, value_name = "BASE-END", help_heading = HEADING, value_parser = range)]
    range: Option<Range<u64>>,
    /// Base pages of the machine that was recorded [default: 4K]
    #[arg(long, value_name = "SIZE", help_heading = HEADING, value_parser = page_size)]
    page_size: Option<PageSize>,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let number = |part: &str| u64::from_str_radix(part.trim_start_matches("0x"), 16).ok();
    let ends = || {
        let (base, end) = text.split_once('-')?;
        Some(number(base)?..number(end)?).filter(|range| range.start < range.end)
    };
    ends().ok_or_else(|| {
        "two addresses in hexadecimal, the first below the second: 7f0000000000-7f0040000000".to_owned()
    })
}

fn page_size(text: &str) -> Result<PageSize, String> {
    let bytes = size::parse_suffixed(text.as_bytes()).ok().and_then(|bytes| PageSize::new(bytes.0));
    bytes.ok_or_else(|| "a page size is a power of two between 1K and 1G, such as 64K".to_owned())
}

/// Profiles what was asked for.
pub fn profile(ask: &Ask) -> Result<Profile, Failure> {
    let Some(path) = &ask.file else {
        let message = "which file? `--source perf-data FILE`, where FILE is what perf mem record wrote, or \
                       the text of perf script or perf mem report; `-` is standard input";
        return Err(Failure::new(Exit::Usage, message));
    };
    if !ask.command.is_empty() || ask.pid.is_some() {
        let message =
            "a file is profiled, so no command and no --pid can be: leave them out, or take another --source";
        return Err(Failure::new(Exit::Usage, message));
    }
    let Options { range, page_size } = &ask.perf_data;
    let options = sampled::Options::new(page_size.unwrap_or(PageSize::USUAL), range.clone());
    file::profile(path, options).map_err(target_failure)
}
