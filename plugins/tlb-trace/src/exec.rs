//! The program executes another one. QEMU 7.2 would run that outside of itself, unseen: here QEMU is executed
//! in its place, with the same plugin and the same account.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::arena::{self, access, execve};
use crate::engine::layout::{ended, image as field};
use crate::image;
use crate::start::config;

/// Of execveat: an empty path means the descriptor itself.
const AT_EMPTY_PATH: i32 = 0x1000;
const AT_FDCWD: i32 = -100;
/// Arguments and variables at most, far above what the kernel allows.
const TEXTS_MOST: usize = 1 << 20;
/// Bytes of one text at most (MAX_ARG_STRLEN of the kernel).
const TEXT_MOST: usize = 32 << 12;
/// Scripts whose interpreter is a script, at most (BINPRM_MAX_RECURSION would be 4 rewrites).
const SCRIPTS_MOST: usize = 4;

/// Executes QEMU with the program. Returns only if the call is to go its own way: to its error, or to a
/// program that cannot be watched.
pub fn instead(path: u64, argv: u64, envp: u64, folder: i32, flags: i32) {
    let Some((path, arguments, variables)) = texts(path, argv, envp) else { return };
    let Some(path) = place(&path, folder, flags) else { return };
    let name = arguments.first().cloned().unwrap_or_else(|| path.as_os_str().as_bytes().to_vec());
    match resolve(path, arguments) {
        Resolved::Watched(path, arguments) => {
            let mut command = config().prefix.clone();
            command.push(b"-0".to_vec());
            // A script's interpreter has the name that the kernel gives it.
            command.push(arguments.first().cloned().unwrap_or(name));
            command.push(path.as_os_str().as_bytes().to_vec());
            command.extend(arguments.into_iter().skip(1));
            image::put(field::ENDED, ended::EXECUTED);
            run(&command, &variables);
            image::put(field::ENDED, ended::UNKNOWN);
        }
        Resolved::Unwatched(path) => {
            let text = path.as_os_str().as_bytes();
            image::put(field::NATIVE, arena::keep(text));
            image::put(field::NATIVE_BYTES, text.len() as u64);
            image::put(field::ENDED, ended::NATIVE);
        }
        Resolved::Refused => {}
    }
}

enum Resolved {
    /// A program for this processor, and its arguments, itself first.
    Watched(PathBuf, Vec<Vec<u8>>),
    /// A program that QEMU cannot run here as the kernel would.
    Unwatched(PathBuf),
    /// The kernel will refuse it.
    Refused,
}

/// The program behind scripts.
fn resolve(mut path: PathBuf, mut arguments: Vec<Vec<u8>>) -> Resolved {
    const EXECUTE: c_int = 1;
    const SET_ID: u32 = 0o6000;
    for _ in 0..SCRIPTS_MOST {
        let Some(text) = arena::c_string(path.as_os_str().as_bytes()) else { return Resolved::Refused };
        // SAFETY: a text of C that is there during the call. JUSTIFICATION: std has no such question.
        let allowed = unsafe { access(text.as_ptr(), EXECUTE) } == 0;
        let Ok(meta) = fs::metadata(&path) else { return Resolved::Refused };
        if !allowed || !meta.is_file() {
            return Resolved::Refused;
        }
        if meta.mode() & SET_ID != 0 {
            return Resolved::Unwatched(path);
        }
        let Some(start) = first_bytes(&path) else { return Resolved::Unwatched(path) };
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
            let mut words = line.trim_ascii().splitn(2, |&byte| byte == b' ' || byte == b'\t');
            let Some(interpreter) = words.next().filter(|word| !word.is_empty()) else {
                return Resolved::Refused;
            };
            let mut with = vec![interpreter.to_vec()];
            with.extend(words.next().map(|word| word.trim_ascii().to_vec()));
            with.push(path.as_os_str().as_bytes().to_vec());
            with.extend(arguments.into_iter().skip(1));
            (path, arguments) = (PathBuf::from(OsStr::from_bytes(interpreter)), with);
            continue;
        }
        return match is_for_us(&start) {
            true => Resolved::Watched(path, arguments),
            false => Resolved::Unwatched(path),
        };
    }
    Resolved::Refused
}

