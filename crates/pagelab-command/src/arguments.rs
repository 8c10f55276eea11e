//! Argument types that several commands share: a saved tree, a page size.

use std::path::Path;

use pagelab_host::root::Root;
use pagelab_model::{PageSize, size};

use crate::exit::{Failure, FailureKind};

/// The saved tree that `--root` names, or this machine.
pub fn open_root(path: Option<&Path>) -> Result<Root, Failure> {
    let Some(path) = path else { return Ok(Root::live()) };
    // The error is a complete sentence with file, reason and hint.
    Root::open(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => FailureKind::NotAvailable,
            _ => FailureKind::BadInput,
        };
        Failure::new(kind, error.to_string())
    })
}

/// Parses a base page size: `4K`, `64KiB`, `16384`.
pub fn parse_page_size(text: &str) -> Result<PageSize, String> {
    let size = PageSize::new(size::parse(text)?.0);
    size.ok_or_else(|| "expected a power of two from 1K to 1G, for example 4K, 16K, 64K".to_owned())
}
