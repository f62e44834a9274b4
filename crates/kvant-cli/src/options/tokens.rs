//! Numbers of tokens as people write them: `4096`, `32k`.

/// A number of tokens, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub usize);

impl Tokens {
    /// The number alone.
    pub fn count(text: &str) -> Result<usize, String> {
        text.parse().map(|tokens: Self| tokens.0)
    }

    /// The number alone, which may be 0.
    pub fn or_none(text: &str) -> Result<usize, String> {
        if text == "0" { Ok(0) } else { Self::count(text) }
    }
}

impl std::str::FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        kvant_engine::open::parse_tokens(text).map(Self)
    }
}

/// A number of layers on a device; `None` for as many as it holds.
#[derive(Debug, Clone, Copy)]
pub struct Layers(pub Option<usize>);

impl std::str::FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        kvant_engine::open::parse_layers(text).map(Self)
    }
}
