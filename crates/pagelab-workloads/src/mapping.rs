//! Memory of a workload: one mapping, aligned for huge pages of any size, with the requested advice. It is
//! not touched before the workload touches it.

use pagelab_model::Bytes;
use pagelab_sys::mapping::{Advice, Mapping};

use crate::WorkloadError;
use crate::options::{OptionSpec, WorkloadOptions, choice_option};

/// The largest alignment: the largest huge page there is on x86.
const ALIGNMENT_MAX: u64 = 1 << 30;

/// The option of all workloads that take their memory here.
pub const ADVISE_OPTION: OptionSpec = choice_option(
    "advise",
    &["none", "huge", "nohuge"],
    "none",
    "Advice for its memory before the first touch: none, huge (MADV_HUGEPAGE), nohuge",
);

/// The largest power of two in `bytes`, at most 1 GiB: what starts at a multiple of it can have huge pages of
/// any size, and nothing needs to be known of how large this machine's are.
pub fn alignment_for(bytes: Bytes) -> Bytes {
    Bytes((1u64 << bytes.0.max(1).ilog2()).min(ALIGNMENT_MAX))
}

/// Maps this number of bytes under the option `advise`, aligned by [`alignment_for`].
pub fn map_anonymous(options: &WorkloadOptions, len: Bytes) -> Result<Mapping, WorkloadError> {
    let failed = |error| WorkloadError::system_error(format_args!("cannot map {} bytes", len.0), error);
    apply_advice(options, Mapping::anonymous(len, alignment_for(len)).map_err(failed)?)
}

/// Maps this number of bytes from the address `address` on, under the option `advise`.
pub fn map_anonymous_at(
    options: &WorkloadOptions,
    address: u64,
    len: Bytes,
) -> Result<Mapping, WorkloadError> {
    let failed = |error| {
        WorkloadError::system_error(format_args!("cannot map {} bytes at {address:#x}", len.0), error)
    };
    apply_advice(options, Mapping::anonymous_at(address, len).map_err(failed)?)
}

fn apply_advice(options: &WorkloadOptions, mut mapping: Mapping) -> Result<Mapping, WorkloadError> {
    let advice = match options.get_text("advise") {
        "huge" => Advice::HugePage,
        "nohuge" => Advice::NoHugePage,
        _ => return Ok(mapping),
    };
    let all = 0..mapping.len().0;
    match mapping.advise(all, advice) {
        // A kernel without transparent huge pages has nothing to be advised about.
        Err(error) if advice == Advice::HugePage => {
            Err(WorkloadError::system_error("cannot advise huge pages", error))
        }
        _ => Ok(mapping),
    }
}
