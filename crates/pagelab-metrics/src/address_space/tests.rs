//! Tests: maps of real programs, line by line, with the expected role of each line.

use pagelab_model::Counters;

use super::*;

/// `start-end perms inode name | flags`, as maps and VmFlags have them.
fn mapping(line: &str) -> Mapping {
    let (head, flags) = line.split_once('|').unwrap_or((line, ""));
    let words: Vec<&str> = head.split_whitespace().collect();
    let (start, end) = words[0].split_once('-').unwrap();
    let hex = |text| u64::from_str_radix(text, 16).unwrap();
    Mapping {
        start: hex(start),
        end: hex(end),
        permissions: words[1].to_owned(),
        offset: 0,
        inode: words[2].parse().unwrap(),
        name: words[3..].join(" "),
        fields_kib: Counters::default(),
        thp_eligible: Some(flags.contains("eligible")),
        vm_flags: flags.split_whitespace().map(str::to_owned).collect(),
        other: Vec::new(),
    }
}

fn check(lines: &[(&str, MappingRole)]) {
    let mappings: Vec<Mapping> = lines.iter().map(|(line, _)| mapping(line)).collect();
    for ((line, expect), found) in lines.iter().zip(classify_mappings(&mappings, None)) {
        assert_eq!(found, *expect, "{line}");
    }
}

/// cat of Debian 12 on Linux 6.18, shortened.
#[test]
fn a_dynamically_linked_program_is_told_line_by_line() {
    check(&[
        ("5609596c2000-5609596c4000 r--p 247026 /usr/bin/cat | rd mr mw me", MappingRole::ReadOnlyData),
        ("5609596c4000-5609596c9000 r-xp 247026 /usr/bin/cat | rd ex mr mw me", MappingRole::Text),
        ("5609596c9000-5609596cc000 r--p 247026 /usr/bin/cat | rd mr mw me", MappingRole::ReadOnlyData),
        ("5609596cc000-5609596cd000 r--p 247026 /usr/bin/cat | rd mr mw me ac", MappingRole::Relocated),
        ("5609596cd000-5609596ce000 rw-p 247026 /usr/bin/cat | rd wr mr mw me ac", MappingRole::Data),
        ("5609771eb000-56097720c000 rw-p 0 [heap] | rd wr", MappingRole::Heap),
        ("7f7b50d25000-7f7b50d47000 rw-p 0 | rd wr mr mw me ac", MappingRole::Anonymous),
        ("7f7b50d47000-7f7b50d9e000 r--p 316526 /usr/lib/locale/C.utf8/LC_CTYPE |", MappingRole::FilePrivate),
        ("7f7b50dcf000-7f7b50f25000 r-xp 326269 /usr/lib/libc.so.6 |", MappingRole::Text),
        ("7f7b50f7c000-7f7b50f7e000 rw-p 326269 /usr/lib/libc.so.6 | ac", MappingRole::Data),
        ("7f7b50f7e000-7f7b50f8b000 rw-p 0 | ac", MappingRole::Bss),
        ("7f7b50f8d000-7f7b50f94000 r--s 325737 /usr/lib/gconv-modules.cache |", MappingRole::FileShared),
        ("7f7b50f97000-7f7b50f9b000 r--p 0 [vvar] | rd mr pf io de dd", MappingRole::Vvar),
        ("7f7b50f9b000-7f7b50f9d000 r--p 0 [vvar_vclock] | rd mr pf io", MappingRole::Vvar),
        ("7f7b50f9d000-7f7b50f9f000 r-xp 0 [vdso] |", MappingRole::Vdso),
        ("7fff9ef5e000-7fff9ef7f000 rw-p 0 [stack] | gd ac", MappingRole::MainStack),
        ("ffffffffff600000-ffffffffff601000 --xp 0 [vsyscall] |", MappingRole::Vsyscall),
    ]);
}

