//! The best codes for four channels of a page at once: Viterbi's search over windows.
//!
//! After a token, all that matters of the codes so far are the 8 − b bits that the next window keeps, a *state*; of all codes
//! that lead to a state only the cheapest, its *survivor*, can be part of the best. So a token costs 256 comparisons a channel,
//! however many tokens came before. With a leak every survivor carries its own prediction, and the search is exact until two
//! sequences of codes first meet in a state, near after that.
//!
//! Lanes are four states by four channels: as many channels as share a width in a page of keys, so that no lane is ever idle.
//! States with neighbouring numbers can come from the same states, whose numbers are loaded once for all four. Every operation
//! is element-wise, so all tiers find the same codes.

use crate::format::{QUAD, TRELLIS_TABLES, TRELLIS_TOKENS, TrellisTable};
use kvant_simd::{LANES, Simd};
use std::sync::LazyLock;

/// The most states there are, at one bit.
const MOST_STATES: usize = 128;

/// What no sequence of codes costs.
const NEVER: f32 = 1e30;

/// Four channels to be coded with one width.
pub(crate) struct ChannelQuad<'a> {
    /// In units of the table, (tokens, 4).
    pub x: &'a [f32],
    /// How much of a decoded number is left in the next.
    pub leak: f32,
    /// Steps of the first tokens in those of the others.
    pub first: [f32; 3],
    /// The factor of every token. Errors count relative to it.
    pub token: &'a [f32],
    /// Its reciprocal.
    pub inverse: &'a [f32],
}

/// Memory that searches share.
pub(crate) struct SearchRoom {
    /// What survivors cost before a token and after it, in turns.
    costs: [States; 2],
    /// What they predict.
    predicted: States,
    /// What a prediction leaves of the next number.
    left: States,
    /// Which survivor led to each state, (tokens, states, 4).
    back: Vec<u8>,
}

/// Four channels' numbers of every state, in whole cache lines.
#[repr(align(64))]
struct States([f32; MOST_STATES * QUAD]);

impl States {
    const EMPTY: States = States([0.0; MOST_STATES * QUAD]);
}

impl Default for SearchRoom {
    fn default() -> SearchRoom {
        let (costs, back) = ([States::EMPTY, States::EMPTY], Vec::new());
        SearchRoom { costs, predicted: States::EMPTY, left: States::EMPTY, back }
    }
}

/// The levels of all windows of a width, each four times.
#[repr(align(64))]
struct WindowLevels([f32; 256 * QUAD]);

/// By width, in the order of [`TRELLIS_TABLES`].
static LEVELS: LazyLock<[WindowLevels; 7]> = LazyLock::new(|| {
    std::array::from_fn(|n| {
        WindowLevels(std::array::from_fn(|i| f32::from(TRELLIS_TABLES[n].level((i / QUAD) as u8))))
    })
});

/// Writes the best codes, (tokens, 4).
///
/// # Safety
/// The CPU has the tier.
///
/// # Panics
/// When there are not as many numbers as tokens, or not as many codes.
#[inline(always)]
pub(crate) unsafe fn search<S: Simd>(
    table: &TrellisTable,
    numbers: &ChannelQuad<'_>,
    room: &mut SearchRoom,
    codes: &mut [u8],
) {
    // SAFETY: the caller's contract.
    unsafe {
        match table.bits {
            1 => search_bits::<S, 1>(table, numbers, room, codes),
            2 => search_bits::<S, 2>(table, numbers, room, codes),
            3 => search_bits::<S, 3>(table, numbers, room, codes),
            4 => search_bits::<S, 4>(table, numbers, room, codes),
            5 => search_bits::<S, 5>(table, numbers, room, codes),
            6 => search_bits::<S, 6>(table, numbers, room, codes),
            _ => round(numbers, codes),
        }
    }
}

