//! The text of a small address space, as on a terminal.

use super::*;

fn mapping(range: Range<u64>, permissions: &str, inode: u64, name: &str, resident_kib: u64) -> Mapping {
    Mapping {
        start: range.start,
        end: range.end,
        permissions: permissions.to_owned(),
        offset: 0,
        inode,
        name: name.to_owned(),
        fields_kib: [("Rss", resident_kib), ("Private_Dirty", resident_kib)].into_iter().collect(),
        thp_eligible: Some(false),
        vm_flags: Vec::new(),
        other: Vec::new(),
    }
}

#[test]
fn every_line_of_a_map_is_explained() {
    let mut space = AddressSpaceReport {
        pid: 7,
        name: Some("lab".to_owned()),
        mappings: vec![
            mapping(0x40_0000..0x40_1000, "r-xp", 9, "/bin/lab", 4),
            mapping(0x400f_f000..0x4010_0000, "---p", 0, "", 0),
            mapping(0x4010_0000..0x8010_0000, "rw-p", 0, "", 4096),
            mapping(0x7ffd_0000_0000..0x7ffd_0002_1000, "rw-p", 0, "[stack]", 16),
        ],
        test_region: Some(0x4010_0000..0x8010_0000),
        settings: ThpEligibilitySettings {
            pmd_size: Some(Bytes(2 << 20)),
            enabled: Some("madvise".to_owned()),
            shmem_enabled: Some("never".to_owned()),
            process_enabled: Some(true),
        },
    };
    expect_test::expect![[r#"
        lab (pid 7): 4 mappings, 1 GiB accessible, 4.02 MiB resident
          huge pages: mode madvise for anonymous memory, never for shared memory
          addresses · permissions (read, write, execute; p private, s shared) · size ·
          resident · THP eligibility (THPeligible of smaps)
          400000-401000  r-xp  4 KiB  resident 4 KiB  huge pages: no
              text: code of /bin/lab, shared by all processes that map it. Too small for
              huge pages: it contains no aligned block of 2 MiB
              … 1 GiB not mapped …
          400ff000-40100000  ---p  4 KiB  resident 0 B  huge pages: no
              guard of the mapping under test: no access, prevents merging with a
              neighbour
          40100000-80100000  rw-p  1 GiB  resident 4 MiB  huge pages: no
              THE MAPPING UNDER TEST: anonymous, private; 4 MiB dirty, no huge pages. No
              huge pages: the mode is madvise, and MADV_HUGEPAGE is not set
              … 128 TiB not mapped …
          7ffd00000000-7ffd00021000  rw-p  132 KiB  resident 16 KiB  huge pages: no
              stack of the main thread: grows down to its limit; the kernel keeps a gap
              below it (stack_guard_gap). Too small for huge pages: it contains no
              aligned block of 2 MiB
    "#]]
    .assert_eq(&space.to_text(&TextStyle::PLAIN));
    space.mappings.clear();
    assert!(space.to_text(&TextStyle::PLAIN).starts_with("lab (pid 7) has no user memory"));
}

#[test]
fn a_name_cannot_act_on_the_terminal() {
    let space = AddressSpaceReport {
        pid: 7,
        name: None,
        mappings: vec![mapping(0x40_0000..0x40_1000, "rw-s", 9, "/tmp/\u{1b}[31mred", 4)],
        test_region: None,
        settings: ThpEligibilitySettings::default(),
    };
    assert!(!space.to_text(&TextStyle::PLAIN).contains('\u{1b}'));
}
