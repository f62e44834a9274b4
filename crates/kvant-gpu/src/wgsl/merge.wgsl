// The splits of every query head put together, one after another, and the sum over coded pages back in the model's basis. Where
// attention made keys and values of its own, workgroups behind those write them to their pages (`own_rows.wgsl`).
struct Arguments {
    rows_at: u32,
    rows: u32,
    tasks_at: u32,
    heads: u32,
    group: u32,
    y_stride: u32,
    y_at: u32,
    // Of rows that are written to pages.
    mark: u32,
    turns_at: u32,
    k_records_at: u32,
    v_records_at: u32,
    records: u32,
}

const NONE = -3.0e38;

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// Of every kv head (channels of the codec, channels of the model), then the mean.
@group(0) @binding(2) var<storage, read> finish: array<f32>;
// A logit per query head that has no value.
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

var<workgroup> coded: array<f32, VALUE_DIM>;
// What the sums of splits are multiplied by, 128 splits at a time, and what they weigh; negative where they are in the codec's basis.
var<workgroup> shares: array<f32, 128>;
var<workgroup> denominators: array<f32, 128>;

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
        write_rows(thread, number - a.rows * a.heads);
        return;
    }
    let at = a.rows_at + 4u * row;
    let splits = plan[at + 1u];
    let column = plan[at + 3u] * a.group + head % a.group;
    let first = plan[at] + ((head / a.group) * plan[at + 2u] + column / COLS) * splits;
    let step = COLS * (VALUE_DIM + 2u);
    let base = first * step + (column % COLS) * (VALUE_DIM + 2u);
    var own = NONE;
    for (var s = thread; s < splits; s += 128u) {
        if partials[base + s * step + 1u] > 0.0 {
            own = max(own, partials[base + s * step]);
        }
    }
    var top = largest(thread, own);
    if SINK_LOGITS {
        top = max(top, logits[head]);
    }
    var all = 0.0;
    var in_coded = 0.0;
    //@ i CHANNELS
    var exact$i = 0.0;
    var moved$i = 0.0;
    //@
    for (var begin = 0u; begin < splits; begin += 128u) {
        let s = begin + thread;
        var share = 0.0;
        var denominator = 0.0;
        if s < splits {
            let total = partials[base + s * step + 1u];
            if total > 0.0 {
                share = exp(partials[base + s * step] - top);
                denominator = total * share;
                if MOVED && plan[a.tasks_at + 11u * (first + s) + 8u] == 0u {
                    share = -share;
                    denominator = -denominator;
                }
            }
        }
        workgroupBarrier();
        shares[thread] = share;
        denominators[thread] = denominator;
        workgroupBarrier();
        let end = min(128u, splits - begin);
        // One after another: splits that a query sees nothing of change no sum, nor do those behind the last.
        for (var n = 0u; n < end; n += 16u) {
            //@ u 16
            let denominator$u = denominators[n + $uu];
            //@
            //@ u 16
            all += abs(denominator$u);
            in_coded += max(-denominator$u, 0.0);
            //@
        }
        //@ i CHANNELS
        if thread + 128u * $iu < VALUE_DIM {
            let c = base + begin * step + 2u + thread + 128u * $iu;
            for (var n = 0u; n < end; n += AHEAD) {
                //@ u AHEAD
                let v$u = partials[c + min(n + $uu, end - 1u) * step];
                //@
                //@ u AHEAD
                exact$i = fma(v$u, max(shares[n + $uu], 0.0), exact$i);
                moved$i = fma(v$u, max(-shares[n + $uu], 0.0), moved$i);
                //@
            }
        }
        //@
    }
    if SINK_LOGITS {
        all += exp(logits[head] - top);
    }
    //@ i CHANNELS
    if thread + 128u * $iu < VALUE_DIM {
        coded[thread + 128u * $iu] = moved$i;
    }
    //@
    workgroupBarrier();
    let finish_at = head / a.group * FINISH_STEP;
    //@ i CHANNELS
    if thread + 128u * $iu < VALUE_DIM {
        let c = thread + 128u * $iu;
        var v = exact$i;
        if MOVED && in_coded > 0.0 {
            for (var j = 0u; j < VALUE_DIM; j += FINISH_AHEAD) {
                //@ u FINISH_AHEAD
                let f$u = finish[finish_at + (j + $uu) * VALUE_DIM + c];
                //@
                //@ u FINISH_AHEAD
                v = fma(f$u, coded[j + $uu], v);
                //@
            }
            v += finish[finish_at + VALUE_DIM * VALUE_DIM + c] * in_coded;
        }
        y[a.y_at + row * a.y_stride + head * VALUE_DIM + c] = v / all;
    }
    //@
}

fn largest(thread: u32, v: f32) -> f32 {
    shares[thread] = v;
    for (var step = 64u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if thread < step {
            shares[thread] = max(shares[thread], shares[thread + step]);
        }
    }
    workgroupBarrier();
    return shares[0];
}
