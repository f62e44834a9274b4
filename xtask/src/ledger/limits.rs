//! What a reader is spared: long pages, long paragraphs, and pictures from nowhere.

use super::chart;

/// Lines of a page of results.
const LINES: usize = 80;
/// Words of the README, tables included.
const WORDS: usize = 600;
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

/// Fails for a README that takes more than a minute or two. Code, addresses of links and marks for the ledger are not read.
pub fn first_page(text: &str) -> Result<(), String> {
    let (mut count, mut in_code) = (0, false);
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if in_code || line.starts_with("<!--") {
            continue;
        }
        let shown = line.split("](").enumerate().map(|(part, text)| match part {
            0 => text,
            _ => text.split_once(')').map_or("", |(_, rest)| rest),
        });
        let words = shown.flat_map(str::split_whitespace).filter(|word| word.contains(char::is_alphanumeric));
        count += words.count();
    }
    match count > WORDS {
        true => Err(format!("README.md has {count} words, {WORDS} at most")),
        false => Ok(()),
    }
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
    fn a_long_readme_is_refused() {
        let text = |words: usize| {
            format!("# [a](b c d) - |\n```\nx y z\n```\n<!-- x y -->\n{}", "word ".repeat(words))
        };
        assert_eq!(first_page(&text(WORDS - 1)), Ok(()));
        assert!(first_page(&text(WORDS)).unwrap_err().contains("601 words"));
    }

    #[test]
    fn a_picture_comes_from_a_chart() {
        let drawn = ["docs/charts/decode.svg"];
        assert_eq!(pictures("p", "![a](../charts/decode.svg) ![b](docs/charts/decode.svg)", &drawn), Ok(()));
        assert!(pictures("p", "![a](other.png)", &drawn).unwrap_err().contains("`other.png`"));
    }
}
