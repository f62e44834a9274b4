//! Which of the words after `kvant run` is the model, and which is the prompt.

use crate::config::Config;
use crate::failure::Failure;
use kvant_hub::ModelName;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The words, sorted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    pub model: Option<String>,
    pub preset: Option<String>,
    pub prompt: Option<String>,
}

/// Sorts up to two words. The first is a model if it is a file, a folder, a known name, a name on the hub or a preset; with -m
/// (`is_chosen`) the only one is a prompt.
pub fn sort(
    first: Option<String>,
    second: Option<String>,
    is_chosen: bool,
    config: &Config,
) -> Result<Words, Failure> {
    let Some(first) = first else { return Ok(Words::default()) };
    if is_chosen {
        return Ok(Words { prompt: Some(first), ..Words::default() });
    }
    if config.has(&first) {
        return Ok(Words { preset: Some(first), prompt: second, model: None });
    }
    if is_model(&first)? && (second.is_some() || !is_phrase(&first)) {
        return Ok(Words { model: Some(first), prompt: second, preset: None });
    }
    match second {
        None => Ok(Words { prompt: Some(first), ..Words::default() }),
        Some(_) => Err(Failure::Usage(format!(
            "`{first}` is neither a file nor a model name that kvant knows (`kvant models --known` lists short names); put a \
             prompt of several words in quotes"
        ))),
    }
}

/// Whether a word names a model, be it there or not.
pub fn is_model(word: &str) -> Result<bool, Failure> {
    let path = Path::new(word);
    let has_ending =
        [".gguf", ".safetensors", ".safetensors.index.json"].iter().any(|end| word.ends_with(end));
    if path.is_file()
        && !has_ending
        && !is_gguf(path)
        && path.file_name().is_some_and(|name| name != "config.json")
    {
        return Err(Failure::Usage(format!(
            "{word} is a file and not a model: `-f {word}` reads it as the prompt"
        )));
    }
    let is_one_word = !word.contains(char::is_whitespace);
    Ok(path.is_file() || has_model(path) || (is_one_word && has_ending) || ModelName::is_meant(word))
}

/// Whether a word that stands alone reads as a phrase although it has the form of a repository: `and/or`, `TCP/IP`. A
/// repository's name tells more: it has a digit, a dash, a dot or a file.
fn is_phrase(word: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part.chars().all(char::is_alphabetic);
    !Path::new(word).exists()
        && word.split_once('/').is_some_and(|(org, repo)| is_plain(org) && is_plain(repo))
}

/// Whether a folder holds a model: a word may be the name of some other folder by chance.
fn has_model(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.any(|name| name == "config.json" || name.ends_with(".gguf") || name.ends_with(".safetensors"))
}

fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(words: &[&str], is_chosen: bool) -> Result<Words, String> {
        let mut words = words.iter().map(|word| (*word).to_owned());
        sort(words.next(), words.next(), is_chosen, &Config::default()).map_err(|failure| match failure {
            Failure::Message(message) | Failure::Usage(message) => message,
            _ => String::new(),
        })
    }

    #[test]
    fn the_first_word_is_a_model_when_it_looks_like_one() {
        let words = |model: Option<&str>, prompt: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            Ok(Words { model: own(model), preset: None, prompt: own(prompt) })
        };
        assert_eq!(sorted(&["why is the sky blue?"], false), words(None, Some("why is the sky blue?")));
        assert_eq!(sorted(&["hello"], false), words(None, Some("hello")));
        assert_eq!(sorted(&["qwen3:8b", "hi"], false), words(Some("qwen3:8b"), Some("hi")));
        assert_eq!(sorted(&["nowhere.gguf"], false), words(Some("nowhere.gguf"), None));
        assert_eq!(sorted(&["org/repo:q4", "hi"], false), words(Some("org/repo:q4"), Some("hi")));
        assert_eq!(sorted(&["src"], false), words(None, Some("src")), "a folder without a model");
        for phrase in ["TCP/IP", "and/or", "his/her"] {
            assert_eq!(sorted(&[phrase], false), words(None, Some(phrase)), "a phrase");
            assert_eq!(
                sorted(&[phrase, "hi"], false),
                words(Some(phrase), Some("hi")),
                "a model before a prompt"
            );
        }
        assert_eq!(sorted(&["Qwen/Qwen3-8B"], false), words(Some("Qwen/Qwen3-8B"), None));
        assert_eq!(sorted(&["qwen3:8b"], true), words(None, Some("qwen3:8b")), "-m named the model");
        assert_eq!(sorted(&[], false), words(None, None));
        let error = sorted(&["why", "is"], false).unwrap_err();
        assert!(
            error.contains("`why` is neither a file nor a model name") && error.contains("quotes"),
            "{error}"
        );
        let error = sorted(&["Cargo.toml"], false).unwrap_err();
        assert!(error.contains("-f Cargo.toml"), "{error}");
    }
}
