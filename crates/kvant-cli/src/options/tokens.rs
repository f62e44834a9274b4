//! Numbers of tokens as people write them: `4096`, `32k`.

/// A number of tokens, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub usize);

/// The longest context that is asked about: beyond it, sizes would no longer be exact.
const MOST: usize = 1 << 30;

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
            _ => Err(format!("`{text}` is no number of tokens: write 4096, 32k (32 times 1024) or 1m")),
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
        for text in
            ["", "0", "k", "-1", "+5", "1.5k", "0k", "2000m", "99999999999999999999", "32kk", "8 k", "é"]
        {
            let error = text.parse::<Tokens>().unwrap_err();
            assert!(error.contains("32k"), "{text}: {error}");
        }
    }
}
