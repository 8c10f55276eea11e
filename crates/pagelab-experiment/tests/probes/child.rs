//! Program of a trial: this test binary, controlled by its environment.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use pagelab_host::machine::live_page_size;
use pagelab_host::root::Root;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::byte_mapping::{ByteMapping, ByteMappingOptions};
use pagelab_sys::mapping::{Advice, Mapping};

/// What the child is to do; without it the test `child` does nothing.
pub const TASK: &str = "PAGELAB_TEST_CHILD";
/// Line that a program prints when its memory is ready to be observed; it exits at the end of its standard
/// input.
pub const READY: &str = "child: ready";

/// Holds everything until the observer has seen it.
fn hold() {
    println!("{READY}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    match words[0] {
        // Base pages, each touched once.
        "fault" => {
            let (page, pages) = (page().bytes(), number(1));
            let mut memory = Mapping::anonymous(Bytes(page * pages), Bytes(1)).unwrap();
            memory.advise(0..page * pages, Advice::NoHugePage).unwrap();
            for at in (0..pages).map(|n| (n * page / 8) as usize) {
                memory.words_mut()[at] = 1;
            }
            hold();
        }
        // Huge pages, written or only read.
        "huge" | "zero" => {
            let (pmd, count) = (pmd(), number(1));
            let mut memory = Mapping::anonymous(Bytes(pmd * count), Bytes(pmd)).unwrap();
            memory.advise(0..pmd * count, Advice::HugePage).unwrap();
            match words[0] {
                "huge" => memory.touch_for_writing(0..pmd * count).unwrap(),
                _ => memory.touch_for_reading(0..pmd * count).unwrap(),
            }
            hold();
            eprintln!("child: anon {}", read_own_status("AnonHugePages"));
        }
        // A file of the page cache in huge pages: large folios are requested from the file system, and small
        // ones are collapsed.
        "file" => {
            let len = pmd() * number(1);
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&vec![1; len as usize], 0).unwrap();
            file.sync_all().unwrap();
            let plan = ByteMappingOptions {
                file: Some(file.as_fd()),
                is_shared: true,
                populate: false,
                len: Bytes(len),
                align: Bytes(pmd()),
            };
            let mut memory = ByteMapping::new(&plan).unwrap();
            // Without CONFIG_READ_ONLY_THP_FOR_FS, and on file systems of small folios, each may be refused.
            let asked = [Advice::HugePage, Advice::PopulateRead, Advice::Collapse, Advice::PopulateRead]
                .map(|advice| memory.advise(advice).err());
            hold();
            eprintln!("child: file {}", read_own_status("FilePmdMapped"));
            eprintln!("advice: {asked:?}");
        }
        // CPU time of a process without a waiting parent.
        "orphan" => {
            let script = "(i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done) & exit 0";
            let mut shell = std::process::Command::new("sh");
            let mut shell = shell.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
            shell.wait().unwrap();
            // The end of the last process that holds it.
            shell.stdout.unwrap().read_to_end(&mut Vec::new()).unwrap();
        }
        other => panic!("{other} is no task"),
    }
}

fn page() -> PageSize {
    live_page_size().unwrap()
}

pub fn pmd() -> u64 {
    let text = std::fs::read_to_string(pagelab_host::paths::THP_PMD_SIZE).unwrap_or_default();
    text.trim().parse().unwrap_or_else(|_| page().block_bytes(page().default_pmd_order()).0)
}

/// A sum of this process's smaps, bytes: the child's own view, by another file than the probe's.
fn read_own_status(field: &str) -> u64 {
    let text = Root::live().read(pagelab_host::paths::SELF_SMAPS).unwrap();
    let mappings = pagelab_formats::smaps::parse(&text).unwrap();
    mappings.iter().filter_map(|mapping| mapping.fields_kib.get(field)).sum::<u64>() << 10
}
