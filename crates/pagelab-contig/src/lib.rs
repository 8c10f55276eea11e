//! What acts on the contiguity of physical memory: fragmenting it on purpose, compacting it, really asking
//! for huge pages. What the acts mean is judged by `pagelab-metrics`; how they are asked for stands here.

pub mod reserve;
