//! Whether a block is held.

/// Whether a block is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It can be loaded.
    Yes,
    /// It cannot.
    No,
    /// It is being stored, or a folder is being looked at: ask again.
    Later,
}
