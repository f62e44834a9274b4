
// Products of many tokens: 64 outputs of 8 · P tokens to a workgroup. A group of 32 inputs at a time, weights are unpacked into
// workgroup memory by half of the threads and numbers of x brought there by the other half; a thread has four outputs of P tokens.
//
// Groups come in the order of lanes, and what a lane has is added when it is through.

// (input, four outputs).
var<workgroup> ws: array<vec4<f32>, 512>;
// (input, four tokens); fours of tokens lie crosswise by fours of inputs, so that threads that store meet in no bank.
var<workgroup> xs: array<vec4<f32>, 64 * P>;

@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let quad = thread % 16u;
    let slot = thread / 16u;
    let tile = tile_at(id.x, 8u * P);
    if GROUPED && tile.end == 0u {
        return;
    }
    let first = tile.first;
    let row = (tile.row + min(id.y * 64u + thread % 64u, a.outputs - 1u)) * a.row_words;
    //@ h FOURS
    //@ j 4
    var sum$h_$j = vec4<f32>(0.0);
    var all$h_$j = vec4<f32>(0.0);
    //@
    //@
    // What the next group needs is asked for before this one is multiplied.
    let own = thread % 64u;
    let k = thread % 8u;
    let lanes = min(32u, a.groups);
    var lane = 0u;
    var group = 0u;
    var w = fetch(row, 0u);
    //@ p P
    let t$p = own / 8u + 8u * $pu;
    var v$p = vec4<f32>(0.0);
    //@
    if thread >= 64u {
        //@ p P
        v$p = input(first + t$p, k);
        //@
    }
    while lane < lanes {
        if thread < 64u {
            //@ i 8
            {
                let v = level4(w, $iu);
                ws[64u * $iu + thread / 4u][thread % 4u] = v.x;
                ws[64u * $iu + 16u + thread / 4u][thread % 4u] = v.y;
                ws[64u * $iu + 32u + thread / 4u][thread % 4u] = v.z;
                ws[64u * $iu + 48u + thread / 4u][thread % 4u] = v.w;
            }
            //@
        } else {
            //@ p P
            {
                let at = 8u * P * k + ((t$p / 4u) ^ k);
                xs[at][t$p % 4u] = v$p.x;
                xs[at + 2u * P][t$p % 4u] = v$p.y;
                xs[at + 4u * P][t$p % 4u] = v$p.z;
                xs[at + 6u * P][t$p % 4u] = v$p.w;
            }
            //@
        }
        workgroupBarrier();
        group += 32u;
        let ends = group >= a.groups;
        if ends {
            lane++;
            group = lane;
        }
        if lane < lanes {
            if thread < 64u {
                w = fetch(row, group);
            } else {
                //@ p P
                v$p = input(first + t$p, 8u * group + k);
                //@
            }
        }
        for (var c = 0u; c < 8u; c++) {
            //@ j 4
            {
                let outputs = ws[64u * c + 16u * $ju + quad];
                //@ h FOURS
                {
                    let tokens = xs[8u * P * c + 2u * P * $ju + ((FOURS * slot + $hu) ^ c)];
                    sum$h_0 = fma(outputs, vec4<f32>(tokens.x), sum$h_0);
                    sum$h_1 = fma(outputs, vec4<f32>(tokens.y), sum$h_1);
                    sum$h_2 = fma(outputs, vec4<f32>(tokens.z), sum$h_2);
                    sum$h_3 = fma(outputs, vec4<f32>(tokens.w), sum$h_3);
                }
                //@
            }
            //@
        }
        if ends {
            //@ h FOURS
            //@ j 4
            all$h_$j += sum$h_$j;
            sum$h_$j = vec4<f32>(0.0);
            //@
            //@
        }
        workgroupBarrier();
    }
    let o = id.y * 64u + 4u * quad;
    //@ h FOURS
    //@ j 4
    {
        let token = first + P * slot + 4u * $hu + $ju;
        //@ n 4
        if token < tile.end && o + $nu < a.outputs {
            store(visit(token), o + $nu, a.bias_at + tile.row + o + $nu, all$h_$j[$n]);
        }
        //@
    }
    //@
    //@
}
