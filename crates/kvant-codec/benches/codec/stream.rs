//! The floor: reading bytes and doing nothing with them.

/// Sums 64-bit words, eight chains wide: as fast as one thread can pull memory in.
#[cfg(target_arch = "x86_64")]
pub fn read(bytes: &[u8]) -> u64 {
    /// # Safety
    /// The buffers hold the columns that are indexed; the CPU has the tier.
    #[target_feature(enable = "avx2")]
    unsafe fn wide(bytes: &[u8]) -> u64 {
        use std::arch::x86_64::*;
        let mut sums = [_mm256_setzero_si256(); 8];
        for chunk in bytes.chunks_exact(256) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 8 · 32 bytes of the chunk.
                let x = unsafe { _mm256_loadu_si256(chunk.as_ptr().add(32 * i).cast()) };
                *sum = _mm256_add_epi64(*sum, x);
            }
        }
        let mut total = 0u64;
        for sum in sums {
            // SAFETY: both are 32 bytes of plain integers.
            let words: [u64; 4] = unsafe { std::mem::transmute(sum) };
            total = words.iter().fold(total, |total, word| total.wrapping_add(*word));
        }
        total
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected.
        return unsafe { wide(bytes) };
    }
    plain(bytes)
}

/// Sums 64-bit words; the compiler vectorises it.
#[cfg(not(target_arch = "x86_64"))]
pub fn read(bytes: &[u8]) -> u64 {
    plain(bytes)
}

fn plain(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for chunk in bytes.chunks_exact(64) {
        for (sum, word) in sums.iter_mut().zip(chunk.chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