#[test]
fn what_the_kernel_does_not_name_follows_from_its_neighbours() {
    check(&[
        ("7f0000000000-7f0000021000 rw-p 0 |", MappingRole::Arena),
        ("7f0000021000-7f0004000000 ---p 0 |", MappingRole::Reserved),
        ("7f1000000000-7f1000001000 ---p 0 |", MappingRole::Guard),
        ("7f1000001000-7f1000801000 rw-p 0 |", MappingRole::ThreadStack),
        ("7f2000000000-7f2040000000 ---p 0 |", MappingRole::Reserved),
        ("7f3000000000-7f3000200000 rw-s 7 /dev/zero (deleted) |", MappingRole::SharedMemory),
        ("7f3000400000-7f3000600000 rw-s 8 /memfd:x (deleted) |", MappingRole::SharedMemory),
        ("7f3000600000-7f3000800000 rw-p 9 /anon_hugepage (deleted) | ht", MappingRole::Hugetlb),
        ("7f3000800000-7f3000801000 rw-s 9 /dev/dri/card0 | io pf", MappingRole::Device),
        ("7f3000900000-7f3000901000 rw-p 0 [anon:scudo] |", MappingRole::Anonymous),
        ("7f3000a00000-7f3000a01000 rw-p 0 [uprobes] |", MappingRole::NamedByKernel),
        ("7f3000b00000-7f3000c00000 rw-s 12 /tmp/data |", MappingRole::FileShared),
    ]);
    // The same memory between guards is no stack where an experiment says that it is its own.
    let lines = ["7f1000000000-7f1000001000 ---p 0 |", "7f1000001000-7f1000801000 rw-p 0 |"];
    let own = 0x7f10_0000_1000..0x7f10_0080_1000;
    let found = classify_mappings(&lines.map(mapping), Some(&own));
    assert_eq!(found, [MappingRole::Guard, MappingRole::UnderTest]);
}

#[test]
fn huge_pages_are_refused_for_a_reason() {
    let settings = ThpEligibilitySettings {
        pmd_size: Some(Bytes(2 << 20)),
        enabled: Some("madvise".to_owned()),
        shmem_enabled: Some("never".to_owned()),
        process_enabled: Some(true),
    };
    let never = ThpEligibilitySettings { enabled: Some("never".to_owned()), ..settings.clone() };
    let off = ThpEligibilitySettings { process_enabled: Some(false), ..settings.clone() };
    let large = "7f0000000000-7f0040000000 rw-p 0";
    let cases = [
        (format!("{large} | hg eligible"), &settings, ThpEligibility::Advised),
        (format!("{large} | eligible"), &settings, ThpEligibility::Yes),
        (format!("{large} |"), &settings, ThpEligibility::NotAdvised),
        (format!("{large} | nh"), &settings, ThpEligibility::Declined),
        (format!("{large} | hg"), &settings, ThpEligibility::Unexplained),
        (format!("{large} | hg"), &never, ThpEligibility::NeverMode),
        (format!("{large} |"), &off, ThpEligibility::DisabledByPrctl),
        // 2 MiB long, and no aligned 2 MiB in it.
        ("7f0000001000-7f0000201000 rw-p 0 |".to_owned(), &settings, ThpEligibility::TooSmall),
        ("7f0000000000-7f0040000000 ---p 0 |".to_owned(), &settings, ThpEligibility::NoAccess),
        ("7f0000000000-7f0040000000 rw-s 3 /tmp/file |".to_owned(), &settings, ThpEligibility::PageCache),
        (
            "7f0000000000-7f0040000000 rw-s 3 /dev/zero (deleted) |".to_owned(),
            &settings,
            ThpEligibility::ShmemMode,
        ),
        (
            "7f0000000000-7f0040000000 rw-p 3 /anon_hugepage | ht".to_owned(),
            &settings,
            ThpEligibility::Hugetlb,
        ),
        (
            "7f0000000000-7f0000004000 r--p 0 [vvar] | pf io".to_owned(),
            &settings,
            ThpEligibility::SpecialMapping,
        ),
    ];
    for (line, settings, expect) in cases {
        let mapping = mapping(&line);
        let part = classify_mappings(std::slice::from_ref(&mapping), None)[0];
        assert_eq!(thp_eligibility(&mapping, part, settings), expect, "{line}");
    }
    let unsaid = Mapping { thp_eligible: None, ..mapping(&format!("{large} |")) };
    assert_eq!(thp_eligibility(&unsaid, MappingRole::Anonymous, &settings), ThpEligibility::NotReported);
}
