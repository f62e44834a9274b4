// Turns the first channels of every head by its position, and copies the others: y[t, h] = turn(x[t, h]) · scale. A thread to a
// pair of channels; channels that do not turn are pairs too.
struct Arguments {
    rows: u32,
    heads: u32,
    dim: u32,
    pairs: u32,
    x_stride: u32,
    x_at: u32,
    x_head: u32,
    y_stride: u32,
    y_at: u32,
    y_head: u32,
    turns_at: u32,
    scale: f32,
    amplitude: f32,
}

var<immediate> a: Arguments;
// (rows, pairs): sine and cosine.
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let number = id.x + id.y * 64u * count.x;
    let halves = (a.dim + 1u) / 2u;
    let row = number / (a.heads * halves);
    if row >= a.rows {
        return;
    }
    let head = (number / halves) % a.heads;
    let i = number % halves;
    let base = row * a.x_stride + a.x_at + head * a.x_head;
    let to = row * a.y_stride + a.y_at + head * a.y_head;
    if i < a.pairs {
        var first = i;
        var second = i + a.pairs;
        if NEIGHBOURS {
            first = 2u * i;
            second = 2u * i + 1u;
        }
        let at = a.turns_at + 2u * (row * a.pairs + i);
        let turn = a.amplitude * vec2<f32>(bitcast<f32>(plan[at]), bitcast<f32>(plan[at + 1u]));
        let u = a.scale * x[base + first];
        let v = a.scale * x[base + second];
        let pair = turned(u, v, turn);
        y[to + first] = pair.x;
        y[to + second] = pair.y;
        return;
    }
    for (var c = 2u * i; c < min(2u * i + 2u, a.dim); c++) {
        y[to + c] = a.scale * x[base + c];
    }
}
