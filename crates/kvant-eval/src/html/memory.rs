//! What a model needs by context and cache, against the memory there is.

use super::curves::{Curve, Meaning};
use super::{END, beginning, curves, escaped, file_name, section, write_facts};
use kvant_engine::memory::bytes;
use std::fmt::Write;

const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;

/// What a context takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPoint {
    /// Tokens of context.
    pub tokens: usize,
    /// The weights.
    pub weights: u64,
    /// Keys and values.
    pub cache: u64,
    /// Everything at once, at its peak.
    pub peak: u64,
}

/// What a cache needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeed {
    /// The cache.
    pub spec: String,
    /// By context.
    pub points: Vec<MemoryPoint>,
    /// The longest context that fits.
    pub longest: Option<usize>,
}

/// A page about one model's memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryPage<'p> {
    /// The model's file.
    pub model: &'p str,
    /// What is known of it, by name.
    pub facts: &'p [(&'p str, String)],
    /// Bytes there are.
    pub memory: u64,
    /// One for each cache.
    pub needs: &'p [MemoryNeed],
}

impl MemoryPage<'_> {
    /// The whole file.
    pub fn to_html(&self) -> String {
        let title = file_name(self.model);
        let mut out = beginning(&title, &format!("What memory {title} takes"));
        write_facts(&mut out, self.facts);
        section(
            &mut out,
            "Memory against context",
            "Weights, keys and values, and what a pass works with, at their peak. What stays below the dashed line fits.",
            self.picture(),
        );
        section(&mut out, "All figures", "", self.table());
        out.push_str(END);
        out
    }

    fn picture(&self) -> Option<String> {
        let most = self.needs.iter().flat_map(|need| &need.points).map(|point| point.peak).max()?;
        let (unit, name) = if most as f64 >= 2.0 * GIB { (GIB, "GiB") } else { (MIB, "MiB") };
        let height = |point: &MemoryPoint| (point.tokens, point.peak as f64 / unit);
        let curves: Vec<Curve<'_>> = self
            .needs
            .iter()
            .map(|need| Curve { name: &need.spec, points: need.points.iter().map(height).collect() })
            .collect();
        let there_is = format!("{} there are", bytes(self.memory));
        // A line far above all curves would press them flat, and says no more than that everything fits.
        let mark = (self.memory as f64 <= 2.0 * most as f64)
            .then_some((self.memory as f64 / unit, there_is.as_str()));
        curves::svg(&curves, &Meaning { label: "memory against context", unit: name, mark })
    }

    fn table(&self) -> Option<String> {
        let first = self.needs.first()?;
        let mut out = String::from("<table>\n<thead><tr><th>cache</th><th>longest</th>");
        for point in &first.points {
            let _ = write!(out, "<th>{} tokens</th>", point.tokens);
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for MemoryNeed { spec, points, longest } in self.needs {
            let longest = longest.map_or("none".to_owned(), |tokens| tokens.to_string());
            let _ = write!(out, "<tr><td>{}</td><td>{longest}</td>", escaped(spec));
            for MemoryPoint { weights, cache, peak, .. } in points {
                let rest = peak.saturating_sub(weights + cache);
                let [weights, cache, rest, whole] = [*weights, *cache, rest, *peak].map(bytes);
                let class = if *peak <= self.memory { "" } else { " class=\"soft\"" };
                let _ = write!(
                    out,
                    "<td{class} title=\"weights {weights}, keys and values {cache}, rest {rest}\">{whole}</td>"
                );
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table>\n<p class=\"soft\">What does not fit is grey.</p>\n");
        Some(out)
    }
}
