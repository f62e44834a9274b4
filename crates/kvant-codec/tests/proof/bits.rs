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
    // A scale and a zero for all of a token's 128 channels, and for 64 as well.
    ("uniform4", Side::Key, 128, 4096 + 256, 64),
    ("uniform4", Side::Value, 192, 6144 + 512, 64),
    ("uniform2", Side::Key, 64, 1024 + 256, 64),
    ("uniform2g32", Side::Key, 128, 2048 + 1024, 64),
    ("nf4", Side::Value, 128, 4096 + 256, 64),
    ("q4_1", Side::Key, 64, 2048 + 512, 64),
    ("q5_1", Side::Key, 64, 2560 + 512, 64),
    ("iq4_nl", Side::Value, 128, 4096 + 512, 64),
    // 32 tokens: channels · (scale + zero), and tokens · groups · (scale + zero).
    ("kivi2", Side::Key, 128, 1024 + 512, 32),
    ("kivi2", Side::Value, 128, 1024 + 512, 32),
    ("kivi3", Side::Key, 64, 768 + 256, 32),
    // One bit and a scale per token.
    ("qjl1", Side::Key, 128, 1024 + 128, 64),
    ("qjl1", Side::Value, 72, 64 * 80 / 8 + 128, 64),
    // Two scales per token: of the vector and of what is left over.
    ("turbo3", Side::Key, 64, 1536 + 256, 64),
    ("turbo4", Side::Key, 128, 4096 + 256, 64),
    // 8·b + 7·(b − 2) bits and a radius per 16 channels; 72 is filled up to 80.
    ("polar3", Side::Key, 64, 64 * 4 * 31 / 8 + 64 * 4 * 2, 64),
    ("polar4", Side::Key, 128, 64 * 8 * 46 / 8 + 64 * 8 * 2, 64),
    ("polar5:s32", Side::Value, 64, 64 * 4 * 61 / 8 + 64 * 4 * 4, 64),
    ("polar4", Side::Value, 72, 64 * 5 * 46 / 8 + 64 * 5 * 2, 64),
    // The first token as f16, then every token as max4.
    ("delta4", Side::Key, 64, 128 + 2048 + 256, 64),
    ("delta3", Side::Key, 128, 256 + 3072 + 512, 64),
    // 16 quads of a byte, a scale and a zero of a byte per channel, 3 bits.
    ("trellis3", Side::Key, 64, 16 + 64 + 64 + 128 * 64 * 3 / 8, 128),
    // 3.2 bits a quad are 51 of 16 quads.
    ("trellis3.2", Side::Key, 64, 144 + 51 * 64, 128),
    // A scale and a leak, half a byte per token and per channel of five rows of 16.
    ("trellis3", Side::Value, 72, 2 + 64 + 40 + 128 * 80 * 3 / 8, 128),
    // Two rows of 4 bits, two of 3.
    ("trellis3.5", Side::Value, 64, 2 + 64 + 32 + 128 * 64 * 7 / 16, 128),
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
        ("q4_1", 5.0),
        ("q5_1", 6.0),
        ("iq4_nl", 4.5),
        ("kivi4", 5.0),
        ("kivi3", 4.0),
        ("kivi2", 3.0),
        ("nf4", 4.25),
        ("uniform4", 4.5),
        ("uniform2", 2.5),
        ("qjl1", 1.25),
        ("qjl", 0.5 * (1.25 + 3.0)),
        ("turbo3", 3.5),
        ("turbo4", 4.5),
        ("turboquant3", 0.5 * (3.5 + 3.25)),
        ("polar3", 2.9375),
        ("polar4", 3.875),
        ("polar5", 4.8125),
        ("delta3", 3.75),
        ("delta4", 4.75),
    ] {
        assert_eq!(spec.parse::<KvSpec>().unwrap().bits_per_value(64).unwrap(), bits, "{spec}");
    }
}
