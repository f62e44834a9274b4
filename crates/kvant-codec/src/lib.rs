//! KV-cache codecs.
#![deny(missing_docs)]
