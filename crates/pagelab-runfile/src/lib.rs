//! The run file, `NAME.pagelab`: one SQLite file for what a run measured.
