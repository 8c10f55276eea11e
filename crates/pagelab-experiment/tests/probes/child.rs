//! The trial's program: this test binary itself, told by its environment what to do.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use pagelab_host::machine::live_page_size;
use pagelab_host::root::Root;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::bytes_map::{BytesMap, BytesPlan};
use pagelab_sys::map::{Advice, Mapping};

/// What the child is to do; without it the test `child` does nothing.
pub const TASK: &str = "PAGELAB_TEST_CHILD";
/// What a program says when it has what is to be looked at; it ends with its standard input.
pub const READY: &str = "child: ready";

/// Holds everything until whoever watches has seen it.
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
                "huge" => memory.touch(0..pmd * count).unwrap(),
                _ => memory.touch_for_reading(0..pmd * count).unwrap(),
            }
            hold();
            eprintln!("child: anon {}", own("AnonHugePages"));
        }
        // A file of the page cache in huge pages: the file system is asked for large folios, and what came in
        // small ones is collapsed.
        "file" => {
            let len = pmd() * number(1);
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&vec![1; len as usize], 0).unwrap();
            file.sync_all().unwrap();
            let plan = BytesPlan {
                file: Some(file.as_fd()),
                is_shared: true,
                populate: false,
                len: Bytes(len),
                align: Bytes(pmd()),
            };
            let mut memory = BytesMap::new(&plan).unwrap();
            // Without CONFIG_READ_ONLY_THP_FOR_FS, and on file systems of small folios, each may be refused.
            let asked = [Advice::HugePage, Advice::PopulateRead, Advice::Collapse, Advice::PopulateRead]
                .map(|advice| memory.advise(advice).err());
            hold();
            eprintln!("child: file {}", own("FilePmdMapped"));
            eprintln!("advice: {asked:?}");
        }
        // CPU time of a process that nobody waits for.
        "orphan" => {
            let script = "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) & exit 0";
            std::process::Command::new("sh").args(["-c", script]).status().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(number(1)));
        }
        other => panic!("{other} is no task"),
    }
}

fn page() -> PageSize {
    live_page_size().unwrap()
}

pub fn pmd() -> u64 {
    let text = std::fs::read_to_string(pagelab_host::paths::THP_PMD_SIZE).unwrap_or_default();
    text.trim().parse().unwrap_or_else(|_| page().block(page().usual_pmd_order()).0)
}

/// A sum of this process's smaps, bytes: the child's own view, by another file than the probe's.
fn own(field: &str) -> u64 {
    let text = Root::live().read(pagelab_host::paths::SELF_SMAPS).unwrap();
    let mappings = pagelab_formats::smaps::parse(&text).unwrap();
    mappings.iter().filter_map(|mapping| mapping.fields_kib.get(field)).sum::<u64>() << 10
}
