//! Whether the text parts of a checkpoint are sound: its vocabulary and its chat template.

use crate::chat::ChatTemplate;
use crate::tokenizer::Tokenizer;
use kvant_model::Checkpoint;
use kvant_model::soundness::Finding;

/// Reads the vocabulary and the chat template and tells what is wrong with them.
pub fn findings(checkpoint: &Checkpoint) -> Vec<Finding> {
    let tokenizer = Tokenizer::of(checkpoint).err().map(|error| Finding::of("tokenizer", &error));
    let template = ChatTemplate::of(checkpoint).err().map(|error| Finding::of("chat template", &error));
    tokenizer.into_iter().chain(template).collect()
}
