//! Programs that the program executes. QEMU 7.2 would execute them natively, without the plugin: QEMU is
//! executed in their place, with the same plugin and the same account.

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fs;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::config;
use crate::engine::account_layout::{exit_kind, image as field};
use crate::image;
use crate::shared_account::{self, access, execve};

/// Flag of execveat: an empty path names the descriptor itself.
const AT_EMPTY_PATH: i32 = 0x1000;
const AT_FDCWD: i32 = -100;
/// Strings of the arguments or the environment at most, far more than the kernel allows.
const STRINGS_MAX: usize = 1 << 20;
/// Bytes of one string at most (MAX_ARG_STRLEN of the kernel).
const STRING_BYTES_MAX: usize = 32 << 12;
/// Scripts whose interpreter is a script, at most (BINPRM_MAX_RECURSION would be 4 rewrites).
const SCRIPT_DEPTH_MAX: usize = 4;

/// Executes QEMU with the program. Returns only if the kernel is to execute the call itself: it fails, or the
/// program cannot run under QEMU.
pub fn execute_under_qemu(path: u64, argv: u64, envp: u64, folder: i32, flags: i32) {
    let Some(ExecArguments { path, arguments, environment }) = read_exec_arguments(path, argv, envp) else {
        return;
    };
    let Some(path) = resolve_path(&path, folder, flags) else { return };
    let name = arguments.first().cloned().unwrap_or_else(|| path.as_os_str().as_bytes().to_vec());
    match resolve(path, arguments) {
        Some(ResolvedProgram::Traced(path, arguments)) => {
            let mut command = config().prefix.clone();
            command.push(b"-0".to_vec());
            // A script's interpreter has the name that the kernel gives it.
            command.push(arguments.first().cloned().unwrap_or(name));
            command.push(path.as_os_str().as_bytes().to_vec());
            command.extend(arguments.into_iter().skip(1));
            image::set_field(field::EXIT_KIND, exit_kind::EXECUTED);
            execute(&command, &environment);
            image::set_field(field::EXIT_KIND, exit_kind::UNKNOWN);
        }
        Some(ResolvedProgram::Native(path)) => {
            let text = path.as_os_str().as_bytes();
            image::set_field(field::NATIVE_PROGRAM, shared_account::store_text(text));
            image::set_field(field::NATIVE_PROGRAM_BYTES, text.len() as u64);
            image::set_field(field::EXIT_KIND, exit_kind::NATIVE);
        }
        None => {}
    }
}

enum ResolvedProgram {
    /// A program for this processor, and its arguments, itself first.
    Traced(PathBuf, Vec<Vec<u8>>),
    /// A program that QEMU cannot run as the kernel would.
    Native(PathBuf),
}

/// Resolves scripts to their interpreters. `None`: the kernel will refuse the program.
fn resolve(mut path: PathBuf, mut arguments: Vec<Vec<u8>>) -> Option<ResolvedProgram> {
    const EXECUTE: c_int = 1;
    const SET_ID: u32 = 0o6000;
    for _ in 0..SCRIPT_DEPTH_MAX {
        let text = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a string of C that lives through the call. JUSTIFICATION: std has no access(2).
        let allowed = unsafe { access(text.as_ptr(), EXECUTE) } == 0;
        let meta = fs::metadata(&path).ok().filter(|meta| allowed && meta.is_file())?;
        if meta.mode() & SET_ID != 0 {
            return Some(ResolvedProgram::Native(path));
        }
        let Some(start) = first_bytes(&path) else { return Some(ResolvedProgram::Native(path)) };
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line);
            let mut words = line.trim_ascii().splitn(2, |&byte| byte == b' ' || byte == b'\t');
            let interpreter = words.next().filter(|word| !word.is_empty())?;
            let mut with = vec![interpreter.to_vec()];
            with.extend(words.next().map(|word| word.trim_ascii().to_vec()));
            with.push(path.as_os_str().as_bytes().to_vec());
            with.extend(arguments.into_iter().skip(1));
            (path, arguments) = (PathBuf::from(OsStr::from_bytes(interpreter)), with);
            continue;
        }
        return Some(match is_x86_64_elf(&start) {
            true => ResolvedProgram::Traced(path, arguments),
            false => ResolvedProgram::Native(path),
        });
    }
    None
}

