//! What was found for one side of one kv head, and what a codec takes of it.

use kvant_codec::allocation::widths;
use kvant_codec::{
    Basis, BuildError, Calibration, CodecSpec, Dense, KvSpec, Learned, Options, Rotation, Side, Tier,
};
use std::sync::Arc;

/// The rotation that [`SideCalibration::range`] are of.
pub const ENDS_ROTATION: (Rotation, u64) = (Rotation::Srft, 0);

/// What was found for one side of one kv head; empty where nothing was looked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideCalibration {
    /// The mean, in the model's basis.
    pub mean: Option<Vec<f32>>,
    /// The least and the largest number of every channel after SRFT with seed 0.
    pub range: Option<[Vec<f32>; 2]>,
    /// The attention-aware basis.
    pub klt: Option<Klt>,
    /// T of the balanced basis, row-major.
    pub balanced: Option<Vec<f32>>,
    /// What was learned, each for one codec.
    pub learned: Vec<LearnedTransform>,
    /// What codecs were found to cost here, where bits were shared out among heads.
    pub costs: Vec<Cost>,
}

/// What a codec costs on one side of one kv head.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The codec, as specs of one side are printed.
    pub spec: String,
    /// The divergence that it is expected to add, in nats.
    pub kl: f32,
}

/// What was learned for one codec.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedTransform {
    /// The codec, as specs of one side are printed. What was learned for one serves no other.
    pub spec: String,
    /// A divisor of every channel after the codec's rotation, or a whole basis, rotation included, row-major.
    pub numbers: Vec<f32>,
}

/// A basis in which channels are not correlated and an error costs the same in each.
#[derive(Clone, Debug, PartialEq)]
pub struct Klt {
    /// The change of basis.
    pub basis: Arc<Dense>,
    /// Variances of the channels, largest first.
    pub variances: Vec<f32>,
}

impl SideCalibration {
    /// How many numbers each part has, and which power of the dimension it should be.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (usize, u32)> {
        let vectors = self.mean.iter().chain(self.range.iter().flatten());
        let of_klt =
            self.klt.iter().flat_map(|klt| [(klt.variances.len(), 1), (klt.basis.matrix().len(), 2)]);
        let matrices = self.balanced.iter().map(|matrix| (matrix.len(), 2));
        let learned = self.learned.iter().map(|one| (one.numbers.len(), one.power()));
        vectors.map(|vector| (vector.len(), 1)).chain(of_klt).chain(matrices).chain(learned)
    }

    /// What the codec of a spec takes, in heads of `dim` channels.
    ///
    /// # Errors
    /// When it asks for something that was not found, or that does not fit.
    pub fn calibration(
        &self,
        spec: &CodecSpec,
        side: Side,
        dim: usize,
        tier: Tier,
    ) -> Result<Calibration, BuildError> {
        let Options { mean, lambda, balanced, trellis, learned, budget, page, .. } = spec.options;
        let unfit = |part, reason: String| BuildError::Calibration { spec: spec.to_string(), part, reason };
        let mut found = Calibration::default();
        if mean {
            found.mean.clone_from(&self.mean);
        }
        if let Some(klt) = self.klt.as_ref().filter(|_| spec.shares_bits()) {
            found.basis = Some(Arc::clone(&klt.basis));
            // Pages of trellis codes share out their bits themselves.
            if !trellis {
                let widths = widths(&klt.variances, side, budget, page)
                    .map_err(|error| unfit("variances", error.to_string()))?;
                found.widths = Some(widths);
            }
        }
        if let Some(matrix) = self.balanced.as_ref().filter(|_| balanced) {
            let basis = Dense::of(dim, matrix.clone());
            found.basis = Some(Arc::new(basis.map_err(|error| unfit("balanced basis", error.to_string()))?));
        }
        if let Some(ends) = self.range.as_ref().filter(|_| lambda) {
            if (spec.options.rotation, spec.options.seed) != ENDS_ROTATION {
                let reason = "it has λ for srft with seed 0 alone".to_owned();
                return Err(unfit("λ", reason));
            }
            found.lambda = Some(magnitudes(ends, found.mean.as_deref(), dim, tier));
        }
        if let Some(one) = learned.and_then(|_| self.learned_for(spec)).transpose()? {
            if one.power() == 1 {
                found.lambda = Some(one.numbers.clone());
            } else {
                let basis = Dense::of(dim, one.numbers.clone());
                found.basis =
                    Some(Arc::new(basis.map_err(|error| unfit("learned basis", error.to_string()))?));
            }
        }
        Ok(found)
    }

    /// What was learned for a codec; `None` where nothing was learned for any.
    fn learned_for(&self, spec: &CodecSpec) -> Option<Result<&LearnedTransform, BuildError>> {
        let name = spec.to_string();
        let names = || self.learned.iter().map(|one| one.spec.as_str()).collect::<Vec<_>>().join(" ");
        let found = self.learned.iter().find(|one| one.spec == name);
        (!self.learned.is_empty()).then(|| {
            found.ok_or_else(|| BuildError::Calibration {
                spec: name,
                part: "learned part",
                reason: format!("it was learned for {} alone", names()),
            })
        })
    }
}

