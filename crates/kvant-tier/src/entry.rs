//! What an entry looks like as bytes, in memory as in a file. Numbers are little-endian.
//!
//! | bytes | what |
//! |--:|---|
//! | 8 | `kvtier\r\n` |
//! | 4 | version, 1 |
//! | 1 | contents: 0 pages, 1 f32, 2 f16, 3 bf16 |
//! | 3 | zero |
//! | 32 | signature: what must be the same for an entry to be of use |
//! | 4 | blocks |
//! | 4 | bytes of the keys |
//! | 8 | bytes of the payload |
//! | 4 | CRC-32 of the payload |
//! | 4 | CRC-32 of everything before, and of the keys |
//! | … | every key: its length in 2 bytes, its bytes |
//! | … | payload: by layer, kv head, side (keys first) all pages of its tokens, or all vectors |

use crate::error::TierError;
use crate::form::Number;
use sha2::{Digest as _, Sha256};

/// What must be the same for an entry to be of use.
pub type Signature = [u8; 32];

/// The name of a key under a signature; nothing of it can be chosen from outside.
pub type Name = [u8; 32];

const MAGIC: &[u8; 8] = b"kvtier\r\n";
const VERSION: u32 = 1;
const HEAD: usize = 72;
/// The most blocks of an entry, and bytes of a key: beyond them a header is damaged.
const MOST_BLOCKS: usize = 128;
const MOST_KEY: usize = 4096;

/// In what form an entry holds its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Pages of codecs.
    Pages,
    /// As they came.
    Exact(Number),
}

/// An entry whose checksums are right.
pub struct Entry<'a> {
    pub contents: Contents,
    pub blocks: usize,
    pub keys: Vec<Vec<u8>>,
    pub payload: &'a [u8],
}

/// What the header of an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub signature: Signature,
    pub contents: Contents,
    pub keys: Vec<Vec<u8>>,
    pub payload: usize,
    sum: u32,
}

/// Bytes before the payload.
pub fn header_bytes(blocks: usize, keys: usize) -> usize {
    HEAD + 2 * blocks + keys
}

/// The most bytes before a payload.
pub const MOST_HEADER: usize = HEAD + MOST_BLOCKS * (2 + MOST_KEY);

/// The beginning of an entry; its payload follows, then [`finish`] is called.
pub fn begin(signature: &Signature, contents: Contents, keys: &[Vec<u8>]) -> Vec<u8> {
    let lengths = keys.iter().map(|key| key.len() + 2).sum::<usize>();
    let mut bytes = Vec::with_capacity(HEAD + lengths);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    let code = match contents {
        Contents::Pages => 0,
        Contents::Exact(number) => number.code(),
    };
    bytes.extend([code, 0, 0, 0]);
    bytes.extend(signature);
    bytes.extend((keys.len() as u32).to_le_bytes());
    bytes.extend((lengths as u32).to_le_bytes());
    bytes.resize(HEAD, 0);
    for key in keys {
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend(key);
    }
    bytes
}

/// Writes down what only the end tells.
pub fn finish(bytes: &mut [u8], keys: &[Vec<u8>]) {
    let start = HEAD + keys.iter().map(|key| key.len() + 2).sum::<usize>();
    let (payload, sum) = ((bytes.len() - start) as u64, crc32fast::hash(&bytes[start..]));
    bytes[56..64].copy_from_slice(&payload.to_le_bytes());
    bytes[64..68].copy_from_slice(&sum.to_le_bytes());
    let own = header_sum(&bytes[..start]);
    bytes[68..72].copy_from_slice(&own.to_le_bytes());
}

fn header_sum(header: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&header[..HEAD - 4]);
    hash.update(&header[HEAD..]);
    hash.finalize()
}

/// Whether a key can be written down.
pub fn is_key(key: &[u8]) -> bool {
    (1..=MOST_KEY).contains(&key.len())
}

impl Header {
    /// Reads a header, of bytes that may go on behind it.
    pub fn read(bytes: &[u8]) -> Result<(Header, usize), TierError> {
        let damaged = TierError::Entry("the header is damaged");
        if bytes.len() < HEAD || !bytes.starts_with(MAGIC) {
            return Err(TierError::Entry("this is not an entry of a tier"));
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if number(8) != VERSION {
            return Err(TierError::Entry("the entry has a version that this kvant does not read"));
        }
        let (blocks, lengths, sum) = (number(48) as usize, number(52) as usize, number(64));
        let payload = u64::from(number(56)) | u64::from(number(60)) << 32;
        let Ok(payload) = usize::try_from(payload) else { return Err(damaged) };
        if !(1..=MOST_BLOCKS).contains(&blocks)
            || lengths > blocks * (MOST_KEY + 2)
            || bytes.len() - HEAD < lengths
        {
            return Err(damaged);
        }
        let start = HEAD + lengths;
        if header_sum(&bytes[..start]) != number(68) {
            return Err(damaged);
        }
        let contents = match bytes[12] {
            0 => Contents::Pages,
            code => Contents::Exact(
                Number::of_code(code).ok_or(TierError::Entry("the entry has numbers of an unknown kind"))?,
            ),
        };
        let (mut keys, mut rest) = (Vec::with_capacity(blocks), &bytes[HEAD..start]);
        for _ in 0..blocks {
            let Some((length, after)) = rest.split_first_chunk::<2>() else { return Err(damaged) };
            let Some((key, after)) = after.split_at_checked(usize::from(u16::from_le_bytes(*length))) else {
                return Err(damaged);
            };
            keys.push(key.to_vec());
            rest = after;
        }
        let mut signature = [0; 32];
        signature.copy_from_slice(&bytes[16..48]);
        Ok((Header { signature, contents, keys, payload, sum }, start))
    }

    /// The names of its keys.
    pub fn names(&self) -> Vec<Name> {
        self.keys.iter().map(|key| name(&self.signature, key)).collect()
    }
}

impl<'a> Entry<'a> {
    /// Reads an entry and checks all of it.
    pub fn read(bytes: &'a [u8], signature: &Signature) -> Result<Entry<'a>, TierError> {
        let (header, start) = Header::read(bytes)?;
        if header.signature != *signature {
            return Err(TierError::Entry("the entry is of another model, or was kept with other settings"));
        }
        let payload = &bytes[start..];
        if payload.len() < header.payload {
            return Err(TierError::Entry("the entry ends too early"));
        }
        let payload = &payload[..header.payload];
        if crc32fast::hash(payload) != header.sum {
            return Err(TierError::Entry("the entry does not match its checksum"));
        }
        Ok(Entry { contents: header.contents, blocks: header.keys.len(), keys: header.keys, payload })
    }
}

/// The name of a key under a signature.
pub fn name(signature: &Signature, key: &[u8]) -> Name {
    Sha256::new().chain_update(signature).chain_update(key).finalize().into()
}
