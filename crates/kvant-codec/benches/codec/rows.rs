//! What the benches encode.

/// Pseudo-random floats, roughly Gaussian.
pub fn gaussian(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 1.414 - 4.243).collect()
}

/// Rows of `width` channels, of which the later vary less and more slowly from row to row, as keys and values of models do: by
/// group of 64 channels from white noise to a correlation of 0.94, and from a deviation of 1 down to 0.3. What a codec does
/// with a page may depend on that.
pub fn smooth(count: usize, width: usize, seed: u64) -> Vec<f32> {
    let mut rows = gaussian(count, seed);
    for c in 0..width {
        let place = (c % 64) as f32 / 64.0;
        let (leak, deviation) = (0.96 * place, 1.0 - 0.7 * place);
        let (fresh, mut before) = ((1.0 - leak * leak).sqrt(), 0.0f32);
        for x in rows.iter_mut().skip(c).step_by(width) {
            before = leak * before + fresh * *x;
            *x = deviation * before;
        }
    }
    rows
}
