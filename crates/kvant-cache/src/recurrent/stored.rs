//! How the state at a chunk's start is stored: as it is, or narrower.
//!
//! Mixers compute in f32. When a chunk is closed, its new state is rounded once, to what is stored, and whoever reads it from
//! then on reads that: this pass, a later one, a fork, a prefix hit, a file. So a narrower state is another result, but the
//! same one however tokens came. Rows of the open chunk stay f32.
//!
//! | type | bytes of *n* numbers | |
//! |---|---|---|
//! | `f32` | 4·*n* | |
//! | `bf16` | 2·*n* | the upper halves, rounded to nearest even |
//! | `int8` | 4·⌈*n*/64⌉ + *n* | an f32 scale for every 64 numbers, s = max\|x\|/127, then codes, x̂ = s·code |
//!
//! All little-endian.

use super::RecurrentState;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::str::FromStr;

/// The numbers that recurrent state is stored in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateType {
    /// As it is computed.
    #[default]
    F32,
    /// bfloat16: half the bytes.
    Bf16,
    /// Bytes under a scale for every 64 numbers: 8.5 bits.
    Int8,
}

/// Numbers that share a scale.
const GROUP: usize = 64;

/// Bytes of a scale.
const SCALE: usize = size_of::<f32>();

/// A text that names no such type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a type for recurrent state: f32, bf16 or int8 is needed")]
pub struct StateTypeError {
    text: String,
}

impl StateType {
    /// Every type.
    pub const ALL: [StateType; 3] = [StateType::F32, StateType::Bf16, StateType::Int8];

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            StateType::F32 => "f32",
            StateType::Bf16 => "bf16",
            StateType::Int8 => "int8",
        }
    }

    /// Bytes of so many numbers; the largest number there is for more than can be counted.
    pub fn bytes(self, count: usize) -> usize {
        match self {
            StateType::F32 => count.saturating_mul(4),
            StateType::Bf16 => count.saturating_mul(2),
            StateType::Int8 => count.div_ceil(GROUP).saturating_mul(SCALE).saturating_add(count),
        }
    }

    /// Stores numbers; `bytes` are as many as they take.
    fn write(self, numbers: &[f32], bytes: &mut [u8]) {
        match self {
            StateType::F32 => {
                let each = bytes.chunks_exact_mut(4).zip(numbers);
                each.for_each(|(bytes, x)| bytes.copy_from_slice(&x.to_le_bytes()));
            }
            StateType::Bf16 => {
                let each = bytes.chunks_exact_mut(2).zip(numbers);
                each.for_each(|(bytes, x)| bytes.copy_from_slice(&upper_half(*x).to_le_bytes()));
            }
            StateType::Int8 => {
                let (scales, codes) = bytes.split_at_mut(numbers.len().div_ceil(GROUP) * SCALE);
                let groups = numbers.chunks(GROUP).zip(codes.chunks_mut(GROUP));
                for (scale, (numbers, codes)) in scales.chunks_exact_mut(SCALE).zip(groups) {
                    let top = numbers.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                    // Below this a reciprocal could overflow.
                    let (step, inverse) = if top > 1e-30 { (top / 127.0, 127.0 / top) } else { (0.0, 0.0) };
                    scale.copy_from_slice(&step.to_le_bytes());
                    for (code, x) in codes.iter_mut().zip(numbers) {
                        *code = ((x * inverse).round_ties_even() as i8) as u8;
                    }
                }
            }
        }
    }

    /// The numbers `range` of `count` that are stored in `bytes`.
    fn read(self, bytes: &[u8], count: usize, range: Range<usize>, numbers: &mut Vec<f32>) {
        numbers.clear();
        match self {
            StateType::F32 => {
                let stored = bytes[4 * range.start..4 * range.end].chunks_exact(4);
                numbers.extend(stored.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])));
            }
            StateType::Bf16 => {
                let stored = bytes[2 * range.start..2 * range.end].chunks_exact(2);
                numbers.extend(
                    stored.map(|x| f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16)),
                );
            }
            StateType::Int8 => {
                let (scales, codes) = bytes.split_at(count.div_ceil(GROUP) * SCALE);
                let mut at = range.start;
                while at < range.end {
                    let (group, end) = (at / GROUP, range.end.min((at / GROUP + 1) * GROUP));
                    let scale = &scales[group * SCALE..];
                    let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                    numbers.extend(codes[at..end].iter().map(|code| scale * f32::from(*code as i8)));
                    at = end;
                }
            }
        }
    }

    /// Rounds numbers to what is stored of them, into `bytes`; the first that is not finite, or would not be, is returned
    /// instead.
    pub(super) fn store(self, numbers: &[f32], bytes: &mut [u8]) -> Result<(), f32> {
        let stays = |x: f32| match self {
            StateType::Bf16 => f32::from_bits(u32::from(upper_half(x)) << 16).is_finite(),
            StateType::F32 | StateType::Int8 => x.is_finite(),
        };
        match numbers.iter().find(|x| !stays(**x)) {
            Some(odd) => Err(*odd),
            None => {
                self.write(numbers, bytes);
                Ok(())
            }
        }
    }

    /// The numbers `range` of `count`, in a buffer that is lent.
    pub(super) fn lend(self, bytes: &[u8], count: usize, range: Range<usize>) -> StateNumbers<'static> {
        let mut numbers = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        self.read(bytes, count, range, &mut numbers);
        StateNumbers(Numbers::Borrowed(numbers))
    }
}