/// ELF, 64 bits, little-endian, an executable or shared object for x86-64.
fn is_for_us(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF\x02\x01") && matches!(start.get(16..20), Some([2 | 3, 0, 0x3e, 0]))
}

fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    /// BINPRM_BUF_SIZE.
    const MOST: u64 = 256;
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(MOST).read_to_end(&mut start).ok()?;
    Some(start)
}

/// The file that is meant.
fn place(path: &[u8], folder: i32, flags: i32) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path));
    let own = std::process::id().to_string();
    let of_self = |name: &str| path == Path::new("/proc").join(name).join("exe");
    if of_self("self") || of_self("thread-self") || of_self(&own) {
        // QEMU stands there.
        return Some(PathBuf::from(OsStr::from_bytes(config().program.first()?)));
    }
    if path.is_absolute() || folder == 0 || folder == AT_FDCWD {
        return (!path.as_os_str().is_empty()).then(|| path.to_owned());
    }
    let open = fs::read_link(format!("/proc/self/fd/{folder}")).ok()?;
    if path.as_os_str().is_empty() {
        return (flags & AT_EMPTY_PATH != 0).then_some(open);
    }
    Some(open.join(path))
}

fn run(command: &[Vec<u8>], variables: &[Vec<u8>]) {
    let texts =
        |all: &[Vec<u8>]| all.iter().filter_map(|text| arena::c_string(text)).collect::<Vec<CString>>();
    let (command, variables) = (texts(command), texts(variables));
    let pointers = |all: &[CString]| {
        let mut all: Vec<*const c_char> = all.iter().map(|text| text.as_ptr()).collect();
        all.push(std::ptr::null());
        all
    };
    let (argv, envp) = (pointers(&command), pointers(&variables));
    if let Some(program) = command.first() {
        // SAFETY: lists of texts of C that end with a null pointer. JUSTIFICATION: std has its own idea of
        // what a program inherits.
        unsafe { execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    }
}

type Texts = (Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The arguments of the call, out of the program's memory.
fn texts(path: u64, argv: u64, envp: u64) -> Option<Texts> {
    let list = |at: u64| -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        while at != 0 && all.len() < TEXTS_MOST {
            let mut pointer = [0; 8];
            copy(at + all.len() as u64 * 8, &mut pointer)?;
            match u64::from_ne_bytes(pointer) {
                0 => break,
                pointer => all.push(text(pointer)?),
            }
        }
        Some(all)
    };
    Some((text(path)?, list(argv)?, list(envp)?))
}

/// A text that ends with a zero byte.
fn text(at: u64) -> Option<Vec<u8>> {
    /// No page is smaller, so that a read of this length, aligned, is readable whole or not at all.
    const STEP: u64 = 1 << 8;
    let (mut found, mut at) = (Vec::new(), at);
    while found.len() < TEXT_MOST {
        let mut part = vec![0; (STEP - at % STEP) as usize];
        copy(at, &mut part)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            found.extend_from_slice(&part[..end]);
            return Some(found);
        }
        at += part.len() as u64;
        found.append(&mut part);
    }
    None
}

/// Copies the program's memory; `None` if it is not readable. The program's addresses are ours: QEMU moves
/// those of 64-bit programs on 64-bit machines only if they are taken.
fn copy(from: u64, into: &mut [u8]) -> Option<()> {
    #[repr(C)]
    struct Part {
        base: *mut c_void,
        bytes: usize,
    }
    unsafe extern "C" {
        fn process_vm_readv(
            pid: c_int,
            local: *const Part,
            local_parts: u64,
            remote: *const Part,
            remote_parts: u64,
            flags: u64,
        ) -> isize;
    }
    let local = Part { base: into.as_mut_ptr().cast(), bytes: into.len() };
    let remote = Part { base: from as *mut c_void, bytes: into.len() };
    let own = std::process::id() as c_int;
    // SAFETY: `local` is memory of ours; what is not readable is an error of the call.
    // JUSTIFICATION: reading the program's pointers directly would crash on bad ones.
    let copied = unsafe { process_vm_readv(own, &local, 1, &remote, 1, 0) };
    (copied == into.len() as isize).then_some(())
}
