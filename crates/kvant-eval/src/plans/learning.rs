//! What is learned for codecs that ask for it, head by head.

use kvant_cache::plan::{LearnedTransform, PlannedHead, SideCalibration};
use kvant_calibrate::learned::{learn, learnable};
use kvant_calibrate::{CalibrationError, HeadStatistics};
use kvant_codec::{CodecSpec, KvSpec};

/// Keys and values of a head that are kept to learn from.
pub(super) const SAMPLE: usize = 1024;
/// Decides which are kept and the order they are met in.
pub(super) const SEED: u64 = 0;

/// Codecs that learn, for keys and for values.
pub(super) struct LearnedTransforms {
    sides: [Vec<CodecSpec>; 2],
}

impl LearnedTransforms {
    /// The sides of these specs that learn.
    pub fn of(specs: &[KvSpec]) -> Result<Self, CalibrationError> {
        let mut sides = [Vec::new(), Vec::new()];
        for spec in specs {
            let both = [&spec.key, &spec.value];
            if both.iter().all(|side| side.options.learned.is_none()) {
                // Which says that, and what could be asked for.
                learnable(&spec.key)?;
            }
            for (side, codec) in sides.iter_mut().zip(both) {
                if codec.options.learned.is_some() && !side.contains(codec) {
                    learnable(codec)?;
                    side.push(codec.clone());
                }
            }
        }
        Ok(Self { sides })
    }

    pub fn is_empty(&self) -> bool {
        self.sides.iter().all(Vec::is_empty)
    }

    /// For the line that says how a plan was made.
    pub fn told(&self) -> String {
        let [keys, values] = &self.sides;
        let of_values = values.iter().filter(|spec| !keys.contains(spec));
        let names: Vec<String> = keys.iter().chain(of_values).map(ToString::to_string).collect();
        if names.is_empty() { String::new() } else { format!(", learned {}", names.join(" ")) }
    }

    /// Learns everything for the heads of one entry; an error says for which head.
    pub fn learn(
        &self,
        seen: &[HeadStatistics],
        planned: &mut [PlannedHead],
    ) -> Result<(), (usize, CalibrationError)> {
        let tasks: Vec<(usize, usize, &CodecSpec)> = (0..seen.len())
            .flat_map(|head| {
                let sides = self.sides.iter().enumerate();
                sides.flat_map(move |(side, specs)| specs.iter().map(move |spec| (head, side, spec)))
            })
            .collect();
        let mut results: Vec<Option<Result<LearnedTransform, CalibrationError>>> = vec![None; tasks.len()];
        let findings: Vec<[&SideCalibration; 2]> =
            planned.iter().map(|head| [&head.key, &head.value]).collect();
        kvant_threads::for_each_chunk(&mut results, 1, |task, result| {
            let (head, side, spec) = tasks[task];
            let (Some(samples), Some(mean)) = (&seen[head].samples, &findings[head][side].mean) else {
                return;
            };
            let learning = learn(spec, samples[side].rows(), mean, SEED);
            result[0] = Some(
                learning.map(|found| LearnedTransform { spec: spec.to_string(), numbers: found.numbers }),
            );
        });
        for ((head, side, _), trained) in tasks.into_iter().zip(results) {
            let findings = [&mut planned[head].key, &mut planned[head].value];
            if let Some(trained) = trained {
                findings[side].learned.push(trained.map_err(|source| (head, source))?);
            }
        }
        Ok(())
    }
}
