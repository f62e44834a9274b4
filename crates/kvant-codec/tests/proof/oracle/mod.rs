//! The codecs a second time: naive, in f64, from their documentation, sharing nothing with the crate's own code.

pub mod basis;
pub mod delta;
mod fit;
pub mod number;
pub mod page;
pub mod polar;
pub mod rule;
pub mod trellis;

use basis::{Affine, Matrices};
use kvant_codec::{Calibration, CodecSpec, Rule, Scaling, Side};
use number::Format;
use page::{Map, View};
use std::ops::Range;
use std::sync::OnceLock;

/// A scalar codec's twin.
pub struct Twin {
    pub side: Side,
    pub tokens: usize,
    pub basis: Affine,
    pub rule: Rule,
    pub format: Format,
    pub per_channel: bool,
    pub per_token: bool,
    group: usize,
    /// Bits of each row of units.
    widths: Vec<u8>,
    /// Whether the change of basis adds rounding of its own.
    rotated: bool,
    map: OnceLock<Map>,
    spans: OnceLock<Vec<Range<usize>>>,
}

impl Twin {
    /// The twin of a scalar codec; exact families have none, and codecs of another kind a module of their own.
    pub fn new(
        spec: &CodecSpec,
        side: Side,
        dim: usize,
        calibration: &Calibration,
        dense: &Matrices,
    ) -> Option<Twin> {
        let planned = spec.family.name == "klt";
        if spec.options.trellis {
            return None;
        }
        if !planned && (spec.bits == 0 || ["turbo", "polar", "delta"].contains(&spec.family.name)) {
            return None;
        }
        let row = match side {
            Side::Key => 8,
            Side::Value => 16,
        };
        let widths = if planned { calibration.widths.clone()? } else { vec![spec.bits; dim.div_ceil(row)] };
        let group = match spec.options.scaling {
            Scaling::Group(group) | Scaling::ChannelGroup(group) => group.channels(),
            Scaling::Token | Scaling::Channel => dim.next_multiple_of(row),
        };
        let rotated = planned || spec.options.rotation != kvant_codec::Rotation::Identity;
        Some(Twin {
            side,
            tokens: spec.options.page.tokens(),
            basis: Affine::new(spec, dim, calibration, planned.then_some(dense)),
            rule: spec.options.rule,
            format: Format::of(spec.options.scales),
            per_channel: matches!(spec.options.scaling, Scaling::Channel | Scaling::ChannelGroup(_)),
            per_token: spec.options.scaling != Scaling::Channel,
            group,
            widths,
            rotated,
            map: OnceLock::new(),
            spans: OnceLock::new(),
        })
    }

    pub fn dim(&self) -> usize {
        self.basis.dim
    }

    /// Channels in a row of units.
    pub fn row(&self) -> usize {
        match self.side {
            Side::Key => 8,
            Side::Value => 16,
        }
    }

    pub fn bits(&self, channel: usize) -> u8 {
        self.widths[channel / self.row()]
    }

    pub fn group_of(&self, channel: usize) -> usize {
        channel / self.group
    }

    pub fn groups(&self) -> usize {
        self.dim().div_ceil(self.group)
    }

    pub fn map(&self) -> &Map {
        self.map.get_or_init(|| Map::new(self))
    }

    /// Real channels in runs of one width under one token scale: what a query is rounded for at once.
    pub fn spans(&self) -> &[Range<usize>] {
        self.spans.get_or_init(|| {
            let mut spans: Vec<Range<usize>> = Vec::new();
            for c in (0..self.dim()).filter(|c| self.bits(*c) > 0) {
                let key = (self.bits(c), self.group_of(c));
                match spans.last_mut() {
                    Some(span) if (self.bits(span.start), self.group_of(span.start)) == key => {
                        span.end = c + 1
                    }
                    _ => spans.push(c..c + 1),
                }
            }
            spans
        })
    }

    /// How far an f32 change of basis may be from the exact one, for a vector of this norm.
    fn blur(&self, norm: f64) -> f64 {
        if self.rotated { 1e-6 * norm } else { 1.2e-7 * norm }
    }

    /// Whether what is coded are the numbers themselves, and not what f32 made of them.
    fn is_exact(&self) -> bool {
        let two_scales = self.per_channel && self.per_token;
        !self.rotated && !two_scales && self.basis.mean.iter().all(|x| *x == 0.0)
    }

    /// Whether `stored` is what the rule gives `values` that share a scale, which are known to ± `blur`.
    fn check_scale(
        &self,
        bits: u8,
        values: &[f64],
        blur: f64,
        codes: impl Fn(usize) -> u8,
        stored: (f64, f64),
    ) -> Result<(), String> {
        rule::check_scale(self.rule, bits, self.format, values, blur, codes, stored)?;
        if self.is_exact() && rule::fits(self.rule, bits) {
            let truth = fit::stored(self.rule, bits, self.format, values);
            if truth != stored {
                return Err(format!("{:?} {bits} bits: {stored:?} for {truth:?}", self.rule));
            }
        }
        Ok(())
    }

