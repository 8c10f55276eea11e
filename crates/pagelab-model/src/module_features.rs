//! Features of pagelab's kernel module for guests (docs/kmod.md), which command lines and recipes switch.

/// The feature that changes which pages reclaim takes.
pub const RECLAIM: &str = "reclaim";
/// Its state in which references are ignored; it needs the multi-generational LRU off.
pub const UNREFERENCED: &str = "unreferenced";

/// Features and their states; the first of each is the kernel without the module.
pub const FEATURES: [(&str, &[&str]); 3] = [
    ("grouping", &["on", "off"]),
    ("direct_compaction", &["on", "off"]),
    (RECLAIM, &["stock", UNREFERENCED, "linear"]),
];
