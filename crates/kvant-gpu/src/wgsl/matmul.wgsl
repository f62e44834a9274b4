
// Products of TOKENS tokens, few of them. 32 lanes share R rows; numbers of x go through workgroup memory, STAGE groups at a time,
// where lanes find theirs side by side. AHEAD groups of each row are asked for at a time, the first before x is there and the next
// before these are multiplied: memory is never waited for idly. With SINGLE all of x is there at once, and a workgroup goes from rows to
// rows with it. With NORMED the rows of x are normed on their way; with VISITS every
// row of y has the matrix of an expert.
// Four number i of group 32 · s + l of a token lies at 33 · (8 · s + i) + l.
const STAGED = 33u * STAGE / 4u;

var<workgroup> staged: array<vec4<f32>, TOKENS * STAGED>;
// The sums of lane l of team m lie at 264 · (TOKENS · r + t) + 33 · m + l.
var<workgroup> lanes: array<f32, 264 * R * TOKENS>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let lane = thread % 32u;
    let team = thread / 32u;
    let place = id.x + id.y * count.x;
    let units = (a.outputs + OUTPUTS - 1u) / OUTPUTS;
    let first = TOKENS * id.z;
    if VISITS {
        expert = routes[2u * first];
    }
    //@ r R
    var row$r = row_of(8u * place + team, $ru) * a.row_words;
    //@ t TOKENS
    var sum$r_$t = 0.0;
    //@
    //@
    //@ u AHEAD
    //@ r R
    var w$r_$u = fetch(row$r, min(32u * $uu + lane, a.groups - 1u));
    //@
    //@
    var mean = 0.0;
    var inverse = 0.0;
    if NORMED {
        if LAYER {
            var sum = 0.0;
            //@ n NORM_STEPS
            let u$n = input(first, thread + 128u * $nu);
            //@
            //@ n NORM_STEPS
            sum += ((u$n.x + u$n.y) + u$n.z) + u$n.w;
            //@
            mean = added(thread, sum) / f32(INPUTS);
        }
        var square = 0.0;
        //@ n NORM_STEPS
        let v$n = input(first, thread + 128u * $nu);
        //@
        //@ n NORM_STEPS
        if 4u * (thread + 128u * $nu) < INPUTS {
            let v = v$n - mean;
            square = fma(v.x, v.x, square);
            square = fma(v.y, v.y, square);
            square = fma(v.z, v.z, square);
            square = fma(v.w, v.w, square);
        }
        //@
        inverse = a.norm_scale / sqrt(added(thread, square) / f32(INPUTS) + a.eps);
    }
    for (var unit = place; unit < max(units, place + 1u); unit += count.x * count.y) {
        let after = unit + count.x * count.y;
        for (var base = 0u; base < a.groups; base += STAGE) {
            if !SINGLE || unit == place {
                workgroupBarrier();
                //@ e STEPS
                let k$e = thread + 256u * $eu;
                let x$e = normed(input(first + k$e / (8u * STAGE), 8u * base + k$e % (8u * STAGE)), 8u * base + k$e % (8u * STAGE), mean, inverse);
                //@
                //@ e STEPS
                stage(k$e, x$e);
                //@
                workgroupBarrier();
            }
            for (var s = 0u; s < STAGE / 32u; s += AHEAD) {
                //@ u AHEAD
                //@ r R
                var next$r_$u = w$r_$u;
                //@
                //@
                let next = base + 32u * (s + AHEAD);
                if next < a.groups {
                    //@ u AHEAD
                    //@ r R
                    next$r_$u = fetch(row$r, min(next + 32u * $uu + lane, a.groups - 1u));
                    //@
                    //@
                } else if SINGLE && after < units {
                    //@ r R
                    row$r = row_of(8u * after + team, $ru) * a.row_words;
                    //@ u AHEAD
                    next$r_$u = fetch(row$r, min(32u * $uu + lane, a.groups - 1u));
                    //@
                    //@
                }
                //@ u AHEAD
                if base + 32u * (s + $uu) + lane < a.groups {
                    //@ i 8
                    {
                        //@ t TOKENS
                        let x$t = staged[$tu * STAGED + 33u * (8u * (s + $uu) + $iu) + lane];
                        //@
                        //@ r R
                        {
                            let v = level4(w$r_$u, $iu);
                            //@ t TOKENS
                            sum$r_$t = fma(v.x, x$t.x, sum$r_$t);
                            sum$r_$t = fma(v.y, x$t.y, sum$r_$t);
                            sum$r_$t = fma(v.z, x$t.z, sum$r_$t);
                            sum$r_$t = fma(v.w, x$t.w, sum$r_$t);
                            //@
                        }
                        //@
                    }
                    //@
                }
                //@
                //@ u AHEAD
                //@ r R
                w$r_$u = next$r_$u;
                //@
                //@
            }
        }
        //@ r R
        //@ t TOKENS
        lanes[264u * (TOKENS * $ru + $tu) + 33u * team + lane] = sum$r_$t;
        //@
        //@
        workgroupBarrier();
        // A thread to each output of the workgroup.
        let t = thread / OUTPUTS;
        let own = thread % OUTPUTS;
        let o = OUTPUTS * unit + own;
        if t < TOKENS && first + t < a.tokens && o < a.outputs {
            if GATED {
                let pairs = max(R / 2u, 1u);
                var gate = total(TOKENS * (2u * (own % pairs)) + t, own / pairs);
                var up = total(TOKENS * (2u * (own % pairs) + 1u) + t, own / pairs);
                if BIAS {
                    gate += bias[bias_of(o)];
                    up += bias[bias_of(o) + a.outputs];
                }
                y[(first + t) * a.y_stride + a.y_at + o] = inner_value(gate, up, a.keep, a.scale, a.cap);
            } else {
                store(first + t, o, bias_of(o), total(TOKENS * (own % R) + t, own / R));
            }
        }
        if SINGLE && after < units {
            // The sums of lanes are read before the next ones are written.
            workgroupBarrier();
            //@ r R
            //@ t TOKENS
            sum$r_$t = 0.0;
            //@
            //@
        }
    }
}

fn normed(x: vec4<f32>, four: u32, mean: f32, inverse: f32) -> vec4<f32> {
    var v = x;
    if NORMED && 4u * four < INPUTS {
        v = (v - mean) * inverse;
        if NORM_WEIGHT {
            v *= norm_weight[four];
        }
        if NORM_BIAS {
            v += a.norm_scale * norm_bias[four];
        }
    }
    return v;
}

fn stage(number: u32, v: vec4<f32>) {
    let k = number % (8u * STAGE);
    staged[(number / (8u * STAGE)) * STAGED + 33u * (8u * (k / 256u) + k % 8u) + (k / 8u) % 32u] = v;
}

fn total(column: u32, team: u32) -> f32 {
    var sum = 0.0;
    //@ l 32
    sum += lanes[264u * column + 33u * team + $lu];
    //@
    return sum;
}
