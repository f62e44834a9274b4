
// A pair of channels turned by an angle with this sine and cosine. The products are rounded as they stand here: kernels that rotate
// give the same bits.
fn turned(u: f32, v: f32, turn: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(fma(u, turn.y, -(v * turn.x)), fma(v, turn.y, u * turn.x));
}
