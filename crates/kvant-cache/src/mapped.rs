//! A mapped file that may shrink.
//!
//! Weights and pages of saved sequences are read where the file is mapped, so there is no call that could fail. Where a file was truncated, or its disk fails, the
//! system sends the signal SIGBUS to the thread that reads, which ends the process. Here a handler for that signal puts zeros in the
//! place of what is gone, remembers that the file is [damaged](FileHealth::is_damaged), and lets the thread go on. Who used the bytes
//! asks for that afterwards: loading a model once, a pass once. Reading itself costs nothing.
//!
//! A file that is cut within its last page of the system's memory raises no signal: the rest of that page reads as zeros.
//!
//! Addresses that are not ours go to the handler that was there before. On systems without such signals nothing of this exists.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Files that are damaged and still known to somebody.
static DAMAGED: AtomicUsize = AtomicUsize::new(0);

/// Whether any file that somebody still knows is damaged: one load, so that a pass can ask for nothing more.
pub(crate) fn is_any_damaged() -> bool {
    DAMAGED.load(Ordering::Acquire) > 0
}

/// Whether what was mapped is still there; outlives the map.
#[derive(Debug)]
pub struct FileHealth {
    path: PathBuf,
    is_damaged: AtomicBool,
}

impl FileHealth {
    /// True once a read has met bytes that are gone.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Acquire)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(unix)]
    fn set_damaged(&self) {
        if !self.is_damaged.swap(true, Ordering::AcqRel) {
            DAMAGED.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for FileHealth {
    fn drop(&mut self) {
        if self.is_damaged() {
            DAMAGED.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A file mapped for reading.
pub struct MappedFile {
    map: Mmap,
    health: Arc<FileHealth>,
    #[cfg(unix)]
    watch: Option<signal::Watch>,
}

impl MappedFile {
    /// Maps a whole file, which must not be empty.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is read-only and private. A file that shrinks is what the handler is for; one that is rewritten in place
        // changes values, which are checked wherever they are used as sizes, offsets or codes.
        let map = unsafe { Mmap::map(file) }?;
        let health = Arc::new(FileHealth { path: path.to_path_buf(), is_damaged: AtomicBool::new(false) });
        #[cfg(unix)]
        let watch = signal::Watch::new(&map, &health);
        Ok(Self {
            map,
            health,
            #[cfg(unix)]
            watch,
        })
    }

    /// Whether it is still whole.
    pub fn health(&self) -> &Arc<FileHealth> {
        &self.health
    }

    /// The map itself, for advice to the system.
    pub fn map(&self) -> &Mmap {
        &self.map
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // Before the addresses are given back, which others may then have.
        #[cfg(unix)]
        drop(self.watch.take());
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(unix)]
mod signal {
    use super::FileHealth;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    use std::sync::{Arc, Once, OnceLock};

    /// Files that are watched at once; a model has one, or some dozens of parts, a saved sequence one. Others stay mapped without a watch.
    const SLOTS: usize = 1024;

    /// One map. `end` is 0 while the slot is free or being changed.
    struct WatchedMap {
        is_taken: AtomicBool,
        start: AtomicUsize,
        end: AtomicUsize,
        health: AtomicPtr<FileHealth>,
    }

    static WATCHED: [WatchedMap; SLOTS] = [const {
        WatchedMap {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            health: AtomicPtr::new(ptr::null_mut()),
        }
    }; SLOTS];

    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// A slot that is ours until it is dropped.
    pub(super) struct Watch(&'static WatchedMap);

    impl Watch {
        pub(super) fn new(map: &[u8], health: &Arc<FileHealth>) -> Option<Self> {
            install();
            let slot = WATCHED.iter().find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))?;
            slot.start.store(map.as_ptr() as usize, Ordering::Relaxed);
            slot.health.store(Arc::as_ptr(health).cast_mut(), Ordering::Relaxed);
            slot.end.store(map.as_ptr() as usize + map.len(), Ordering::Release);
            Some(Self(slot))
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            self.0.end.store(0, Ordering::Release);
            self.0.is_taken.store(false, Ordering::Release);
        }
    }

    /// Installs the handler, once in a process.
    fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: asking for the handler only writes into `before`, which has the type the call wants.
            if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
                return;
            }
            // SAFETY: the call succeeded, so it is written.
            let before = unsafe { before.assume_init() };
            // The handler may run as soon as it is installed.
            let _ = BEFORE.set(before);
            // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask, the default handler.
            let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            ours.sa_sigaction = handler as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: `ours` is whole, and `handle` has the signature that SA_SIGINFO asks for.
            unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) };
        });
    }

    /// Runs within a thread that reads what is gone: only atomics and system calls.
    extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives a valid `siginfo_t` with SA_SIGINFO, and SIGBUS carries an address.
        let address = unsafe { (*info).si_addr() } as usize;
        for slot in &WATCHED {
            let end = slot.end.load(Ordering::Acquire);
            let start = slot.start.load(Ordering::Relaxed);
            if (start..end).contains(&address) {
                let health = slot.health.load(Ordering::Relaxed);
                if fill(address, end) {
                    // SAFETY: somebody reads from the map, so it lives, and with it the `Arc` that this points into.
                    unsafe { (*health).set_damaged() };
                    return;
                }
            }
        }
        pass_on(signal, info, context);
    }

    /// Zeros from the page of `address` to the end of its map.
    fn fill(address: usize, end: usize) -> bool {
        // SAFETY: a question without arguments in memory.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let Some(page) = usize::try_from(page).ok().filter(|page| page.is_power_of_two()) else {
            return false;
        };
        let from = address & !(page - 1);
        let len = end.next_multiple_of(page) - from;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: the pages from `from` to the end belong to a map of ours, which is only read and whose owner unmaps the whole range.
        let filled = unsafe { libc::mmap(from as *mut libc::c_void, len, protection, flags, -1, 0) };
        filled != libc::MAP_FAILED
    }

    /// Lets the handler act that was there before, or the system, which then ends the process as it would have.
    fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let Some(before) = BEFORE.get() else { return };
        let handler = before.sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // SAFETY: what was there is put back; the read that failed is tried again and meets it.
            unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
        } else if before.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: a handler that was installed with SA_SIGINFO has this signature.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        } else {
            // SAFETY: a handler that was installed without SA_SIGINFO has this one.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
