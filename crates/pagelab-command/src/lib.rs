//! Support of every command, without its arguments: exit codes ([`exit`]) of failures,
//! standard output and warnings ([`output`]), files that a command reads ([`input`]) and writes
//! ([`atomic_file`], [`csv_folder`], [`perf_csv_folder`]), the manifest of a run ([`manifest`]), the guard of
//! its changes ([`machine_guard`]), and its progress ([`progress`]), also of downloads ([`setup_progress`]).

pub mod arguments;
pub mod atomic_file;
pub mod csv_folder;
pub mod exit;
pub mod input;
pub mod machine_guard;
pub mod manifest;
pub mod output;
pub mod perf_csv_folder;
pub mod progress;
pub mod setup_progress;
