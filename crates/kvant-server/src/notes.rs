//! What is said about a request besides its answer: fields that were ignored, lines that were left out of its prompt.

use axum::http::HeaderValue;
use std::sync::{Arc, Mutex, PoisonError};

/// The most names in a header, and the longest of them.
const MOST_NAMES: usize = 32;
const LONGEST_NAME: usize = 64;

/// Notes about one request. Clones write on the same paper.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    is_strict: bool,
    paper: Arc<Mutex<Paper>>,
}

#[derive(Debug, Default)]
struct Paper {
    ignored: Vec<String>,
    stripped: Vec<&'static str>,
}

impl Notes {
    /// Where unknown fields are refused.
    pub fn strict() -> Self {
        Self { is_strict: true, ..Self::default() }
    }

    /// Whether unknown fields are refused.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// A field was not understood, and ignored.
    pub fn ignored(&self, name: String) {
        let mut paper = self.paper.lock().unwrap_or_else(PoisonError::into_inner);
        if paper.ignored.len() < MOST_NAMES && !paper.ignored.contains(&name) {
            paper.ignored.push(name);
        }
    }

    /// A line that changes with every request was left out of the prompt.
    pub fn stripped(&self, what: &'static str) {
        let mut paper = self.paper.lock().unwrap_or_else(PoisonError::into_inner);
        if !paper.stripped.contains(&what) {
            paper.stripped.push(what);
        }
    }

    /// The ignored fields, as a header names them; none where there were none.
    pub fn header(&self) -> Option<HeaderValue> {
        let paper = self.paper.lock().unwrap_or_else(PoisonError::into_inner);
        list(paper.ignored.iter().map(String::as_str))
    }

    /// What was left out of the prompt, as a header names it.
    pub fn stripped_header(&self) -> Option<HeaderValue> {
        let paper = self.paper.lock().unwrap_or_else(PoisonError::into_inner);
        list(paper.stripped.iter().copied())
    }
}

/// Names with commas between them. What a header cannot hold becomes a question mark.
fn list<'n>(names: impl Iterator<Item = &'n str>) -> Option<HeaderValue> {
    let safe = |c: char| if (c.is_ascii_graphic() || c == ' ') && c != ',' { c } else { '?' };
    let names: Vec<String> = names.map(|name| name.chars().take(LONGEST_NAME).map(safe).collect()).collect();
    if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
}

#[cfg(test)]
mod tests {
    use super::Notes;

    #[test]
    fn names_are_fit_for_a_header_whatever_they_are() {
        let notes = Notes::default();
        assert_eq!(notes.header(), None);
        notes.clone().ignored("a\r\nSet-Cookie: b".into());
        notes.ignored("é".into());
        notes.ignored("é".into());
        notes.ignored("x".repeat(100));
        assert_eq!(notes.header().unwrap(), format!("a??Set-Cookie: b, ?, {}", "x".repeat(64)).as_str());
        notes.stripped("billing-header");
        assert_eq!(notes.stripped_header().unwrap(), "billing-header");
    }
}
