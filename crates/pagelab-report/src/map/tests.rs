//! Text of small maps, as it is printed.