impl LearnedTransform {
    /// 1 for divisors, 2 for a basis: the power of the dimension that its numbers are as many as.
    pub(super) fn power(&self) -> u32 {
        let spec = self.spec.parse::<KvSpec>();
        if spec.is_ok_and(|spec| spec.key.options.learned == Some(Learned::Scaled)) { 1 } else { 2 }
    }
}

/// The largest magnitude of every channel once a mean, given in the model's basis, is taken away. Channels that were always zero
/// get the least of the others, and 1 where all were.
fn magnitudes([low, high]: &[Vec<f32>; 2], mean: Option<&[f32]>, dim: usize, tier: Tier) -> Vec<f32> {
    let mut centre = mean.filter(|mean| mean.len() == dim).map_or(vec![0.0; dim], <[f32]>::to_vec);
    let (rotation, seed) = ENDS_ROTATION;
    if dim.is_multiple_of(2) {
        Basis::new(rotation, dim, seed).apply(&mut centre, tier).expect("one vector");
    }
    let magnitudes: Vec<f32> = low
        .iter()
        .zip(high)
        .zip(&centre)
        .map(|((low, high), centre)| (high - centre).max(centre - low))
        .collect();
    let least = magnitudes.iter().copied().filter(|x| x.is_normal()).fold(f32::INFINITY, f32::min);
    let least = if least.is_finite() { least } else { 1.0 };
    magnitudes.into_iter().map(|x| x.max(least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lambda_is_the_largest_magnitude_of_what_is_left() {
        let (dim, rotation) = (6, Basis::new(ENDS_ROTATION.0, 6, ENDS_ROTATION.1));
        let rows: Vec<f32> =
            (0..20 * dim).map(|n| ((n * 7919) as f32 * 0.618).sin() + (n % dim) as f32).collect();
        let turned = |rows: &[f32]| {
            let mut rows = rows.to_vec();
            rotation.apply(&mut rows, Tier::Scalar).unwrap();
            rows
        };
        let fold = |rows: &[f32], start: f32, f: fn(f32, f32) -> f32| {
            (0..dim).map(|c| rows.iter().skip(c).step_by(dim).copied().fold(start, f)).collect::<Vec<f32>>()
        };
        let all = turned(&rows);
        let findings = SideCalibration {
            mean: Some((0..dim).map(|c| c as f32).collect()),
            range: Some([fold(&all, f32::INFINITY, f32::min), fold(&all, f32::NEG_INFINITY, f32::max)]),
            ..SideCalibration::default()
        };
        let of = |spec: &str| {
            let spec: KvSpec = spec.parse().unwrap();
            findings.calibration(&spec.key, Side::Key, dim, Tier::Scalar)
        };
        let largest = |rows: &[f32]| fold(&turned(rows), 0.0, |a, b| a.max(b.abs()));
        let centred: Vec<f32> = rows.iter().enumerate().map(|(n, x)| x - (n % dim) as f32).collect();
        for (spec, rows) in [("srft4:lambda", &rows), ("srft4:lambda,mean", &centred)] {
            let lambda = of(spec).unwrap().lambda.unwrap();
            assert!(
                lambda.iter().zip(largest(rows)).all(|(a, b)| (a - b).abs() < 1e-4),
                "{spec}: {lambda:?}"
            );
        }
        let other = of("srft4:lambda,seed=2").unwrap_err().to_string();
        assert!(other.contains("seed 0"), "{other}");
        assert_eq!(
            of("klt4").unwrap(),
            Calibration { mean: findings.mean.clone(), ..Calibration::default() }
        );
    }

    #[test]
    fn channels_that_were_always_zero_are_divided_by_something() {
        let ends = [vec![-2.0, 0.0], vec![0.5, 0.0]];
        assert_eq!(magnitudes(&ends, None, 2, Tier::Scalar), [2.0, 2.0]);
        assert_eq!(magnitudes(&[vec![0.0], vec![0.0]], None, 1, Tier::Scalar), [1.0]);
    }
}
