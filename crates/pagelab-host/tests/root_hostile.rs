//! Tests of broken and hostile saved trees: an error that names the file, never a hang, an escape or
//! unbounded memory.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail like the tests")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagelab_host::root::{EntryKind, Root};
use pagelab_model::{AbsenceReason, Reading};
use pagelab_sys::clock;
use tempfile::TempDir;

/// What a reading is expected to be.
#[derive(Clone, Copy, Debug)]
enum ExpectedReading {
    Text(&'static str),
    Length(usize),
    Absent(AbsenceReason, &'static str),
}

use ExpectedReading::{Absent, Length, Text};

const BAD: AbsenceReason = AbsenceReason::Malformed;
const NO: AbsenceReason = AbsenceReason::NotSaved;

#[track_caller]
fn check(case: &str, got: Reading<Vec<u8>>, want: ExpectedReading) {
    match (got, want) {
        (Ok(text), Text(want)) => assert_eq!(String::from_utf8_lossy(&text), want, "{case}"),
        (Ok(text), Length(want)) => assert_eq!(text.len(), want, "{case}"),
        (Err(absence), Absent(why, part)) => {
            assert_eq!(absence.why, why, "{case}: {absence:?}");
            assert!(absence.reason().contains(part), "{case}: {absence:?}");
            assert!(!absence.source.chars().any(char::is_control), "{case}: {absence:?}");
        }
        (got, want) => panic!("{case}: wanted {want:?}, got {:?}", got.map(|text| text.len())),
    }
}

/// Nothing in this file takes much CPU time. Wall time says how busy the machine is.
fn within_deadline<T>(case: &str, work: impl FnOnce() -> T) -> T {
    let began_ns = clock::thread_cpu_ns();
    let done = work();
    let took_ns = clock::thread_cpu_ns() - began_ns;
    assert!(took_ns < 20_000_000_000, "{case} took {took_ns} ns");
    done
}

fn compress(data: &[u8]) -> Vec<u8> {
    zstd::encode_all(data, 3).unwrap()
}

fn write_file(root: &Path, path: &str, data: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, data).unwrap();
}

/// A folder with all that can be wrong in one, beside `outside`, which must never be read.
fn hostile_folder() -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("tree");
    write_file(temp.path(), "outside", "secret");
    write_file(&root, "etc/passwd", "inside");
    write_file(&root, "proc/plain", "plain");
    write_file(&root, "proc/empty", "");
    write_file(&root, "proc/garbage", [0, 255, 7]);
    write_file(&root, "proc/dir/x", "");
    write_file(&root, "proc/packed.zst", compress(b"unpacked"));
    write_file(&root, "proc/both", "the plain one");
    write_file(&root, "proc/both.zst", compress(b"the other one"));
    write_file(&root, "proc/cut.zst", &compress(b"some text that is cut off")[..20]);
    write_file(&root, "proc/nozstd.zst", "this is no zstd");
    write_file(&root, "proc/tail.zst", [compress(b"fine"), b"and then not".to_vec()].concat());
    write_file(&root, "proc/nothing.zst", "");
    write_file(&root, "proc/bomb.zst", compressed_zeros(1 << 30));
    write_file(&root, "proc/a\nb", "newline");
    File::create(root.join("proc/huge")).unwrap().set_len(1 << 30).unwrap();
    File::create(root.join("proc/edge")).unwrap().set_len(64 << 20).unwrap();
    for (link, target) in [
        ("etc-link", "/etc/passwd"),
        ("up", "../../../../../../outside"),
        ("absolute", temp.path().join("outside").to_str().unwrap()),
        ("loop", "loop"),
        ("ping", "pong"),
        ("pong", "ping"),
        ("dangling", "nowhere"),
        ("to-fifo", "fifo"),
        ("magic", "/proc/self/fd/0"),
    ] {
        symlink(target, root.join("proc").join(link)).unwrap();
    }
    for depth in 0..50 {
        symlink(format!("chain{}", depth + 1), root.join(format!("proc/chain{depth}"))).unwrap();
    }
    assert!(Command::new("mkfifo").arg(root.join("proc/fifo")).status().unwrap().success());
    std::os::unix::net::UnixListener::bind(root.join("proc/socket")).unwrap();
    (temp, root)
}

/// zstd data of `length` zeros, at least: one frame of run-length blocks (RFC 8878, 3.1.1.2), made by hand
/// because compressing so much takes longer than refusing it.
fn compressed_zeros(length: u64) -> Vec<u8> {
    const BLOCK: u32 = 128 << 10;
    // Magic number, no checksum and no content size, a window of 128 KiB.
    let mut data = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    let blocks = length.div_ceil(u64::from(BLOCK));
    for block in 1..=blocks {
        let header = (BLOCK << 3) | (1 << 1) | u32::from(block == blocks);
        data.extend(&header.to_le_bytes()[..3]);
        data.push(0);
    }
    data
}

