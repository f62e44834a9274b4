//! Sizes of memory as people write them: `512M`, `1.5GiB`.

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
            return Ok(Self(bytes as usize));
        }
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

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
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "0", "0.2", "-1", "G", "1.2.3M", "7 miles", "99999999999T", "1e9"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("512M"), "{text}: {error}");
        }
    }
}
