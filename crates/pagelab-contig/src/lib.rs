//! What acts on the contiguity of physical memory: fragmenting it on purpose, compacting it, really asking
//! for huge pages. What the acts mean is judged by `pagelab-metrics`; how they are asked for stands here.

pub mod ask;
pub mod asking;
pub mod compact;
pub mod finish;
pub mod fragment;
pub mod lists;
pub mod look;
pub mod oom;
pub mod procedure;
pub mod random;
pub mod readback;
pub mod reserve;
pub mod scanners;
pub mod settle;
pub mod spoiled;
pub mod truth;
pub mod unmovable;
pub mod warm;
pub mod whole_thp;
