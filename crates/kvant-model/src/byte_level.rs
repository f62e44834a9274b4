//! GPT-2's spelling of bytes as printable characters.
//!
//! A byte-level vocabulary writes each byte as one character, so that tokens are valid strings whatever
//! bytes they hold: printable Latin-1 bytes stand for themselves, the 68 others take the code points from
//! U+0100 on, in byte order. A space is `Ġ` (U+0120), a newline `Ċ` (U+010A).

/// True for the bytes that are written as themselves.
fn is_literal(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte that each code point below U+0144 stands for.
pub struct ByteAlphabet {
    bytes: Vec<Option<u8>>,
}

impl Default for ByteAlphabet {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteAlphabet {
    /// The alphabet of byte-level BPE.
    pub fn new() -> Self {
        let mut bytes = vec![None; 256 + 68];
        let mut next = 256;
        for byte in 0..=255u8 {
            if is_literal(byte) {
                bytes[usize::from(byte)] = Some(byte);
            } else {
                bytes[next] = Some(byte);
                next += 1;
            }
        }
        Self { bytes }
    }

    /// The character of every byte, in byte order.
    pub fn characters(&self) -> [char; 256] {
        let mut characters = ['\0'; 256];
        for (point, byte) in (0u32..).zip(&self.bytes) {
            if let (Some(byte), Some(character)) = (byte, char::from_u32(point)) {
                characters[usize::from(*byte)] = character;
            }
        }
        characters
    }

    /// Appends the bytes `token` spells. A character outside the alphabet is text that was added
    /// unspelled, and stands for itself.
    pub fn decode(&self, token: &str, out: &mut Vec<u8>) {
        for c in token.chars() {
            match self.bytes.get(c as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ByteAlphabet;

    #[test]
    fn alphabet_covers_every_byte_once() {
        let mut seen: Vec<u8> = ByteAlphabet::new().bytes.into_iter().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn every_byte_is_spelled_as_it_is_read() {
        let alphabet = ByteAlphabet::new();
        for (byte, character) in (0..=u8::MAX).zip(alphabet.characters()) {
            let mut out = Vec::new();
            alphabet.decode(&character.to_string(), &mut out);
            assert_eq!(out, [byte]);
        }
        assert_eq!(alphabet.characters()[usize::from(b' ')], 'Ġ');
    }

    #[test]
    fn spelled_tokens_decode() {
        let mut out = Vec::new();
        ByteAlphabet::new().decode("ĠcafÃ©Ċ", &mut out);
        assert_eq!(out, " café\n".as_bytes());
    }
}
