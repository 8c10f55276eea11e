//! The attempts file of pagelab's kernel module (`kmod/attempts.c`): requests to the page allocator, one by
//! one, with what each met.

use std::fs;
use std::io;

use pagelab_formats::alloc_attempts::{self, AttemptTable};
use pagelab_host::paths;

use crate::WorkloadError;

/// What to do if there is no module.
const HINT: &str = "hint: pagelab guest run --module -- workload alloc-pages …";

/// Writes a line to the attempts file: requests, `clear` or `release`.
pub fn write_line(line: &str) -> Result<(), WorkloadError> {
    fs::write(paths::MODULE_ATTEMPTS, line).map_err(|error| file_error(&format!("write `{line}` to"), &error))
}

/// The table of attempts.
pub fn read_table() -> Result<AttemptTable, WorkloadError> {
    let text = fs::read(paths::MODULE_ATTEMPTS).map_err(|error| file_error("read", &error))?;
    alloc_attempts::parse(&text)
        .map_err(|error| WorkloadError::InvalidInput(error.message_in_file(paths::MODULE_ATTEMPTS)))
}

fn file_error(action: &str, error: &io::Error) -> WorkloadError {
    let file = paths::MODULE_ATTEMPTS;
    match error.kind() {
        io::ErrorKind::NotFound => WorkloadError::NotAvailable(format!(
            "the kernel module of pagelab is not loaded: there is no {file}; {HINT}"
        )),
        io::ErrorKind::PermissionDenied => {
            WorkloadError::NotAvailable(format!("cannot {action} {file}: only root can; {HINT}"))
        }
        _ => WorkloadError::system_error(format!("cannot {action} {file}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_module_the_error_names_it_and_the_way_to_it() {
        let absent = io::Error::from(io::ErrorKind::NotFound);
        let error = file_error("read", &absent);
        assert!(matches!(&error, WorkloadError::NotAvailable(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("guest run --module") && text.contains("not loaded"), "{text}");
        let refused = file_error("write `9 movable 1` to", &io::Error::from(io::ErrorKind::InvalidInput));
        assert!(matches!(refused, WorkloadError::SystemError(_)), "{refused:?}");
    }
}
