//! EXAONE 4: norms after both parts of a layer and on each head's queries and keys. The large model has a window on three of four
//! layers and rotates those alone; the small one sees everything and rotates everywhere.

use crate::arch::common::{self, Common};
use crate::arch::{Scope, olmo2};
use crate::config::{Key, RopeKeys};
use crate::description::{Description, Pairing};
use crate::error::Result;

/// `LLLG` where every fourth layer is global.
const PATTERN: Key = Key("sliding_window_pattern", "");

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let slides = config.count(common::WINDOW)?.is_some();
    let pattern = if slides { config.text(PATTERN)? } else { None };
    let pattern = pattern.filter(|text| !text.is_empty()).unwrap_or_else(|| "LLLG".to_owned());
    let is_local = |layer: usize| pattern.as_bytes()[layer % pattern.len()] == b'L';
    let windows = common::windows(config, dims.layers, is_local)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (false, false))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.head_dim, dims.head_dim), eps, 0.0)?;
        attention.rope = (!slides || windows[index].is_some()).then_some(rope);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        olmo2::post_norm(layer, &dims, eps, attention, mlp)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
