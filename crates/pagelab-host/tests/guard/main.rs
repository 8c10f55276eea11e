//! Tests of the guard: on a fake machine, on this one, and with real kills.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]

mod host;
mod journals;
mod kills;
mod machine;
mod other_owners;
mod settings;
mod swap;
mod victim;
