//! Bits per value, from bytes counted by hand.

use kvant_codec::{KvSpec, Side};

/// (spec, side, dim, bytes of a page, tokens)
const PAGES: &[(&str, Side, usize, usize, usize)] = &[
    // 64 tokens · 64 channels · 4 bits + 64 channels · (scale + zero) · 2 bytes.
    ("int4", Side::Key, 64, 2048 + 256, 64),
    ("int4", Side::Key, 128, 4096 + 512, 64),
    // 72 is nine octets of channels: nothing to pad.
    ("int4", Side::Key, 72, 2304 + 288, 64),
    // 64 · 64 · 4 bits + 64 tokens · 2 groups · 2 bytes.
    ("int4", Side::Value, 64, 2048 + 256, 64),
    ("int4", Side::Value, 128, 4096 + 512, 64),
    // 72 pads to five rows of 16 channels; 3 groups of at most 32.
    ("int4", Side::Value, 72, 64 * 80 / 2 + 64 * 3 * 2, 64),
    ("int8", Side::Key, 64, 4096 + 256, 64),
    ("int8", Side::Value, 64, 4096 + 256, 64),
    ("int8", Side::Value, 72, 64 * 80 + 64 * 3 * 2, 64),
    ("int8g32", Side::Key, 72, 64 * 72 + 64 * 3 * 2, 64),
    ("k8v4", Side::Key, 128, 8192 + 512, 64),
    ("k8v4", Side::Value, 128, 4096 + 512, 64),
    ("k8v2", Side::Value, 64, 1024 + 128, 64),
    ("v3", Side::Key, 64, 8192, 64),
    // 3 bits and one scale per token.
    ("v3", Side::Value, 64, 1536 + 128, 64),
    ("v3", Side::Value, 72, 64 * 80 * 3 / 8 + 128, 64),
    ("q8_0", Side::Key, 64, 4096 + 256, 64),
    ("q5_0", Side::Value, 64, 2560 + 256, 64),
    ("q4_0", Side::Key, 128, 4096 + 512, 64),
    ("f32", Side::Key, 72, 64 * 72 * 4, 64),
    ("f16", Side::Value, 72, 64 * 72 * 2, 64),
    ("bf16", Side::Key, 64, 8192, 64),
    ("srft4", Side::Key, 128, 4096 + 512, 64),
    ("srft8:token", Side::Key, 64, 4096 + 128, 64),
    // A scale and a zero per group.
    ("asym4", Side::Key, 64, 2048 + 512, 64),
    ("tq2", Side::Key, 128, 2048 + 128, 64),
    ("tq4", Side::Value, 128, 4096 + 128, 64),
    // A scale per channel, and one per token and group.
    ("chg4", Side::Key, 64, 2048 + 128 + 256, 64),
    ("ch4:s32,p128", Side::Key, 64, 4096 + 512, 128),
    ("ch1:p32", Side::Key, 8, 32 + 32, 32),
];

#[test]
fn bits_per_value_count_every_byte_of_a_page() {
    for (spec, side, dim, bytes, tokens) in PAGES {
        let parsed: KvSpec = spec.parse().unwrap();
        let codec = parsed.side(*side).build(*side, *dim).unwrap();
        assert_eq!((codec.page_bytes(), codec.page_tokens()), (*bytes, *tokens), "{spec}, {side:?}, {dim}");
        let bits = 8.0 * *bytes as f64 / (tokens * dim) as f64;
        assert_eq!(codec.bits_per_value(), bits, "{spec}, {side:?}, {dim}");
        assert_eq!(parsed.side(*side).bits_per_value(*side, *dim).unwrap(), bits);
    }
}

#[test]
fn presets_cost_what_their_descriptions_say() {
    for (spec, bits) in [
        ("f32", 32.0),
        ("f16", 16.0),
        ("bf16", 16.0),
        ("int8", 8.5),
        ("int8g32", 8.5),
        ("int4", 4.5),
        ("k8v4", 6.5),
        ("k8v2", 5.375),
        ("v3", 9.625),
        ("q8_0", 8.5),
        ("q5_0", 5.5),
        ("q4_0", 4.5),
        ("tq3", 3.25),
        ("srft4", 4.5),
        ("asym4", 5.0),
    ] {
        assert_eq!(spec.parse::<KvSpec>().unwrap().bits_per_value(64).unwrap(), bits, "{spec}");
    }
}
