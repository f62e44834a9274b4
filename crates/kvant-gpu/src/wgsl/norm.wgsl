// y = scale · (norm(x) · weight + bias) over stretches of `width` values; the row that is read may be another than the one written.
struct Arguments {
    width: u32,
    segments: u32,
    x_stride: u32,
    x_at: u32,
    x_segment: u32,
    y_stride: u32,
    y_at: u32,
    y_segment: u32,
    rows: u32,
    rows_at: u32,
    eps: f32,
    scale: f32,
    factor: f32,
    // From the weights of one stretch to those of the next.
    weight_segment: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let row = number / a.segments;
    let segment = number % a.segments;
    let is_there = row < a.rows;
    var base = row;
    if GATHER && is_there {
        base = plan[a.rows_at + row];
    }
    let x_at = base * a.x_stride + a.x_at + segment * a.x_segment;
    let y_at = row * a.y_stride + a.y_at + segment * a.y_segment;
    // Of a layer norm the mean first: the difference of two large sums would be worth little.
    var mean = 0.0;
    if LAYER {
        var sum = 0.0;
        for (var c = 4u * thread; c < a.width; c += 512u) {
            var four = x[x_at + c];
            for (var j = c + 1u; j < min(c + 4u, a.width); j++) {
                four += x[x_at + j];
            }
            sum += four;
        }
        mean = added(thread, sum) / f32(a.width);
    }
    var square = 0.0;
    for (var c = 4u * thread; c < a.width; c += 512u) {
        for (var j = c; j < min(c + 4u, a.width); j++) {
            let v = a.factor * (x[x_at + j] - mean);
            square = fma(v, v, square);
        }
    }
    let inverse = a.scale * a.factor / sqrt(added(thread, square) / f32(a.width) + a.eps);
    if !is_there {
        return;
    }
    for (var c = thread; c < a.width; c += 128u) {
        var v = (x[x_at + c] - mean) * inverse;
        if WEIGHT {
            v *= weight[segment * a.weight_segment + c];
        }
        if BIAS {
            v += a.scale * bias[c];
        }
        y[y_at + c] = v;
    }
}
