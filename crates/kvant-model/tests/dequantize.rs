//! The decoders of block formats against an independent twin, reference values and values known by reasoning.

use half::{bf16, f16};
use kvant_model::DType;
use kvant_model::quant::dequantize_row;
use proptest::prelude::*;
use std::path::PathBuf;

/// Types with blocks; the plain ones are covered by the reference files.
const BLOCK_TYPES: [DType; 16] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q8_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::IQ2_XXS,
    DType::Int8G32,
    DType::Int4G32,
];

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ggml").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, bytes, &mut out).unwrap();
    out
}

/// The twin: value `i` of one block in f64, from the format's bit positions, one value at a time.
struct Twin<'a> {
    block: &'a [u8],
}

impl Twin<'_> {
    fn half(&self, at: usize) -> f64 {
        f16::from_le_bytes([self.block[at], self.block[at + 1]]).to_f64()
    }

    /// `width` bits of the byte at `at`, starting at bit `shift`.
    fn bits(&self, at: usize, shift: usize, width: usize) -> i64 {
        (i64::from(self.block[at]) >> shift) & ((1 << width) - 1)
    }

    fn signed(&self, at: usize) -> f64 {
        f64::from(self.block[at] as i8)
    }

    /// A 32-block nibble.
    fn nibble(&self, at: usize, i: usize) -> i64 {
        self.bits(at + i % 16, 4 * (i / 16), 4)
    }

    /// Scale and minimum of Q4_K and Q5_K, from the 96 bits at byte 4.
    fn six_bits(&self, group: usize) -> (f64, f64) {
        let j = group % 4;
        let (scale, minimum) = if group < 4 {
            (self.bits(4 + j, 0, 6), self.bits(8 + j, 0, 6))
        } else {
            let scale = self.bits(12 + j, 0, 4) + 16 * self.bits(4 + j, 6, 2);
            let minimum = self.bits(12 + j, 4, 4) + 16 * self.bits(8 + j, 6, 2);
            (scale, minimum)
        };
        (scale as f64, minimum as f64)
    }

    fn value(&self, dtype: DType, i: usize) -> f64 {
        // Coordinates of the 256-value types: half, run of 32 within it, lane within the run.
        let (half, run, lane) = (i / 128, i % 128 / 32, i % 32);
        match dtype {
            DType::Q4_0 | DType::Int4G32 => self.half(0) * (self.nibble(2, i) - 8) as f64,
            DType::Q4_1 => self.half(0) * self.nibble(4, i) as f64 + self.half(2),
            DType::Q5_0 => {
                let code = self.nibble(6, i) + 16 * self.bits(2 + i / 8, i % 8, 1);
                self.half(0) * (code - 16) as f64
            }
            DType::Q5_1 => {
                let code = self.nibble(8, i) + 16 * self.bits(4 + i / 8, i % 8, 1);
                self.half(0) * code as f64 + self.half(2)
            }
            DType::Q8_0 | DType::Int8G32 => self.half(0) * self.signed(2 + i),
            DType::Q2_K => {
                let code = self.bits(16 + 32 * half + lane, 2 * run, 2) as f64;
                let (scale, minimum) = (self.bits(i / 16, 0, 4) as f64, self.bits(i / 16, 4, 4) as f64);
                self.half(80) * scale * code - self.half(82) * minimum
            }
            DType::Q3_K => {
                let g = i / 16;
                let scale =
                    self.bits(96 + g % 8, 4 * (g / 8), 4) + 16 * self.bits(104 + g % 4, 2 * (g / 4), 2);
                let code = self.bits(32 + 32 * half + lane, 2 * run, 2) + 4 * self.bits(lane, i / 32, 1);
                self.half(108) * ((scale - 32) * (code - 4)) as f64
            }
            DType::Q4_K | DType::Q5_K => {
                let codes = if dtype == DType::Q4_K { 16 } else { 48 };
                let mut code = self.bits(codes + i / 64 * 32 + lane, 4 * (i / 32 % 2), 4);
                if dtype == DType::Q5_K {
                    code += 16 * self.bits(16 + lane, i / 32, 1);
                }
                let (scale, minimum) = self.six_bits(i / 32);
                self.half(0) * scale * code as f64 - self.half(2) * minimum
            }
            DType::Q6_K => {
                let low = self.bits(64 * half + 32 * (run % 2) + lane, 4 * (run / 2), 4);
                let code = low + 16 * self.bits(128 + 32 * half + lane, 2 * run, 2);
                self.half(208) * self.signed(192 + i / 16) * (code - 32) as f64
            }
            DType::Q8_K => {
                let scale = f32::from_le_bytes(self.block[..4].try_into().unwrap());
                f64::from(scale) * self.signed(4 + i)
            }
            DType::IQ4_NL => self.half(0) * level(self.nibble(2, i)),
            DType::IQ4_XS => {
                let g = i / 32;
                let low = self.bits(4 + g / 2, 4 * (g % 2), 4);
                let scale = low + 16 * self.bits(2 + g / 4, 2 * (g % 4), 2);
                self.half(0) * (scale - 32) as f64 * level(self.nibble(8 + 16 * g, lane))
            }
            DType::IQ2_XXS => {
                let group = 2 + 8 * (i / 32);
                let word: i64 = (0..4).map(|b| i64::from(self.block[group + 4 + b]) << (8 * b)).sum();
                let point = lane / 8;
                let seven = word >> (7 * point) & 127;
                let minus = match i % 8 {
                    7 => seven.count_ones() % 2 == 1,
                    j => seven >> j & 1 == 1,
                };
                let scale = self.half(0) * (0.5 + (word >> 28) as f64) / 4.0;
                let magnitude = reference_points()[usize::from(self.block[group + point])][i % 8];
                if minus { -scale * magnitude } else { scale * magnitude }
            }
            other => panic!("{other} has no twin"),
        }
    }
}

