//! Where templates come from, and what must be changed in them.

use super::ChatError;

/// The chat template a `tokenizer_config.json` holds: its only one, or the one named `default` of several.
///
/// # Errors
/// If the file is not JSON.
pub fn template_of_tokenizer_config(text: &str) -> Result<Option<String>, ChatError> {
    let config: serde_json::Value =
        serde_json::from_str(text).map_err(|e| ChatError::BadConfig(e.to_string()))?;
    let template = &config["chat_template"];
    let named = || {
        let list = template.as_array()?;
        let default = list.iter().find(|entry| entry["name"] == "default").or(list.first())?;
        default["template"].as_str()
    };
    Ok(template.as_str().or_else(named).map(str::to_owned))
}

/// A template as Jinja2 reads it: with `\n` for every kind of line break, and without tags that are transformers' own.
///
/// `{% generation %}` … `{% endgeneration %}`, which marks an assistant's words for training, becomes a block that does nothing
/// but keep what is set in it to itself. Whitespace control on the tags keeps its meaning.
pub(super) fn normalized(template: &str) -> String {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(template.len());
    let mut rest = template.as_str();
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let (before, tag) = (&rest[..open], &rest[open..open + length + 2]);
        out.push_str(before);
        let word = tag.trim_matches(|c: char| matches!(c, '{' | '%' | '}' | '-' | '+') || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = &rest[open + length + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::{normalized, template_of_tokenizer_config};

    #[test]
    fn generation_tags_become_a_block_that_always_runs() {
        let template = "a {%- generation -%} {{ generation }} generation {%endgeneration%} {% for x in y %}";
        let expected = "a {%- with -%} {{ generation }} generation {%endwith%} {% for x in y %}";
        assert_eq!(normalized(template), expected);
        assert_eq!(normalized("{% open"), "{% open");
        assert_eq!(normalized("a\r\nb\rc\n"), "a\nb\nc\n");
    }

    #[test]
    fn a_config_may_name_several_templates() {
        let of = |text| template_of_tokenizer_config(text).unwrap();
        assert_eq!(of(r#"{"chat_template": "x"}"#).as_deref(), Some("x"));
        let several =
            r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(of(several).as_deref(), Some("d"));
        assert_eq!(of("{}"), None);
        assert!(template_of_tokenizer_config("{").is_err());
    }
}
