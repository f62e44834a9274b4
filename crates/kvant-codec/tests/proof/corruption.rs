//! Every bit of a page counts: the verbs read what was encoded, all of it and nothing else.

use crate::case::{Case, SIDES, decoded, encoded, taken};
use crate::random::{Kind, Random};
use crate::trial::{scores, sums};
use kvant_codec::{Side, Tier};

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Flips every bit of a page, and every byte. Padding is what the page's documentation says is padding, and nothing
/// more: the rest of the last row of units, for keys and values whose dimension is no multiple of 8 or 16.
#[test]
fn every_bit_but_padding_is_decoded_and_attended_to() {
    let mut turn = 0;
    for (part, dims) in [
        ("ch1:p32", [12, 16]),
        ("ch3:p32", [12, 24]),
        ("ch4:p32,s32", [12, 16]),
        ("ch8:p32", [4, 8]),
        ("ch4:p32,sym", [12, 16]),
        ("rot4:p32", [12, 40]),
        ("rot7:p32,g16", [12, 24]),
        ("srft5:p32", [12, 16]),
        ("asym6:p32", [20, 32]),
        ("tq2:p32", [12, 16]),
        ("tq5:p32", [12, 16]),
        ("chg4:p32", [12, 40]),
        ("klt:p32", [40, 48]),
        ("f16:p32", [12, 16]),
        ("uniform4:p32", [12, 40]),
        ("nf4:p32", [12, 16]),
        ("iq4:p32", [12, 40]),
        ("qjl1:p32", [12, 16]),
        ("turbo3:p32", [16, 32]),
        ("polar4:p32", [16, 32]),
        ("delta4:p32", [16, 32]),
        ("trellis3", [16, 32]),
    ] {
        for (dim, side) in dims.into_iter().flat_map(|dim| SIDES.map(|side| (dim, side))) {
            turn += 1;
            if !taken(turn) {
                continue;
            }
            let case = Case::new(part, side, dim);
            every_bit_is_decoded(&case);
            for tier in Tier::available() {
                every_byte_is_attended_to(&case, tier);
            }
        }
    }
}

fn padding(case: &Case, page: &[u8]) -> Vec<bool> {
    let padding = case.twin().map_or_else(|| vec![false; 8 * page.len()], |twin| twin.padding());
    assert_eq!(padding.len(), 8 * page.len(), "{case:?}");
    padding
}

fn every_bit_is_decoded(case: &Case) {
    let codec = case.best();
    let rows = Kind::Gaussian.rows(codec.page_tokens(), case.dim, &mut Random::new(case.dim as u64));
    let mut page = encoded(&*codec, &rows);
    let before = bits(&decoded(&*codec, &page));
    for (n, padding) in padding(case, &page).into_iter().enumerate() {
        page[n / 8] ^= 1 << (n % 8);
        let changed = bits(&decoded(&*codec, &page)) != before;
        assert_eq!(changed, !padding, "{case:?}: byte {}, bit {}", n / 8, n % 8);
        page[n / 8] ^= 1 << (n % 8);
    }
}

fn every_byte_is_attended_to(case: &Case, tier: Tier) {
    let codec = case.codec(tier);
    let mut random = Random::new(case.dim as u64);
    let rows = Kind::Gaussian.rows(codec.page_tokens(), case.dim, &mut random);
    // Eight heads: a byte of one query may well be rounded to zero, but not of all.
    let queries = random.gaussians(8 * case.dim);
    let weights: Vec<f32> = (0..8 * codec.page_tokens()).map(|_| 0.5 + 0.5 * random.unit() as f32).collect();
    let mut page = encoded(&*codec, &rows);
    let attended = |page: &[u8]| match case.side {
        Side::Key => scores(&*codec, &queries, page).iter().map(|x| x.to_bits()).collect(),
        Side::Value => {
            sums(&*codec, &weights, page).iter().map(|x| u64::from(x.to_bits())).collect::<Vec<_>>()
        }
    };
    let before = attended(&page);
    let padding = padding(case, &page);
    for byte in 0..page.len() {
        // Large changes, because small ones of a scale may be lost in the rounding of a query or a weight.
        let noticed = [0xFF, 0x80, 0x40].iter().any(|mask| {
            page[byte] ^= mask;
            let changed = attended(&page) != before;
            page[byte] ^= mask;
            changed
        });
        let real = padding[8 * byte..8 * byte + 8].iter().any(|padding| !padding);
        assert!(noticed || !real, "{case:?}, {tier}: byte {byte} is not attended to");
    }
}
