
// Products of TOKENS tokens, few of them, in integers. Numbers of x become 16 bits under a scale for every 16 of them, a high and a low
// byte each; codes of weights are bytes, and four products of bytes are one instruction. Sums over half a group are exact; those of
// halves and groups are f32.
//
// 32 lanes share R rows, a lane has a group of each at a time. AHEAD groups of each row are asked for at a time, the first before x is
// there and the next before these are multiplied. x goes through workgroup memory, STAGE groups at a time; with SINGLE all of it is
// there at once, and a workgroup goes from rows to rows with it. With NORMED x is multiplied by the norm's weights on its way, and
// sums by the inverse of its root mean square at the end; with VISITS every row of y has the matrix of an expert.
//
// A token has the same bits alone and beside others: thread j sums the squares of halves j, j + THREADS, … of a row, in this order, which
// is how one token's halves are staged; several tokens are squared apart from that.
// (token, high or low bytes, half, group): 16 bytes.
var<workgroup> bytes: array<vec4<u32>, TOKENS * 4 * STAGE>;
// (token, group): scales of both halves, and the sums of both halves' numbers.
var<workgroup> scales: array<vec4<f32>, TOKENS * STAGE>;
// The sums of lane l of team m lie at 33 · (R · TOKENS · m + TOKENS · r + t) + l.
var<workgroup> lanes: array<f32, 33 * TEAMS * R * TOKENS>;
// Of one token; those of several lie where the sums of lanes will.
var<workgroup> squares: array<f32, THREADS>;
// (token, team)
var<workgroup> norms: array<f32, TOKENS * TEAMS>;

