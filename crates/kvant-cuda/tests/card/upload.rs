//! Weights on their way to a card: blocks that kernels lay anew are the bytes of `WeightType::pack`, and types without products of their own
//! become the numbers they are.

use super::*;
use kvant_cuda::PackedWeights;
use kvant_model::Tensor;
use kvant_model::quant::dequantize_row;

/// Rows of noise under scales of ordinary size: where a block has scales in f16, they are a few thousandths.
fn rows(dtype: DType, rows: usize, columns: usize, seed: u64) -> Tensor {
    let bytes = dtype.tensor_bytes(&[rows, columns]).unwrap();
    let mut noise: Vec<u8> = kvant_codec::split_mix(seed).flat_map(u64::to_le_bytes).take(bytes).collect();
    let halves: &[usize] = match dtype {
        DType::Q4_0 | DType::Q8_0 | DType::Q5_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
        DType::IQ3_S | DType::IQ3_XXS | DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        DType::Q3_K => &[108],
        DType::Q2_K => &[80, 82],
        DType::MXFP4 | DType::NVFP4 | DType::F8_E4M3 => &[],
        DType::F16 | DType::BF16 | DType::F32 => {
            let numbers: Vec<f32> =
                noise.chunks_exact(dtype.block_bytes()).map(|b| (f32::from(b[0]) - 127.0) / 512.0).collect();
            let out: Vec<u8> = match dtype {
                DType::F16 => numbers.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
                DType::BF16 => numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
                _ => numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_f32().to_le_bytes()).collect(),
            };
            return Tensor::new("w", dtype, vec![rows, columns], out.into()).unwrap();
        }
        other => panic!("no noise of {other}"),
    };
    for (n, block) in noise.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        for at in halves {
            let scale = half::f16::from_f32(0.002 + 0.0001 * (n % 50) as f32);
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        match dtype {
            DType::MXFP4 => block[0] = 110 + block[0] % 16,
            // Scales of e4m3 that are no NaN.
            DType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale &= 0x5f),
            DType::F8_E4M3 => block[0] &= 0xdf,
            _ => {}
        }
    }
    Tensor::new("w", dtype, vec![rows, columns], noise.into()).unwrap()
}

#[test]
fn kernels_lay_blocks_as_the_host_does() {
    let backend = CudaBackend::new(&card()).unwrap();
    let types = [
        (DType::Q4_0, WeightType::Q4_0),
        (DType::Q8_0, WeightType::Q8_0),
        (DType::F16, WeightType::F16),
        (DType::Q4_K, WeightType::Q4K),
        (DType::Q6_K, WeightType::Q6K),
        (DType::Q4_1, WeightType::Q4_1),
        (DType::Q5_K, WeightType::Q5K),
        (DType::MXFP4, WeightType::Mxfp4),
    ];
    for (dtype, kind) in types {
        // A last tile that is not whole.
        for (count, columns) in [(16, 256), (37, 512)] {
            let tensor = rows(dtype, count, columns, 7);
            let found = backend.packed_weights(&tensor).unwrap();
            let want = kind.pack(count, columns, tensor.bytes()).unwrap();
            assert!(found.kind == kind && found.scale == 1.0 && found.bytes == want, "{dtype}");
        }
    }
}

/// A number of a matrix on the card, as `kernels/weights.cuh` says where it lies.
fn number(of: &PackedWeights, channels: usize, row: usize, channel: usize) -> f32 {
    let (block, bytes) = of.kind.device_block();
    let p = &of.bytes[(row / 16 * (channels / block) + channel / block) * bytes..][..bytes];
    let (row, channel) = (row % 16, channel % block);
    let (g, r, lane, ks) = (row % 8, row / 8, 4 * (row % 8) + channel / 2 % 4, channel / 16);
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| p[at + i]));
    let half = |at: usize| half::f16::from_le_bytes([p[at], p[at + 1]]).to_f32();
    let (c, e) = (channel / 8 % 2, channel % 2);
    of.scale
        * match of.kind {
            WeightType::Q8_0 => {
                let code = word(4 * (ks / 2 * 128 + lane * 4 + ks % 2 * 2 + c)) >> (16 * e + 8 * r) & 255;
                half(1024 + 2 * (g * 4 + channel / 32 * 2 + r)) * (code as f32 - 128.0)
            }
            WeightType::Q6K => {
                let (part, ks) = (channel / 64 * 832, ks % 4);
                let low = word(part + 4 * (lane * 4 + ks)) >> (4 * r + 8 * c + 16 * e) & 15;
                let high =
                    word(part + 512 + 4 * (lane * 2 + ks / 2)) >> (2 * r + 4 * c + 8 * (ks % 2) + 16 * e) & 3;
                let scale = f32::from(p[part + 768 + g * 8 + ks * 2 + r]) - 128.0;
                half(3328 + 2 * (g * 2 + r)) * scale * ((low | high << 4) as f32 - 32.0)
            }
            WeightType::F16 => half(2 * (ks * 256 + lane * 8 + c * 4 + r * 2 + e)),
            other => panic!("no reader of {other:?}"),
        }
}

