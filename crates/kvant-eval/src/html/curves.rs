//! Something against context: a curve for every cache.

use super::axis::Axis;
use super::escaped;
use super::frame::Frame;
use std::fmt::Write;

const FRAME: Frame = Frame { width: 760.0, height: 360.0, left: 64.0, right: 150.0, top: 16.0, bottom: 48.0 };
/// Colours there are; further curves use them again, dashed.
const COLOURS: usize = 8;
/// The least distance of two names.
const LINE: f64 = 14.0;

/// One cache.
pub struct Curve<'c> {
    pub name: &'c str,
    /// Tokens of context, and what it comes to.
    pub points: Vec<(usize, f64)>,
}

/// What curves show.
pub struct Meaning<'m> {
    /// For those who cannot see it.
    pub label: &'m str,
    /// What is counted upward.
    pub unit: &'m str,
    /// A height that matters, and what it is.
    pub mark: Option<(f64, &'m str)>,
}

/// The picture; none with less than two contexts.
pub fn svg(curves: &[Curve<'_>], meaning: &Meaning<'_>) -> Option<String> {
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let mut depths: Vec<usize> = all().map(|(depth, _)| depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let (first, last) = (*depths.first()?, *depths.last()?);
    if first == last {
        return None;
    }
    let marked = meaning.mark.map(|(height, _)| height);
    let highest = all().map(|(_, height)| height).chain(marked).fold(0.0, f64::max);
    // A place for an empty context, which has no logarithm.
    let x = Axis::logarithmic(((first.max(1)) as f64, last as f64), FRAME.across());
    let y = Axis::linear((0.0, highest * 1.05), FRAME.upward());
    let mut out = FRAME.open(meaning.label);
    FRAME.write_grid(&mut out, &y, |tick| tick.to_string());
    for &depth in &depths {
        FRAME.write_below(&mut out, x.place(depth.max(1) as f64), depth);
    }
    FRAME.write_titles(&mut out, "tokens of context", meaning.unit);
    let mut ends: Vec<(f64, usize)> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        let mut points = curve.points.clone();
        points.sort_by_key(|(depth, _)| *depth);
        let places = points
            .iter()
            .map(|&(depth, height)| format!("{:.1},{:.1}", x.place(depth.max(1) as f64), y.place(height)));
        let dash = if number >= COLOURS { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = writeln!(
            out,
            "<polyline class=\"curve\" style=\"stroke:var(--s{})\"{dash} points=\"{}\"><title>{}</title></polyline>",
            number % COLOURS,
            places.collect::<Vec<_>>().join(" "),
            escaped(curve.name)
        );
        if let Some((_, height)) = points.last() {
            ends.push((y.place(*height), number));
        }
    }
    if let Some((height, words)) = meaning.mark {
        write_mark(&mut out, y.place(height), words);
    }
    write_names(&mut out, ends, curves);
    out.push_str("</svg>\n");
    Some(out)
}

/// A line across, with what it is above its beginning.
fn write_mark(out: &mut String, at: f64, words: &str) {
    let (left, right) = FRAME.across();
    let _ = writeln!(
        out,
        "<line class=\"mark\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
         <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left + 4.0,
        at - 4.0,
        escaped(words)
    );
}

/// Names at the ends of their curves, pushed apart where these lie close.
fn write_names(out: &mut String, mut ends: Vec<(f64, usize)>, curves: &[Curve<'_>]) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut places: Vec<f64> = ends.iter().map(|end| end.0).collect();
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + LINE);
    }
    // Back up from the bottom, where pushing down went too far.
    let mut limit = FRAME.height - 4.0;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE;
    }
    for ((end, number), place) in ends.into_iter().zip(places) {
        let (_, from) = FRAME.across();
        let _ = writeln!(
            out,
            "<line class=\"leader\" x1=\"{:.1}\" y1=\"{end:.1}\" x2=\"{:.1}\" y2=\"{place:.1}\" style=\"stroke:var(--s{})\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            from + 2.0,
            from + 14.0,
            number % COLOURS,
            from + 18.0,
            place + 4.0,
            escaped(curves[number].name)
        );
    }
}
