//! The first line of a kernel's panic on its console.

/// What it begins with (kernel/panic.c); the cause follows.
pub const PANIC_START: &str = "Kernel panic - not syncing";
