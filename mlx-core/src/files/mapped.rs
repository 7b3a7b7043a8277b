//! Files that are mapped into memory.
//!
//! Reading a mapped page beyond the end of its file raises SIGBUS, which ends a process by default. This happens if a
//! checkpoint is truncated while its model runs. The handler here maps zeros in place of the lost part of the file and
//! notes the loss. From then on every evaluation in the process fails with an error that names the file, until the
//! file's arrays and [`Safetensors`](crate::Safetensors) are dropped. A SIGBUS at any other address goes to the handler
//! that was installed before.

use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// A mapped file, which may be truncated while it is mapped.
pub(crate) struct MappedFile {
    file: File,
    map: memmap2::Mmap,
    place: &'static Place,
}

impl MappedFile {
    /// Maps a file that messages call `label`.
    pub(crate) fn new(file: File, label: &str) -> io::Result<Self> {
        install()?;
        // SAFETY: the map is read-only and private to this value. If the file becomes shorter, the handler maps zeros.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        let place = Place::take(&map, label);
        Ok(Self { file, map, place })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.place.leave();
    }
}

/// The address range of a mapped file. Entries are never freed, so that the handler may read the list at any time;
/// entries of dropped files are used again.
struct Place {
    /// Zero while no file is here.
    begin: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
    label: Mutex<String>,
    next: *const Place,
}

// SAFETY: `next` is set before the place is in the list, and never again.
unsafe impl Sync for Place {}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// The lock for changes of the places. The signal handler only reads them, without a lock.
static CHANGING: Mutex<()> = Mutex::new(());
/// Whether any file was truncated.
static LOST: AtomicBool = AtomicBool::new(false);

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: every pointer in the list is null or a leaked place.
    let first = unsafe { PLACES.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |place| unsafe { place.next.as_ref() })
}

impl Place {
    fn take(map: &memmap2::Mmap, label: &str) -> &'static Self {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = places().find(|place| place.begin.load(Ordering::Relaxed) == 0);
        let place = free.unwrap_or_else(|| {
            let place = Box::leak(Box::new(Place {
                begin: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                lost: AtomicBool::new(false),
                label: Mutex::default(),
                next: PLACES.load(Ordering::Acquire),
            }));
            PLACES.store(place, Ordering::Release);
            place
        });
        *place.label() = label.to_owned();
        place.lost.store(false, Ordering::Relaxed);
        let begin = map.as_ptr().addr();
        place.end.store(begin + map.len(), Ordering::Relaxed);
        place.begin.store(begin, Ordering::Release);
        place
    }

    /// Removes the entry, before the file is unmapped.
    fn leave(&self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin.store(0, Ordering::Release);
        self.lost.store(false, Ordering::Release);
    }

    fn label(&self) -> std::sync::MutexGuard<'_, String> {
        self.label.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails while a mapped file is truncated.
pub(crate) fn check() -> Result<()> {
    if !LOST.load(Ordering::Acquire) {
        return Ok(());
    }
    let lost = places().find(|place| place.lost.load(Ordering::Acquire));
    match lost {
        Some(place) => {
            let message = format!(
                "{}: the file became shorter while it was in use",
                place.label()
            );
            Err(Error::new(ErrorKind::Io, message))
        }
        None => Ok(()),
    }
}

static PAGE: AtomicUsize = AtomicUsize::new(0);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(page.max(1) as usize, Ordering::Relaxed);
    // SAFETY: plain numbers and null pointers, for which zero is a value.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: only reads the present handler.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Set before the handler may run.
    let _ = BEFORE.set(before);
    ours.sa_sigaction = on_bus_error as extern "C" fn(_, _, _) as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler calls only functions that are safe in a signal handler.
    if unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the system gives a valid address; for SIGBUS it holds that of the access.
    let at = unsafe { (*info).si_addr() }.addr();
    let hit = places().find(|place| {
        let begin = place.begin.load(Ordering::Acquire);
        begin != 0 && (begin..place.end.load(Ordering::Relaxed)).contains(&at)
    });
    if let Some(place) = hit {
        // All pages behind the first lost page are lost too.
        let page = at - at % PAGE.load(Ordering::Relaxed);
        let len = place.end.load(Ordering::Relaxed) - page;
        // SAFETY: replaces pages of a live map: the faulting thread reads it. The system call changes `errno` only when
        // it fails.
        let zeros = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(page),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if zeros != libc::MAP_FAILED {
            place.lost.store(true, Ordering::Release);
            LOST.store(true, Ordering::Release);
            return;
        }
    }
    // SAFETY: calls the handler that was installed before, in the way it was installed. Without one the access is
    // repeated and ends the process.
    unsafe {
        match BEFORE.get() {
            Some(before)
                if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN =>
            {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(
                        libc::c_int,
                        *mut libc::siginfo_t,
                        *mut libc::c_void,
                    ) = std::mem::transmute(before.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) =
                        std::mem::transmute(before.sa_sigaction);
                    handler(signal);
                }
            }
            _ => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}
