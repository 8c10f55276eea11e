//! Page flags of `/proc/kpageflags`, and page classes.
//!
//! Bit numbers are the kernel's ABI in include/uapi/linux/kernel-page-flags.h (bits 0 to 26) and the
//! debugging bits of include/linux/kernel-page-flags.h (32 and up, which may change between releases).

use serde::{Deserialize, Serialize};

/// The flags of one page. All 64 bits are kept, also those without a name in this module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageFlags(pub u64);

macro_rules! page_flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        impl PageFlags {
            $($(#[$doc])* pub const $name: PageFlags = PageFlags(1 << $bit);)*
            /// Every named flag, with its name.
            pub const NAMED: &'static [(&'static str, PageFlags)] =
                &[$((stringify!($name), PageFlags::$name),)*];
        }
        const _: () = { $(assert!($bit < 64);)* };
    };
}

page_flags! {
    /// Locked for IO or another exclusive use.
    LOCKED = 0,
    /// An IO error happened.
    ERROR = 1,
    /// Referenced since the last scan by reclaim.
    REFERENCED = 2,
    /// The contents are valid.
    UPTODATE = 3,
    /// Dirty: to be written back.
    DIRTY = 4,
    /// On an LRU list: visible to reclaim and compaction.
    LRU = 5,
    /// On the active LRU list.
    ACTIVE = 6,
    /// Belongs to a slab cache. Other bits of a slab page may be set by its layout: check this one first.
    SLAB = 7,
    /// Being written back.
    WRITEBACK = 8,
    /// To be reclaimed as soon as it is written.
    RECLAIM = 9,
    /// Free, in the buddy allocator.
    BUDDY = 10,
    /// Mapped into a process.
    MMAP = 11,
    /// Anonymous memory.
    ANON = 12,
    /// In the swap cache.
    SWAPCACHE = 13,
    /// Backed by swap: anonymous or shared memory.
    SWAPBACKED = 14,
    /// First page of a compound page.
    COMPOUND_HEAD = 15,
    /// Later page of a compound page.
    COMPOUND_TAIL = 16,
    /// hugetlb.
    HUGE = 17,
    /// On the unevictable list: mlocked, ramfs.
    UNEVICTABLE = 18,
    /// Hardware error.
    HWPOISON = 19,
    /// No page frame. Kernels from 6.17 on may print 0 instead: check the memory map too.
    NOPAGE = 20,
    /// Merged by KSM.
    KSM = 21,
    /// Transparent huge page or other large folio.
    THP = 22,
    /// Logically offline: balloon, standby memory.
    OFFLINE = 23,
    /// A zero page.
    ZERO_PAGE = 24,
    /// Idle page tracking's bit.
    IDLE = 25,
    /// Page table (4.18 and later).
    PGTABLE = 26,
    /// Reserved: never given to the allocator.
    RESERVED = 32,
    /// mlocked.
    MLOCKED = 33,
    /// Free for the owner's use: mapped to disk, in file systems.
    OWNER_2 = 34,
    /// Has private data: buffers.
    PRIVATE = 35,
    /// Second private bit of file systems.
    PRIVATE_2 = 36,
    /// Owner's bit.
    OWNER_PRIVATE = 37,
    /// Architecture's bit.
    ARCH = 38,
    /// Mapped uncached.
    UNCACHED = 39,
    /// Soft-dirty tracking's bit.
    SOFTDIRTY = 40,
    /// Architecture's second bit.
    ARCH_2 = 41,
    /// Architecture's third bit.
    ARCH_3 = 42,
}

impl PageFlags {
    /// Whether any of `other`'s flags is set here.
    pub const fn has_any(self, other: PageFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// All flags of both.
    pub const fn union(self, other: PageFlags) -> PageFlags {
        PageFlags(self.0 | other.0)
    }
}

impl std::fmt::Debug for PageFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.0;
        let mut list = f.debug_list();
        for &(name, flag) in PageFlags::NAMED {
            if self.has_any(flag) {
                rest &= !flag.0;
                list.entry(&format_args!("{name}"));
            }
        }
        if rest != 0 {
            list.entry(&format_args!("unknown bits {rest:#x}"));
        }
        list.finish()
    }
}

macro_rules! page_classes {
    ($($(#[$doc:meta])* $class:ident = $number:literal, $name:literal;)*) => {
        /// Class of a page: it decides whether its pageblock can become a huge page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum PageClass {
            $($(#[$doc])* $class = $number,)*
        }

        impl PageClass {
            /// All classes, in the order of their numbers.
            pub const ALL: [PageClass; PageClass::COUNT] = [$(PageClass::$class),*];

            /// A short name, the same in text and JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PageClass::$class => $name,)*
                }
            }
        }
    };
}

page_classes! {
    /// In the buddy allocator.
    Free = 0, "free";
    /// Anonymous or shared memory in base pages or small folios: movable; needs swap to be dropped.
    Anon = 1, "anon";
    /// Anonymous or shared memory in a large folio: movable; of PMD size it is a huge page in use.
    AnonHuge = 2, "anon_huge";
    /// Page cache: movable, and can be dropped once clean.
    File = 3, "file";
    /// Other movable memory, such as balloon pages.
    MovableOther = 4, "movable_other";
    /// A hugetlb page: in use or in the pool as a huge page.
    Hugetlb = 5, "hugetlb";
    /// Slab.
    Slab = 6, "slab";
    /// Page table.
    PageTable = 7, "page_table";
    /// Reserved at boot, or firmware memory.
    Reserved = 8, "reserved";
    /// Other kernel memory that has flags: large kernel allocations, zero pages, driver pages.
    Kernel = 9, "kernel";
    /// No flags: per-CPU cached free pages, vmalloc, stacks, per-CPU memory. May be free, may be in use.
    Unknown = 10, "unknown";
    /// Present, but not yet given to the allocator (deferred initialisation, `deferred_init=lazy`): free for
    /// all purposes. Such pages have no flags; they are the last pages of their zone.
    Deferred = 11, "deferred";
    /// No memory.
    Hole = 12, "hole";
    /// Offline or given to a hypervisor's balloon.
    Offline = 13, "offline";
    /// Taken out after a hardware error.
    Poisoned = 14, "poisoned";
}

impl PageClass {
    /// Number of classes.
    pub const COUNT: usize = 15;

    /// The index of the class.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether compaction can migrate such a page.
    pub const fn is_movable(self) -> bool {
        matches!(self, PageClass::Anon | PageClass::AnonHuge | PageClass::File | PageClass::MovableOther)
    }

    /// Whether such a page prevents its pageblock from becoming a huge page.
    pub const fn pollutes(self) -> bool {
        matches!(
            self,
            PageClass::Slab
                | PageClass::PageTable
                | PageClass::Reserved
                | PageClass::Kernel
                | PageClass::Hole
                | PageClass::Offline
                | PageClass::Poisoned
        )
    }
}

const _: () = {
    let mut at = 0;
    while at < PageClass::COUNT {
        assert!(PageClass::ALL[at].index() == at);
        at += 1;
    }
};
