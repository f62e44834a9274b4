//! What pictures with two axes have in common: a picture's size, the lines of its grid, and what is written beside them.

use super::axis::Axis;
use std::fmt::Write;

/// A picture and the margins around what is drawn.
pub struct Frame {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

impl Frame {
    /// From the left edge of what is drawn to its right one.
    pub fn across(&self) -> (f64, f64) {
        (self.left, self.width - self.right)
    }

    /// From its lower edge to its upper one.
    pub fn upward(&self) -> (f64, f64) {
        (self.height - self.bottom, self.top)
    }

    /// The beginning of a picture of this size.
    pub fn open(&self, label: &str) -> String {
        format!(
            "<svg class=\"wide\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{label}\">\n",
            self.width, self.height
        )
    }

    /// Lines across at the ticks of `y`, each with its number, and the line that everything stands on.
    pub fn write_grid(&self, out: &mut String, y: &Axis, number: impl Fn(f64) -> String) {
        let ((left, right), (bottom, _)) = (self.across(), self.upward());
        for tick in y.ticks() {
            let at = y.place(tick);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                at + 4.0,
                number(tick)
            );
        }
        let _ = writeln!(
            out,
            "<line class=\"base\" x1=\"{left}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>"
        );
    }

    /// A number below its place.
    pub fn write_below(&self, out: &mut String, place: f64, number: impl std::fmt::Display) {
        let (bottom, _) = self.upward();
        let _ = writeln!(
            out,
            "<text class=\"axis\" x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>",
            bottom + 18.0
        );
    }

    /// What both axes count.
    pub fn write_titles(&self, out: &mut String, x: &str, y: &str) {
        let ((left, right), (bottom, top)) = (self.across(), self.upward());
        let _ = writeln!(
            out,
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>\
             <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y}</text>",
            (left + right) / 2.0,
            self.height - 8.0,
            (top + bottom) / 2.0
        );
    }
}