#[test]
fn a_hostile_folder_gives_clear_answers() {
    let (_temp, path) = hostile_folder();
    let root = Root::open(&path).unwrap();
    let cases = [
        ("plain", Text("plain")),
        ("empty", Text("")),
        ("garbage", Length(3)),
        ("missing", Absent(NO, "not in the saved tree")),
        ("dir", Absent(BAD, "is a directory")),
        ("plain/below", Absent(BAD, "a component of its path is not a directory")),
        ("fifo", Absent(BAD, "is a FIFO")),
        ("to-fifo", Absent(BAD, "is a FIFO")),
        ("socket", Absent(BAD, "is a socket")),
        ("huge", Absent(BAD, "larger than 64 MiB")),
        ("edge", Length(64 << 20)),
        ("packed", Text("unpacked")),
        ("both", Text("the plain one")),
        ("cut", Absent(BAD, "truncated zstd data")),
        ("nozstd", Absent(BAD, "corrupt zstd")),
        ("tail", Absent(BAD, "zstd data")),
        ("nothing", Absent(BAD, "is empty")),
        ("bomb", Absent(BAD, "larger than 64 MiB")),
        ("a\nb", Text("newline")),
        ("a\nc", Absent(NO, "")),
        ("a\0b", Absent(BAD, "invalid file name")),
        ("etc-link", Text("inside")),
        ("up", Absent(NO, "")),
        ("absolute", Absent(NO, "")),
        ("loop", Absent(BAD, "a symbolic link loop")),
        ("ping", Absent(BAD, "a symbolic link loop")),
        ("chain0", Absent(BAD, "a symbolic link loop")),
        ("dangling", Absent(NO, "")),
        ("magic", Absent(NO, "")),
        ("../../outside", Absent(NO, "")),
    ];
    for (name, want) in cases {
        let got = within_deadline(name, || root.read(&format!("/proc/{name}")));
        check(name, got, want);
    }
    let long = format!("/proc/{}", "x".repeat(70_000));
    check("a long name", root.read(&long), Absent(BAD, "invalid file name"));
}

#[test]
fn directories_and_links_are_listed_without_following_links() {
    let (_temp, path) = hostile_folder();
    let root = Root::open(&path).unwrap();
    assert!(root.list_dir("/proc").unwrap().contains(&"a\nb".to_owned()));
    for (name, part) in
        [("plain", "not a directory"), ("fifo", "not a directory"), ("loop", "a symbolic link loop")]
    {
        let absence = root.list_dir(&format!("/proc/{name}")).unwrap_err();
        assert_eq!(absence.why, BAD, "{name}");
        assert!(absence.reason().contains(part), "{name}: {absence:?}");
    }
    for (name, kind) in [
        ("plain", EntryKind::File),
        ("dir", EntryKind::Dir),
        ("loop", EntryKind::Link),
        ("fifo", EntryKind::Other),
    ] {
        assert_eq!(root.entry_kind(&format!("/proc/{name}")), Ok(kind), "{name}");
    }
    assert_eq!(root.display_path("/proc/a\nb"), format!("{}/proc/a\\nb", path.display()));
}

#[test]
fn a_decompression_bomb_is_streamed_in_bounded_memory() {
    let temp = tempfile::tempdir().unwrap();
    write_file(temp.path(), "proc/kpageflags.zst", compressed_zeros(2 << 30));
    let root = Root::open(temp.path()).unwrap();
    let mut stream = root.open_reader("/proc/kpageflags").unwrap();
    let mut buffer = vec![1; 1 << 20];
    stream.read_exact(&mut buffer).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
    // The file as it is stored stays small.
    assert!(root.open_regular_file("/proc/kpageflags.zst").unwrap().metadata().unwrap().len() < 1 << 20);
    assert_eq!(root.open_regular_file("/proc/kpageflags").unwrap_err().why, NO);
}

#[test]
fn a_late_stream_error_is_bad_input() {
    let temp = tempfile::tempdir().unwrap();
    let noise: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let whole = compress(&noise);
    write_file(temp.path(), "proc/kpageflags.zst", &whole[..whole.len() - 100]);
    let root = Root::open(temp.path()).unwrap();
    let mut stream = root.open_reader("/proc/kpageflags").unwrap();
    let error = io::copy(&mut stream, &mut io::sink()).unwrap_err();
    let absence = root.absence("/proc/kpageflags", &error);
    assert_eq!((absence.why, absence.reason()), (BAD, "truncated zstd data"));
}

