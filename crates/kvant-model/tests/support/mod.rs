//! Shared by the tests of file formats: an allocator that refuses to be driven by a hostile number.

use std::alloc::{GlobalAlloc, Layout, System};

/// No parser of a small file has a reason to ask for more than this at once.
const LIMIT: usize = 1 << 20;

/// Passes requests on to the system, and ends the test run on one beyond the limit.
pub struct Capped;

// SAFETY: every request goes to the system allocator unchanged, or unwinds before any memory is handed out.
unsafe impl GlobalAlloc for Capped {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        refuse_giant(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on; the block came from `System` above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        refuse_giant(size);
        // SAFETY: the caller's promise is passed on; the block came from `System` above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn refuse_giant(size: usize) {
    if size > LIMIT {
        // Panicking would allocate in turn; stop here with a message that needs no memory.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"a parser asked for more than 1 MiB at once\n",
        );
        std::process::abort();
    }
}
