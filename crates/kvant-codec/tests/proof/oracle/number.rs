//! Stored number formats from their definition: a sign, an exponent, a fraction.

use kvant_codec::ScaleFormat;

/// A binary floating-point format.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the fraction.
    pub fraction: i32,
    /// Bits of the exponent.
    pub exponent: u32,
}

pub const F16: Format = Format { fraction: 10, exponent: 5 };
pub const BF16: Format = Format { fraction: 7, exponent: 8 };
pub const F32: Format = Format { fraction: 23, exponent: 8 };

impl Format {
    pub fn of(scales: ScaleFormat) -> Format {
        match scales {
            ScaleFormat::F16 => F16,
            ScaleFormat::F32 => F32,
        }
    }

    pub fn bytes(self) -> usize {
        (1 + self.exponent as usize + self.fraction as usize) / 8
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The distance of neighbouring numbers around x.
    pub fn ulp(self, x: f64) -> f64 {
        let lowest = 1 - self.bias();
        let exponent = if x == 0.0 { lowest } else { (x.abs().log2().floor() as i32).max(lowest) };
        2f64.powi(exponent - self.fraction)
    }

    /// To nearest, ties to even; no overflow here.
    pub fn round(self, x: f64) -> f64 {
        let ulp = self.ulp(x);
        (x / ulp).round_ties_even() * ulp
    }

    /// The number at `index` of an array of them, little-endian.
    pub fn read(self, bytes: &[u8], index: usize) -> f64 {
        let size = self.bytes();
        let bits = (0..size).fold(0u64, |bits, i| bits | u64::from(bytes[size * index + i]) << (8 * i));
        let fraction = (bits & ((1 << self.fraction) - 1)) as f64 / 2f64.powi(self.fraction);
        let exponent = ((bits >> self.fraction) & ((1 << self.exponent) - 1)) as i32;
        let sign = if bits >> (8 * size - 1) == 1 { -1.0 } else { 1.0 };
        sign * match exponent {
            0 => fraction * 2f64.powi(1 - self.bias()),
            e if e == (1 << self.exponent) - 1 && fraction == 0.0 => f64::INFINITY,
            e if e == (1 << self.exponent) - 1 => f64::NAN,
            e => (1.0 + fraction) * 2f64.powi(e - self.bias()),
        }
    }
}
