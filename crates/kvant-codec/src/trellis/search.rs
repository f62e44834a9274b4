//! The best codes for sixteen channels of a page at once: Viterbi's search over windows.
//!
//! After a token, all that matters of the codes so far are the 8 − b bits that the next window keeps, a *state*; of all codes
//! that lead to a state only the cheapest, its *survivor*, can be part of the best. So a token costs 256 comparisons a channel,
//! however many tokens came before. With a leak every survivor carries its own prediction, and the search is exact until two
//! sequences of codes first meet in a state, near after that.
//!
//! Lanes are channels and every operation is element-wise, so all tiers find the same codes.

use crate::format::{TRELLIS_TOKENS, TrellisTable};
use kvant_simd::{LANES, Simd};

/// The most states there are, at one bit.
const MOST_STATES: usize = 128;

/// What no sequence of codes costs.
const NEVER: f32 = 1e30;

/// Sixteen channels to be coded with one width.
pub(crate) struct Lanes<'a> {
    /// The numbers in units of the table, (tokens, 16).
    pub x: &'a [f32],
    /// How much of a decoded number is left in the next, by channel.
    pub leak: [f32; LANES],
    /// Steps of the first tokens in those of the others, by channel.
    pub first: [[f32; LANES]; 3],
    /// The factor of every token. Errors count relative to it.
    pub token: &'a [f32],
    /// Its reciprocal.
    pub inverse: &'a [f32],
}

/// Memory that searches share: which survivor led to each state, (tokens, states, 16).
#[derive(Default)]
pub(crate) struct Room {
    back: Vec<u8>,
}

/// Writes the best codes, (tokens, 16).
///
/// # Safety
/// The CPU has the tier.
///
/// # Panics
/// When there are not as many numbers as tokens, or not as many codes.
#[inline(always)]
pub(crate) unsafe fn search<S: Simd>(
    table: &TrellisTable,
    lanes: &Lanes<'_>,
    room: &mut Room,
    codes: &mut [u8],
) {
    // SAFETY: the caller's contract.
    unsafe {
        match table.bits {
            1 => search_bits::<S, 1>(table, lanes, room, codes),
            2 => search_bits::<S, 2>(table, lanes, room, codes),
            3 => search_bits::<S, 3>(table, lanes, room, codes),
            4 => search_bits::<S, 4>(table, lanes, room, codes),
            5 => search_bits::<S, 5>(table, lanes, room, codes),
            6 => search_bits::<S, 6>(table, lanes, room, codes),
            _ => search_bits::<S, 8>(table, lanes, room, codes),
        }
    }
}

/// # Safety
/// As [`search`]; the table is of that width.
#[inline(always)]
unsafe fn search_bits<S: Simd, const BITS: u32>(
    table: &TrellisTable,
    lanes: &Lanes<'_>,
    room: &mut Room,
    codes: &mut [u8],
) {
    let tokens = lanes.x.len() / LANES;
    let (states, branches) = (256usize >> BITS, 1usize << BITS);
    assert!(tokens <= TRELLIS_TOKENS && lanes.x.len() == tokens * LANES && codes.len() == tokens * LANES);
    assert!(lanes.token.len() >= tokens && lanes.inverse.len() >= tokens);
    room.back.resize(tokens * states * LANES, 0);
    let levels: [f32; 256] = std::array::from_fn(|window| f32::from(table.level(window as u8)));
    let mut costs = [[NEVER; MOST_STATES * LANES]; 2];
    let mut predicted = [0.0f32; MOST_STATES * LANES];
    let mut left = [0.0f32; MOST_STATES * LANES];
    let start = usize::from(table.start) % states;
    costs[0][start * LANES..(start + 1) * LANES].fill(0.0);
    // SAFETY: every array has `states` vectors and `back` one row of bytes per token and state; the asserts hold the rest.
    unsafe {
        let (leak, ones) = (S::load(lanes.leak.as_ptr()), S::splat(1.0));
        for t in 0..tokens {
            let [even, odd] = &mut costs;
            let (before, after) = if t % 2 == 0 { (even, odd) } else { (odd, even) };
            let (before, after) = (before.as_ptr(), after.as_mut_ptr());
            let x = S::load(lanes.x.as_ptr().add(t * LANES));
            let (token, inverse) = (S::splat(lanes.token[t]), S::splat(lanes.inverse[t]));
            let step = lanes.first.get(t).map_or(ones, |first| S::load(first.as_ptr()));
            for state in 0..states {
                let y = S::load(predicted.as_ptr().add(state * LANES));
                S::store(left.as_mut_ptr().add(state * LANES), S::mul(S::fnma(leak, y, x), inverse));
            }
            let back = room.back.as_mut_ptr().add(t * states * LANES);
            for state in 0..states {
                let mut best = S::splat(NEVER);
                let (mut error, mut survivor) = (S::splat(0.0), S::splat(0.0));
                for branch in 0..branches {
                    let window = branch * states + state;
                    let from = (window >> BITS) * LANES;
                    let d = S::fnma(step, S::splat(levels[window]), S::load(left.as_ptr().add(from)));
                    let cost = S::fma(d, d, S::load(before.add(from)));
                    error = S::select_gt(best, cost, d, error);
                    survivor = S::select_gt(best, cost, S::splat(branch as f32), survivor);
                    best = S::min(cost, best);
                }
                S::store(after.add(state * LANES), best);
                S::store(predicted.as_mut_ptr().add(state * LANES), S::fnma(error, token, x));
                S::store_low_bytes(back.add(state * LANES), S::round(survivor));
            }
        }
    }
    trace(&costs[tokens % 2], states, &room.back, codes, BITS);
}

