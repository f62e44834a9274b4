//! What a plan holds of a kv head, from what was seen of it.

use crate::basis;
use crate::error::CalibrationError;
use crate::moments::Moments;
use crate::observed::HeadStatistics;
use kvant_cache::plan::{Klt, PlannedHead, SideCalibration};
use std::sync::Arc;

/// Means, ranges and bases of one kv head. Values have no attention-aware basis where nobody has said which output weights read
/// them.
///
/// # Errors
/// When too few vectors were seen, or they are not finite numbers.
pub fn planned_head(seen: &HeadStatistics) -> Result<PlannedHead, CalibrationError> {
    let HeadStatistics { keys, queries, values, output_gram, key_extent, value_extent, samples: _ } = seen;
    let klt = |rows: &Moments, output_gram: &Moments| {
        let basis::Klt { basis: dense, variances } = basis::klt(rows, output_gram)?;
        let variances = variances.into_iter().map(|x| x as f32).collect();
        Ok::<_, CalibrationError>(Klt { basis: Arc::new(dense), variances })
    };
    let mean = |moments: &Moments, what| basis::mean(moments, what).map(Some);
    Ok(PlannedHead {
        key: SideCalibration {
            mean: mean(keys, "keys")?,
            range: key_extent.range(),
            klt: Some(klt(keys, queries)?),
            balanced: Some(basis::balanced(keys, queries)?.matrix().to_vec()),
            ..SideCalibration::default()
        },
        value: SideCalibration {
            mean: mean(values, "values")?,
            range: value_extent.range(),
            klt: (output_gram.count() > 0).then(|| klt(values, output_gram)).transpose()?,
            ..SideCalibration::default()
        },
    })
}
