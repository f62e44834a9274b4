//! Markers in a text that comes in pieces.

/// What a text has of markers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The first of them: where, and which.
    Marker(usize, &'static str),
    /// None; from here on the text may be the beginning of one.
    Nothing(usize),
}

/// Looks for the first marker at or after `from`. No marker may contain another: then the first to begin is the first to end,
/// and cutting the text changes nothing.
pub(super) fn find(text: &str, from: usize, markers: &[&'static str]) -> Found {
    let from = text.floor_char_boundary(from);
    let found = markers.iter().filter_map(|marker| Some((from + text[from..].find(marker)?, *marker)));
    match found.min_by_key(|(at, _)| *at) {
        Some((at, marker)) => Found::Marker(at, marker),
        None => Found::Nothing(beginning(text, markers)),
    }
}

/// Where the longest end of `text` starts that begins a marker.
fn beginning(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let starts = text.char_indices().rev().map(|(at, _)| at).take_while(|at| text.len() - at < longest);
    let begins = |at: &usize| markers.iter().any(|marker| marker.starts_with(&text[*at..]));
    starts.filter(begins).last().unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::{Found, find};

    #[test]
    fn markers_are_found_and_their_beginnings_held() {
        const MARKERS: [&str; 2] = ["<think>", "<｜a｜>"];
        assert_eq!(find("é<think><｜a｜>", 0, &MARKERS), Found::Marker(2, "<think>"));
        assert_eq!(find("é<think><｜a｜>", 3, &MARKERS), Found::Marker(9, "<｜a｜>"));
        assert_eq!(find("a < b <thi", 0, &MARKERS), Found::Nothing(6));
        assert_eq!(find("<<｜a", 0, &MARKERS), Found::Nothing(1));
        assert_eq!(find("plain", 0, &MARKERS), Found::Nothing(5));
        assert_eq!(find("plain", 0, &[]), Found::Nothing(5));
    }
}
