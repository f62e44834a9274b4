//! An encoded page, read bit by bit as its documentation says.

use super::Twin;
use super::rule;
use kvant_codec::Side;
use std::ops::Range;

/// Where everything of a page is.
pub struct Map {
    /// Channels that have codes, padding included.
    pub coded: usize,
    channel_scale: Option<usize>,
    channel_zero: Option<usize>,
    token_scale: Option<usize>,
    token_zero: Option<usize>,
    /// Where each row of units starts, and where the last ends.
    rows: Vec<usize>,
}

impl Map {
    pub fn new(twin: &Twin) -> Map {
        let coded = twin.row() * twin.widths.iter().filter(|bits| **bits > 0).count();
        let mut at = 0;
        let mut reserve = |present: bool, count: usize| {
            let start = at;
            at += if present { count * twin.format.bytes() } else { 0 };
            present.then_some(start)
        };
        let zeros = rule::zeros(twin.rule);
        let channel_scale = reserve(twin.per_channel, coded);
        let channel_zero = reserve(zeros && !twin.per_token, coded);
        let token_scale = reserve(twin.per_token, twin.groups() * twin.tokens);
        let token_zero = reserve(zeros && twin.per_token, twin.groups() * twin.tokens);
        let mut rows = vec![at];
        for bits in twin.widths.iter().filter(|bits| **bits > 0) {
            at += twin.tokens * twin.row() * usize::from(*bits) / 8;
            rows.push(at);
        }
        Map { coded, channel_scale, channel_zero, token_scale, token_zero, rows }
    }

    pub fn bytes(&self) -> usize {
        self.rows[self.rows.len() - 1]
    }
}

/// A page of a codec, read into plain arrays.
pub struct View<'a> {
    pub twin: &'a Twin,
    /// (coded)
    channel_scale: Vec<f64>,
    channel_zero: Vec<f64>,
    /// (groups, tokens)
    token_scale: Vec<f64>,
    token_zero: Vec<f64>,
    /// (tokens, dim)
    codes: Vec<u8>,
}

impl<'a> View<'a> {
    pub fn new(twin: &'a Twin, bytes: &[u8]) -> View<'a> {
        let map = twin.map();
        let array = |start: Option<usize>, count: usize, absent: f64| {
            let number = |i| start.map_or(absent, |start| twin.format.read(&bytes[start..], i));
            (0..count).map(number).collect::<Vec<f64>>()
        };
        let per_token = twin.groups() * twin.tokens;
        let code = |n: usize| {
            let (token, channel) = (n / twin.dim(), n % twin.dim());
            (0..twin.bits(channel)).fold(0, |code, k| {
                let (byte, bit) = twin.place(token, channel, k);
                code | ((bytes[byte] >> bit) & 1) << k
            })
        };
        View {
            twin,
            channel_scale: array(map.channel_scale, map.coded, 1.0),
            channel_zero: array(map.channel_zero, map.coded, 0.0),
            token_scale: array(map.token_scale, per_token, 1.0),
            token_zero: array(map.token_zero, per_token, 0.0),
            codes: (0..twin.tokens * twin.dim()).map(code).collect(),
        }
    }

    pub fn channel_scale(&self, channel: usize) -> f64 {
        self.channel_scale[channel]
    }

    pub fn channel_zero(&self, channel: usize) -> f64 {
        self.channel_zero[channel]
    }

    pub fn token_scale(&self, token: usize, channel: usize) -> f64 {
        self.token_scale[self.twin.group_of(channel) * self.twin.tokens + token]
    }

    pub fn token_zero(&self, token: usize, channel: usize) -> f64 {
        self.token_zero[self.twin.group_of(channel) * self.twin.tokens + token]
    }

    pub fn code(&self, token: usize, channel: usize) -> u8 {
        self.codes[token * self.twin.dim() + channel]
    }

    /// code − centre for uniform rules, the table's entry for Lloyd–Max.
    pub fn centred(&self, token: usize, channel: usize) -> f64 {
        rule::centred(self.twin.rule, self.twin.bits(channel), self.code(token, channel))
    }

    /// ŷ of a token in the codec's basis; channels without codes are zero.
    pub fn token(&self, token: usize) -> Vec<f64> {
        self.terms(token).map(|terms| terms.iter().sum()).collect()
    }

    /// How large the terms are whose sum ŷ is: f32 rounds relative to these.
    pub fn magnitude(&self, token: usize) -> f64 {
        self.terms(token).map(|terms| terms.iter().map(|x| x * x).sum::<f64>()).sum::<f64>().sqrt()
    }

    fn terms(&self, token: usize) -> impl Iterator<Item = [f64; 3]> {
        (0..self.twin.dim()).map(move |c| {
            if self.twin.bits(c) == 0 {
                return [0.0; 3];
            }
            let level = rule::level(self.twin.rule, self.twin.bits(c), self.code(token, c));
            let scale = self.channel_scale(c);
            [
                level * self.token_scale(token, c) * scale,
                self.token_zero(token, c) * scale,
                self.channel_zero(c),
            ]
        })
    }
}

impl Twin {
    /// Byte and bit of bit `k` of a code.
    ///
    /// A row of units is 8 channels of keys or 16 of values. In a unit, two vectors of sixteen lanes of four codes:
    /// keys have tokens in the lanes and channels within, values the other way round.
    pub fn place(&self, token: usize, channel: usize, k: u8) -> (usize, usize) {
        let bits = self.bits(channel);
        let inner = channel % self.row();
        let (unit, half, index) = match self.side {
            Side::Key => (token / 16, inner / 4, 4 * (token % 16) + inner % 4),
            Side::Value => (token / 8, (token % 8) / 4, 4 * inner + token % 4),
        };
        let start = self.map().rows[channel / self.row()] + unit * 16 * usize::from(bits);
        let k = usize::from(k);
        if bits == 8 {
            return (start + 64 * half + index, k);
        }
        // The planes of a unit: four bits, two bits, one bit, each if the width has it.
        let (mut first, mut at) = (0, start);
        if bits & 4 != 0 {
            if k < 4 {
                return (at + index, 4 * half + k);
            }
            (first, at) = (4, at + 64);
        }
        if bits & 2 != 0 {
            if k < first + 2 {
                return (at + 16 * half + index % 16, 2 * (index / 16) + k - first);
            }
            at += 32;
        }
        (at + 8 * half + index / 8, index % 8)
    }

    /// Every bit of a page that no real number depends on: codes and scales of channels past the dimension.
    pub fn padding(&self) -> Vec<bool> {
        let mut padding = vec![false; 8 * self.map().bytes()];
        let mut array = |start: Option<usize>, range: Range<usize>| {
            let Some(start) = start else { return };
            let size = 8 * self.format.bytes();
            padding[8 * start + range.start * size..8 * start + range.end * size].fill(true);
        };
        let coded = self.map().coded;
        let real = self.dim().min(coded);
        array(self.map().channel_scale, real..coded);
        array(self.map().channel_zero, real..coded);
        for channel in real..coded {
            for token in 0..self.tokens {
                for k in 0..self.bits(channel) {
                    let (byte, bit) = self.place(token, channel, k);
                    padding[8 * byte + bit] = true;
                }
            }
        }
        padding
    }

    /// The bytes of a page that hold scales and zeros.
    pub fn scale_bytes(&self) -> Range<usize> {
        0..self.map().rows[0]
    }
}