/// Rounded to nearest even; what is not a number stays none.
fn upper_half(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // A carry out of the largest finite number makes infinity.
    (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

impl FromStr for StateType {
    type Err = StateTypeError;

    fn from_str(text: &str) -> Result<StateType, StateTypeError> {
        let found = StateType::ALL.into_iter().find(|state| state.name() == text);
        found.ok_or_else(|| StateTypeError { text: text.to_owned() })
    }
}

impl fmt::Display for StateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers of a state: those that are stored, or where they are stored narrower, a copy that lasts as long as this.
#[derive(Debug)]
pub struct StateNumbers<'a>(Numbers<'a>);

#[derive(Debug)]
enum Numbers<'a> {
    Stored(&'a [f32]),
    Borrowed(Vec<f32>),
}

// Buffers that are not lent at the moment, for one state after another: a pass reads one slot of one sequence at a time.
thread_local!(static SPARE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) });

/// Buffers that a thread keeps: a mixer reads at most a convolution's tail and its matrix.
const KEPT: usize = 2;

impl<'a> StateNumbers<'a> {
    pub(super) fn stored(numbers: &'a [f32]) -> StateNumbers<'a> {
        StateNumbers(Numbers::Stored(numbers))
    }

    /// The same numbers in a buffer that may be changed.
    pub(super) fn into_lent(mut self) -> StateNumbers<'static> {
        let numbers = match &mut self.0 {
            Numbers::Stored(numbers) => {
                let mut lent = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
                lent.clear();
                lent.extend_from_slice(numbers);
                lent
            }
            Numbers::Borrowed(numbers) => std::mem::take(numbers),
        };
        StateNumbers(Numbers::Borrowed(numbers))
    }
}

impl StateNumbers<'static> {
    /// The buffer, to be changed.
    pub(super) fn lent_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Numbers::Stored(_) => &mut [],
            Numbers::Borrowed(numbers) => numbers,
        }
    }
}

impl Deref for StateNumbers<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Numbers::Stored(numbers) => numbers,
            Numbers::Borrowed(numbers) => numbers,
        }
    }
}

impl Drop for StateNumbers<'_> {
    fn drop(&mut self) {
        if let Numbers::Borrowed(numbers) = &mut self.0 {
            let numbers = std::mem::take(numbers);
            if numbers.capacity() == 0 {
                return;
            }
            // A thread that ends has no spare buffers any more.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < KEPT {
                    spare.push(numbers);
                }
            });
        }
    }
}

impl RecurrentState {
    /// The numbers that its state is stored in.
    pub fn state_type(&self) -> StateType {
        self.state_type
    }

