//! Which tokens end a generation.
//!
//! Metadata names one or two of them, yet a chat model may end its turn with any of several: a fine-tuned
//! model whose file says `eos = </s>` still emits `<|im_end|>`. So the well-known names count too, where
//! they are present as tokens of structure.

use super::TokenKind;

/// Ends of a turn or a text, by the name they have in released vocabularies.
const TURN_ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Boundaries between files in code models: what follows them is another file.
const FILE_ENDS: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
];

/// The ids that end a generation: `named` by the metadata, and the well-known ones among `tokens`.
pub(super) fn end_of_generation<'a>(
    named: impl IntoIterator<Item = u32>,
    tokens: impl IntoIterator<Item = (u32, &'a str, TokenKind)>,
) -> Vec<u32> {
    let mut ids: Vec<u32> = named.into_iter().collect();
    let mut found: Vec<(u32, &str)> = tokens
        .into_iter()
        .filter(|(_, _, kind)| matches!(kind, TokenKind::Control | TokenKind::UserDefined))
        .filter(|(_, text, _)| TURN_ENDS.contains(text) || FILE_ENDS.contains(text))
        .map(|(id, text, _)| (id, text))
        .collect();
    let has = |name: &str| found.iter().any(|(_, text)| *text == name);
    // In the harmony and solar formats `<|end|>` closes one message of a turn that goes on.
    let end_is_inner = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
    // Where a turn is written with `<|tool_response>`, `</s>` is an HTML tag.
    let s_is_markup = has("<|tool_response>");
    found.retain(|(_, text)| match *text {
        "<|end|>" => !end_is_inner,
        "</s>" => !s_is_markup,
        _ => true,
    });
    ids.extend(found.into_iter().map(|(id, _)| id));
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::end_of_generation;
    use crate::tokenizer::TokenKind::{Control, Normal, UserDefined};

    #[test]
    fn named_and_well_known_ids_are_joined() {
        let tokens = [(0, "<|endoftext|>", Control), (1, "</s>", Normal), (2, "<|im_end|>", UserDefined)];
        assert_eq!(end_of_generation([7, 2], tokens), [0, 2, 7]);
    }

    #[test]
    fn harmony_message_end_does_not_end_the_turn() {
        let tokens = [(5, "<|end|>", Control), (6, "<|return|>", Control), (7, "<|call|>", Control)];
        assert_eq!(end_of_generation([], tokens), [6, 7]);
        assert_eq!(end_of_generation([], [(5, "<|end|>", Control)]), [5]);
    }
}
