//! Kernel text and binary records to the model, and back.
//!
//! Every parser is a plain function from bytes to a value or a [`ParseError`] that names the line.
//! Unknown fields, words and bits are kept; a malformed line is an error, never a guess; no input
//! panics, hangs or takes more memory than a small multiple of its own length.

pub mod alloc_trace;
pub mod allocinfo;
pub mod buddyinfo;
pub mod cgroup;
pub mod checksum;
pub mod choice;
mod collect;
pub mod cpu_list;
pub mod cpuinfo;
pub mod duration;
mod error;
mod escape;
pub mod exposition;
pub mod free_text;
pub mod fuzz;
pub mod iomem;
pub mod kallsyms;
pub mod kernel_log;
pub mod kpagecount;
pub mod kpageflags;
pub mod largepages;
pub mod maps;
pub mod meminfo;
pub mod mountinfo;
pub mod node_exporter;
pub mod pagemap;
pub mod pagetypeinfo;
pub mod perf_data;
pub mod perf_record;
pub mod perf_stat;
pub mod plan_toml;
pub mod pressure;
pub mod process_stat;
pub mod region_counts;
pub mod ring_page;
pub mod scalar;
pub mod shell_time;
pub mod show_mem;
pub mod size;
pub mod slabinfo;
pub mod smaps;
pub mod status;
pub mod swap_header;
pub mod swaps;
pub mod text;
pub mod trace_format;
pub mod vmstat;
pub mod zoneinfo;

pub use error::ParseError;
