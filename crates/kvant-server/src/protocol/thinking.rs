//! How much is reasoned before an answer, where a model's template can be told.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Served;
use serde_json::{Map, Value};

const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// Reads `reasoning_effort` and `enable_thinking`, which become variables of the template.
pub fn read(fields: &mut Fields, served: &Served) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        set_effort(fields, "reasoning_effort", &effort, served, &mut variables)?;
    }
    if let Some(on) = fields.flag("enable_thinking")? {
        set_thinking(fields, "enable_thinking", on, served, &mut variables)?;
    }
    Ok(variables)
}

/// Sets how much is to be reasoned. A template that knows nothing of it is no obstacle, unless the server is strict: then the
/// field is named like one that is not understood.
pub fn set_effort(
    fields: &Fields,
    name: &str,
    effort: &str,
    served: &Served,
    variables: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    if !EFFORTS.contains(&effort) {
        let full = fields.name(name);
        let message = format!("{full} is {effort:?}; it must be one of {}", EFFORTS.join(", "));
        return Err(ApiError::field(full, message));
    }
    match served.handle.engine().chat_format().set_effort(effort, variables) {
        true => Ok(()),
        false => not_known(fields, name),
    }
}

/// Switches reasoning on or off.
pub fn set_thinking(
    fields: &Fields,
    name: &str,
    on: bool,
    served: &Served,
    variables: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    match served.handle.engine().chat_format().set_thinking(on, variables) {
        true => Ok(()),
        false => not_known(fields, name),
    }
}

fn not_known(fields: &Fields, name: &str) -> Result<(), ApiError> {
    let full = fields.name(name);
    if !fields.notes().is_strict() {
        fields.notes().ignored(full);
        return Ok(());
    }
    let message = format!("{full} is not supported: the chat template of this model does not know it");
    Err(ApiError::field(full, message).code("unsupported_parameter"))
}
