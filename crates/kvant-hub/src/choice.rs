//! Which files of a repository make up the model that was asked for.

use crate::error::{HubError, Result};

/// What goes with safetensors weights when the repository has it.
const COMPANIONS: [&str; 13] = [
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
    "modules.json",
    "1_Pooling/config.json",
];
/// Taken when a repository offers many quantisations and none was named: the usual middle.
const USUAL: &str = "q4_k_m";

/// The files of a model, and the one to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) open: String,
    pub(crate) files: Vec<String>,
    /// Files beside it that belong to it and are not read: image projectors, heads that draft tokens.
    pub(crate) left_out: Vec<String>,
}

/// What a file that comes beside models is for, by its name: `image projector`, `draft head (MTP)` …; `None` for a model.
pub fn sidecar(name: &str) -> Option<&'static str> {
    let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let words: Vec<&str> = file.split(['-', '_', '.']).collect();
    let has = |word: &str| words.contains(&word);
    match () {
        () if file.contains("mmproj") => Some("image projector"),
        () if has("mtp") || has("nextn") => Some("draft head (MTP)"),
        () if file.starts_with("imatrix") => Some("importance matrix"),
        () => None,
    }
}

/// Chooses among the files of a repository. `wanted` is a file name or a part of one, such as `Q8_0`.
pub(crate) fn choose(names: &[&str], wanted: Option<&str>) -> Result<Choice> {
    if wanted.is_none_or(|wanted| wanted.ends_with(".safetensors"))
        && let Some(choice) = safetensors(names, wanted.unwrap_or("model.safetensors"))
    {
        return Ok(choice);
    }
    let mut models: Vec<&str> = names.iter().copied().filter(|name| is_model(name)).collect();
    // Some publish whole models with a draft head in them under its name: only beside others is it a sidecar.
    if models.is_empty() {
        let whole = |name: &&str| is_first(name) && sidecar(name).is_some_and(|kind| kind.contains("MTP"));
        models = names.iter().copied().filter(whole).collect();
    }
    let matching = |part: &str| -> Vec<&str> {
        let part = part.to_lowercase();
        let all: Vec<&str> =
            models.iter().copied().filter(|name| name.to_lowercase().contains(&part)).collect();
        // `Q4_K` is not meant to be ambiguous where one file is called just that.
        let exact: Vec<&str> = all.iter().copied().filter(|name| tag(name) == part).collect();
        if exact.len() == 1 { exact } else { all }
    };
    let candidates = match wanted {
        Some(wanted) if names.contains(&wanted) && wanted.ends_with(".gguf") => vec![first_part(wanted)],
        Some(wanted) => matching(wanted).into_iter().map(str::to_owned).collect(),
        None if models.len() == 1 => vec![models[0].to_owned()],
        None => matching(USUAL).into_iter().map(str::to_owned).collect(),
    };
    match &candidates[..] {
        [only] => {
            let choice = with_all_parts(names, only)?;
            let beside = names
                .iter()
                .filter(|name| name.ends_with(".gguf") && !choice.files.contains(&(**name).into()));
            let left_out = beside.filter_map(|name| Some(format!("{name} ({})", sidecar(name)?)));
            let left_out = left_out.collect();
            Ok(Choice { left_out, ..choice })
        }
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
    Some(Choice { open: open.to_owned(), files, left_out: Vec::new() })
}

/// What tells a file from others of its repository: the part after the last dash (or dot), in lower case: `q4_k_m`.
fn tag(name: &str) -> String {
    let whole = match split_name(name) {
        Some((base, ..)) => base,
        None => name.strip_suffix(".gguf").unwrap_or(name),
    };
    whole.rsplit(['-', '.', '/']).next().unwrap_or(whole).to_lowercase()
}

/// A GGUF model by its first or only part; what comes beside models is none.
fn is_model(name: &str) -> bool {
    is_first(name) && sidecar(name).is_none()
}

fn is_first(name: &str) -> bool {
    name.ends_with(".gguf") && split_name(name).is_none_or(|(_, number, _)| number == 1)
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
        None => Ok(Choice { open: first.to_owned(), files, left_out: Vec::new() }),
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
    fn sidecars_are_left_out_and_named() {
        let names = ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "m-mtp-Q8_0.gguf", "imatrix_unsloth.gguf"];
        let choice = choose(&names, None).unwrap();
        assert_eq!((choice.open.as_str(), choice.files.len()), ("m-Q4_K_M.gguf", 1));
        assert_eq!(choice.left_out.len(), 3);
        assert!(choice.left_out[0].contains("mmproj-F16.gguf (image projector)"), "{:?}", choice.left_out);
        assert!(choice.left_out[1].contains("MTP"), "{:?}", choice.left_out);
        assert!(open(&names, Some("f16")).is_err(), "a projector is not the model in f16");
        assert_eq!(open(&["m-MTP-Q8_0.gguf", "mmproj-F16.gguf"], None).unwrap(), "m-MTP-Q8_0.gguf");
    }

    #[test]
    fn a_quantisation_is_told_from_longer_names() {
        let names = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m.Q8_0.gguf", "m.Q8_0_X.gguf"];
        assert_eq!(open(&names, Some("Q4_K")).unwrap(), "m-Q4_K.gguf");
        assert_eq!(open(&names, Some("q8_0")).unwrap(), "m.Q8_0.gguf");
        assert!(open(&names, Some("Q4")).is_err());
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