/// # Safety
/// As [`search`]; the table is of that width, which is below eight.
#[inline(always)]
unsafe fn search_bits<S: Simd, const BITS: u32>(
    table: &TrellisTable,
    numbers: &ChannelQuad<'_>,
    room: &mut SearchRoom,
    codes: &mut [u8],
) {
    let tokens = numbers.x.len() / QUAD;
    let (states, branches) = (256usize >> BITS, 1usize << BITS);
    assert!(tokens <= TRELLIS_TOKENS && numbers.x.len() == tokens * QUAD && codes.len() == tokens * QUAD);
    assert!(numbers.token.len() >= tokens && numbers.inverse.len() >= tokens);
    let SearchRoom { costs, predicted, left, back } = room;
    back.resize(tokens * states * QUAD, 0);
    let levels = LEVELS[BITS as usize - 1].0.as_ptr();
    costs[0].0[..states * QUAD].fill(NEVER);
    predicted.0[..states * QUAD].fill(0.0);
    let start = usize::from(table.start) % states;
    costs[0].0[start * QUAD..(start + 1) * QUAD].fill(0.0);
    // Which lanes belong to the later two of four states.
    let later: [f32; LANES] = std::array::from_fn(|lane| if lane < LANES / 2 { 0.0 } else { 1.0 });
    // SAFETY: every array has four numbers for each of `states` states, of which there are four or more, and `back` as many bytes
    // per token; there are levels of 256 windows; the asserts hold the rest.
    unsafe {
        let (leak, later, zeros) = (S::splat(numbers.leak), S::load(later.as_ptr()), S::splat(0.0));
        for t in 0..tokens {
            let [even, odd] = &mut *costs;
            let (before, after) = if t % 2 == 0 { (even, odd) } else { (odd, even) };
            let (before, after) = (before.0.as_ptr(), after.0.as_mut_ptr());
            let x = S::load4(numbers.x.as_ptr().add(t * QUAD));
            let (token, inverse) = (S::splat(numbers.token[t]), S::splat(numbers.inverse[t]));
            let step = S::splat(numbers.first.get(t).copied().unwrap_or(1.0));
            for at in (0..states * QUAD).step_by(LANES) {
                let y = S::load(predicted.0.as_ptr().add(at));
                S::store(left.0.as_mut_ptr().add(at), S::mul(S::fnma(leak, y, x), inverse));
            }
            let (left, back) = (left.0.as_ptr(), back.as_mut_ptr().add(t * states * QUAD));
            for state in (0..states).step_by(LANES / QUAD) {
                let (mut best, mut error, mut survivor) = (S::splat(NEVER), zeros, zeros);
                for branch in 0..branches {
                    let window = branch * states + state;
                    let from = (window >> BITS) * QUAD;
                    let (mut was, mut cost) = (S::load4(left.add(from)), S::load4(before.add(from)));
                    if BITS == 1 {
                        // Only two states come from the same.
                        was = S::select_gt(later, zeros, S::load4(left.add(from + QUAD)), was);
                        cost = S::select_gt(later, zeros, S::load4(before.add(from + QUAD)), cost);
                    }
                    let d = S::fnma(step, S::load(levels.add(window * QUAD)), was);
                    cost = S::fma(d, d, cost);
                    if branch == 0 {
                        (best, error) = (cost, d);
                    } else {
                        error = S::select_gt(best, cost, d, error);
                        survivor = S::select_gt(best, cost, S::splat(branch as f32), survivor);
                        best = S::min(cost, best);
                    }
                }
                S::store(after.add(state * QUAD), best);
                S::store(predicted.0.as_mut_ptr().add(state * QUAD), S::fnma(error, token, x));
                S::store_low_bytes(back.add(state * QUAD), S::round(survivor));
            }
        }
    }
    trace::<BITS>(&costs[tokens % 2].0, back, codes);
}

/// From the cheapest state at the end back to the start.
fn trace<const BITS: u32>(costs: &[f32], back: &[u8], codes: &mut [u8]) {
    let states = 256usize >> BITS;
    let mut state = [0usize; QUAD];
    for (other, costs_there) in costs.chunks_exact(QUAD).take(states).enumerate().skip(1) {
        for (channel, state) in state.iter_mut().enumerate() {
            if costs_there[channel] < costs[*state * QUAD + channel] {
                *state = other;
            }
        }
    }
    let rows = back.chunks_exact(states * QUAD);
    for (codes, back) in codes.chunks_exact_mut(QUAD).zip(rows).rev() {
        for (channel, (code, state)) in codes.iter_mut().zip(&mut state).enumerate() {
            // A state is below `states` as it is; with the remainder the compiler knows it too.
            let window = usize::from(back[*state % states * QUAD + channel]) * states + *state;
            *code = (window & ((1 << BITS) - 1)) as u8;
            *state = window >> BITS;
        }
    }
}

