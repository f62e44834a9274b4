//! The encoders against a few naive lines that do the same.
