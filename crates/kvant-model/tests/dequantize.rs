//! The decoders of block formats against an independent twin, reference values and values known by reasoning.

use flate2::read::GzDecoder;
use half::{bf16, f16};
use kvant_model::DType;
use kvant_model::quant::dequantize_row;
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Types with blocks; the plain ones are covered by the reference files.
const BLOCK_TYPES: [DType; 28] = [
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
    DType::IQ3_S,
    DType::IQ3_XXS,
    DType::IQ2_S,
    DType::IQ2_XS,
    DType::IQ2_XXS,
    DType::MXFP4,
    DType::NVFP4,
    DType::F8_E4M3,
    DType::F4_E2M1,
    DType::Int8G32,
    DType::Int4G32,
    DType::Int8G16,
    DType::Int8G64,
    DType::Int4G16,
    DType::Int4G64,
];

/// Types made of points of a codebook.
const POINT_TYPES: [DType; 5] = [DType::IQ3_S, DType::IQ3_XXS, DType::IQ2_S, DType::IQ2_XS, DType::IQ2_XXS];

/// A file of the fixtures, or what is in it where it is gzipped.
fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ggml").join(name);
    let zipped = path.with_file_name(format!("{name}.gz"));
    if !zipped.is_file() {
        return std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(zipped).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
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
            DType::Int4G16 => self.half(2 * (i / 16)) * (self.nibble(4, i) - 8) as f64,
            DType::Int4G64 => self.half(0) * (self.nibble(2 + i / 32 * 16, i % 32) - 8) as f64,
            DType::Int8G16 => self.half(2 * (i / 16)) * self.signed(4 + i),
            DType::Int8G64 => self.half(0) * self.signed(2 + i),
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
            DType::IQ3_S | DType::IQ3_XXS | DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS => {
                let point = &REFERENCE_POINTS[&dtype][self.point_number(dtype, i)];
                let magnitude = self.point_scale(dtype, i) * point[i % point.len()];
                if self.is_minus(dtype, i) { -magnitude } else { magnitude }
            }
            DType::MXFP4 => four_bit_float(self.nibble(1, i)) * 2f64.powi(i32::from(self.block[0]) - 127),
            DType::NVFP4 => {
                let (group, place) = (i / 16, i % 16);
                let code = self.bits(4 + 8 * group + place % 8, 4 * (place / 8), 4);
                // The sign of a scale is ignored; 0x7f is zero, and with the ignored sign the number after 448.
                let scale = match self.block[group] {
                    0x7f => 0.0,
                    0xff => 480.0,
                    code => eight_bit_float(code & 0x7f),
                };
                scale * four_bit_float(code)
            }
            DType::F4_E2M1 => four_bit_float(self.bits(0, 4 * i, 4)),
            DType::F8_E4M3 => eight_bit_float(self.block[0]),
            other => panic!("{other} has no twin"),
        }
    }
}

impl Twin<'_> {
    fn word(&self, at: usize) -> i64 {
        (0..4).map(|b| i64::from(self.block[at + b]) << (8 * b)).sum()
    }

    /// Which point of the codebook value `i` belongs to.
    fn point_number(&self, dtype: DType, i: usize) -> usize {
        let k = i / point_len(dtype);
        (match dtype {
            DType::IQ2_XXS => self.bits(2 + 8 * (k / 4) + k % 4, 0, 8),
            DType::IQ2_XS => self.bits(2 + 2 * k, 0, 8) + 256 * self.bits(3 + 2 * k, 0, 1),
            DType::IQ2_S => self.bits(2 + k, 0, 8) + 256 * self.bits(66 + k / 4, 2 * (k % 4), 2),
            DType::IQ3_XXS => self.bits(2 + k, 0, 8),
            _ => self.bits(2 + k, 0, 8) + 256 * self.bits(66 + k / 8, k % 8, 1),
        }) as usize
    }

    fn point_scale(&self, dtype: DType, i: usize) -> f64 {
        let d = self.half(0);
        match dtype {
            DType::IQ2_XXS => d * (0.5 + self.bits(2 + 8 * (i / 32) + 7, 4, 4) as f64) / 4.0,
            DType::IQ2_XS => d * (0.5 + self.bits(66 + i / 32, i / 16 % 2 * 4, 4) as f64) / 4.0,
            DType::IQ2_S => d * (0.5 + self.bits(74 + i / 32, i / 16 % 2 * 4, 4) as f64) / 4.0,
            DType::IQ3_XXS => d * (0.5 + self.bits(66 + 4 * (i / 32) + 3, 4, 4) as f64) / 2.0,
            _ => d * (1 + 2 * self.bits(106 + i / 64, i / 32 % 2 * 4, 4)) as f64,
        }
    }

    fn is_minus(&self, dtype: DType, i: usize) -> bool {
        let seven = match dtype {
            DType::IQ2_S => return self.bits(34 + i / 8, i % 8, 1) == 1,
            DType::IQ3_S => return self.bits(74 + i / 8, i % 8, 1) == 1,
            DType::IQ2_XS => self.bits(3 + i / 8 * 2, 1, 7),
            DType::IQ2_XXS => self.word(2 + 8 * (i / 32) + 4) >> (7 * (i % 32 / 8)) & 127,
            _ => self.word(66 + 4 * (i / 32)) >> (7 * (i % 32 / 8)) & 127,
        };
        match i % 8 {
            7 => seven.count_ones() % 2 == 1,
            j => seven >> j & 1 == 1,
        }
    }
}

