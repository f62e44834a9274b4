//! Which files of a repository make up the model that was asked for.

use crate::error::{HubError, Result};

/// What goes with safetensors weights when the repository has it.
const COMPANIONS: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
];
/// Taken when a repository offers many quantisations and none was named: the usual middle.
const USUAL: &str = "q4_k_m";

/// The files of a model, and the one to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) open: String,
    pub(crate) files: Vec<String>,
}

/// Chooses among the files of a repository. `wanted` is a file name or a part of one, such as `Q8_0`.
pub(crate) fn choose(names: &[&str], wanted: Option<&str>) -> Result<Choice> {
    if wanted.is_none_or(|wanted| wanted.ends_with(".safetensors"))
        && let Some(choice) = safetensors(names, wanted.unwrap_or("model.safetensors"))
    {
        return Ok(choice);
    }
    let models: Vec<&str> = names.iter().copied().filter(|name| is_model(name)).collect();
    let matching = |part: &str| -> Vec<&str> {
        models.iter().copied().filter(|name| name.to_lowercase().contains(&part.to_lowercase())).collect()
    };
    let candidates = match wanted {
        Some(wanted) if names.contains(&wanted) && wanted.ends_with(".gguf") => vec![first_part(wanted)],
        Some(wanted) => matching(wanted).into_iter().map(str::to_owned).collect(),
        None if models.len() == 1 => vec![models[0].to_owned()],
        None => matching(USUAL).into_iter().map(str::to_owned).collect(),
    };
    match &candidates[..] {
        [only] => with_all_parts(names, only),
        _ if models.is_empty() => Err(HubError::missing("has neither GGUF files nor model.safetensors")),
        [] if wanted.is_some() => Err(HubError::missing(format!(
            "has no file {:?}; it has {}",
            wanted.unwrap_or_default(),
            models.join(", ")
        ))),
        _ => Err(HubError::mismatch(format!(
            "offers several models; add one of them after a colon: {}",
            models.join(", ")
        ))),
    }
}

fn safetensors(names: &[&str], single: &str) -> Option<Choice> {
    let index = "model.safetensors.index.json";
    let (open, mut files) = if names.contains(&single) {
        (single, vec![single.to_owned()])
    } else if names.contains(&index) {
        let is_shard = |name: &&&str| name.starts_with("model-") && name.ends_with(".safetensors");
        let shards = names.iter().filter(is_shard).map(|name| (*name).to_owned());
        (index, std::iter::once(index.to_owned()).chain(shards).collect())
    } else {
        return None;
    };
    files.extend(COMPANIONS.iter().filter(|name| names.contains(name)).map(|name| (*name).to_owned()));
    Some(Choice { open: open.to_owned(), files })
}

/// A GGUF model by its first or only part; projectors of multimodal models are not models.
fn is_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    name.ends_with(".gguf")
        && !file.starts_with("mmproj")
        && split_name(name).is_none_or(|(_, number, _)| number == 1)
}

/// `BASE-00002-of-00003.gguf` as (BASE, 2, 3).
fn split_name(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    Some((base, five(number)?, five(count)?))
}

fn part_name(base: &str, number: u32, count: u32) -> String {
    format!("{base}-{number:05}-of-{count:05}.gguf")
}

fn first_part(name: &str) -> String {
    split_name(name).map_or_else(|| name.to_owned(), |(base, _, count)| part_name(base, 1, count))
}

fn with_all_parts(names: &[&str], first: &str) -> Result<Choice> {
    let files = match split_name(first) {
        None => vec![first.to_owned()],
        Some((base, _, count)) => (1..=count).map(|number| part_name(base, number, count)).collect(),
    };
    match files.iter().find(|file| !names.contains(&file.as_str())) {
        Some(absent) => Err(HubError::missing(format!("lacks {absent}, a part of the split model"))),
        None => Ok(Choice { open: first.to_owned(), files }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(names: &[&str], wanted: Option<&str>) -> Result<String> {
        choose(names, wanted).map(|choice| choice.open)
    }

    #[test]
    fn one_gguf_needs_no_name() {
        assert_eq!(open(&["README.md", "m.gguf", "mmproj-m.gguf"], None).unwrap(), "m.gguf");
        assert_eq!(open(&["m-Q4_K_M.gguf", "m-Q8_0.gguf"], None).unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(open(&["m-Q4_K_M.gguf", "m-Q8_0.gguf"], Some("q8_0")).unwrap(), "m-Q8_0.gguf");
        assert_eq!(open(&["a.gguf", "a.gguf.gguf"], Some("a.gguf")).unwrap(), "a.gguf");
    }

    #[test]
    fn refusals_list_what_there_is() {
        let names = ["m-Q5_0.gguf", "m-Q8_0.gguf"];
        for wanted in [None, Some("q6"), Some(".gguf")] {
            let error = open(&names, wanted).unwrap_err().to_string();
            assert!(error.contains("m-Q5_0.gguf, m-Q8_0.gguf"), "{error}");
        }
        assert!(open(&["README.md"], None).unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn split_models_come_whole() {
        let names = ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"];
        for wanted in [None, Some("q/m-00002-of-00002.gguf")] {
            let choice = choose(&names, wanted).unwrap();
            assert_eq!((choice.open.as_str(), choice.files.len()), (names[0], 2));
        }
        let error = choose(&names[..1], None).unwrap_err().to_string();
        assert!(error.contains("00002-of-00002"), "{error}");
    }

    #[test]
    fn safetensors_come_with_their_companions() {
        let names =
            ["model.safetensors", "config.json", "tokenizer.json", "pytorch_model.bin", "onnx/model.onnx"];
        let choice = choose(&names, None).unwrap();
        assert_eq!(choice.files, ["model.safetensors", "config.json", "tokenizer.json"]);
        let names = [
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
            "config.json",
        ];
        let choice = choose(&names, None).unwrap();
        assert_eq!((choice.open.as_str(), choice.files.len()), ("model.safetensors.index.json", 4));
    }
}