/// At eight bits a window is a code, and levels are the whole numbers from −128 on: nothing has to be searched.
fn round(numbers: &ChannelQuad<'_>, codes: &mut [u8]) {
    let mut y = [0.0f32; QUAD];
    for (t, (codes, x)) in codes.chunks_exact_mut(QUAD).zip(numbers.x.chunks_exact(QUAD)).enumerate() {
        let step = numbers.first.get(t).copied().unwrap_or(1.0);
        for ((code, x), y) in codes.iter_mut().zip(x).zip(&mut y) {
            let left = (x - numbers.leak * *y) * numbers.inverse[t];
            let level = (left / step).round_ties_even().clamp(-128.0, 127.0);
            *y = numbers.leak * *y + numbers.token[t] * step * level;
            *code = (level as i32 + 128) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::first_steps;
    use crate::transform::split_mix;
    use kvant_simd::{Tier, Work, with_tier};

    struct Searched<'a>(&'a TrellisTable, &'a ChannelQuad<'a>, &'a mut [u8]);

    impl<S: Simd> Work<S> for Searched<'_> {
        type Output = ();

        unsafe fn run(self) {
            // SAFETY: the caller has asked for the tier.
            unsafe { search::<S>(self.0, self.1, &mut SearchRoom::default(), self.2) }
        }
    }

    /// What a channel's codes cost.
    fn cost(
        table: &TrellisTable,
        numbers: &ChannelQuad<'_>,
        channel: usize,
        codes: impl Iterator<Item = u8>,
    ) -> f64 {
        let (mut window, mut y, mut total) = (u32::from(table.start), 0.0, 0.0);
        for (t, code) in codes.enumerate() {
            window = (window << table.bits | u32::from(code)) % 256;
            let step = f64::from(numbers.first.get(t).copied().unwrap_or(1.0));
            let token = f64::from(numbers.token[t]);
            y = f64::from(numbers.leak) * y + token * step * f64::from(table.level(window as u8));
            total += ((f64::from(numbers.x[t * QUAD + channel]) - y) / token).powi(2);
        }
        total
    }

    /// All sequences of codes on short pages: none is better. With a leak that holds until two sequences can have met.
    #[test]
    fn no_codes_are_better() {
        let mut noise = split_mix(3).map(|word| (word >> 40) as f32 / (1u64 << 24) as f32 - 0.5);
        for table in &TRELLIS_TABLES {
            for leak in [0.0f32, 0.0, 0.25, 0.5, 0.9375] {
                let bits = usize::from(table.bits);
                let tokens = if leak > 0.0 { 8 / bits } else { 13 / bits };
                let x: Vec<f32> = (0..tokens * QUAD).map(|_| 180.0 * noise.next().unwrap()).collect();
                let token: Vec<f32> = (0..tokens).map(|_| 1.0 + noise.next().unwrap()).collect();
                let inverse: Vec<f32> = token.iter().map(|x| 1.0 / x).collect();
                let first = first_steps((256.0 * leak) as u8);
                let numbers = ChannelQuad { x: &x, leak, first, token: &token, inverse: &inverse };
                for tier in Tier::available() {
                    let mut codes = vec![0; tokens * QUAD];
                    // SAFETY: the tier is available.
                    with_tier!(tier, S => unsafe { S::call(Searched(table, &numbers, &mut codes)) });
                    for channel in 0..QUAD {
                        let found = codes.iter().skip(channel).step_by(QUAD).copied();
                        let found = cost(table, &numbers, channel, found);
                        let mask = (1u32 << bits) - 1;
                        let all = (0..1u32 << (bits * tokens)).map(|word| {
                            let codes = (0..tokens).map(|t| (word >> (bits * t) & mask) as u8);
                            cost(table, &numbers, channel, codes)
                        });
                        let least = all.fold(f64::INFINITY, f64::min);
                        assert!(
                            found <= least * (1.0 + 1e-5) + 1e-6,
                            "{tier}, {bits} bits, channel {channel}: {found}, {least} is possible"
                        );
                    }
                }
            }
        }
    }
}