fn level(code: i64) -> f64 {
    let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f64::from(levels[code as usize])
}

/// The codebook of IQ2_XXS, read back from the reference values, whose blocks use points 0 to 255 in order.
fn reference_points() -> Vec<[f64; 8]> {
    let (blocks, values) = (fixture("iq2_xxs.blocks"), reference_values("iq2_xxs"));
    let mut points = Vec::new();
    for (number, values) in values.chunks(8).enumerate() {
        let block = Twin { block: &blocks[66 * (number / 32)..][..66] };
        let scale_bits = block.bits(2 + 8 * (number % 32 / 4) + 7, 4, 4);
        let scale = block.half(0) * (0.5 + scale_bits as f64) / 4.0;
        points.push(std::array::from_fn(|j| (f64::from(values[j]) / scale).abs().round()));
    }
    points
}

fn reference_values(name: &str) -> Vec<f32> {
    fixture(&format!("{name}.f32")).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Where the f16 scales of a type are, so that random blocks get finite ones.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::Q8_K => &[],
        _ => &[0],
    }
}

fn random_block(dtype: DType) -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), dtype.block_bytes());
    (bytes, -4.0f32..4.0, -4.0f32..4.0).prop_map(move |(mut bytes, a, b)| {
        for (at, scale) in halves(dtype).iter().zip([a, b]) {
            bytes[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if dtype == DType::Q8_K {
            bytes[..4].copy_from_slice(&a.to_le_bytes());
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decoders_agree_with_the_twin(
        (dtype, blocks) in proptest::sample::select(&BLOCK_TYPES[..]).prop_flat_map(|dtype| {
            (Just(dtype), proptest::collection::vec(random_block(dtype), 1..4))
        })
    ) {
        let decoded = decode(dtype, &blocks.concat());
        for (block, decoded) in blocks.iter().zip(decoded.chunks(dtype.block_len())) {
            let expected: Vec<f64> = (0..decoded.len()).map(|i| Twin { block }.value(dtype, i)).collect();
            // A product and a difference, each rounded to f32; the difference may cancel, hence the block's peak.
            let peak = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            for (i, (found, expected)) in decoded.iter().zip(&expected).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                prop_assert!(error <= 4.0 * f64::from(f32::EPSILON) * peak,
                    "{dtype} value {i}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn every_block_type_agrees_with_the_twin_on_its_reference_blocks() {
    for dtype in BLOCK_TYPES {
        let name = dtype.name().to_lowercase();
        if !has_reference(dtype) {
            continue;
        }
        let blocks = fixture(&format!("{name}.blocks"));
        let decoded = decode(dtype, &blocks);
        for (b, block) in blocks.chunks(dtype.block_bytes()).enumerate() {
            for i in 0..dtype.block_len() {
                let expected = Twin { block }.value(dtype, i);
                let found = f64::from(decoded[b * dtype.block_len() + i]);
                assert!((found - expected).abs() <= 1e-5 * expected.abs().max(0.1), "{dtype} value {i}");
            }
        }
    }
}

fn has_reference(dtype: DType) -> bool {
    !matches!(dtype, DType::Q8_K | DType::Int8G32 | DType::Int4G32)
}

#[test]
fn decoders_give_the_reference_values() {
    for dtype in BLOCK_TYPES.into_iter().chain([DType::F16, DType::BF16]).filter(|d| has_reference(*d)) {
        let name = dtype.name().to_lowercase();
        let found = decode(dtype, &fixture(&format!("{name}.blocks")));
        let expected = reference_values(&name);
        assert_eq!(found.len(), expected.len(), "{dtype}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // The same f32 operations in the same order: equal but for one rounding where the order is free.
            let close = (found - expected).abs() <= 2.0 * f32::EPSILON * expected.abs();
            assert!(found == expected || close, "{dtype} value {i}: {found} for {expected}");
        }
    }
}

/// Sets bytes of an all-zero block.
fn block(dtype: DType, set: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.block_bytes()];
    for (at, values) in set {
        bytes[*at..at + values.len()].copy_from_slice(values);
    }
    bytes
}

const ONE: [u8; 2] = [0x00, 0x3c]; // 1.0 in f16
const TWO: [u8; 2] = [0x00, 0x40]; // 2.0 in f16

#[test]
fn known_values_of_32_blocks() {
    // Byte 0 = 0xf3: value 0 has code 3, value 16 code 15; all others code 0.
    let q4_0 = decode(DType::Q4_0, &block(DType::Q4_0, &[(0, &TWO), (2, &[0xf3])]));
    assert_eq!((q4_0[0], q4_0[16], q4_0[1]), (-10.0, 14.0, -16.0));
    let q4_1 = decode(DType::Q4_1, &block(DType::Q4_1, &[(0, &TWO), (2, &ONE), (4, &[0xf3])]));
    assert_eq!((q4_1[0], q4_1[16], q4_1[1]), (7.0, 31.0, 1.0));
    // High bits 1 and 31 set: value 1 is 16 + 0, value 31 is 16 + 0, the others keep code 0.
    let high = [0x02, 0, 0, 0x80];
    let q5_0 = decode(DType::Q5_0, &block(DType::Q5_0, &[(0, &ONE), (2, &high)]));
    assert_eq!((q5_0[0], q5_0[1], q5_0[31], q5_0[15]), (-16.0, 0.0, 0.0, -16.0));
    let q5_1 = decode(DType::Q5_1, &block(DType::Q5_1, &[(0, &ONE), (2, &TWO), (4, &high)]));
    assert_eq!((q5_1[0], q5_1[1], q5_1[31]), (2.0, 18.0, 18.0));
    let q8_0 = decode(DType::Q8_0, &block(DType::Q8_0, &[(0, &TWO), (2, &[0x80, 0x7f])]));
    assert_eq!((q8_0[0], q8_0[1], q8_0[2]), (-256.0, 254.0, 0.0));
    let iq4_nl = decode(DType::IQ4_NL, &block(DType::IQ4_NL, &[(0, &ONE), (2, &[0x8f])]));
    assert_eq!((iq4_nl[0], iq4_nl[16], iq4_nl[1]), (113.0, 1.0, -127.0));
}

#[test]
fn known_values_of_256_blocks() {
    // Group 9 (values 144 to 159): scale 5, minimum 3. Its codes are bits 0 and 1 of bytes 48 to 63.
    let q2_k =
        decode(DType::Q2_K, &block(DType::Q2_K, &[(9, &[0x35]), (16 + 48, &[2]), (80, &ONE), (82, &TWO)]));
    assert_eq!((q2_k[144], q2_k[145], q2_k[143]), (5.0 * 2.0 - 6.0, -6.0, 0.0));
    // Scales all zero stand for −32, codes without their high bit for −4.
    let q3_k = decode(DType::Q3_K, &block(DType::Q3_K, &[(0, &[0x01]), (108, &ONE)]));
    assert_eq!((q3_k[0], q3_k[1], q3_k[32]), (0.0, 128.0, 128.0));
    // Group 5: low nibbles 0x21 of byte 9 and two top bits of bytes 1 (scale, 2) and 5 (minimum, 1).
    let scales = (4, &[0, 0x80, 0, 0, 0, 0x40, 0, 0, 0, 0x21, 0, 0][..]);
    let q4_k = decode(DType::Q4_K, &block(DType::Q4_K, &[(0, &ONE), (2, &ONE), scales, (16 + 64, &[0x70])]));
    assert_eq!((q4_k[160], q4_k[161]), (33.0 * 7.0 - 18.0, -18.0));
    let q5_k = decode(
        DType::Q5_K,
        &block(DType::Q5_K, &[(0, &ONE), (2, &ONE), scales, (16, &[0x20]), (48 + 64, &[0x70])]),
    );
    assert_eq!((q5_k[160], q5_k[161]), (33.0 * 23.0 - 18.0, -18.0));
    // Run 3 of the second half (values 224 to 255): high nibbles of bytes 96 to 127, top two bits of byte 32.
    let q6_k = decode(
        DType::Q6_K,
        &block(DType::Q6_K, &[(96, &[0x50]), (128 + 32, &[0xc0]), (192 + 14, &[0xfe]), (208, &TWO)]),
    );
    assert_eq!((q6_k[224], q6_k[225]), (-4.0 * (48.0 + 5.0 - 32.0), 128.0));
    let q8_k = decode(DType::Q8_K, &block(DType::Q8_K, &[(0, &0.5f32.to_le_bytes()), (4 + 255, &[0x81])]));
    assert_eq!((q8_k[255], q8_k[0]), (-63.5, 0.0));
    // Group 4 of IQ4_XS: low nibble of byte 2 (1), bits 8 and 9 of the high word (2): scale 33 − 32.
    let iq4_xs = decode(DType::IQ4_XS, &block(DType::IQ4_XS, &[(0, &TWO), (3, &[0x02]), (6, &[0x01])]));
    assert_eq!((iq4_xs[128], iq4_xs[0]), (-254.0, 32.0 * 254.0));
    // Point 0 is eight times magnitude 8; scale code 15 gives 15.5 / 4; signs 1 and, for parity, 8 are minus.
    let iq2 = decode(DType::IQ2_XXS, &block(DType::IQ2_XXS, &[(0, &ONE), (6, &[0x01, 0, 0, 0xf0])]));
    assert_eq!((iq2[0], iq2[1], iq2[7], iq2[8]), (-31.0, 31.0, -31.0, 31.0));
    assert_eq!(iq2[32], 1.0);
}

#[test]
fn sixteen_bit_floats_keep_their_special_values() {
    let halves: Vec<u8> =
        [f16::INFINITY, f16::NAN, f16::MIN_POSITIVE_SUBNORMAL].iter().flat_map(|v| v.to_le_bytes()).collect();
    let decoded = decode(DType::F16, &halves);
    assert!(decoded[0] == f32::INFINITY && decoded[1].is_nan() && decoded[2] == 2f32.powi(-24));
    let decoded = decode(DType::BF16, &bf16::from_f32(-0.0).to_le_bytes());
    assert!(decoded[0] == 0.0 && decoded[0].is_sign_negative());
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for dtype in DType::ALL {
        let mut out = vec![0.0; dtype.block_len()];
        let short = vec![0; dtype.block_bytes() - 1];
        assert!(dequantize_row(dtype, &short, &mut out).is_err(), "{dtype}");
        assert!(dequantize_row(dtype, &[], &mut out).is_err(), "{dtype}");
    }
    let mut out = [0.0; 31];
    assert!(dequantize_row(DType::Q4_0, &[0; 18], &mut out).is_err());
}
