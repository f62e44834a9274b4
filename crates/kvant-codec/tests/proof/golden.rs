//! The figures of `docs/activations.md`, loosely: a codec that got worse, or better, on real activations shows here.

use crate::activations::{Layer, layers};
use crate::case::taken;
use crate::measure::{self, KeyErrors, ValueErrors};
use kvant_codec::{KvSpec, Side};
use std::ops::Range;

fn keys(part: &str, layers: &[Layer]) -> KeyErrors {
    measure::keys(&part.parse::<KvSpec>().unwrap().key, layers).unwrap()
}

fn values(part: &str, layers: &[Layer]) -> ValueErrors {
    measure::values(&part.parse::<KvSpec>().unwrap().value, layers).unwrap()
}

fn within(what: &str, got: f64, range: &Range<f64>) {
    assert!(range.contains(&got), "{what}: {got:e} is not in {range:?}");
}

#[test]
fn errors_on_real_activations_are_the_documented_ones() {
    let layers = layers().unwrap();
    for (part, mse, score) in [
        ("f16", 0.0..1e-12, 0.0..1e-5),
        ("int8", 6e-6..9e-6, 0.0030..0.0041),
        ("q8_0", 2.2e-5..3.0e-5, 0.0065..0.0088),
        ("int4", 1.57e-3..2.1e-3, 0.048..0.062),
        ("q4_0", 5.8e-3..7.6e-3, 0.110..0.140),
        ("srft4", 7.5e-3..1.0e-2, 0.120..0.160),
        ("tq3", 2.7e-2..3.6e-2, 0.240..0.310),
        ("iq4_nl", 5.1e-3..6.8e-3, 0.094..0.125),
        ("delta4", 3.4e-3..4.5e-3, 0.071..0.094),
        ("polar4", 2.8e-2..3.7e-2, 0.220..0.290),
        ("turbo3", 5.2e-2..6.9e-2, 0.330..0.430),
        ("qjl1", 4.8e-1..6.3e-1, 0.960..1.280),
        ("trellis3", 5.3e-3..7.2e-3, 0.092..0.124),
    ]
    .into_iter()
    .enumerate()
    .filter_map(|(turn, expected)| taken(turn + 4).then_some(expected))
    {
        let errors = keys(part, &layers);
        assert_eq!(errors.bits, part.parse::<KvSpec>().unwrap().key.bits_per_value(Side::Key, 64).unwrap());
        within(&format!("{part}: mean square error of keys"), errors.mse, &mse);
        within(&format!("{part}: error of scores"), errors.kernel, &score);
        within(&format!("{part}: cosine of keys"), errors.cosine, &(1.0 - mse.end..1.0 + 1e-9));
    }
    for (part, mse, output) in [
        ("f16", 0.0..1e-12, 0.0..1e-5),
        ("int8", 4.5e-5..6.2e-5, 0.0042..0.0057),
        ("int4", 5.4e-3..7.0e-3, 0.045..0.058),
        ("srft4", 7.7e-3..1.05e-2, 0.053..0.071),
        ("v3", 2.8e-2..3.7e-2, 0.100..0.133),
        ("tq2", 9.5e-2..1.25e-1, 0.200..0.265),
        ("iq4_nl", 5.2e-3..6.9e-3, 0.043..0.058),
        ("uniform4", 1.1e-2..1.5e-2, 0.070..0.092),
        ("nf4", 1.0e-2..1.4e-2, 0.067..0.089),
        ("trellis3", 1.7e-2..2.4e-2, 0.113..0.155),
    ]
    .into_iter()
    .enumerate()
    .filter_map(|(turn, expected)| taken(turn + 5).then_some(expected))
    {
        let errors = values(part, &layers);
        assert_eq!(
            errors.bits,
            part.parse::<KvSpec>().unwrap().value.bits_per_value(Side::Value, 64).unwrap()
        );
        within(&format!("{part}: mean square error of values"), errors.mse, &mse);
        within(&format!("{part}: error of the output"), errors.kernel, &output);
        within(&format!("{part}: cosine of values"), errors.cosine, &(1.0 - mse.end..1.0 + 1e-9));
    }
}

/// Why the default is what it is: keys want channel scales, values a rotation and the signed maximum.
#[test]
fn the_default_has_the_better_codec_on_each_side() {
    let layers = layers().unwrap();
    assert!(keys("ch4", &layers).kernel < 0.6 * keys("rot4g32", &layers).kernel);
    let default = values("rot4g32", &layers).kernel;
    for other in ["ch4", "srht4g32", "srft4g32", "asym4g32"] {
        assert!(default < values(other, &layers).kernel, "{other}");
    }
}

/// The kernels round queries and weights to bytes; that must stay small beside what the codec itself loses.
#[test]
fn rounding_in_the_kernels_is_small_beside_the_codecs_noise() {
    let layers = layers().unwrap();
    for (turn, part) in ["int4", "int8", "q4_0", "srft4", "asym4", "tq3", "tq2"].into_iter().enumerate() {
        if !taken(turn) {
            continue;
        }
        let (key, value) = (keys(part, &layers), values(part, &layers));
        assert!(key.rounding < 0.02 && key.kernel < 1.02 * key.score, "{part}: {key:?}");
        assert!(value.rounding < 0.04 && value.kernel < 1.03 * value.output, "{part}: {value:?}");
    }
}
