//! Presets: names people type, each an abbreviation of a pair of parts.

use super::KvSpec;
use std::sync::OnceLock;

/// A named pair of codecs.
pub struct Preset {
    /// What is typed.
    pub name: &'static str,
    /// The part for keys.
    pub key: &'static str,
    /// The part for values.
    pub value: &'static str,
    /// What it is for.
    pub about: &'static str,
}

const fn preset(name: &'static str, key: &'static str, value: &'static str, about: &'static str) -> Preset {
    Preset { name, key, value, about }
}

/// Every preset. Widths with a family of their own (`f16`, `tq3`, `srft4`, `asym4` …) need no entry: a part on its own
/// stands for both sides, and [`catalogue`](super::catalogue()) lists them too.
///
/// llama.cpp rotates its cache, so the presets with its names do; `q4_1:plain` does not. KIVI also keeps the last 128
/// tokens exact, which is the cache's business and not a codec's.
pub static PRESETS: [Preset; 18] = [
    preset("int4", "ch4", "rot4g32", "the default: per-channel keys, rotated values, 4.5 bits/value"),
    preset("int8", "ch8", "sym8g32", "nearly exact: per-channel keys, grouped values, 8.5 bits/value"),
    preset("int8g32", "sym8g32", "sym8g32", "8 bits per token and group of 32, as Cactus caches"),
    preset("k8v4", "ch8", "rot4g32", "careful keys, cheap values, 6.5 bits/value"),
    preset("k8v2", "ch8", "tq2", "careful keys, very cheap values, 5.4 bits/value at d=64"),
    preset("v3", "f16", "tq3", "exact keys, 3-bit values"),
    preset("q8_0", "sym8:had64", "sym8:had64", "llama.cpp's q8_0 with its 64-wide rotation"),
    preset("q5_0", "max5:had64", "max5:had64", "llama.cpp's q5_0 with its 64-wide rotation"),
    preset("q4_0", "max4:had64", "max4:had64", "llama.cpp's q4_0 with its 64-wide rotation"),
    preset("q5_1", "asym5:had64", "asym5:had64", "llama.cpp's q5_1 with its 64-wide rotation"),
    preset("q4_1", "asym4:had64", "asym4:had64", "llama.cpp's q4_1 with its 64-wide rotation"),
    preset("iq4_nl", "iq4:had64", "iq4:had64", "llama.cpp's iq4_nl with its 64-wide rotation"),
    preset(
        "kivi4",
        "ch4:asym,p32",
        "asym4g32:p32",
        "KIVI: keys per channel and 32 tokens, values per token, 5 bits/value",
    ),
    preset("kivi3", "ch3:asym,p32", "asym3g32:p32", "KIVI at 3 bits, 4 bits/value with its scales and zeros"),
    preset("kivi2", "ch2:asym,p32", "asym2g32:p32", "KIVI at 2 bits, 3 bits/value with its scales and zeros"),
    preset("qjl", "qjl1", "asym2g32", "QJL: sign sketches of keys, 2-bit values"),
    preset("turboquant4", "turbo4", "tq4", "TurboQuant: unbiased keys, values of least error, 4 bits"),
    preset("turboquant3", "turbo3", "tq3", "TurboQuant: unbiased keys, values of least error, 3 bits"),
];

impl Preset {
    /// The preset of that name.
    pub fn find(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The preset that stands for these codecs.
    pub(super) fn of(spec: &KvSpec) -> Option<&'static Preset> {
        static SPECS: OnceLock<Vec<KvSpec>> = OnceLock::new();
        let specs = SPECS.get_or_init(|| PRESETS.iter().map(Preset::spec).collect());
        PRESETS.iter().zip(specs).find_map(|(preset, own)| (own == spec).then_some(preset))
    }

    /// The codecs it stands for.
    ///
    /// # Panics
    /// Never: a test parses every entry.
    pub fn spec(&self) -> KvSpec {
        let part = |text| super::parse::part_alone(text).expect("every preset parses");
        KvSpec { key: part(self.key), value: part(self.value) }
    }
}