    /// Checks a page and what it decodes to against the formulas, number by number.
    pub fn check(&self, rows: &[f32], bytes: &[u8], decoded: &[f32]) -> Result<(), String> {
        let dim = self.dim();
        if bytes.len() != self.map().bytes() {
            return Err(format!("{} bytes, the documentation says {}", bytes.len(), self.map().bytes()));
        }
        let view = View::new(self, bytes);
        // (tokens, dim)
        let mut y: Vec<Vec<f64>> = rows.chunks_exact(dim).map(|row| self.basis.vector(row)).collect();
        let mut blur: Vec<f64> = y.iter().map(|y| self.blur(norm(y))).collect();
        if self.per_channel {
            self.check_channels(&view, &mut y, &mut blur)?;
        }
        if self.per_token {
            for (t, y) in y.iter().enumerate() {
                for g in 0..self.groups() {
                    let channels = g * self.group..((g + 1) * self.group).min(dim);
                    let stored = (view.token_scale(t, channels.start), view.token_zero(t, channels.start));
                    let bits = self.bits(channels.start);
                    let code = |i: usize| view.code(t, channels.start + i);
                    let values = &y[channels.clone()];
                    self.check_scale(bits, values, blur[t], code, stored)
                        .map_err(|e| format!("token {t}, group {g}: {e}"))?;
                }
            }
        }
        self.check_codes(&view, &y)?;
        self.check_decoded(&view, decoded)
    }

    /// Channel scales; where tokens have scales too, `y` is divided by them.
    fn check_channels(&self, view: &View<'_>, y: &mut [Vec<f64>], blur: &mut [f64]) -> Result<(), String> {
        let worst = blur.iter().copied().fold(0.0, f64::max);
        for c in (0..self.dim()).filter(|c| self.bits(*c) > 0) {
            let column: Vec<f64> = y.iter().map(|y| y[c]).collect();
            let scale = view.channel_scale(c);
            if !self.per_token {
                let stored = (scale, view.channel_zero(c));
                let code = |t: usize| view.code(t, c);
                self.check_scale(self.bits(c), &column, worst, code, stored)
                    .map_err(|e| format!("channel {c}: {e}"))?;
                continue;
            }
            let top = column.iter().fold(0.0f64, |top, x| top.max(x.abs()));
            if (scale - top).abs() > 0.5 * self.format.ulp(top) + worst {
                return Err(format!("channel {c}: scale {scale:e} for a largest magnitude of {top:e}"));
            }
            y.iter_mut().for_each(|y| y[c] = if scale > 0.0 { y[c] / scale } else { 0.0 });
        }
        if self.per_token {
            // What is coded is now y/c: numbers of at most about one.
            blur.iter_mut().for_each(|blur| *blur = 1e-5);
        }
        Ok(())
    }

    fn check_codes(&self, view: &View<'_>, y: &[Vec<f64>]) -> Result<(), String> {
        /// A code may differ from the twin's only where the number is this close to a boundary, in steps.
        const NEAR: f64 = 1e-3;
        for (t, y) in y.iter().enumerate() {
            for c in (0..self.dim()).filter(|c| self.bits(*c) > 0) {
                let (scale, zero) = if self.per_token {
                    (view.token_scale(t, c), view.token_zero(t, c))
                } else {
                    (view.channel_scale(c), view.channel_zero(c))
                };
                let code = view.code(t, c);
                let group = self.group_of(c) * self.group;
                let shared = &y[group..(group + self.group).min(self.dim())];
                let scales = rule::coding_scales(self.rule, shared, self.blur(norm(y)), scale);
                // x − μ is rounded to f32 before anything else, and a rotation of it once more: where all tokens are alike,
                // a step is as small as that.
                let rounding = 1.2e-7 * y[c].abs() + if self.rotated { self.blur(norm(y)) } else { 0.0 };
                let near = NEAR + if self.basis.mean[c] == 0.0 { 0.0 } else { rounding / scale.abs() };
                let right = |scale: &f64| {
                    rule::check_code(self.rule, self.bits(c), (y[c] - zero) / scale, code, near)
                };
                if scale != 0.0 && !scales.iter().any(right) {
                    let exact = (y[c] - zero) / scale;
                    return Err(format!(
                        "token {t}, channel {c}: code {code} for {exact} steps ({:?})",
                        self.rule
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_decoded(&self, view: &View<'_>, decoded: &[f32]) -> Result<(), String> {
        for (t, decoded) in decoded.chunks_exact(self.dim()).enumerate() {
            let y = view.token(t);
            let want = self.basis.back(&y);
            let slack = 2.0 * self.blur(view.magnitude(t));
            for (c, (got, want)) in decoded.iter().zip(&want).enumerate() {
                let error = (f64::from(*got) - want).abs();
                if error.is_nan() || error > slack + 1.2e-7 * want.abs() {
                    return Err(format!(
                        "token {t}, channel {c}: decoded {got:e}, the formula says {want:e}"
                    ));
                }
            }
        }
        Ok(())
    }
}

pub fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}
