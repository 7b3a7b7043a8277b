//! Loads libmlxc at the first call of one of its functions, on Linux.
//!
//! Places are tried in this order, as if they stood in the program's rpath: the program's own folder, `../lib` and
//! `lib/mlx/lib` (archives of `cargo xtask dist`) from there, where the library was when the program was built, and the
//! cache of the user that runs the program. So a program can be moved together with its libraries, and on the machine
//! that built it, it runs without them beside it.
//!
//! Without the library every function fails: one that returns a status returns 1, and the others return null or zero. So
//! no handle comes into being that another function could be called with. `mlxrs_error_get` has the reason.

use std::arch::global_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

#[path = "../build/cache.rs"]
mod cache;

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
include!("entries.rs");

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
    /// The table that the entry points jump through.
    static mlxc_entries: [AtomicPtr<c_void>; FUNCTIONS.len()];
}

/// The address of the function of this index. The entry points call it until the table is filled.
#[unsafe(no_mangle)]
extern "C" fn mlxc_resolve(index: usize) -> *mut c_void {
    let _ = state();
    // SAFETY: the table is defined by the entry points and lives for ever.
    unsafe { mlxc_entries[index].load(Ordering::Acquire) }
}

/// An open libmlxc.
struct Library {
    handle: *mut c_void,
    functions: Functions,
}

type Functions = [*mut c_void; FUNCTIONS.len()];

// SAFETY: the handle and the functions are of the whole process, and the library is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The library, or why there is none. The first call loads it and fills the table.
fn state() -> &'static Result<Library, CString> {
    static STATE: OnceLock<Result<Library, CString>> = OnceLock::new();

    STATE.get_or_init(|| {
        let found = find().map_err(|text| CString::new(text).unwrap_or_default());
        for (index, (name, is_status)) in FUNCTIONS.iter().enumerate() {
            let function = match &found {
                Ok(library) => library.functions[index],
                Err(_) if *name == c"mlxrs_error_get" => missing_reason as *mut c_void,
                Err(_) if *is_status => missing_status as *mut c_void,
                Err(_) => missing_result as *mut c_void,
            };
            // SAFETY: the table is defined by the entry points and lives for ever.
            unsafe { mlxc_entries[index].store(function, Ordering::Release) };
        }
        found
    })
}

/// Stands for functions that return a status. By the C calling conventions of Linux, arguments can be left unread.
extern "C" fn missing_status() -> usize {
    1
}

/// Stands for functions that return a pointer, a handle, a number or nothing.
extern "C" fn missing_result() -> usize {
    0
}

/// Stands for `mlxrs_error_get`.
extern "C" fn missing_reason() -> *const c_char {
    match state() {
        Ok(_) => std::ptr::null(),
        Err(reason) => reason.as_ptr(),
    }
}

/// Loads libmlxc, if that has not been tried yet. Otherwise the first call of one of its functions does.
///
/// # Errors
/// No place has a library of this build. The text names the places.
pub fn load() -> Result<(), String> {
    match state() {
        Ok(_) => Ok(()),
        Err(reason) => Err(reason.to_string_lossy().into_owned()),
    }
}

fn find() -> Result<Library, String> {
    use_plain_f32();
    let mut tried = String::new();
    for path in places() {
        if !path.is_file() {
            tried += &format!("  not there: {}\n", path.display());
            continue;
        }
        match open_all(&path) {
            Ok(library) => return Ok(library),
            Err(reason) => tried += &format!("  not usable: {}: {reason}\n", path.display()),
        }
    }
    let what = match BUILT_AT.is_empty() {
        true => "and this program was built without it (MLX_NO_NATIVE=1)",
        false => "which this program was built with",
    };
    Err(format!(
        "cannot load {LIBRARY}, {what}\n{tried}\
         to fix it: build the program again (the build puts the library into the cache, which {} can name), \
         or put {LIBRARY} and the libraries of MLX beside the program: `cargo xtask dist --manifest-path FILE` packs a \
         program with them, and `mlx_c_sys::libraries()` lists them",
        cache::VARIABLE
    ))
}

/// Makes the setting of shim/defaults.cpp that is a variable of the environment. A constructor of the library would do it
/// without the lock of `std::env`, while other threads of the program may read variables.
fn use_plain_f32() {
    const NAME: &str = "MLX_ENABLE_TF32";

    if std::env::var_os(NAME).is_none() {
        // SAFETY: `std::env` locks. C code that reads the environment at the same time reads the list of before, which the
        // first change of a process does not free; `load` says when to call it.
        unsafe { std::env::set_var(NAME, "0") };
    }
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
    // The program has the path in one piece, so that it can be replaced there.
    let built_at = std::hint::black_box(BUILT_AT);
    if !built_at.is_empty() {
        places.push(PathBuf::from(built_at));
    }
    // A build without MLX does not know its name in the cache.
    if let Some(cache) = cache::folder().filter(|_| !CACHE_ENTRY.is_empty()) {
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
    let found = unsafe { dladdr(mlxc_resolve as *const c_void, &mut info) };
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
    let library = state().as_ref().ok()?;
    // SAFETY: the library is open.
    let found = unsafe { dlsym(library.handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Opens the library at `path` and looks its functions up.
fn open_all(path: &Path) -> Result<Library, String> {
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
    let mut functions = [std::ptr::null_mut(); FUNCTIONS.len()];
    for (function, (name, _)) in functions.iter_mut().zip(FUNCTIONS) {
        *function = symbol(name)?;
    }
    Ok(Library {
        handle: library,
        functions,
    })
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