#[test]
fn types_without_products_become_the_numbers_they_are() {
    let backend = CudaBackend::new(&card()).unwrap();
    // The type, what it becomes, and how far a number may be off, of its size.
    let (exact, once) = (0.0, 0.5f32.powi(11));
    let types = [
        (DType::Q5_0, WeightType::Q8_0, exact),
        (DType::IQ4_NL, WeightType::Q8_0, exact),
        (DType::IQ4_XS, WeightType::Q8_0, once),
        (DType::Q3_K, WeightType::Q6K, exact),
        (DType::BF16, WeightType::F16, exact),
        (DType::F32, WeightType::F16, exact),
        (DType::F8_E4M3, WeightType::F16, exact),
        (DType::NVFP4, WeightType::F16, exact),
        (DType::Q5_1, WeightType::F16, once),
        (DType::Q2_K, WeightType::F16, once),
        (DType::IQ3_S, WeightType::F16, once),
        (DType::IQ3_XXS, WeightType::F16, once),
        (DType::IQ2_S, WeightType::F16, once),
        (DType::IQ2_XS, WeightType::F16, once),
        (DType::IQ2_XXS, WeightType::F16, once),
    ];
    for (dtype, kind, off) in types {
        let (count, columns) = (21, 512);
        let tensor = rows(dtype, count, columns, 11);
        let found = backend.packed_weights(&tensor).unwrap();
        assert_eq!(found.kind, kind, "{dtype}");
        let mut want = vec![0.0; columns];
        for row in 0..count {
            dequantize_row(dtype, tensor.row(row), &mut want).unwrap();
            for (channel, want) in want.iter().enumerate() {
                let got = number(&found, columns, row, channel);
                let room = off * want.abs() + if off > 0.0 { found.scale * 0.5f32.powi(24) } else { 0.0 };
                assert!((got - want).abs() <= room, "{dtype} {row} {channel}: {got} for {want}");
            }
        }
    }
}

#[test]
fn numbers_beyond_f16_are_put_under_a_power_of_two() {
    let backend = CudaBackend::new(&card()).unwrap();
    for (dtype, at) in [(DType::Q8_0, 0), (DType::Q6_K, 208)] {
        let tensor = rows(dtype, 16, 256, 3);
        let mut bytes = tensor.bytes().to_vec();
        let last = bytes.len() - dtype.block_bytes() + at;
        bytes[last..last + 2].copy_from_slice(&half::f16::from_f32(9000.0).to_le_bytes());
        let large = Tensor::new("w", dtype, vec![16, 256], bytes.into()).unwrap();
        let found = backend.packed_weights(&large).unwrap();
        assert!(found.scale > 1.0 && found.scale.log2().fract() == 0.0, "{dtype}: {}", found.scale);
        let mut want = vec![0.0; 256];
        dequantize_row(dtype, large.row(15), &mut want).unwrap();
        for (channel, want) in want.into_iter().enumerate().skip(224) {
            assert_eq!(number(&found, 256, 15, channel), want, "{dtype} {channel}");
        }
    }
    // f32 is rounded to f16 once, as products take every weight.
    let numbers: Vec<f32> = (0..128).map(|n| (n as f32 - 60.3) / 7.0).collect();
    let found = backend.packed_weights(&Tensor::from_f32("w", vec![2, 64], &numbers).unwrap()).unwrap();
    for (n, number) in numbers.iter().enumerate() {
        let want = half::f16::from_f32(number / found.scale).to_f32() * found.scale;
        assert_eq!(self::number(&found, 64, n / 64, n % 64), want, "{n}");
    }
    for odd in [f32::NAN, f32::NEG_INFINITY] {
        let mut numbers = vec![0.25; 128];
        numbers[70] = odd;
        let tensor = Tensor::from_f32("w", vec![2, 64], &numbers).unwrap();
        let said = backend.packed_weights(&tensor).unwrap_err().to_string();
        assert!(said.contains(&format!("tensor \"w\" holds {odd:e} in row 1")), "{said}");
    }
    let table = Tensor::new("ids", DType::I32, vec![2, 64], vec![0; 512].into()).unwrap();
    assert!(backend.packed_weights(&table).unwrap_err().to_string().contains("is I32"));
}