/// ELF, 64 bits, little-endian, an executable or shared object for x86-64.
fn is_x86_64_elf(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF\x02\x01") && matches!(start.get(16..20), Some([2 | 3, 0, 0x3e, 0]))
}

fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    /// BINPRM_BUF_SIZE.
    const BYTES_MAX: u64 = 256;
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut start).ok()?;
    Some(start)
}

/// The file that the call names.
fn resolve_path(path: &[u8], folder: i32, flags: i32) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path));
    let own = std::process::id().to_string();
    let of_self = |name: &str| path == Path::new("/proc").join(name).join("exe");
    if of_self("self") || of_self("thread-self") || of_self(&own) {
        // That would be QEMU.
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

fn execute(command: &[Vec<u8>], environment: &[Vec<u8>]) {
    let texts = |all: &[Vec<u8>]| -> Vec<CString> {
        all.iter().filter_map(|text| CString::new(text.as_slice()).ok()).collect()
    };
    let (command, environment) = (texts(command), texts(environment));
    let pointers = |all: &[CString]| {
        let mut all: Vec<*const c_char> = all.iter().map(|text| text.as_ptr()).collect();
        all.push(std::ptr::null());
        all
    };
    let (argv, envp) = (pointers(&command), pointers(&environment));
    if let Some(program) = command.first() {
        // SAFETY: arrays of strings of C that end with a null pointer. JUSTIFICATION: std's exec changes
        // signal dispositions.
        unsafe { execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    }
}

struct ExecArguments {
    path: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    environment: Vec<Vec<u8>>,
}

/// Reads the arguments of the call from the program's memory.
fn read_exec_arguments(path: u64, argv: u64, envp: u64) -> Option<ExecArguments> {
    let list = |at: u64| -> Option<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        while at != 0 && all.len() < STRINGS_MAX {
            let mut pointer = [0; 8];
            read_memory(at + all.len() as u64 * 8, &mut pointer)?;
            match u64::from_ne_bytes(pointer) {
                0 => break,
                pointer => all.push(read_string(pointer)?),
            }
        }
        Some(all)
    };
    Some(ExecArguments { path: read_string(path)?, arguments: list(argv)?, environment: list(envp)? })
}

/// Reads a string that ends with a zero byte.
fn read_string(at: u64) -> Option<Vec<u8>> {
    /// No page is smaller: an aligned read of this length is readable as a whole or not at all.
    const STEP: u64 = 1 << 8;
    let (mut found, mut at) = (Vec::new(), at);
    while found.len() < STRING_BYTES_MAX {
        let mut part = vec![0; (STEP - at % STEP) as usize];
        read_memory(at, &mut part)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            found.extend_from_slice(&part[..end]);
            return Some(found);
        }
        at += part.len() as u64;
        found.append(&mut part);
    }
    None
}

/// Reads the program's memory; `None` if it is not readable. Its addresses are those of this process: QEMU
/// relocates 64-bit programs on 64-bit machines only if their addresses are in use.
fn read_memory(from: u64, into: &mut [u8]) -> Option<()> {
    #[repr(C)]
    struct IoVec {
        base: *mut c_void,
        bytes: usize,
    }
    const _: () = assert!(size_of::<IoVec>() == 16 && offset_of!(IoVec, bytes) == 8);
    unsafe extern "C" {
        fn process_vm_readv(
            pid: c_int,
            local: *const IoVec,
            local_parts: u64,
            remote: *const IoVec,
            remote_parts: u64,
            flags: u64,
        ) -> isize;
    }
    let local = IoVec { base: into.as_mut_ptr().cast(), bytes: into.len() };
    let remote = IoVec { base: from as *mut c_void, bytes: into.len() };
    let own = std::process::id() as c_int;
    // SAFETY: `local` is a slice of ours; the call fails where the program's memory is not readable.
    // JUSTIFICATION: reading the program's pointers directly would crash on bad ones.
    let copied = unsafe { process_vm_readv(own, &local, 1, &remote, 1, 0) };
    (copied == into.len() as isize).then_some(())
}
