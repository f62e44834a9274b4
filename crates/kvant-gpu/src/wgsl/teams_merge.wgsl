// The splits of every query head put together, one after another, and the sum over coded pages back in the model's basis: as `merge.wgsl`,
// by PARTS workgroups for each head, which all sum the splits and have a part of the outputs each. All that a thread needs is asked for
// before it first waits. Where attention made keys and values of its own, workgroups behind those write them (`own_rows.wgsl`).
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
const COLS = 4u;
const OUTPUTS = VALUE_DIM / PARTS;
// Threads that share an output where sums are moved, and channels of each.
const SLICES = 128u / OUTPUTS;
const CHANNELS = VALUE_DIM / SLICES;
const STEP = COLS * (VALUE_DIM + 2u);

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// Of every kv head (channels of the codec, channels of the model), then the mean.
@group(0) @binding(2) var<storage, read> finish: array<f32>;
// A logit per query head that has no value.
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Largest scores of splits that weigh something; what their sums are multiplied by, 128 splits at a time, and what they weigh, negative
// where they are in the codec's basis.
var<workgroup> tops: array<vec4<f32>, 32>;
var<workgroup> shares: array<f32, 128>;
var<workgroup> denominators: array<f32, 128>;
// (channels): sums in the codec's basis and in the model's.
var<workgroup> coded: array<f32, VALUE_DIM>;
var<workgroup> exact: array<f32, VALUE_DIM>;
// (slices, outputs)
var<workgroup> moved: array<f32, 128>;

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
        if id.z == 0u {
            write_rows(thread, number - a.rows * a.heads);
        }
        return;
    }
    let at = a.rows_at + 4u * row;
    let splits = plan[at + 1u];
    let column = plan[at + 3u] * a.group + head % a.group;
    let first = plan[at] + ((head / a.group) * plan[at + 2u] + column / COLS) * splits;
    let base = first * STEP + (column % COLS) * (VALUE_DIM + 2u);
    let slice = thread / OUTPUTS;
    let output = id.z * OUTPUTS + thread % OUTPUTS;
    let finish_at = head / a.group * FINISH_STEP;
    let channel = min(thread, VALUE_DIM - 1u);
    // The first splits' sums and this thread's part of the change of basis.
    let score = partials[base + min(thread, splits - 1u) * STEP];
    let denominator = partials[base + min(thread, splits - 1u) * STEP + 1u];
    var form = 1u;
    if MOVED {
        form = plan[a.tasks_at + 11u * (first + min(thread, splits - 1u)) + 8u];
    }
    //@ u AHEAD
    var v$u = partials[base + 2u + channel + min($uu, splits - 1u) * STEP];
    //@
    //@ j MOVES
    let f$j = finish[finish_at + (CHANNELS * slice + $ju) * VALUE_DIM + output];
    //@
    var own = NONE;
    if thread < splits && denominator > 0.0 {
        own = score;
    }
    for (var s = 128u + thread; s < splits; s += 128u) {
        if partials[base + s * STEP + 1u] > 0.0 {
            own = max(own, partials[base + s * STEP]);
        }
    }
    tops[thread / 4u][thread % 4u] = own;
    workgroupBarrier();
    var most = tops[0];
    for (var n = 1u; n < min(32u, (splits + 3u) / 4u); n++) {
        most = max(most, tops[n]);
    }
    var top = max(max(most.x, most.y), max(most.z, most.w));
    if SINK_LOGITS {
        top = max(top, logits[head]);
    }
    var all = 0.0;
    var in_coded = 0.0;
    var sum = 0.0;
    var sum_coded = 0.0;
    for (var begin = 0u; begin < splits; begin += 128u) {
        let s = begin + thread;
        var share = 0.0;
        var weight = 0.0;
        if s < splits {
            var s_top = score;
            var s_denominator = denominator;
            var s_form = form;
            if begin > 0u {
                s_top = partials[base + s * STEP];
                s_denominator = partials[base + s * STEP + 1u];
                if MOVED {
                    s_form = plan[a.tasks_at + 11u * (first + s) + 8u];
                }
            }
            if s_denominator > 0.0 {
                share = exp(s_top - top);
                weight = s_denominator * share;
                if MOVED && s_form == 0u {
                    share = -share;
                    weight = -weight;
                }
            }
        }
        if begin > 0u {
            workgroupBarrier();
        }
        shares[thread] = share;
        denominators[thread] = weight;
        workgroupBarrier();
        let end = min(128u, splits - begin);
        // One after another: splits that a query sees nothing of change no sum, nor do those behind the last.
        for (var n = 0u; n < end; n += AHEAD) {
            if begin + n > 0u {
                //@ u AHEAD
                v$u = partials[base + 2u + channel + (begin + min(n + $uu, end - 1u)) * STEP];
                //@
            }
            //@ u AHEAD
            {
                let by = shares[n + $uu];
                let of_split = denominators[n + $uu];
                sum = fma(v$u, max(by, 0.0), sum);
                sum_coded = fma(v$u, max(-by, 0.0), sum_coded);
                all += abs(of_split);
                in_coded += max(-of_split, 0.0);
            }
            //@
        }
    }
    if SINK_LOGITS {
        all += exp(logits[head] - top);
    }
    if thread < VALUE_DIM {
        exact[thread] = sum;
        coded[thread] = sum_coded;
    }
    workgroupBarrier();
    if MOVED {
        var part = 0.0;
        //@ j MOVES
        part = fma(f$j, coded[CHANNELS * slice + $ju], part);
        //@
        moved[thread] = part;
        workgroupBarrier();
    }
    if thread < OUTPUTS {
        var v = exact[output];
        if MOVED && in_coded > 0.0 {
            for (var n = 0u; n < SLICES; n++) {
                v += moved[n * OUTPUTS + thread];
            }
            v += finish[finish_at + VALUE_DIM * VALUE_DIM + output] * in_coded;
        }
        y[a.y_at + row * a.y_stride + head * VALUE_DIM + output] = v / all;
    }
}
