//! Axes: from numbers to places in a picture.

/// Where numbers lie on a picture, evenly or by their logarithms.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    /// Numbers from `low` to `high` evenly between the places `from` and `to`.
    pub fn linear((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Self { low, high, from, to, logarithmic: false }
    }

    /// Positive numbers by their logarithms.
    pub fn logarithmic((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Self { low, high, from, to, logarithmic: true }
    }

    /// The place of a number.
    pub fn place(&self, number: f64) -> f64 {
        let scale = |x: f64| if self.logarithmic { x.ln() } else { x };
        let (low, high) = (scale(self.low), scale(self.high));
        let share = if high > low { (scale(number) - low) / (high - low) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }

    /// Round numbers to write beside it.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (first, last) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
            return (first..=last).map(|power| 10f64.powi(power)).collect();
        }
        let raw = (self.high - self.low) / 9.0;
        let power = 10f64.powf(raw.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= raw).unwrap_or(raw);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// The decades that hold all of these positive numbers.
pub fn decades(numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = numbers.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    (high > 0.0 && low.is_finite()).then(|| {
        let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        (10f64.powi(low), 10f64.powi(high.max(low + 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_lie_at_the_ends_and_ticks_between() {
        let axis = Axis::linear((0.0, 17.0), (50.0, 650.0));
        assert_eq!((axis.place(0.0), axis.place(17.0)), (50.0, 650.0));
        assert_eq!(axis.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
        let axis = Axis::logarithmic(decades([3e-4, 0.2].into_iter()).unwrap(), (300.0, 0.0));
        assert_eq!((axis.place(1e-4), axis.place(1.0)), (300.0, 0.0));
        assert!((axis.place(1e-2) - 150.0).abs() < 1e-9);
        assert_eq!(axis.ticks().len(), 5);
        assert_eq!(decades(std::iter::empty()), None);
        assert_eq!(decades([0.1].into_iter()), Some((0.1, 1.0)));
    }
}
