//! Sizes of memory as people write them: `512M`, `1.5GiB`.

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        kvant_engine::open::parse_bytes(text).map(Self)
    }
}
