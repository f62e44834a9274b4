//! Gated linear attention: S ← g·S + k vᵀ, and a token gets Sᵀ q.

use kvant_cache::{PageId, PageStore, RecurrentShape, RecurrentState, STATE_CHUNK, StateWork};

/// Widths of keys and values; the state is (KEY, VALUE), a row is k, v and g.
#[derive(Clone, Copy)]
pub struct Mixer {
    pub key: usize,
    pub value: usize,
}

impl Mixer {
    pub fn shape(self) -> RecurrentShape {
        RecurrentShape { state: self.key * self.value, row: self.key + self.value + 1 }
    }

    /// What a token of this position brings: k, v, g.
    pub fn row(self, layer: usize, token: u32, position: usize) -> Vec<f32> {
        let wave = |i: usize| ((token as usize * 31 + position * 17 + layer * 7 + i * 3) as f32 * 0.37).sin();
        let mut row: Vec<f32> = (0..self.key + self.value).map(wave).collect();
        row.push(0.9 + 0.09 * wave(99));
        row
    }

    fn query(self, layer: usize, position: usize) -> impl Fn(usize) -> f32 {
        move |i| ((position * 13 + layer * 5 + i * 11) as f32 * 0.21).cos()
    }

    /// Reads rows, (tokens, row), into the state, and returns what their tokens get, (tokens, VALUE): each from the state at its
    /// chunk's start and the rows of the chunk up to its own.
    pub fn read(self, layer: usize, state: &mut RecurrentState, rows: &[f32]) -> Vec<f32> {
        let width = self.shape().row;
        let mut out = Vec::new();
        let mut rest = rows;
        while !rest.is_empty() {
            let room = (STATE_CHUNK - state.open_tokens()) * width;
            let (now, later) = rest.split_at(room.min(rest.len()));
            let first = state.open_tokens();
            state.push(now).unwrap();
            for token in first..state.open_tokens() {
                let position = state.len() - state.open_tokens() + token;
                let rows = &state.rows()[..(token + 1) * width];
                out.extend(self.token(layer, position, &state.state(), rows));
            }
            if state.open_tokens() == STATE_CHUNK {
                state.close(|state, rows| self.fold(state, rows)).unwrap();
            }
            rest = later;
        }
        out
    }

    /// The same on a device, by the pages that it is told of; `start` is the position of the first row.
    pub fn read_on_device(
        self,
        (layer, start): (usize, usize),
        work: &StateWork,
        store: &dyn PageStore,
        rows: &[f32],
    ) -> Vec<f32> {
        let width = self.shape().row;
        let floats = |page: Option<PageId>, count: usize| {
            let mut bytes = vec![0; 4 * count];
            if let Some(page) = page {
                store.read(page, &mut bytes);
            }
            bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<f32>>()
        };
        let keep = |page: Option<PageId>, numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            page.into_iter().for_each(|page| store.write(page, &bytes));
        };
        let mut state = floats(work.pieces.first().and_then(|piece| piece.state), self.shape().state);
        let (mut out, mut at) = (Vec::new(), 0);
        for piece in &work.pieces {
            let mut all = floats(piece.rows, STATE_CHUNK * width);
            let end = piece.before + piece.tokens;
            all[piece.before * width..end * width]
                .copy_from_slice(&rows[at * width..][..piece.tokens * width]);
            keep(piece.rows, &all);
            for token in piece.before..end {
                let position = start + at + token - piece.before;
                out.extend(self.token(layer, position, &state, &all[..(token + 1) * width]));
            }
            at += piece.tokens;
            if end == STATE_CHUNK {
                self.fold(&mut state, &all);
                keep(piece.next, &state);
            }
        }
        for copy in &work.copies {
            let rows = floats(Some(copy.from), STATE_CHUNK * width);
            keep(Some(copy.to), &rows[..copy.bytes / 4]);
        }
        out
    }

    /// The chunked form: what the last of these rows' tokens gets.
    fn token(self, layer: usize, position: usize, state: &[f32], rows: &[f32]) -> Vec<f32> {
        let q = self.query(layer, position);
        let mut out = vec![0.0; self.value];
        let mut decay = 1.0;
        for row in rows.chunks_exact(self.shape().row).rev() {
            let (k, rest) = row.split_at(self.key);
            let score: f32 = k.iter().enumerate().map(|(i, k)| k * q(i)).sum();
            out.iter_mut().zip(&rest[..self.value]).for_each(|(x, v)| *x += decay * score * v);
            decay *= rest[self.value];
        }
        for (i, line) in state.chunks_exact(self.value).enumerate() {
            out.iter_mut().zip(line).for_each(|(x, s)| *x += decay * q(i) * s);
        }
        out
    }

    /// The state at the next chunk's start.
    fn fold(self, state: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(self.shape().row) {
            let (k, rest) = row.split_at(self.key);
            for (line, k) in state.chunks_exact_mut(self.value).zip(k) {
                line.iter_mut().zip(rest).for_each(|(s, v)| *s = rest[self.value] * *s + k * v);
            }
        }
    }

    /// What every token gets by the definition, in f64, (tokens, VALUE).
    pub fn oracle(self, layer: usize, tokens: &[u32]) -> Vec<f64> {
        let mut state = vec![0.0f64; self.key * self.value];
        let mut out = Vec::new();
        for (position, token) in tokens.iter().enumerate() {
            let row = self.row(layer, *token, position);
            let (gate, q) = (f64::from(row[self.key + self.value]), self.query(layer, position));
            for i in 0..self.key {
                for j in 0..self.value {
                    let s = &mut state[i * self.value + j];
                    *s = gate * *s + f64::from(row[i]) * f64::from(row[self.key + j]);
                }
            }
            for j in 0..self.value {
                out.push((0..self.key).map(|i| f64::from(q(i)) * state[i * self.value + j]).sum());
            }
        }
        out
    }
}
