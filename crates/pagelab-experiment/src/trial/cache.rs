//! The state of caches at the start of a trial: page cache warm or cold, data cache and TLB filled with
//! something else.

use std::fs::File;
use std::io::{self, Read};

use pagelab_host::guard::Guard;
use pagelab_model::machine::Machine;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::page_cache;
use rustix::fs::fdatasync;

use crate::recipe::PageCache;

/// Beyond the last level cache: its replacement keeps some old lines for a while.
const CACHES: u64 = 2;
/// Beyond the second-level TLB, for the same reason.
const TLBS: u64 = 4;
/// Taken for the cache and the TLB where the machine does not say.
const CACHE_GUESSED: u64 = 64 << 20;
const TLB_GUESSED: u64 = 4 << 10;

/// Makes the page cache so, for these files. What is not so afterwards is said.
pub(super) fn prepare(
    wanted: PageCache,
    files: &[String],
    guard: Option<&Guard>,
) -> Result<Vec<String>, String> {
    if files.is_empty() {
        return match (wanted, guard) {
            (PageCache::Warm, _) => {
                Ok(vec!["page_cache: no files are named, so none was read before".to_owned()])
            }
            (PageCache::Cold, Some(guard)) => {
                guard.drop_caches(1).map(|()| Vec::new()).map_err(|error| format!("page_cache: {error}"))
            }
            (PageCache::Cold, None) => {
                Err("page_cache = \"cold\": dropping all clean pages needs root; name the files".to_owned())
            }
        };
    }
    let mut notes = Vec::new();
    for name in files {
        let failed = |error: io::Error| format!("page_cache: {name}: {error}");
        let file = File::open(name).map_err(failed)?;
        match wanted {
            PageCache::Warm => read_all(&file).map_err(failed)?,
            PageCache::Cold => drop_file(&file).map_err(failed)?,
        }
        let Some(share) = resident(&file) else { continue };
        let is_so = if wanted == PageCache::Warm { share > 0.95 } else { share < 0.05 };
        if !is_so {
            notes.push(format!("page_cache: {:.0} % of {name} is in the page cache", share * 100.0));
        }
    }
    Ok(notes)
}

fn read_all(mut file: &File) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// Dirty pages do not go, so they are written first.
fn drop_file(file: &File) -> io::Result<()> {
    fdatasync(file)?;
    page_cache::drop_cached(file)
}

/// The share of a file that is in the page cache. None where the file is empty or nobody can tell.
fn resident(file: &File) -> Option<f64> {
    let len = Bytes(file.metadata().ok()?.len());
    page_cache::cached_share(file, len).ok()
}

/// Fills data cache and TLB with something else, on every CPU that the trial may run on: it reads twice the
/// last level cache and touches four times the pages that the second-level TLB holds. The instruction that
/// empties caches (wbinvd) is privileged, and would not empty the TLB. Returns what was done, in words.
pub(super) fn evict(machine: &Machine, cpu: Option<u32>, available: Bytes) -> Result<String, String> {
    let caches = machine.caches.as_ref().ok();
    let cache = caches.and_then(|caches| caches.iter().map(|cache| cache.size.0).max());
    let tlb = machine.tlb.as_ref().ok().and_then(|tlb| tlb.reach(page(machine.page_size)));
    let entries = tlb.map(|reach| reach.0 / machine.page_size.bytes());
    let bytes = (cache.unwrap_or(CACHE_GUESSED) * CACHES)
        .max(entries.unwrap_or(TLB_GUESSED) * TLBS * machine.page_size.bytes());
    if bytes > available.0 / 2 {
        return Err(format!("evict: {} MiB are wanted for it, more than half of what is free", bytes >> 20));
    }
    let failed = |error: io::Error| format!("evict: {error}");
    let mut mapping = Mapping::anonymous(Bytes(bytes), page(machine.page_size)).map_err(failed)?;
    let all = 0..mapping.len().0;
    let _ = mapping.advise(all, Advice::NoHugePage);
    mapping.words_mut().iter_mut().step_by(8).for_each(|word| *word = 1);
    let cpus = cpu.map_or_else(Pinned::allowed, |cpu| vec![cpu]);
    for &cpu in &cpus {
        let _pinned = Pinned::on(cpu).map_err(failed)?;
        let sum = mapping.words().iter().step_by(8).fold(0u64, |sum, word| sum.wrapping_add(*word));
        std::hint::black_box(sum);
    }
    let guessed = |known: bool| if known { "" } else { " (not known here, assumed)" };
    Ok(format!(
        "evicted by reading {} MiB on {}: twice the last level cache{}, four times the second-level \
         TLB's pages{}",
        bytes >> 20,
        if cpus.len() == 1 { "one CPU".to_owned() } else { format!("{} CPUs", cpus.len()) },
        guessed(cache.is_some()),
        guessed(entries.is_some())
    ))
}

fn page(size: PageSize) -> Bytes {
    Bytes(size.bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn files_become_cold_and_warm() {
        // On a disk: a file of tmpfs has no other place to be.
        let folder = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        let name = [file.path().display().to_string()];
        let noted = prepare(PageCache::Warm, &name, None).unwrap();
        assert_eq!(noted, Vec::<String>::new());
        match resident(file.as_file()) {
            Some(share) => assert_eq!(share, 1.0),
            None => return,
        }
        let noted = prepare(PageCache::Cold, &name, None).unwrap();
        let share = resident(file.as_file()).unwrap();
        let told = noted.iter().any(|note| note.contains("is in the page cache"));
        assert!(share < 0.05 || told, "{share}: {noted:?}");
        assert!(prepare(PageCache::Cold, &["/none".to_owned()], None).unwrap_err().contains("/none"));
        assert!(prepare(PageCache::Cold, &[], None).unwrap_err().contains("needs root"));
    }

    #[test]
    fn evicting_says_what_it_did() {
        let machine = Machine::unread(PageSize::USUAL);
        let said = evict(&machine, None, Bytes(8 << 30)).unwrap();
        assert!(said.contains("128 MiB") && said.contains("assumed"), "{said}");
        assert!(evict(&machine, None, Bytes(1 << 20)).unwrap_err().contains("more than half"));
    }
}
