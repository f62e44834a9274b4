//! Sizes and numbers of tokens as people write them: `512M`, `32k`.

/// The longest context that is asked about: no machine holds it, and its size can still be reckoned.
const MOST_TOKENS: usize = if usize::BITS > 32 { usize::MAX >> 24 } else { usize::MAX >> 2 };

/// A number of bytes: `1000`, `512M`, `1.5GiB`.
///
/// # Errors
/// Says how one is written.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let wrong = || format!("invalid size `{text}`: write a number of bytes, or 512M, 1.5G …");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(wrong()),
    };
    let bytes = number * 1024_f64.powi(power);
    // Beyond this, f64 no longer counts bytes, and no machine has them.
    if (1.0..=2_f64.powi(53)).contains(&bytes) {
        return Ok(bytes as usize);
    }
    Err(wrong())
}

/// A number of tokens, at least one: `4096`, `32k`, `1m`.
///
/// # Errors
/// Says how one is written.
pub fn parse_tokens(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let tokens = digits.parse::<usize>().ok().filter(|_| is_number).and_then(|n| n.checked_mul(unit));
    match tokens {
        Some(tokens @ 1..=MOST_TOKENS) => Ok(tokens),
        _ => Err(format!("invalid number of tokens `{text}`: write 4096, 32k (32 times 1024) or 1m")),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_bytes, parse_tokens};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("1", 1),
            ("1000", 1000),
            ("2k", 2048),
            ("512M", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("3 tb", 3 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "0.2", "-1", "G", "1.2.3M", "7 miles", "99999999999T", "1e9"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("512M"), "{text}: {error}");
        }
    }

    #[test]
    fn tokens_are_read_as_people_write_them() {
        for (text, tokens) in [("1", 1), ("5000", 5000), ("32k", 32768), ("128K", 131_072), ("1m", 1 << 20)] {
            assert_eq!(parse_tokens(text), Ok(tokens), "{text}");
        }
        for text in ["", "0", "k", "-1", "+5", "1.5k", "0k", "99999999999999999999", "32kk", "8 k", "é"] {
            let error = parse_tokens(text).unwrap_err();
            assert!(error.contains("32k"), "{text}: {error}");
        }
    }
}
