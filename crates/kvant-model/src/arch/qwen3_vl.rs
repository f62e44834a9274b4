//! The text side of Qwen 3 VL: Qwen 3 one level deeper, in configuration and names. Its rotary embedding has three streams of
//! positions, for time, height and width of images; in text they are equal, which is the usual rotation.

use crate::arch::{Scope, common, qwen3};
use crate::config::TEXT_CONFIG;
use crate::description::Description;
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let text = scope.nested(TEXT_CONFIG)?;
    let (dims, layers) = qwen3::layers(&text, ("model.language_model.layers", "blk"))?;
    let eps = text.config().positive(common::RMS_EPS)? as f32;
    let norm = text.rms_norm(("model.language_model.norm", "output_norm"), dims.hidden, eps, 0.0)?;
    let table = common::token_table(&text, "model.language_model.embed_tokens", &dims)?;
    // Whether the output is tied stands at the top of the configuration.
    let output = common::output(scope, "lm_head", &table)?;
    let mut description = common::framed(&text, &dims, table, layers, norm, output)?;
    description.left_out = vec!["vision"];
    Ok(description)
}
