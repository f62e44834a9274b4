// The splits of every query head put together, one after another, and the sum over coded pages back in the model's basis.
struct Arguments {
    rows_at: u32,
    rows: u32,
    tasks_at: u32,
    heads: u32,
    group: u32,
    y_stride: u32,
    y_at: u32,
}

const NONE = -3.0e38;

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// (channels of the codec, channels of the model), then the mean.
@group(0) @binding(2) var<storage, read> finish: array<f32>;
// A logit per query head that has no value.
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

var<workgroup> coded: array<f32, VALUE_DIM>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let row = number / a.heads;
    let head = number % a.heads;
    if row >= a.rows {
        return;
    }
    let at = a.rows_at + 4u * row;
    let splits = plan[at + 1u];
    let column = plan[at + 3u] * a.group + head % a.group;
    let first = plan[at] + ((head / a.group) * plan[at + 2u] + column / COLS) * splits;
    let step = COLS * (VALUE_DIM + 2u);
    let base = first * step + (column % COLS) * (VALUE_DIM + 2u);
    var top = NONE;
    if SINK_LOGITS {
        top = logits[head];
    }
    for (var s = 0u; s < splits; s++) {
        if partials[base + s * step + 1u] > 0.0 {
            top = max(top, partials[base + s * step]);
        }
    }
    var all = 0.0;
    var in_coded = 0.0;
    if SINK_LOGITS {
        all = exp(logits[head] - top);
    }
    for (var s = 0u; s < splits; s++) {
        let total = partials[base + s * step + 1u];
        if total > 0.0 {
            let weight = total * exp(partials[base + s * step] - top);
            all += weight;
            if plan[a.tasks_at + 11u * (first + s) + 8u] == 0u {
                in_coded += weight;
            }
        }
    }
    var exact: array<f32, CHANNELS>;
    for (var i = 0u; i < CHANNELS; i++) {
        let c = thread + 128u * i;
        if c < VALUE_DIM {
            var sum = 0.0;
            for (var s = 0u; s < splits; s++) {
                if partials[base + s * step + 1u] > 0.0 {
                    let v = partials[base + s * step + 2u + c] * exp(partials[base + s * step] - top);
                    if MOVED && plan[a.tasks_at + 11u * (first + s) + 8u] == 0u {
                        sum += v;
                    } else {
                        exact[i] += v;
                    }
                }
            }
            coded[c] = sum;
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < CHANNELS; i++) {
        let c = thread + 128u * i;
        if c < VALUE_DIM {
            var v = exact[i];
            if MOVED && in_coded > 0.0 {
                for (var j = 0u; j < VALUE_DIM; j++) {
                    v = fma(finish[j * VALUE_DIM + c], coded[j], v);
                }
                v += finish[VALUE_DIM * VALUE_DIM + c] * in_coded;
            }
            y[a.y_at + row * a.y_stride + head * VALUE_DIM + c] = v / all;
        }
    }
}
