//! Divergence against size: a point for every cache, and the line of those that no other beats.

use super::axis::{Axis, decades};
use super::escaped;
use super::frame::Frame;
use crate::divergence::DivergenceRow;
use std::fmt::Write;

const FRAME: Frame = Frame { width: 760.0, height: 440.0, left: 80.0, right: 24.0, top: 16.0, bottom: 48.0 };
/// A letter of a label, about, and the height of a line.
const LETTER: f64 = 6.7;
const LINE: f64 = 14.0;

struct Point<'r> {
    name: &'r str,
    bits: f64,
    kl: f64,
    /// No other is as small and diverges as little.
    best: bool,
}

/// The picture; none where no cache has both figures.
pub fn svg(rows: &[DivergenceRow]) -> Option<String> {
    let points = points(rows);
    let (low, high) = decades(points.iter().map(|point| point.kl))?;
    let most = points.iter().map(|point| point.bits).fold(0.0, f64::max);
    let x = Axis::linear((0.0, (most + 1.0).ceil()), FRAME.across());
    let y = Axis::logarithmic((low, high), FRAME.upward());
    let mut out = FRAME.open("KL divergence against bits per value");
    FRAME.write_grid(&mut out, &y, short);
    for tick in x.ticks() {
        FRAME.write_below(&mut out, x.place(tick), tick);
    }
    FRAME.write_titles(&mut out, "bits per value", "mean KL, nats");
    let front: Vec<String> = points
        .iter()
        .filter(|point| point.best)
        .map(|point| format!("{:.1},{:.1}", x.place(point.bits), y.place(point.kl)))
        .collect();
    let _ = writeln!(out, "<polyline class=\"front\" points=\"{}\"/>", front.join(" "));
    for point in &points {
        let class = if point.best { "dot best" } else { "dot" };
        let (cx, cy) = (x.place(point.bits), y.place(point.kl));
        let name = escaped(point.name);
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"5\"><title>{name}: {:.2} bits, KL {:.2e}</title></circle>",
            point.bits, point.kl
        );
    }
    write_labels(&mut out, &points, &x, &y);
    out.push_str("</svg>\n");
    Some(out)
}

/// Caches with both figures, by size; the first of a name counts.
fn points(rows: &[DivergenceRow]) -> Vec<Point<'_>> {
    let mut points: Vec<Point<'_>> = rows
        .iter()
        .filter(|row| row.kl_mean > 0.0)
        .filter_map(|row| {
            Some(Point { name: &row.spec, bits: row.bits_per_value?, kl: row.kl_mean, best: false })
        })
        .collect();
    points.sort_by(|a, b| a.bits.total_cmp(&b.bits).then(a.kl.total_cmp(&b.kl)));
    let mut least = f64::INFINITY;
    for point in &mut points {
        point.best = point.kl < least;
        least = least.min(point.kl);
    }
    points
}

/// 0.001 as people read it.
fn short(number: f64) -> String {
    if number >= 1e-4 { format!("{number}") } else { format!("{number:e}") }
}

/// A rectangle: left, top, right, bottom.
#[derive(Clone, Copy)]
struct Area([f64; 4]);

impl Area {
    fn meets(&self, other: &Area) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        a < g && e < c && b < h && f < d
    }

    fn is_inside(&self) -> bool {
        let [left, top, right, bottom] = self.0;
        left >= FRAME.left && right <= FRAME.width - 2.0 && top >= 2.0 && bottom <= FRAME.upward().0
    }
}

/// Names beside their points, where there is room: the best first, each at the nearest free place.
fn write_labels(out: &mut String, points: &[Point<'_>], x: &Axis, y: &Axis) {
    let at = |point: &Point<'_>| (x.place(point.bits), y.place(point.kl));
    let mut taken: Vec<Area> = points
        .iter()
        .map(|point| {
            let (cx, cy) = at(point);
            Area([cx - 5.0, cy - 5.0, cx + 5.0, cy + 5.0])
        })
        .collect();
    let order = points.iter().filter(|point| point.best).chain(points.iter().filter(|point| !point.best));
    for point in order {
        let (cx, cy) = at(point);
        let width = point.name.chars().count() as f64 * LETTER;
        let places = [0.0, 12.0, 24.0, 38.0, 54.0].into_iter().flat_map(|far| {
            [(8.0, 4.0 - far), (8.0, 4.0 + far), (-8.0 - width, 4.0 - far), (-8.0 - width, 4.0 + far)]
        });
        let area = |(dx, dy): (f64, f64)| {
            let (left, base) = (cx + dx, cy + dy);
            Area([left, base - LINE + 3.0, left + width, base + 3.0])
        };
        let free = |area: &Area| area.is_inside() && !taken.iter().any(|other| area.meets(other));
        // Where all is full the point keeps its tooltip, and the table has its name.
        let Some(area) = places.map(area).find(free) else { continue };
        let [left, _, right, bottom] = area.0;
        let base = bottom - 3.0;
        if (base - cy - 4.0).abs() > 6.0 {
            let near = if left > cx { left - 1.0 } else { right + 1.0 };
            let _ = writeln!(
                out,
                "<line class=\"leader\" x1=\"{cx:.1}\" y1=\"{cy:.1}\" x2=\"{near:.1}\" y2=\"{:.1}\"/>",
                base - 4.0
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"{left:.1}\" y=\"{base:.1}\">{}</text>",
            escaped(point.name)
        );
        taken.push(area);
    }
}
