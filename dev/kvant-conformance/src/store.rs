//! A page store whose bytes the host may change: what a corrupt file is made in.

use kvant_cache::{ArenaError, PageId, PageKind, PageStore, Usage};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages as plain bytes.
#[derive(Default)]
pub(crate) struct BytePages {
    pages: Mutex<(u64, HashMap<u64, Vec<u8>>)>,
}

impl BytePages {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Vec<u8>>)> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageStore for BytePages {
    fn name(&self) -> &str {
        "bytes"
    }

    fn cap(&self) -> Option<usize> {
        None
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn take(&self, _: PageKind, len: usize) -> Result<PageId, ArenaError> {
        let mut pages = self.lock();
        pages.0 += 1;
        let id = pages.0;
        pages.1.insert(id, vec![0; len]);
        Ok(PageId(id))
    }

    fn give_back(&self, page: PageId, _: usize) {
        self.lock().1.remove(&page.0);
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.lock().1[&page.0][..bytes.len()]);
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        self.lock().1.insert(page.0, bytes.to_vec());
    }
}
