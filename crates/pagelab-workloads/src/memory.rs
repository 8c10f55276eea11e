//! Memory of a workload: one mapping, aligned so that huge pages of any size fit, with the advice that was
//! asked for. Nothing is touched before the workload touches it.

use pagelab_model::Bytes;
use pagelab_sys::map::{Advice, Mapping};

use crate::Failed;
use crate::options::{Kind, OptionHead, Options};

/// The largest alignment: the largest huge page there is on x86.
const ALIGN_MAX: u64 = 1 << 30;

/// The option of all workloads that take their memory here.
pub const ADVISE: OptionHead = OptionHead {
    name: "advise",
    kind: Kind::Word(&["none", "huge", "nohuge"]),
    default: "none",
    help: "Advice on its memory before first touch: none, huge (MADV_HUGEPAGE), nohuge",
};

/// The largest power of two in `len`, at most 1 GiB: what starts at a multiple of it can have huge pages of
/// any size, and nothing needs to be known of how large this machine's are.
pub fn alignment(len: Bytes) -> Bytes {
    Bytes((1u64 << len.0.max(1).ilog2()).min(ALIGN_MAX))
}

/// Maps so many bytes under the option `advise`, aligned as [`alignment`] says.
pub fn map(options: &Options, len: Bytes) -> Result<Mapping, Failed> {
    let failed = |error| Failed::system(format_args!("cannot map {} bytes", len.0), error);
    advised(options, Mapping::anonymous(len, alignment(len)).map_err(failed)?)
}

/// Maps so many bytes from the address `base` on, under the option `advise`.
pub fn map_at(options: &Options, base: u64, len: Bytes) -> Result<Mapping, Failed> {
    let failed = |error| Failed::system(format_args!("cannot map {} bytes at {base:#x}", len.0), error);
    advised(options, Mapping::anonymous_at(base, len).map_err(failed)?)
}

fn advised(options: &Options, mut mapping: Mapping) -> Result<Mapping, Failed> {
    let advice = match options.text("advise") {
        "huge" => Advice::HugePage,
        "nohuge" => Advice::NoHugePage,
        _ => return Ok(mapping),
    };
    let all = 0..mapping.len().0;
    match mapping.advise(all, advice) {
        // A kernel without transparent huge pages has nothing to be advised about.
        Err(error) if advice == Advice::HugePage => Err(Failed::system("cannot advise huge pages", error)),
        _ => Ok(mapping),
    }
}
