//! Any bytes are a page of any codec: every verb reads them without a panic and without leaving its buffers, which are
//! exactly as large as the codec says. What encode accepts decodes to finite numbers.
#![no_main]

use kvant_codec::{Accumulator, Calibration, Dense, KvSpec, PageCodec, Query, Side, Tier};
use libfuzzer_sys::fuzz_target;

const PARTS: [&str; 35] = [
    "f32:p32", "f16:p32", "bf16:p32", "ch1:p32", "ch2:p32,s32", "ch3:p32", "ch4:p32", "ch5:p32,max", "ch6:p32,sym", "ch7:p32", "ch8:p32,s32",
    "ch3:p32,lm", "rot4:p32", "rot3:p32,g16,s32", "srft6:p32,g64", "sym8:p32,token", "max5:p32,had64", "asym4:p32", "asym1:p32,g16",
    "tq1:p32", "tq3:p32", "tq5:p32,g16", "chg4:p32", "chg8:p32,max,s32", "chg2:p32,lm,chg16", "klt:p32",
    "uniform4:p32", "uniform2:p32,g16,s32", "nf4:p32", "iq4:p32,s32", "qjl1:p32,s32", "turbo3:p32,s32", "polar4:p32", "polar3:p32,s32",
    "delta4:p32,s32",
];

/// An endless supply from a finite input.
struct Bytes<'a> {
    data: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let byte = if self.data.is_empty() { 0 } else { self.data[self.at % self.data.len()] };
        // The second time round is not the first again.
        let turn = if self.data.is_empty() { 0 } else { self.at / self.data.len() };
        self.at += 1;
        byte.wrapping_add((turn * 31) as u8)
    }

    /// Exactly as many as asked for, with nothing behind them.
    fn exact(&mut self, count: usize) -> Box<[u8]> {
        (0..count).map(|_| self.next()).collect()
    }

    fn floats(&mut self, count: usize) -> Box<[f32]> {
        (0..count).map(|_| f32::from_le_bytes(std::array::from_fn(|_| self.next()))).collect()
    }
}

fn build(part: &str, side: Side, dim: usize, tier: Tier) -> Option<Box<dyn PageCodec>> {
    let identity: Vec<f32> = (0..dim * dim).map(|n| f32::from(u8::from(n / dim == n % dim))).collect();
    let rows = dim.div_ceil(if side == Side::Key { 8 } else { 16 });
    let calibration = Calibration {
        basis: Some(Dense::new(dim, identity.clone(), identity).ok()?.into()),
        widths: Some((0..rows).map(|row| [8, 6, 5, 4, 3, 2, 1, 0][8 * row / rows]).collect()),
        ..Calibration::default()
    };
    part.parse::<KvSpec>().ok()?.side(side).build_with(side, dim, &calibration, tier).ok()
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes { data, at: 0 };
    let part = PARTS[usize::from(bytes.next()) % PARTS.len()];
    let side = if bytes.next() % 2 == 0 { Side::Key } else { Side::Value };
    let dim = 1 + usize::from(bytes.next()) % 80;
    let heads = usize::from(bytes.next()) % 6;
    for tier in Tier::available() {
        let Some(codec) = build(part, side, dim, tier) else { return };
        let tokens = codec.page_tokens();
        let page = bytes.exact(codec.page_bytes());
        let mut rows = vec![0.0; tokens * dim].into_boxed_slice();
        codec.decode(&page, &mut rows).unwrap();
        let mut query = Query::new();
        codec.prepare(&bytes.floats(heads * dim), &mut query).unwrap();
        let mut scores = vec![0.0; heads * tokens].into_boxed_slice();
        codec.scores(&query, &page, &mut scores).unwrap();
        let mut sums = Accumulator::new(heads, dim);
        codec.accumulate(&bytes.floats(heads * tokens), &page, &mut sums).unwrap();
        let mut out = vec![0.0; heads * dim].into_boxed_slice();
        codec.finish(&sums, &mut out).unwrap();

        let mut page = vec![0; codec.page_bytes()].into_boxed_slice();
        if codec.encode(&bytes.floats(tokens * dim), &mut page).is_ok() {
            codec.decode(&page, &mut rows).unwrap();
            assert!(rows.iter().all(|x| x.is_finite()), "{part}, {side:?}, {dim} channels, {tier}");
        }
    }
});