#[test]
fn an_unreadable_file_is_reported_as_not_permitted() {
    // Root may read everything, so this test runs itself again as an unprivileged user.
    if std::env::var_os("PAGELAB_TEST_AS_NOBODY").is_none() && rustix::process::geteuid().is_root() {
        let temp = tempfile::tempdir().unwrap();
        let copy = temp.path().join("test");
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut again = Command::new(copy);
        again
            .args(["--exact", "an_unreadable_file_is_reported_as_not_permitted"])
            .env("PAGELAB_TEST_AS_NOBODY", "1");
        assert!(again.uid(65_534).gid(65_534).current_dir("/").status().unwrap().success());
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    write_file(temp.path(), "proc/secret", "x");
    fs::set_permissions(temp.path().join("proc/secret"), std::os::unix::fs::PermissionsExt::from_mode(0o0))
        .unwrap();
    let root = Root::open(temp.path()).unwrap();
    let absence = root.read("/proc/secret").unwrap_err();
    assert_eq!(absence.why, AbsenceReason::NotPermitted);
    assert!(absence.hint.unwrap().contains("readable"));
    assert_eq!(Root::live().read("/proc/kpageflags").unwrap_err().why, AbsenceReason::NotPermitted);
}

/// One entry of a hostile archive: name, type, link target, data.
type Entry<'a> = (&'a str, u8, &'a str, &'a [u8]);

