//! Numbers of tokens as people write them: `4096`, `32k`.

/// A number of tokens, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub usize);

/// The longest context that is asked about: no machine holds it, and its size can still be reckoned.
const MOST: usize = if usize::BITS > 32 { usize::MAX >> 24 } else { usize::MAX >> 2 };

impl Tokens {
    /// A context as llama.cpp has it: 0 for the model's own.
    pub fn context(text: &str) -> Result<Self, String> {
        Self::or_none(text).map(Self)
    }

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
        let (digits, unit) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
            Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
            _ => (text, 1),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let tokens = digits.parse::<usize>().ok().filter(|_| is_number).and_then(|n| n.checked_mul(unit));
        match tokens {
            Some(tokens @ 1..=MOST) => Ok(Self(tokens)),
            _ => Err(format!("invalid number of tokens `{text}`: write 4096, 32k (32 times 1024) or 1m")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;

    #[test]
    fn tokens_are_read_as_people_write_them() {
        for (text, tokens) in [("1", 1), ("5000", 5000), ("32k", 32768), ("128K", 131_072), ("1m", 1 << 20)] {
            assert_eq!(text.parse(), Ok(Tokens(tokens)), "{text}");
        }
        for text in ["", "0", "k", "-1", "+5", "1.5k", "0k", "99999999999999999999", "32kk", "8 k", "é"] {
            let error = text.parse::<Tokens>().unwrap_err();
            assert!(error.contains("32k"), "{text}: {error}");
        }
    }
}
