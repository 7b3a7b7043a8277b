//! Loads libmlxc before `main`, on Linux.
//!
//! Places are tried in this order, as if they stood in the program's rpath: the program's own folder, `../lib` and
//! `lib/mlx/lib` (archives of `cargo xtask dist`) from there, where the library was when the program was built, and the
//! cache of the user that runs the program. So a program can be moved together with its libraries, and on the machine
//! that built it, it runs without them beside it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};

#[path = "../build/cache.rs"]
mod cache;

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
core::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/entries.s")),
    options(att_syntax)
);

/// The file that is looked for.
const LIBRARY: &str = "libmlxc.so";

const RTLD_NOW: c_int = 2;

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

#[link(name = "dl")]
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

unsafe extern "C" {
    static mut mlxc_entries: [*mut c_void; NAMES.len()];
}

/// Fills the table that the entry points jump through, or ends the program with a message.
#[unsafe(no_mangle)]
extern "C" fn mlxc_load() {
    match find() {
        // SAFETY: nothing reads the table before the constructors have run.
        Ok(functions) => unsafe { mlxc_entries = functions },
        Err(text) => {
            use std::io::Write;
            // A failed write to stderr changes nothing: the program exits next.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(1);
        }
    }
}

/// The handle of libmlxc from `dlopen`.
static LIBRARY_HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Functions = [*mut c_void; NAMES.len()];

fn find() -> Result<Functions, String> {
    let mut tried = String::new();
    for path in places() {
        if !path.is_file() {
            tried += &format!("  not there: {}\n", path.display());
            continue;
        }
        match load(&path) {
            Ok(functions) => return Ok(functions),
            Err(reason) => tried += &format!("  not usable: {}: {reason}\n", path.display()),
        }
    }
    Err(format!(
        "error: cannot load {LIBRARY}, which this program was built with\n{tried}\
         to fix it: build the program again (the build puts the library into the cache, which {} can name), \
         or put {LIBRARY} and the libraries of MLX beside the program\n",
        cache::VARIABLE
    ))
}

/// The paths of the library to try, in order.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    // The code may be in a shared library with a folder of its own. A program's path may be relative to the folder that it
    // was started in.
    let folders = [own_file(), std::env::current_exe().ok()]
        .into_iter()
        .flatten();
    for folder in folders.filter_map(|file| file.canonicalize().ok()) {
        let Some(folder) = folder.parent() else {
            continue;
        };
        for inner in [".", "../lib", "lib/mlx/lib"] {
            let place = folder.join(inner).join(LIBRARY);
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places.push(PathBuf::from(BUILT_AT));
    if let Some(cache) = cache::folder() {
        let place = cache.join(CACHE_ENTRY).join("lib").join(LIBRARY);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The program or shared library that this code is in.
fn own_file() -> Option<PathBuf> {
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: the address is one of this code, and `info` is filled or left as it is.
    let found = unsafe { dladdr(mlxc_load as *const c_void, &mut info) };
    if found == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a terminated string that lives as long as this code.
    let file = unsafe { CStr::from_ptr(info.file) };
    Some(PathBuf::from(std::ffi::OsString::from_vec(
        file.to_bytes().to_vec(),
    )))
}

/// The address of a function of libmlxc that the headers do not declare.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    let library = LIBRARY_HANDLE.load(Ordering::Relaxed);
    // SAFETY: a null handle, before the library is loaded, stands for the program's own symbols.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The functions of the library at `path`.
fn load(path: &Path) -> Result<Functions, String> {
    let library = open(path)?;
    let symbol = |name: &CStr| {
        // SAFETY: the library is open, and stays open for ever.
        let found = unsafe { dlsym(library, name.as_ptr()) };
        if found.is_null() {
            return Err(format!("it has no function {}", name.to_string_lossy()));
        }
        Ok(found)
    };
    let inputs = symbol(c"mlxrs_inputs")?;
    // SAFETY: by its name it is the function of mlxrs.h, which returns a terminated string that lives for ever.
    let inputs = unsafe {
        let inputs: extern "C" fn() -> *const c_char = std::mem::transmute(inputs);
        CStr::from_ptr(inputs())
    };
    if inputs.to_bytes() != INPUTS.as_bytes() {
        return Err(format!(
            "it is of another build ({}, wanted {INPUTS})",
            inputs.to_string_lossy()
        ));
    }
    let mut functions = [std::ptr::null_mut(); NAMES.len()];
    for (function, name) in functions.iter_mut().zip(NAMES) {
        *function = symbol(name)?;
    }
    LIBRARY_HANDLE.store(library, Ordering::Relaxed);
    Ok(functions)
}

/// Opens a library, and the libraries that it needs from the same folder, which are opened in the order of their needs.
fn open(path: &Path) -> Result<*mut c_void, String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut opened: Vec<String> = Vec::new();
    loop {
        let reason = match dlopen_path(path) {
            Ok(library) => return Ok(library),
            Err(reason) => reason,
        };
        // "NAME: cannot open shared object file: …": NAME is a library that one of those before needs.
        let mut missing = reason.clone();
        loop {
            let Some((name, _)) = missing.split_once(": cannot open shared object file") else {
                return Err(reason);
            };
            let name = name.to_owned();
            let needed = folder.join(&name);
            if name.contains('/') || opened.contains(&name) || !needed.is_file() {
                return Err(reason);
            }
            match dlopen_path(&needed) {
                Ok(_) => {
                    opened.push(name);
                    break;
                }
                Err(deeper) if deeper == missing => return Err(reason),
                Err(deeper) => missing = deeper,
            }
        }
    }
}

fn dlopen_path(path: &Path) -> Result<*mut c_void, String> {
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: the path is terminated. The constructors that run are MLX's and its libraries'.
    let library = unsafe { dlopen(text.as_ptr(), RTLD_NOW) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: the message belongs to this thread, and is copied before the next call.
    let error = unsafe { dlerror() };
    if error.is_null() {
        return Err("dlopen failed without a message".to_owned());
    }
    // SAFETY: as above; it is terminated.
    Err(unsafe { CStr::from_ptr(error) }
        .to_string_lossy()
        .into_owned())
}