/// From the cheapest state at the end back to the start.
fn trace(costs: &[f32], states: usize, back: &[u8], codes: &mut [u8], bits: u32) {
    let mut state = [0usize; LANES];
    for lane in 0..LANES {
        for other in 1..states {
            if costs[other * LANES + lane] < costs[state[lane] * LANES + lane] {
                state[lane] = other;
            }
        }
    }
    let mask = (1usize << bits) - 1;
    let rows = back.chunks_exact(states * LANES);
    for (codes, back) in codes.chunks_exact_mut(LANES).zip(rows).rev() {
        for (lane, (code, state)) in codes.iter_mut().zip(&mut state).enumerate() {
            let window = usize::from(back[*state * LANES + lane]) * states + *state;
            *code = (window & mask) as u8;
            *state = window >> bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{TRELLIS_TABLES, first_steps};
    use crate::transform::split_mix;
    use kvant_simd::{Tier, Work, with_tier};

    struct Searched<'a>(&'a TrellisTable, &'a Lanes<'a>, &'a mut [u8]);

    impl<S: Simd> Work<S> for Searched<'_> {
        type Output = ();

        unsafe fn run(self) {
            // SAFETY: the caller has asked for the tier.
            unsafe { search::<S>(self.0, self.1, &mut Room::default(), self.2) }
        }
    }

    /// What a channel's codes cost.
    fn cost(table: &TrellisTable, lanes: &Lanes<'_>, lane: usize, codes: impl Iterator<Item = u8>) -> f64 {
        let (mut window, mut y, mut total) = (u32::from(table.start), 0.0, 0.0);
        for (t, code) in codes.enumerate() {
            window = (window << table.bits | u32::from(code)) % 256;
            let step = f64::from(lanes.first.get(t).map_or(1.0, |first| first[lane]));
            let token = f64::from(lanes.token[t]);
            y = f64::from(lanes.leak[lane]) * y + token * step * f64::from(table.level(window as u8));
            total += ((f64::from(lanes.x[t * LANES + lane]) - y) / token).powi(2);
        }
        total
    }

    /// All sequences of codes on short pages: none is better. With a leak that holds until two sequences can have met.
    #[test]
    fn no_codes_are_better() {
        let mut noise = split_mix(3).map(|word| (word >> 40) as f32 / (1u64 << 24) as f32 - 0.5);
        for table in &TRELLIS_TABLES {
            for leaks in [false, true] {
                let bits = usize::from(table.bits);
                let tokens = if leaks { 8 / bits } else { 13 / bits };
                let x: Vec<f32> = (0..tokens * LANES).map(|_| 180.0 * noise.next().unwrap()).collect();
                let token: Vec<f32> = (0..tokens).map(|_| 1.0 + noise.next().unwrap()).collect();
                let leak: [f32; LANES] =
                    std::array::from_fn(|lane| if leaks { lane as f32 / 16.0 } else { 0.0 });
                let mut first = [[0.0; LANES]; 3];
                for lane in 0..LANES {
                    first_steps((256.0 * leak[lane]) as u8)
                        .iter()
                        .zip(&mut first)
                        .for_each(|(step, first)| first[lane] = *step);
                }
                let inverse: Vec<f32> = token.iter().map(|x| 1.0 / x).collect();
                let lanes = Lanes { x: &x, leak, first, token: &token, inverse: &inverse };
                for tier in Tier::available() {
                    let mut codes = vec![0; tokens * LANES];
                    // SAFETY: the tier is available.
                    with_tier!(tier, S => unsafe { S::call(Searched(table, &lanes, &mut codes)) });
                    for lane in 0..LANES {
                        let found =
                            cost(table, &lanes, lane, codes.iter().skip(lane).step_by(LANES).copied());
                        let mask = (1u32 << bits) - 1;
                        let all = (0..1u32 << (bits * tokens)).map(|word| {
                            let codes = (0..tokens).map(|t| (word >> (bits * t) & mask) as u8);
                            cost(table, &lanes, lane, codes)
                        });
                        let least = all.fold(f64::INFINITY, f64::min);
                        assert!(
                            found <= least * (1.0 + 1e-5) + 1e-6,
                            "{tier}, {bits} bits, lane {lane}: {found}, {least} is possible"
                        );
                    }
                }
            }
        }
    }
}
