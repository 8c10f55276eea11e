//! The limits that stand between a number of unmovable pages and having them, read before anything is taken.

use std::fmt;

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::PageSize;
use rustix::process::{Resource, geteuid, getrlimit};

use super::{Flavour, Wanted, pipes, sockets, stride};

/// What a flavour needs of something that is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Which flavour.
    pub flavour: Flavour,
    /// The limit's name.
    pub name: &'static str,
    /// So much is needed.
    pub needs: u64,
    /// So much is to be had.
    pub has: u64,
}

impl Limit {
    /// Whether what is asked for does not fit.
    pub fn is_short(&self) -> bool {
        self.needs > self.has
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { flavour, name, needs, has } = self;
        write!(f, "{flavour} need {needs} of {name}, which is {has}")
    }
}

/// The limits of what is wanted that this process is under. Those that cannot be read are left out.
pub fn limits(root: &Root, wanted: &Wanted, page_size: PageSize) -> Vec<Limit> {
    let reader = Reader::new(root);
    let number = |path: &str| reader.line(path).ok().and_then(|text| text.parse::<u64>().ok());
    let is_root = geteuid().is_root();
    let each = wanted.blocks.div_ceil((wanted.flavours.len() as u64).max(1));
    let pages = each.saturating_mul(wanted.block_pages);
    let nofile = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let mut limits = Vec::new();
    for &flavour in &wanted.flavours {
        let mut add = |name, needs: u64, has: Option<u64>| {
            limits.extend(has.map(|has| Limit { flavour, name, needs, has }));
        };
        match flavour {
            Flavour::Pipes => {
                add("RLIMIT_NOFILE", pages.div_ceil(pipes::PIPE_PAGES), Some(nofile));
                let soft = number(paths::PIPE_USER_PAGES_SOFT).filter(|&soft| soft > 0 && !is_root);
                add("fs.pipe-user-pages-soft", pages, soft);
            }
            Flavour::Sockets => {
                // The kernel doubles the limit, and a message takes less than two pages.
                let wmem = number(paths::WMEM_MAX).filter(|_| !is_root);
                let queue =
                    wmem.map_or(sockets::QUEUE, |max| (max / page_size.bytes()).clamp(1, sockets::QUEUE));
                add("RLIMIT_NOFILE", pages.div_ceil(queue), Some(nofile));
            }
            Flavour::PageTables => {
                // Two mappings for a stride, each with its guards.
                let mappings = 6 * pages.div_ceil(stride(wanted.block_pages));
                add("vm.max_map_count", mappings, number(paths::MAX_MAP_COUNT));
            }
            Flavour::Dentries => {}
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_short_is_told_with_both_numbers() {
        let page_size = PageSize::new(rustix::param::page_size() as u64).unwrap();
        let wanted = Wanted { blocks: 1 << 40, block_pages: 512, flavours: Flavour::ALL.to_vec() };
        let limits = limits(&Root::live(), &wanted, page_size);
        let open_files = limits.iter().find(|limit| limit.name == "RLIMIT_NOFILE").unwrap();
        assert!(open_files.is_short() && open_files.flavour == Flavour::Pipes);
        let text = open_files.to_string();
        assert!(text.starts_with("pipes need 549755813888 of RLIMIT_NOFILE, which is "), "{text}");
        let few = Wanted { blocks: 1, ..wanted };
        assert!(!super::limits(&Root::live(), &few, page_size).iter().any(Limit::is_short));
    }
}
