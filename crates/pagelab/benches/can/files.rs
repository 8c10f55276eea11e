//! Tree of files of all sizes, as after a build: reading it fills the page cache with folios of all sizes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use pagelab_model::random::SplitMix64;

/// Files are of 4 KiB to 8 MiB, each power of two as often as the others.
const SIZE_EXPONENTS: std::ops::Range<u64> = 12..24;
/// Files in one folder.
const FILES_PER_FOLDER: usize = 500;
/// Sizes are the same in each tree.
const SEED: u64 = 11;

/// Sizes of the files that hold so many bytes.
fn file_sizes(bytes: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(SEED);
    let mut left = bytes;
    let mut sizes = Vec::new();
    while left > 0 {
        let least =
            1 << (SIZE_EXPONENTS.start + random.next_below(SIZE_EXPONENTS.end - SIZE_EXPONENTS.start));
        let size = (least + random.next_below(least)).min(left);
        sizes.push(size);
        left -= size;
    }
    sizes
}

fn file_path(root: &Path, index: usize) -> std::path::PathBuf {
    root.join((index / FILES_PER_FOLDER).to_string()).join((index % FILES_PER_FOLDER).to_string())
}

/// Writes the missing ones.
pub fn create_files(root: &Path, bytes: u64) {
    let piece = vec![1u8; 1 << 20];
    for (at, size) in file_sizes(bytes).into_iter().enumerate() {
        let path = file_path(root, at);
        if std::fs::metadata(&path).is_ok_and(|meta| meta.len() >= size) {
            continue;
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create(path).unwrap();
        let mut left = size as usize;
        while left > 0 {
            let next = left.min(piece.len());
            file.write_all(&piece[..next]).unwrap();
            left -= next;
        }
    }
    rustix::fs::sync();
}

/// Reads each once, in random order.
pub fn read_files(root: &Path, bytes: u64, random: &mut SplitMix64) {
    let mut order: Vec<usize> = (0..file_sizes(bytes).len()).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.next_below(last as u64 + 1) as usize);
    }
    let mut buffer = vec![0u8; 1 << 17];
    for at in order {
        let mut file = File::open(file_path(root, at)).unwrap();
        while file.read(&mut buffer).unwrap() > 0 {}
    }
}
