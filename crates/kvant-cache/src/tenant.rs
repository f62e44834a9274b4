//! Whose prefixes are whose.
//!
//! What one tenant has read, another must not learn: that a prompt was found says that somebody sent one that begins alike. So every
//! tenant has a tree of its own in memory, and names of its own on disk.
//!
//! ```
//! use kvant_cache::{Prefix, Tenant};
//!
//! let tokens = [1_u32, 2, 3];
//! assert_eq!(Prefix::from(&tokens).tenant, Tenant::SHARED);
//! assert_eq!(Tenant::of(b"a key").prefix(&tokens).tokens, tokens);
//! assert_ne!(Tenant::of(b"a key"), Tenant::of(b"another"));
//! assert_ne!(Tenant::SHARED.salted(b"an adapter"), Tenant::SHARED);
//! ```

use crate::snapshot::Digest;
use sha2::{Digest as _, Sha256};

/// Somebody whose prefixes nobody else finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Option<Digest>);

impl Tenant {
    /// Everybody who is nobody in particular: their prefixes are shared.
    pub const SHARED: Tenant = Tenant(None);

    /// The tenant who has this secret, such as an API key; the same one in every run of the program.
    pub fn of(secret: &[u8]) -> Tenant {
        Tenant(Some(Sha256::new().chain_update(b"kvant tenant 1\0").chain_update(secret).finalize().into()))
    }

    /// The same tenant's texts that are read in a way of their own, such as with LoRA adapters: their prefixes are worth nothing to
    /// others of this tenant.
    #[must_use]
    pub fn salted(self, salt: &[u8]) -> Tenant {
        let hash =
            Sha256::new().chain_update(b"kvant tenant salt 1\0").chain_update([u8::from(self.0.is_some())]);
        Tenant(Some(hash.chain_update(self.0.unwrap_or_default()).chain_update(salt).finalize().into()))
    }

    /// The tenant in a file.
    pub fn to_bytes(self) -> [u8; 33] {
        let mut bytes = [0; 33];
        bytes[0] = self.0.is_some().into();
        bytes[1..].copy_from_slice(&self.0.unwrap_or_default());
        bytes
    }

    /// The tenant of such bytes.
    pub fn from_bytes(bytes: &[u8; 33]) -> Tenant {
        let [is_somebody, digest @ ..] = *bytes;
        Tenant((is_somebody != 0).then_some(digest))
    }

    /// Tokens of this tenant.
    pub fn prefix(self, tokens: &[u32]) -> Prefix<'_> {
        Prefix { tenant: self, tokens }
    }

    /// The name of nothing for this tenant, where `root` is that of the shared prefixes.
    pub(crate) fn root(self, root: Digest) -> Digest {
        match self.0 {
            None => root,
            Some(own) => Sha256::new().chain_update(root).chain_update(own).finalize().into(),
        }
    }
}

/// The beginning of a text, and whose it is. Tokens alone are of [everybody](Tenant::SHARED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix<'a> {
    /// Whose it is.
    pub tenant: Tenant,
    /// From the first on.
    pub tokens: &'a [u32],
}

impl<'a, T: AsRef<[u32]> + ?Sized> From<&'a T> for Prefix<'a> {
    fn from(tokens: &'a T) -> Self {
        Tenant::SHARED.prefix(tokens.as_ref())
    }
}