@compute @workgroup_size(THREADS)
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
    var row$r = row_of(TEAMS * place + team, $ru) * ROW_WORDS;
    //@ t TOKENS
    var sum$r_$t = 0.0;
    //@
    //@
    //@ u AHEAD
    //@ r R
    var w$r_$u = fetch(row$r, at_most(32u * $uu + lane));
    //@
    //@
    //@ t TOKENS
    var square$t = 0.0;
    //@
    for (var unit = place; unit < max(units, place + 1u); unit += count.x * count.y) {
        let after = unit + count.x * count.y;
        for (var base = 0u; base < GROUPS; base += STAGE) {
            if !SINGLE || unit == place {
                workgroupBarrier();
                for (var half = thread; half < 2u * STAGE * TOKENS; half += THREADS) {
                    square0 += staged(half, first, base);
                }
                if NORMED && TOKENS == 1u {
                    squares[thread] = square0;
                }
                if NORMED && TOKENS > 1u && base == 0u {
                    //@ t TOKENS
                    for (var half = thread; half < 2u * GROUPS; half += THREADS) {
                        square$t += half_square(first + $tu, 4u * half);
                    }
                    lanes[THREADS * $tu + thread] = square$t;
                    //@
                }
                workgroupBarrier();
                if NORMED && base == 0u && thread < TOKENS * TEAMS {
                    var sum = 0.0;
                    //@ l 32
                    sum += square_of(32u * thread + $lu);
                    //@
                    norms[thread] = sum;
                }
                if NORMED && TOKENS > 1u && base == 0u {
                    // Squares are read before the sums of lanes are written.
                    workgroupBarrier();
                }
            }
            for (var s = 0u; s < STAGE / 32u; s += AHEAD) {
                //@ u AHEAD
                //@ r R
                var next$r_$u = w$r_$u;
                //@
                //@
                let next = base + 32u * (s + AHEAD);
                if next < GROUPS {
                    //@ u AHEAD
                    //@ r R
                    next$r_$u = fetch(row$r, at_most(next + 32u * $uu + lane));
                    //@
                    //@
                } else if SINGLE && after < units {
                    //@ r R
                    row$r = row_of(TEAMS * after + team, $ru) * ROW_WORDS;
                    //@ u AHEAD
                    next$r_$u = fetch(row$r, at_most(32u * $uu + lane));
                    //@
                    //@
                }
                //@ u AHEAD
                if WHOLE || base + 32u * (s + $uu) + lane < GROUPS {
                    let at = 32u * (s + $uu) + lane;
                    //@ t TOKENS
                    let m$t = scales[STAGE * $tu + at];
                    let high$t_0 = bytes[STAGE * (4u * $tu) + at];
                    let high$t_1 = bytes[STAGE * (4u * $tu + 1u) + at];
                    let low$t_0 = bytes[STAGE * (4u * $tu + 2u) + at];
                    let low$t_1 = bytes[STAGE * (4u * $tu + 3u) + at];
                    //@
                    //@ r R
                    {
                        let first_half = first_codes(w$r_$u);
                        let second_half = second_codes(w$r_$u);
                        //@ t TOKENS
                        sum$r_$t += levelled(
                            w$r_$u,
                            f32(256 * dots(first_half, high$t_0) + dots(first_half, low$t_0)),
                            f32(256 * dots(second_half, high$t_1) + dots(second_half, low$t_1)),
                            m$t,
                        );
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
        lanes[33u * (TOKENS * (R * team + $ru) + $tu) + lane] = sum$r_$t;
        sum$r_$t = 0.0;
        //@
        //@
        workgroupBarrier();
        // A thread to each output of the workgroup.
        let t = thread / OUTPUTS;
        let own = thread % OUTPUTS;
        let o = OUTPUTS * unit + own;
        if t < TOKENS && first + t < a.tokens && o < a.outputs {
            var inverse = 1.0;
            if NORMED {
                var sum = 0.0;
                //@ m TEAMS
                sum += norms[TEAMS * t + $mu];
                //@
                inverse = a.norm_scale / sqrt(sum / f32(INPUTS) + a.eps);
            }
            if GATED {
                var gate = inverse * total(TOKENS * (2u * own) + t);
                var up = inverse * total(TOKENS * (2u * own + 1u) + t);
                if BIAS {
                    gate += bias[bias_of(o)];
                    up += bias[bias_of(o) + a.outputs];
                }
                y[(first + t) * a.y_stride + a.y_at + o] = inner_value(gate, up, a.keep, a.scale, a.cap);
            } else {
                store(first + t, o, bias_of(o), inverse * total(TOKENS * own + t));
            }
        }
        if SINGLE && after < units {
            // The sums of lanes are read before the next ones are written.
            workgroupBarrier();
        }
    }
}

// A group that is there. With WHOLE lanes and stages have as many groups as each other.
fn at_most(group: u32) -> u32 {
    if WHOLE {
        return group;
    }
    return min(group, GROUPS - 1u);
}

fn dots(codes: vec4<u32>, x: vec4<u32>) -> i32 {
    return dot4I8Packed(codes.x, x.x) + dot4I8Packed(codes.y, x.y) + dot4I8Packed(codes.z, x.z) + dot4I8Packed(codes.w, x.w);
}

fn scaled_input(token: u32, four: u32) -> vec4<f32> {
    let v = input(token, four);
    if NORM_WEIGHT && 4u * four < INPUTS {
        return v * norm_weight[four];
    }
    return v;
}

// The squares of half a group of x, before it meets the norm's weights.
fn half_square(token: u32, four: u32) -> f32 {
    var square = 0.0;
    //@ i 4
    let r$i = input(token, four + $iu);
    square += dot(r$i, r$i);
    //@
    return square;
}

fn square_of(number: u32) -> f32 {
    if TOKENS > 1u {
        return lanes[number];
    }
    return squares[number % THREADS];
}

// Brings half a group of x; says what its squares are where one token is normed.
fn staged(number: u32, first: u32, base: u32) -> f32 {
    let half = number % (2u * STAGE);
    let t = number / (2u * STAGE);
    let four = 4u * (2u * base + half);
    var square = 0.0;
    if NORMED && TOKENS == 1u {
        square = half_square(first + t, four);
    }
    //@ i 4
    let x$i = scaled_input(first + t, four + $iu);
    //@
    let made = sixteen(x0, x1, x2, x3);
    let at = STAGE * (4u * t + half % 2u) + half / 2u;
    bytes[at] = made.high;
    bytes[at + 2u * STAGE] = made.low;
    scales[STAGE * t + half / 2u][half % 2u] = made.scale;
    scales[STAGE * t + half / 2u][2u + half % 2u] = made.sum;
    return square;
}

fn total(column: u32) -> f32 {
    var sum = 0.0;
    //@ l 32
    sum += lanes[33u * column + $lu];
    //@
    return sum;
}
