//! Maps of real programs, line by line, against what each line is.

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

fn check(lines: &[(&str, Part)]) {
    let mappings: Vec<Mapping> = lines.iter().map(|(line, _)| mapping(line)).collect();
    for ((line, expect), found) in lines.iter().zip(parts(&mappings, None)) {
        assert_eq!(found, *expect, "{line}");
    }
}

/// cat of Debian 12 on Linux 6.18, shortened.
#[test]
fn a_dynamically_linked_program_is_told_line_by_line() {
    check(&[
        ("5609596c2000-5609596c4000 r--p 247026 /usr/bin/cat | rd mr mw me", Part::ReadOnlyData),
        ("5609596c4000-5609596c9000 r-xp 247026 /usr/bin/cat | rd ex mr mw me", Part::Text),
        ("5609596c9000-5609596cc000 r--p 247026 /usr/bin/cat | rd mr mw me", Part::ReadOnlyData),
        ("5609596cc000-5609596cd000 r--p 247026 /usr/bin/cat | rd mr mw me ac", Part::Relocated),
        ("5609596cd000-5609596ce000 rw-p 247026 /usr/bin/cat | rd wr mr mw me ac", Part::Data),
        ("5609771eb000-56097720c000 rw-p 0 [heap] | rd wr", Part::Heap),
        ("7f7b50d25000-7f7b50d47000 rw-p 0 | rd wr mr mw me ac", Part::Anonymous),
        ("7f7b50d47000-7f7b50d9e000 r--p 316526 /usr/lib/locale/C.utf8/LC_CTYPE |", Part::FilePrivate),
        ("7f7b50dcf000-7f7b50f25000 r-xp 326269 /usr/lib/libc.so.6 |", Part::Text),
        ("7f7b50f7c000-7f7b50f7e000 rw-p 326269 /usr/lib/libc.so.6 | ac", Part::Data),
        ("7f7b50f7e000-7f7b50f8b000 rw-p 0 | ac", Part::Bss),
        ("7f7b50f8d000-7f7b50f94000 r--s 325737 /usr/lib/gconv-modules.cache |", Part::FileShared),
        ("7f7b50f97000-7f7b50f9b000 r--p 0 [vvar] | rd mr pf io de dd", Part::Vvar),
        ("7f7b50f9b000-7f7b50f9d000 r--p 0 [vvar_vclock] | rd mr pf io", Part::Vvar),
        ("7f7b50f9d000-7f7b50f9f000 r-xp 0 [vdso] |", Part::Vdso),
        ("7fff9ef5e000-7fff9ef7f000 rw-p 0 [stack] | gd ac", Part::MainStack),
        ("ffffffffff600000-ffffffffff601000 --xp 0 [vsyscall] |", Part::Vsyscall),
    ]);
}

#[test]
fn what_the_kernel_does_not_name_follows_from_its_neighbours() {
    check(&[
        ("7f0000000000-7f0000021000 rw-p 0 |", Part::Arena),
        ("7f0000021000-7f0004000000 ---p 0 |", Part::Reserved),
        ("7f1000000000-7f1000001000 ---p 0 |", Part::Guard),
        ("7f1000001000-7f1000801000 rw-p 0 |", Part::ThreadStack),
        ("7f2000000000-7f2040000000 ---p 0 |", Part::Reserved),
        ("7f3000000000-7f3000200000 rw-s 7 /dev/zero (deleted) |", Part::SharedMemory),
        ("7f3000400000-7f3000600000 rw-s 8 /memfd:x (deleted) |", Part::SharedMemory),
        ("7f3000600000-7f3000800000 rw-p 9 /anon_hugepage (deleted) | ht", Part::Hugetlb),
        ("7f3000800000-7f3000801000 rw-s 9 /dev/dri/card0 | io pf", Part::Device),
        ("7f3000900000-7f3000901000 rw-p 0 [anon:scudo] |", Part::Anonymous),
        ("7f3000a00000-7f3000a01000 rw-p 0 [uprobes] |", Part::Named),
        ("7f3000b00000-7f3000c00000 rw-s 12 /tmp/data |", Part::FileShared),
    ]);
    // The same memory between guards is no stack where an experiment says that it is its own.
    let lines = ["7f1000000000-7f1000001000 ---p 0 |", "7f1000001000-7f1000801000 rw-p 0 |"];
    let own = 0x7f10_0000_1000..0x7f10_0080_1000;
    let found = parts(&lines.map(mapping), Some(&own));
    assert_eq!(found, [Part::Guard, Part::UnderTest]);
}

#[test]
fn huge_pages_are_refused_for_a_reason() {
    let settings = HugeSettings {
        size: Some(Bytes(2 << 20)),
        enabled: Some("madvise".to_owned()),
        shmem: Some("never".to_owned()),
        process: Some(true),
    };
    let never = HugeSettings { enabled: Some("never".to_owned()), ..settings.clone() };
    let off = HugeSettings { process: Some(false), ..settings.clone() };
    let large = "7f0000000000-7f0040000000 rw-p 0";
    let cases = [
        (format!("{large} | hg eligible"), &settings, Eligible::Asked),
        (format!("{large} | eligible"), &settings, Eligible::Yes),
        (format!("{large} |"), &settings, Eligible::NotAsked),
        (format!("{large} | nh"), &settings, Eligible::Declined),
        (format!("{large} | hg"), &settings, Eligible::Unexplained),
        (format!("{large} | hg"), &never, Eligible::ModeNever),
        (format!("{large} |"), &off, Eligible::SwitchedOff),
        // 2 MiB long, and no aligned 2 MiB in it.
        ("7f0000001000-7f0000201000 rw-p 0 |".to_owned(), &settings, Eligible::TooSmall),
        ("7f0000000000-7f0040000000 ---p 0 |".to_owned(), &settings, Eligible::NoAccess),
        ("7f0000000000-7f0040000000 rw-s 3 /tmp/file |".to_owned(), &settings, Eligible::PageCache),
        ("7f0000000000-7f0040000000 rw-s 3 /dev/zero (deleted) |".to_owned(), &settings, Eligible::ShmemMode),
        ("7f0000000000-7f0040000000 rw-p 3 /anon_hugepage | ht".to_owned(), &settings, Eligible::Hugetlb),
        ("7f0000000000-7f0000004000 r--p 0 [vvar] | pf io".to_owned(), &settings, Eligible::Special),
    ];
    for (line, settings, expect) in cases {
        let mapping = mapping(&line);
        let part = parts(std::slice::from_ref(&mapping), None)[0];
        assert_eq!(eligible(&mapping, part, settings), expect, "{line}");
    }
    let unsaid = Mapping { thp_eligible: None, ..mapping(&format!("{large} |")) };
    assert_eq!(eligible(&unsaid, Part::Anonymous, &settings), Eligible::NotSaid);
}
