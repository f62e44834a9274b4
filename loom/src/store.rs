//! Pages of a device, of which there are none here.

use crate::arena::ArenaError;
use crate::page::PageMut;
use crate::sync::Arc;

/// What a page is.
pub struct PageKind;

/// A page of a device.
#[derive(Clone, Copy)]
pub struct PageId;

/// Pages that a device owns.
pub trait PageStore: Send + Sync {
    /// The kind that a page was taken as.
    fn kind_of(&self, page: PageId) -> PageKind;

    /// Gives a page back.
    fn give_back(&self, page: PageId, len: usize);

    /// Reads a page.
    fn read(&self, page: PageId, bytes: &mut [u8]);

    /// Writes a page.
    fn write(&self, page: PageId, bytes: &[u8]);

    /// Copies a page.
    fn copy(&self, from: PageId, to: PageId, len: usize);
}

/// Where pages come from.
pub enum Store {
    /// Memory of a device.
    Device(Arc<dyn PageStore>),
}

impl Store {
    /// There is none.
    pub fn page(&self, _: PageKind, bytes: usize) -> Result<PageMut, ArenaError> {
        let Store::Device(_none) = self;
        Err(ArenaError::Refused { bytes, code: None })
    }
}
