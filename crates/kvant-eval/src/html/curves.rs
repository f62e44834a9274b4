//! Speed against context: a curve for every cache.

use super::axis::Axis;
use super::{SpeedPoint, escaped};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;
/// Colours there are; further curves use them again, dashed.
const COLOURS: usize = 8;
/// The least distance of two names.
const LINE: f64 = 14.0;

/// The picture; none with less than two depths.
pub fn svg(points: &[SpeedPoint]) -> Option<String> {
    let mut depths: Vec<usize> = points.iter().map(|point| point.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let (first, last) = (*depths.first()?, *depths.last()?);
    if first == last {
        return None;
    }
    let slowest = points.iter().map(|point| point.ms).fold(0.0, f64::max);
    // A place for an empty context, which has no logarithm.
    let x = Axis::logarithmic(((first.max(1)) as f64, last as f64), (LEFT, WIDTH - RIGHT));
    let y = Axis::linear((0.0, slowest * 1.05), (HEIGHT - BOTTOM, TOP));
    let mut out = format!(
        "<svg class=\"wide\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"milliseconds per token against context\">\n"
    );
    write_axes(&mut out, &depths, &x, &y);
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        if !names.contains(&point.spec.as_str()) {
            names.push(&point.spec);
        }
    }
    let mut ends: Vec<(f64, usize)> = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mut curve: Vec<&SpeedPoint> = points.iter().filter(|point| point.spec == *name).collect();
        curve.sort_by_key(|point| point.depth);
        let places =
            curve.iter().map(|p| format!("{:.1},{:.1}", x.place(p.depth.max(1) as f64), y.place(p.ms)));
        let dash = if number >= COLOURS { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = writeln!(
            out,
            "<polyline class=\"curve\" style=\"stroke:var(--s{})\"{dash} points=\"{}\"><title>{}</title></polyline>",
            number % COLOURS,
            places.collect::<Vec<_>>().join(" "),
            escaped(name)
        );
        if let Some(end) = curve.last() {
            ends.push((y.place(end.ms), number));
        }
    }
    write_names(&mut out, ends, &names);
    out.push_str("</svg>\n");
    Some(out)
}

fn write_axes(out: &mut String, depths: &[usize], x: &Axis, y: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for &depth in depths {
        let _ = writeln!(
            out,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{depth}</text>",
            x.place(depth.max(1) as f64),
            bottom + 18.0
        );
    }
    let _ = writeln!(
        out,
        "<line class=\"base\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tokens of context</text>\
         <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">ms per token</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        (TOP + bottom) / 2.0
    );
}

/// Names at the ends of their curves, pushed apart where these lie close.
fn write_names(out: &mut String, mut ends: Vec<(f64, usize)>, names: &[&str]) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut places: Vec<f64> = ends.iter().map(|end| end.0).collect();
    for at in 1..places.len() {
        places[at] = places[at].max(places[at - 1] + LINE);
    }
    // Back up from the bottom, where pushing down went too far.
    let mut limit = HEIGHT - 4.0;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE;
    }
    for ((end, number), place) in ends.into_iter().zip(places) {
        let from = WIDTH - RIGHT;
        let _ = writeln!(
            out,
            "<line class=\"leader\" x1=\"{:.1}\" y1=\"{end:.1}\" x2=\"{:.1}\" y2=\"{place:.1}\" style=\"stroke:var(--s{})\"/>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            from + 2.0,
            from + 14.0,
            number % COLOURS,
            from + 18.0,
            place + 4.0,
            escaped(names[number])
        );
    }
}
