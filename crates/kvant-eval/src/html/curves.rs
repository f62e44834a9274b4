//! Speed against context: a curve for every cache.

use super::axis::Axis;
use super::frame::Frame;
use super::{SpeedPoint, escaped};
use std::fmt::Write;

const FRAME: Frame = Frame { width: 760.0, height: 360.0, left: 64.0, right: 150.0, top: 16.0, bottom: 48.0 };
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
    let x = Axis::logarithmic(((first.max(1)) as f64, last as f64), FRAME.across());
    let y = Axis::linear((0.0, slowest * 1.05), FRAME.upward());
    let mut out = FRAME.open("milliseconds per token against context");
    FRAME.write_grid(&mut out, &y, |tick| tick.to_string());
    for &depth in &depths {
        FRAME.write_below(&mut out, x.place(depth.max(1) as f64), depth);
    }
    FRAME.write_titles(&mut out, "tokens of context", "ms per token");
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

/// Names at the ends of their curves, pushed apart where these lie close.
fn write_names(out: &mut String, mut ends: Vec<(f64, usize)>, names: &[&str]) {
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
            escaped(names[number])
        );
    }
}
