//! Pictures of figures: `docs/results/charts.json` says which rows a chart shows, and `docs/charts/NAME.svg` is drawn from them.
//!
//! ```text
//! title, note, legend        words above and below; whether names stand at the top instead of beside their lines
//! x, y                       `title`, `ticks` (numbers), `scale`: linear, log, or steps (ticks stand side by side)
//! series                     `name`, `file`, `where`, the keys `x` and `y`, `color` (a number), `line`, `label` (a key);
//!                            or `points` for `x` and `y`: a key with a list of pairs
//! ```
//!
//! One file serves light and dark pages: its colours follow the reader's.

use super::results::{FOLDER, Results};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::fs;

/// Where charts are declared, and where they are drawn.
pub const NAME: &str = "charts";
pub const DRAWN: &str = "docs/charts";

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// The part of it between the axes: left, right, top, bottom.
const FRAME: [f64; 4] = [64.0, 560.0, 44.0, 330.0];

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#334155}.h{font-size:15px;font-weight:600}.q{fill:#64748b}\
.g{stroke:#e2e8f0}.a{stroke:#94a3b8}.c0{--c:#0f766e}.c1{--c:#2563eb}.c2{--c:#d97706}.c3{--c:#dc2626}.c4{--c:#7c3aed}\
.l{fill:none;stroke:var(--c);stroke-width:2.5}.p{fill:var(--c)}.n{fill:var(--c);font-weight:600}\
@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.q{fill:#94a3b8}.g{stroke:#334155}.a{stroke:#64748b}\
.c0{--c:#2dd4bf}.c1{--c:#60a5fa}.c2{--c:#fbbf24}.c3{--c:#f87171}.c4{--c:#a78bfa}}";

fn declared() -> Result<Map<String, Value>, String> {
    let path = format!("{FOLDER}/{NAME}.json");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let charts: Value = serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?;
    charts.as_object().cloned().ok_or_else(|| format!("{path}: it is not an object of charts"))
}

/// What a chart is called on a page that shows it.
pub fn title(name: &str) -> Result<String, String> {
    let charts = declared()?;
    let title = charts.get(name).and_then(|chart| chart["title"].as_str());
    title.map(str::to_owned).ok_or_else(|| format!("{FOLDER}/{NAME}.json has no chart `{name}` with a title"))
}

/// Every chart, by the path of its file.
pub fn all() -> Result<Vec<(String, String)>, String> {
    let path = format!("{FOLDER}/{NAME}.json");
    let charts = declared()?;
    let draw = |(name, chart): (&String, &Value)| {
        let rows = |file: &str, series: &Value| Results::read(file)?.rows(series);
        let drawn = drawn(chart, &rows).map_err(|e| format!("{path}, chart {name}: {e}"))?;
        Ok((format!("{DRAWN}/{name}.svg"), drawn))
    };
    charts.iter().map(draw).collect()
}

/// An axis: where numbers lie on it.
struct Axis<'j> {
    ticks: Vec<f64>,
    scale: &'j str,
    from: f64,
    to: f64,
}

impl<'j> Axis<'j> {
    fn new(of: &'j Value, from: f64, to: f64) -> Result<Self, String> {
        let ticks: Vec<f64> =
            of["ticks"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if ticks.len() < 2 {
            return Err("an axis needs two `ticks` or more".to_owned());
        }
        Ok(Self { ticks, scale: of["scale"].as_str().unwrap_or("linear"), from, to })
    }

    /// The place of a number, which has to lie between the first and the last tick.
    fn place(&self, number: f64) -> Result<f64, String> {
        let (first, last) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let share = match self.scale {
            "steps" => {
                let step = self.ticks.iter().position(|tick| *tick == number);
                step.map(|step| step as f64 / (self.ticks.len() - 1) as f64)
            }
            "log" => Some((number / first).ln() / (last / first).ln()),
            _ => Some((number - first) / (last - first)),
        };
        let share = share.filter(|share| (-1e-9..=1.0 + 1e-9).contains(share));
        let share = share.ok_or_else(|| format!("{number} lies outside the ticks of its axis"))?;
        Ok(self.from + share * (self.to - self.from))
    }
}

/// A number of a row, or the one that its text begins with.
fn number(row: &Value, key: &str) -> Result<f64, String> {
    let value = &row[key];
    let of_text = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let found = value.as_f64().or_else(|| value.as_str().and_then(of_text));
    found.ok_or_else(|| format!("a row has no number `{key}`"))
}

/// The points of a row that keeps a list of pairs.
fn pairs(list: &Value) -> Result<Vec<(f64, f64)>, String> {
    let pair = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_f64()?));
    let found: Option<Vec<_>> = list.as_array().and_then(|list| list.iter().map(pair).collect());
    found.ok_or_else(|| "`points` names no list of pairs of numbers".to_owned())
}

/// A tick in few letters: 4096 is 4k.
fn short(tick: f64) -> String {
    let thousands = tick / 1024.0;
    if thousands >= 1.0 && thousands.fract() == 0.0 { format!("{thousands}k") } else { format!("{tick}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Reads the rows of a file that a series shows.
type ReadRows<'a> = dyn Fn(&str, &Value) -> Result<Vec<Value>, String> + 'a;

/// The picture.
fn drawn(chart: &Value, rows: &ReadRows<'_>) -> Result<String, String> {
    let text = |value: &Value| escaped(value.as_str().unwrap_or_default());
    let [left, right, top, bottom] = FRAME;
    let (x, y) = (Axis::new(&chart["x"], left, right)?, Axis::new(&chart["y"], bottom, top)?);
    let title = text(&chart["title"]);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"t\">\n\
         <title id=\"t\">{title}</title>\n<style>{STYLE}</style>\n<text class=\"h\" x=\"16\" y=\"24\">{title}</text>\n"
    );
    // Writing to a string cannot fail.
    let mut put = |line: String| writeln!(out, "{line}").map_err(|e| e.to_string());
    for tick in &y.ticks {
        let at = y.place(*tick)?;
        put(format!("<path class=\"g\" d=\"M{left} {at:.1}H{right}\"/>"))?;
        put(format!(
            "<text class=\"q\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            left - 8.0,
            at + 4.0
        ))?;
    }
    put(format!("<path class=\"a\" d=\"M{left} {bottom}H{right}\"/>"))?;
    for tick in &x.ticks {
        let at = x.place(*tick)?;
        put(format!(
            "<text class=\"q\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            short(*tick)
        ))?;
    }
    let (across, up) = (text(&chart["x"]["title"]), text(&chart["y"]["title"]));
    put(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{across}</text>",
        (left + right) / 2.0,
        bottom + 38.0
    ))?;
    let middle = (top + bottom) / 2.0;
    put(format!(
        "<text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">{up}</text>"
    ))?;
    put(format!("<text class=\"q\" x=\"16\" y=\"{}\">{}</text>", HEIGHT - 8.0, text(&chart["note"])))?;
    let mut names: Vec<(f64, f64, String)> = Vec::new();
    for series in chart["series"].as_array().into_iter().flatten() {
        let key = |name: &str| series[name].as_str().ok_or_else(|| format!("a series has no `{name}`"));
        let class = format!("c{}", series["color"].as_u64().unwrap_or(0));
        let mut points = Vec::new();
        for row in rows(key("file")?, series)? {
            let label = series["label"].as_str().map(|key| escaped(row[key].as_str().unwrap_or_default()));
            let pairs = match series["points"].as_str() {
                Some(list) => pairs(&row[list])?,
                None => vec![(number(&row, key("x")?)?, number(&row, key("y")?)?)],
            };
            for (across, up) in pairs {
                points.push(((x.place(across)?, y.place(up)?), label.clone()));
            }
        }
        points.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        let Some((last, _)) = points.last() else { return Err(format!("no row fits {}", key("name")?)) };
        if series["line"] == true {
            let path: Vec<String> = points.iter().map(|((x, y), _)| format!("{x:.1} {y:.1}")).collect();
            put(format!("<path class=\"l {class}\" d=\"M{}\"/>", path.join("L")))?;
        }
        for ((x, y), label) in &points {
            put(format!("<circle class=\"p {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"))?;
            if let Some(label) = label {
                put(format!(
                    "<text class=\"{class} n\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                    x + 8.0,
                    y + 4.0
                ))?;
            }
        }
        let name = format!("<text class=\"{class} n\" x=\"XX\" y=\"YY\">{}</text>", escaped(key("name")?));
        match chart["legend"] != true {
            true => names.push((last.0 + 12.0, last.1, name)),
            false => names.push((right + 12.0, top, name)),
        }
    }
    // Names stand beside the ends of their lines, or at the top in a `legend`; never on each other.
    names.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut least = top;
    for (across, wanted, name) in names {
        let at = wanted.max(least);
        put(name.replace("XX", &format!("{across:.1}")).replace("YY", &format!("{:.1}", at + 4.0)))?;
        least = at + 16.0;
    }
    Ok(out + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chart(scale: &str) -> Value {
        json!({"title": "a < b", "x": {"ticks": [0, 4096], "scale": "steps"}, "y": {"ticks": [1, 100], "scale": scale},
            "series": [{"name": "ours", "file": "f", "x": "n", "y": "t", "line": true}]})
    }

    #[test]
    fn rows_become_points_of_a_line() {
        let rows = |_: &str, _: &Value| Ok(vec![json!({"n": 4096, "t": "100 *"}), json!({"n": 0, "t": 10})]);
        let svg = drawn(&chart("log"), &rows).unwrap();
        assert!(svg.contains("M64.0 187.0L560.0 44.0"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">4k<") && svg.contains(">ours<"), "{svg}");
    }

    #[test]
    fn a_row_may_keep_all_points_of_its_line() {
        let mut chart = chart("log");
        chart["series"][0]["points"] = "kl".into();
        let rows = |_: &str, _: &Value| Ok(vec![json!({"kl": [[4096, 100], [0, 10]]})]);
        assert!(drawn(&chart, &rows).unwrap().contains("M64.0 187.0L560.0 44.0"));
        let none = drawn(&chart, &|_: &str, _: &Value| Ok(vec![json!({"kl": [1]})])).unwrap_err();
        assert!(none.contains("pairs"), "{none}");
    }

    #[test]
    fn what_is_missing_or_lies_outside_is_named() {
        let of = |row: Value| {
            drawn(&chart("linear"), &move |_: &str, _: &Value| Ok(vec![row.clone()])).unwrap_err()
        };
        assert!(of(json!({"n": 0})).contains("no number `t`"));
        assert!(of(json!({"n": 7, "t": 1})).contains("outside"));
        assert!(of(json!({"n": 0, "t": 101})).contains("outside"));
        let none = drawn(&chart("log"), &|_: &str, _: &Value| Ok(vec![])).unwrap_err();
        assert!(none.contains("no row fits ours"), "{none}");
    }
}
