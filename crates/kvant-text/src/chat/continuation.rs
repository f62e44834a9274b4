//! A conversation that ends inside its last message.
//!
//! Templates close every turn, each in its own way, and some change the text of a message on the way. So a mark that occurs nowhere in the
//! message is put at its end, the template writes the conversation, and what follows the mark is cut off.

use super::{ChatError, Message};

/// Not characters: no text has them, and no template looks for them.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// The messages with a mark at the end of the last, and the mark.
pub(super) fn marked(messages: &[Message]) -> Result<(Vec<Message>, String), ChatError> {
    let mut marked = messages.to_vec();
    let last = marked.last_mut().filter(|last| last.role == "assistant");
    let last = last.ok_or(ChatError::CannotContinue("it is not the assistant's"))?;
    if last.fields.contains_key("tool_calls") {
        return Err(ChatError::CannotContinue("it calls tools"));
    }
    let content = last.content.as_mut().ok_or(ChatError::CannotContinue("it has no text"))?;
    let absent = MARKS.into_iter().find(|mark| !content.contains(*mark));
    let mark = absent
        .ok_or(ChatError::CannotContinue("it has every character that could mark its end"))?
        .to_string();
    content.push_str(&mark);
    Ok((marked, mark))
}

/// What was written before the mark.
pub(super) fn cut(mut text: String, mark: &str) -> Result<String, ChatError> {
    let end = text.rfind(mark);
    text.truncate(
        end.ok_or(ChatError::CannotContinue("the chat template of this model does not show its end"))?,
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, RenderOptions};
    use super::*;

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    fn render(template: &str, messages: &[Message]) -> Result<String, ChatError> {
        let options = RenderOptions { continue_final_message: true, ..RenderOptions::default() };
        ChatTemplate::new(template).unwrap().render(messages, &options)
    }

    #[test]
    fn a_conversation_ends_inside_the_last_message() {
        let messages =
            [Message::new("user", "Name a colour."), Message::new("assistant", " {\"colour\": \"r ")];
        assert_eq!(render(TURNS, &messages).unwrap(), "<user>Name a colour.</><assistant>{\"colour\": \"r ");
    }

    #[test]
    fn a_text_with_marks_of_its_own_is_cut_at_its_end() {
        let messages = [Message::new("assistant", "\u{FDD0}a\u{FDD0}b")];
        assert_eq!(render(TURNS, &messages).unwrap(), "<assistant>\u{FDD0}a\u{FDD0}b");
    }

    #[test]
    fn what_cannot_be_continued_is_refused() {
        let refused = |template: &str, last: Message| render(template, &[last]).unwrap_err().to_string();
        assert!(refused(TURNS, Message::new("user", "Hi")).contains("not the assistant's"));
        assert!(refused(TURNS, Message::calling(Some("a".into()), vec![])).contains("calls tools"));
        assert!(refused(TURNS, Message::calling(None, vec![])).contains("tools"));
        assert!(refused("{{ messages[0].role }}", Message::new("assistant", "a")).contains("does not show"));
    }
}