    /// The state at the open chunk's start; zeros at position 0. Nothing where a device owns it.
    pub fn state(&self) -> StateNumbers<'_> {
        self.part(0..self.shape.state)
    }

    /// A part of the state at the open chunk's start, which saves reading the rest where it is stored narrower.
    ///
    /// # Panics
    /// When the part is none of the state's.
    pub fn part(&self, range: Range<usize>) -> StateNumbers<'_> {
        let count = self.shape.state;
        match (&self.open.state, self.state_type) {
            (None, _) => StateNumbers::stored(&self.zeros[range]),
            (Some(page), StateType::F32) => {
                StateNumbers::stored(page.floats().get(range).unwrap_or_default())
            }
            (Some(page), narrow @ (StateType::Bf16 | StateType::Int8)) => match page.host() {
                Some(bytes) => narrow.lend(bytes, count, range),
                None => StateNumbers::stored(&[]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(state: StateType, numbers: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; state.bytes(numbers.len())];
        state.store(numbers, &mut bytes).unwrap();
        state.lend(&bytes, numbers.len(), 0..numbers.len()).to_vec()
    }

    #[test]
    fn numbers_come_back_as_near_as_their_type_says() {
        // Sizes that are and are not whole groups, and groups of very different magnitude.
        for count in [1, 63, 64, 65, 200, 640] {
            let numbers: Vec<f32> =
                (0..count).map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i / 64 * 3 - 4)).collect();
            assert_eq!(round_trip(StateType::F32, &numbers), numbers);
            for (x, back) in numbers.iter().zip(round_trip(StateType::Bf16, &numbers)) {
                assert!((x - back).abs() <= x.abs() / 256.0, "{x} became {back}");
            }
            let back = round_trip(StateType::Int8, &numbers);
            for (group, back) in numbers.chunks(GROUP).zip(back.chunks(GROUP)) {
                let top = group.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                let near = |(x, back): (&f32, &f32)| (x - back).abs() <= 0.501 * top / 127.0;
                assert!(group.iter().zip(back).all(near), "{group:?} became {back:?}");
            }
        }
        assert_eq!([1, 64, 65].map(|count| StateType::Int8.bytes(count)), [5, 68, 73]);
        assert_eq!(round_trip(StateType::Int8, &[0.0, -1e-38, 0.0]), [0.0; 3]);
        assert_eq!(round_trip(StateType::Int8, &[-254.0, 126.0, 129.0]), [-254.0, 126.0, 128.0]);
    }

    #[test]
    fn a_part_is_the_part_of_the_whole() {
        let numbers: Vec<f32> = (0..300).map(|i| (i as f32 * 0.3).cos()).collect();
        for state in StateType::ALL {
            let mut bytes = vec![0; state.bytes(300)];
            state.store(&numbers, &mut bytes).unwrap();
            let whole = state.lend(&bytes, 300, 0..300);
            for range in [0..0, 0..1, 5..70, 64..128, 127..300, 299..300] {
                assert_eq!(state.lend(&bytes, 300, range.clone())[..], whole[range]);
            }
        }
    }

    #[test]
    fn bfloat16_rounds_to_nearest_even_and_never_to_infinity_unseen() {
        // Halfway between two neighbours, to the even one; a carry into the exponent.
        for (x, want) in
            [(0x3F80_8000, 0x3F80), (0x3F81_8000, 0x3F82), (0x3FFF_FFFF, 0x4000), (0x8000_0000, 0x8000)]
        {
            assert_eq!(upper_half(f32::from_bits(x)), want, "{x:x}");
        }
        let mut bytes = [0; 2];
        assert_eq!(StateType::Bf16.store(&[f32::MAX], &mut bytes), Err(f32::MAX));
        assert!(StateType::Int8.store(&[f32::NAN], &mut [0; 5]).is_err());
    }

    #[test]
    fn names_are_those_that_are_typed() {
        for state in StateType::ALL {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
        let error = "fp8".parse::<StateType>().unwrap_err().to_string();
        assert!(error.contains("`fp8`") && error.contains("bf16"), "{error}");
    }
}
