//! What a reader is spared: long pages, long paragraphs, and pictures from nowhere.

use super::chart;

/// Lines of a page of results.
const LINES: usize = 80;
/// Characters of a paragraph or a point of a list.
const PARAGRAPH: usize = 420;

/// Fails for a page that nobody reads to its end.
pub fn check(page: &str) -> Result<(), String> {
    let lines = page.lines().count();
    if lines > LINES {
        return Err(format!("its page has {lines} lines, {LINES} at most: show fewer rows, or split it"));
    }
    let mut in_code = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let length = line.chars().count();
        if !in_code && !line.starts_with('|') && length > PARAGRAPH {
            let start: String = line.chars().take(50).collect();
            return Err(format!("a paragraph of {length} characters, {PARAGRAPH} at most: `{start}…`"));
        }
    }
    Ok(())
}

/// Fails for a picture on a page that no chart draws. `drawn` are the paths of all charts.
pub fn pictures(page: &str, text: &str, drawn: &[&str]) -> Result<(), String> {
    for (at, _) in text.match_indices("![") {
        let target =
            text[at..].split_once("](").and_then(|(_, rest)| rest.split_once(')')).map_or("", |(to, _)| to);
        let name = target.rsplit('/').next().unwrap_or_default();
        if !drawn.contains(&format!("{}/{name}", chart::DRAWN).as_str()) {
            return Err(format!("{page}: the picture `{target}` is drawn from no figures"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pages_and_paragraphs_are_refused() {
        let long = "x".repeat(PARAGRAPH + 1);
        assert_eq!(check(&format!("short\n| {long} |\n```sh\n{long}\n```\n")), Ok(()));
        assert!(check(&format!("- {long}")).unwrap_err().contains("a paragraph of"));
        assert!(check(&"x\n".repeat(LINES + 1)).unwrap_err().contains("81 lines"));
        assert_eq!(check(&"x\n".repeat(LINES)), Ok(()));
    }

    #[test]
    fn a_picture_comes_from_a_chart() {
        let drawn = ["docs/charts/decode.svg"];
        assert_eq!(pictures("p", "![a](../charts/decode.svg) ![b](docs/charts/decode.svg)", &drawn), Ok(()));
        assert!(pictures("p", "![a](other.png)", &drawn).unwrap_err().contains("`other.png`"));
    }
}