/// Values of a point.
fn point_len(dtype: DType) -> usize {
    if matches!(dtype, DType::IQ3_S | DType::IQ3_XXS) { 4 } else { 8 }
}

/// A sign, two bits of exponent around 1, one of mantissa.
fn four_bit_float(code: i64) -> f64 {
    let (exponent, mantissa) = ((code >> 1 & 3) as i32, (code & 1) as f64);
    let size = if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f64.powi(exponent - 1) };
    if code & 8 == 0 { size } else { -size }
}

/// A sign, four bits of exponent around 7, three of mantissa; all ones are no number.
fn eight_bit_float(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let size = match code & 0x7f {
        0x7f => f64::NAN,
        0..8 => mantissa * 2f64.powi(-6),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - 7),
    };
    if code < 0x80 { size } else { -size }
}

fn level(code: i64) -> f64 {
    let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f64::from(levels[code as usize])
}

/// Codebooks, read back from the reference values, whose blocks use all points in order.
static REFERENCE_POINTS: LazyLock<HashMap<DType, Vec<Vec<f64>>>> =
    LazyLock::new(|| POINT_TYPES.into_iter().map(|dtype| (dtype, reference_points(dtype))).collect());

fn reference_points(dtype: DType) -> Vec<Vec<f64>> {
    let name = dtype.name().to_lowercase();
    let (blocks, values) = (fixture(&format!("{name}.blocks")), reference_values(&name));
    let points = values.chunks(point_len(dtype)).enumerate().map(|(number, values)| {
        let at = number * values.len();
        let block = Twin { block: &blocks[at / 256 * dtype.block_bytes()..][..dtype.block_bytes()] };
        assert_eq!(block.point_number(dtype, at % 256), number, "{dtype}");
        let scale = block.point_scale(dtype, at % 256);
        values.iter().map(|&value| (f64::from(value) / scale).abs().round()).collect()
    });
    points.collect()
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
        DType::Int4G16 | DType::Int8G16 => &[0, 2],
        DType::Q8_K | DType::MXFP4 | DType::NVFP4 | DType::F8_E4M3 | DType::F4_E2M1 => &[],
        _ => &[0],
    }
}

fn random_block(dtype: DType) -> impl Strategy<Value = Vec<u8>> {
    let bytes = proptest::collection::vec(any::<u8>(), dtype.block_bytes());
    (bytes, -4.0f32..4.0, -4.0f32..4.0).prop_map(move |(mut bytes, a, b)| {
        for (at, scale) in halves(dtype).iter().zip([a, b]) {
            bytes[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        match dtype {
            DType::Q8_K => bytes[..4].copy_from_slice(&a.to_le_bytes()),
            DType::MXFP4 => bytes[0] = bytes[0].min(250),
            DType::F8_E4M3 if bytes[0] & 0x7f == 0x7f => bytes[0] = 0,
            _ => {}
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
    ![DType::Q8_K, DType::F8_E4M3, DType::F4_E2M1].contains(&dtype) && dtype.own_group() == 0
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
fn known_values_of_small_floats() {
    // Exponent 128 is a scale of 2; byte 0 = 0xf3 has codes 3 (1.5) and 15 (−6).
    let mxfp4 = decode(DType::MXFP4, &block(DType::MXFP4, &[(0, &[128, 0xf3])]));
    assert_eq!((mxfp4[0], mxfp4[16], mxfp4[1]), (3.0, -12.0, 0.0));
    // Group 1: scale 0x38 is 1, its first byte is byte 12 of the block; values 8 apart share a byte.
    let nvfp4 = decode(DType::NVFP4, &block(DType::NVFP4, &[(1, &[0x38]), (12, &[0x9f])]));
    assert_eq!((nvfp4[16], nvfp4[24], nvfp4[17], nvfp4[0]), (-6.0, -0.5, 0.0, 0.0));
    assert_eq!(decode(DType::F4_E2M1, &[0x72, 0x09]), [1.0, 6.0, -0.5, 0.0]);
    let eight = decode(DType::F8_E4M3, &[0x00, 0x01, 0x08, 0x38, 0x7e, 0xfe, 0xb8, 0x7f, 0xff]);
    assert_eq!(eight[..7], [0.0, 2f32.powi(-9), 2f32.powi(-6), 1.0, 448.0, -448.0, -1.0]);
    assert!(eight[7].is_nan() && eight[8].is_nan());
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
