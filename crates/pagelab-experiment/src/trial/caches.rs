//! State of caches at the start of a trial: page cache warm or cold, data cache and TLB filled with other
//! data.

use std::fs::File;
use std::io::{self, Read};

use pagelab_host::guard::Guard;
use pagelab_model::Bytes;
use pagelab_model::machine::Machine;
use pagelab_model::size::format_bytes;
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::page_cache;
use pagelab_sys::scheduling::PinnedThread;
use rustix::fs::fdatasync;

use crate::recipe::PageCacheState;

/// Factor above the last-level cache: its replacement keeps some old lines for a while.
const CACHE_SIZE_FACTOR: u64 = 2;
/// Factor above the second-level TLB, for the same reason.
const TLB_REACH_FACTOR: u64 = 4;
/// Assumed sizes of the cache and the TLB if the machine does not report them.
const CACHE_BYTES_GUESS: u64 = 64 << 20;
const TLB_ENTRIES_GUESS: u64 = 4 << 10;

/// Sets the state of the page cache for these files. Returns notes on deviations.
pub(super) fn prepare_page_cache(
    state: PageCacheState,
    files: &[String],
    guard: Option<&Guard>,
) -> Result<Vec<String>, String> {
    if files.is_empty() {
        return match (state, guard) {
            (PageCacheState::Warm, _) => {
                Ok(vec!["page_cache: no files listed, so none were read".to_owned()])
            }
            (PageCacheState::Cold, Some(guard)) => {
                guard.drop_caches(1).map(|()| Vec::new()).map_err(|error| format!("page_cache: {error}"))
            }
            (PageCacheState::Cold, None) => {
                Err("page_cache = \"cold\": dropping all clean pages requires root; hint: list the files"
                    .to_owned())
            }
        };
    }
    let mut notes = Vec::new();
    for name in files {
        let failed = |error: io::Error| format!("page_cache: {name}: {error}");
        let file = File::open(name).map_err(failed)?;
        match state {
            PageCacheState::Warm => read_whole_file(&file).map_err(failed)?,
            PageCacheState::Cold => drop_cached_pages(&file).map_err(failed)?,
        }
        let Some(share) = cached_share(&file) else { continue };
        let is_reached = if state == PageCacheState::Warm { share > 0.95 } else { share < 0.05 };
        if !is_reached {
            notes.push(format!("page_cache: {:.0} % of {name} is in the page cache", share * 100.0));
        }
    }
    Ok(notes)
}

fn read_whole_file(mut file: &File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Dirty pages cannot be dropped, so they are written first.
fn drop_cached_pages(file: &File) -> io::Result<()> {
    fdatasync(file)?;
    page_cache::drop_cached_pages(file)
}

/// The share of a file that is in the page cache. None if the file is empty or the share is unknown.
fn cached_share(file: &File) -> Option<f64> {
    let len = Bytes(file.metadata().ok()?.len());
    page_cache::cached_share(file, len).ok()
}

/// Fills data cache and TLB with other data, on every CPU that the trial may run on: it reads twice the
/// last-level cache and touches four times the pages of the second-level TLB. The instruction that empties
/// caches (wbinvd) is privileged, and would not empty the TLB. Returns a description.
pub(super) fn evict_caches(machine: &Machine, cpu: Option<u32>, available: Bytes) -> Result<String, String> {
    let caches = machine.caches.as_ref().ok();
    let cache = caches.and_then(|caches| caches.iter().map(|cache| cache.size.0).max());
    let tlb = machine.tlb.as_ref().ok().and_then(|tlb| tlb.reach(Bytes(machine.page_size.bytes())));
    let entries = tlb.map(|reach| reach.0 / machine.page_size.bytes());
    let bytes = (cache.unwrap_or(CACHE_BYTES_GUESS) * CACHE_SIZE_FACTOR)
        .max(entries.unwrap_or(TLB_ENTRIES_GUESS) * TLB_REACH_FACTOR * machine.page_size.bytes());
    if bytes > available.0 / 2 {
        return Err(format!(
            "evict: it needs {}, more than half of the available memory",
            format_bytes(Bytes(bytes))
        ));
    }
    let failed = |error: io::Error| format!("evict: {error}");
    let mut mapping = Mapping::anonymous(Bytes(bytes), Bytes(machine.page_size.bytes())).map_err(failed)?;
    let all = 0..mapping.len().0;
    let _ = mapping.advise(all, Advice::NoHugePage);
    mapping.words_mut().iter_mut().step_by(8).for_each(|word| *word = 1);
    let cpus = cpu.map_or_else(PinnedThread::allowed_cpus, |cpu| vec![cpu]);
    for &cpu in &cpus {
        let _pinned = PinnedThread::to_cpu(cpu).map_err(failed)?;
        let sum = mapping.words().iter().step_by(8).fold(0u64, |sum, word| sum.wrapping_add(*word));
        std::hint::black_box(sum);
    }
    let guess_note = |known: bool| if known { "" } else { " (unknown, assumed)" };
    Ok(format!(
        "evicted by reading {} on {}: at least twice the last-level cache{} and four times the TLB reach{}",
        format_bytes(Bytes(bytes)),
        if cpus.len() == 1 { "one CPU".to_owned() } else { format!("{} CPUs", cpus.len()) },
        guess_note(cache.is_some()),
        guess_note(entries.is_some())
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use pagelab_model::PageSize;

    use super::*;

    #[test]
    fn files_become_cold_and_warm() {
        // On a disk: a file of tmpfs is only in the page cache.
        let folder = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        let name = [file.path().display().to_string()];
        let noted = prepare_page_cache(PageCacheState::Warm, &name, None).unwrap();
        assert_eq!(noted, Vec::<String>::new());
        match cached_share(file.as_file()) {
            Some(share) => assert_eq!(share, 1.0),
            None => return,
        }
        let noted = prepare_page_cache(PageCacheState::Cold, &name, None).unwrap();
        let share = cached_share(file.as_file()).unwrap();
        let is_noted = noted.iter().any(|note| note.contains("is in the page cache"));
        assert!(share < 0.05 || is_noted, "{share}: {noted:?}");
        assert!(
            prepare_page_cache(PageCacheState::Cold, &["/none".to_owned()], None)
                .unwrap_err()
                .contains("/none")
        );
        assert!(prepare_page_cache(PageCacheState::Cold, &[], None).unwrap_err().contains("requires root"));
    }

    #[test]
    fn evicting_says_what_it_did() {
        let machine = Machine::new_unread(PageSize::DEFAULT);
        let message = evict_caches(&machine, None, Bytes(8 << 30)).unwrap();
        assert!(message.contains("128 MiB") && message.contains("assumed"), "{message}");
        assert!(evict_caches(&machine, None, Bytes(1 << 20)).unwrap_err().contains("more than half"));
    }
}