/// A tar archive built by hand, with names and types that a proper writer refuses.
fn tar_of(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &(name, kind, link, data) in entries {
        bytes.extend(tar_header(name, kind, link, data.len() as u64));
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn tar_header(name: &str, kind: u8, link: &str, size: u64) -> [u8; 512] {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    *header.as_bytes()
}

fn open_bytes(bytes: &[u8]) -> io::Result<Root> {
    let temp = tempfile::tempdir().unwrap();
    // The name says nothing: the content decides.
    let path = temp.path().join("archive.txt");
    fs::write(&path, bytes).unwrap();
    Root::open(&path)
}

#[test]
fn a_hostile_archive_gives_clear_answers() {
    let pax = b"29 path=proc/a-name-from-pax\n";
    let entries: &[Entry] = &[
        ("./", b'5', "", b""),
        ("proc/plain", b'0', "", b"first"),
        ("./proc//plain", b'0', "", b"newer"),
        ("../../etc/up", b'0', "", b"inside"),
        ("/etc/absolute", b'0', "", b"inside too"),
        ("proc/x/../../etc/../../etc/wound", b'0', "", b"wound"),
        ("proc/link", b'2', "/etc/up", b""),
        ("proc/out", b'2', "../../../../../etc/passwd", b""),
        ("proc/self", b'2', "42", b""),
        ("proc/42/status", b'0', "", b"of 42"),
        ("proc/loop", b'2', "loop", b""),
        ("proc/ping", b'2', "pong", b""),
        ("proc/pong", b'2', "ping", b""),
        ("proc/hard", b'1', "proc/plain", b""),
        ("proc/fifo", b'6', "", b""),
        ("proc/char", b'3', "", b""),
        ("proc/block", b'4', "", b""),
        ("proc/odd", b'Z', "", b"odd"),
        ("proc/nolink", b'2', "", b""),
        ("proc/dir/", b'0', "", b""),
        ("proc/a\nb", b'6', "", b""),
        ("ignored", b'L', "", b"proc/a-name-from-gnu\0"),
        ("short", b'0', "", b"gnu"),
        ("ignored", b'x', "", pax),
        ("short", b'0', "", b"pax"),
    ];
    let root = open_bytes(&tar_of(entries)).unwrap();
    let packed = open_bytes(&compress(&tar_of(entries))).unwrap();
    let cases = [
        ("/proc/plain", Text("newer")),
        ("/etc/up", Text("inside")),
        ("/etc/absolute", Text("inside too")),
        ("/etc/wound", Text("wound")),
        ("/proc/link", Text("inside")),
        ("/proc/out", Absent(NO, "")),
        ("/proc/self/status", Text("of 42")),
        ("/proc/../../proc/plain", Text("newer")),
        ("/proc/loop", Absent(BAD, "a symbolic link loop")),
        ("/proc/ping", Absent(BAD, "a symbolic link loop")),
        ("/proc/hard", Absent(BAD, "entry proc/hard of the archive is a hard link")),
        ("/proc/fifo", Absent(BAD, "entry proc/fifo of the archive is a FIFO")),
        ("/proc/char", Absent(BAD, "is a device")),
        ("/proc/block", Absent(BAD, "is a device")),
        ("/proc/odd", Absent(BAD, "unknown type 'Z'")),
        ("/proc/nolink", Absent(BAD, "without a usable target")),
        ("/proc/dir", Absent(BAD, "is a directory")),
        ("/proc/a\nb", Absent(BAD, "entry proc/a\\nb of")),
        ("/proc/plain/below", Absent(BAD, "not a directory")),
        ("/proc/a-name-from-gnu", Text("gnu")),
        ("/proc/a-name-from-pax", Text("pax")),
        ("/short", Absent(NO, "")),
    ];
    for (path, want) in cases {
        check(path, root.read(path), want);
        check(path, packed.read(path), want);
    }
    assert_eq!(root.list_dir("/etc").unwrap(), ["absolute", "up", "wound"]);
    assert_eq!(root.list_dir("/proc/self").unwrap(), ["status"]);
    assert_eq!(root.list_dir("/proc/plain").unwrap_err().reason(), "is not a directory");
    assert_eq!(
        (root.entry_kind("/proc/self"), root.entry_kind("/proc/fifo")),
        (Ok(EntryKind::Link), Ok(EntryKind::Other))
    );
    let mut copy = String::new();
    root.open_regular_file("/proc/plain").unwrap().read_to_string(&mut copy).unwrap();
    assert_eq!(copy, "newer");
}

#[test]
fn files_that_are_no_archive_are_refused_with_a_reason() {
    let one: &[Entry] = &[("proc/plain", b'0', "", b"text")];
    let whole = tar_of(one);
    let packed_whole = compress(&whole);
    let mut wrong_sum = whole.clone();
    wrong_sum[0] ^= 1;
    let conflict: &[Entry] = &[("proc/a", b'0', "", b"x"), ("proc/a/b", b'0', "", b"x")];
    let twice: &[Entry] = &[("proc/a/b", b'0', "", b"x"), ("proc/a", b'0', "", b"x")];
    let long_name = [&tar_header("x", b'L', "", 1 << 30)[..], &[0; 2048]].concat();
    let pax_size: &[Entry] = &[("x", b'x', "", b"12 size=999\n"), ("proc/a", b'0', "", b"x")];
    let cases: &[(&str, &[u8], &str)] = &[
        ("an empty file", b"", "empty"),
        ("garbage", &[7; 5000], "neither a directory nor a tar archive"),
        ("a short text", b"Node 0, zone", "neither a tar archive nor a directory"),
        ("gzip", &[0x1f, 0x8b, 8, 0], "gzip"),
        ("an empty archive", &[0; 1024], "contains no files"),
        ("an empty archive, packed", &compress(&[0; 10_240]), "contains no files"),
        ("cut in a header", &whole[..300], "neither a tar archive nor a directory"),
        ("cut in the data", &whole[..514], "entry proc/plain: truncated"),
        ("cut while packed", &packed_whole[..packed_whole.len() - 5], "truncated"),
        ("a wrong checksum", &wrong_sum, "checksum"),
        (
            "a file with files in it",
            &tar_of(conflict),
            "entry proc/a/b: a component of its path is not a directory",
        ),
        (
            "a folder that becomes a file",
            &tar_of(twice),
            "entry proc/a: present twice, as a directory and as another type",
        ),
        ("a name of a gigabyte", &long_name, "larger than 64 KiB"),
        ("a size in a pax header", &tar_of(pax_size), "pax header"),
    ];
    for (case, bytes, part) in cases {
        let error = within_deadline(case, || open_bytes(bytes)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{case}: {error}");
        assert!(error.contains("archive.txt: ") && error.contains("pagelab capture"), "{case}: {error}");
    }
}

#[test]
fn a_root_that_is_neither_file_nor_directory_is_refused() {
    let (_temp, path) = hostile_folder();
    for (name, part) in
        [("fifo", "neither a directory nor a file"), ("nowhere", "no such file"), ("loop", "")]
    {
        let error =
            within_deadline(name, || Root::open(&path.join("proc").join(name))).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{name}: {error}");
    }
}

/// A header, then a hole of so many zeros.
fn with_zeros(name: &str, zeros: u64) -> Vec<u8> {
    [compress(&tar_header(name, b'0', "", zeros)), compressed_zeros(zeros)].concat()
}

#[test]
fn archives_have_limits() {
    let empty_files = |count: usize, name: &dyn Fn(usize) -> String| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        for n in 0..count {
            encoder.write_all(&tar_header(&name(n), b'0', "", 0)).unwrap();
        }
        encoder.finish().unwrap()
    };
    // The limit is met long before the end.
    let many = empty_files(250_000, &|n| format!("proc/{n}"));
    let deep = empty_files(6_000, &|n| format!("{n}/{}x", "a/".repeat(40)));
    let texts: Vec<u8> = (0..9).flat_map(|n| with_zeros(&format!("proc/{n}"), 60 << 20)).collect();
    let one_large = with_zeros("proc/large", 3 << 30);
    let cases = [
        ("a quarter of a million entries", &many, "more than 200000 entries"),
        ("nested directories", &deep, "more than 200000 entries"),
        ("half a gigabyte of text", &texts, "more than 512 MiB of text"),
        ("one entry of 3 GiB", &one_large, "more than 2 GiB after decompression"),
    ];
    for (case, bytes, part) in cases {
        let error = within_deadline(case, || open_bytes(bytes)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{case}: {error}");
    }
    let behind = compress(&tar_of(&[("proc/plain", b'0', "", b"text")]));
    let large = [with_zeros("proc/large", 65 << 20), behind].concat();
    let root = open_bytes(&large).unwrap();
    check("one text of 65 MiB", root.read("/proc/large"), Absent(BAD, "larger than 64 MiB"));
    check("the one behind it", root.read("/proc/plain"), Text("text"));
}

#[test]
fn a_plain_folder_and_a_folder_in_an_archive_are_understood() {
    let temp = tempfile::tempdir().unwrap();
    write_file(temp.path(), "buddyinfo", "free");
    write_file(temp.path(), "osrelease", "6.1");
    write_file(temp.path(), "pressure/memory", "some");
    let flat = Root::open(temp.path()).unwrap();
    let in_archive: &[Entry] = &[
        ("case-7/buddyinfo", b'0', "", b"free"),
        ("case-7/osrelease", b'0', "", b"6.1"),
        ("case-7/pressure/memory", b'0', "", b"some"),
    ];
    let in_archive = open_bytes(&tar_of(in_archive)).unwrap();
    for root in [&flat, &in_archive] {
        check("flat", root.read("/proc/buddyinfo"), Text("free"));
        check("flat", root.read("/proc/sys/kernel/osrelease"), Text("6.1"));
        check("flat", root.read("/proc/pressure/memory"), Text("some"));
        assert_eq!(root.list_dir("/proc").unwrap(), ["buddyinfo", "osrelease", "pressure"]);
        assert!(
            root.notes().iter().any(|note| note.contains("a flat directory of files")),
            "{:?}",
            root.notes()
        );
        check("elsewhere", root.read("/sys/x"), Absent(NO, ""));
    }
    assert_eq!(flat.display_path("/proc/buddyinfo"), format!("{}/buddyinfo", temp.path().display()));
    let full: &[Entry] =
        &[("host/proc/buddyinfo", b'0', "", b"free"), ("host/sys/x", b'2', "/proc/buddyinfo", b"")];
    let root = open_bytes(&tar_of(full)).unwrap();
    check("in a folder", root.read("/sys/x"), Text("free"));
    assert!(root.notes()[0].contains("in the directory host"), "{:?}", root.notes());
}

#[test]
fn a_manifest_is_read_and_a_broken_one_is_reported() {
    let temp = tempfile::tempdir().unwrap();
    write_file(temp.path(), "proc/buddyinfo", "free");
    assert!(Root::open(temp.path()).unwrap().manifest().is_none());
    let json = r#"{"format": "pagelab-capture", "format_version": 1, "page_size_bytes": 65536}"#;
    write_file(temp.path(), "pagelab-capture.json", json);
    let root = Root::open(temp.path()).unwrap();
    assert_eq!(root.manifest().unwrap().page_size.unwrap().bytes(), 65_536);
    write_file(temp.path(), "pagelab-capture.json", "{");
    let root = Root::open(temp.path()).unwrap();
    assert!(root.manifest().is_none());
    assert_eq!(root.manifest_absence().unwrap().why, BAD);
    check("the rest", root.read("/proc/buddyinfo"), Text("free"));
}

#[test]
fn files_of_this_machine_that_have_no_size_are_read_whole() {
    let root = Root::live();
    for path in ["/proc/vmstat", "/proc/meminfo", "/proc/self/maps"] {
        assert_eq!(fs::metadata(path).unwrap().len(), 0);
        assert!(root.read(path).unwrap().ends_with(b"\n"), "{path}");
    }
    assert_eq!(root.read("/proc/nowhere").unwrap_err().why, AbsenceReason::NotThere);
    assert!(root.manifest().is_none());
}
