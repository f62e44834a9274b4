//! Keys that open the server, and who comes with them.

use kvant_engine::Tenant;
use sha2::{Digest, Sha256};

/// Keys, as digests: comparing these takes the same time whatever was sent.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    keys: Vec<[u8; 32]>,
    admin: Option<[u8; 32]>,
}

/// Whose a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The number of the key.
    pub owner: u64,
    /// Whose prefixes may be found.
    pub tenant: Tenant,
    /// Whether it is the admin's key.
    pub is_admin: bool,
}

impl Identity {
    /// Whoever comes without a key.
    pub const ANYBODY: Self = Self { owner: 0, tenant: Tenant::SHARED, is_admin: false };
}

impl Keys {
    /// These keys; none open the server to everybody.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { keys: keys.into_iter().map(|key| digest(key.as_ref().as_bytes())).collect(), admin: None }
    }

    /// The same with a key that opens what concerns all others too, such as unloading models.
    #[must_use]
    pub fn with_admin(self, key: &str) -> Self {
        Self { admin: Some(digest(key.as_bytes())), ..self }
    }

    /// True if everybody may come in.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
    }

    /// True if there is an admin's key.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Who comes with this key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Identity> {
        let sent = digest(key);
        // All keys are gone through, and all their bytes.
        let same = |known: &[u8; 32]| known.iter().zip(&sent).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0;
        let identity = |owner: u64, is_admin| Identity { owner, tenant: Tenant::of(&sent), is_admin };
        let known = self.keys.iter().zip(1..).filter(|(known, _)| same(known)).last();
        let admin = self.admin.as_ref().filter(|admin| same(admin));
        match (admin, known) {
            (Some(_), _) => Some(identity(u64::MAX, true)),
            (None, Some((_, number))) => Some(identity(number, false)),
            (None, None) => None,
        }
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_found() {
        let keys = Keys::new(["first", "second"]).with_admin("third");
        let find = |key: &str| keys.find(key.as_bytes());
        let found = |key| find(key).map(|who| (who.owner, who.is_admin));
        assert_eq!((found("first"), found("second")), (Some((1, false)), Some((2, false))));
        assert_eq!(found("third"), Some((u64::MAX, true)));
        for other in ["", "firs", "first ", "First", "fourth"] {
            assert_eq!(find(other), None, "{other:?}");
        }
        let tenants = ["first", "second", "third"].map(|key| find(key).unwrap().tenant);
        assert!(tenants[0] != tenants[1] && tenants[1] != tenants[2] && !tenants.contains(&Tenant::SHARED));
        assert!(!keys.is_open() && Keys::default().is_open() && Keys::default().with_admin("x").is_open());
        assert_eq!(Keys::default().find(b""), None);
    }
}
