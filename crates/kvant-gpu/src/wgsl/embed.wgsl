// x[t] = scale · table[id of t] + positions[position of t], a thread to a group of 32 channels. Ids outside this part of the table
// are another part's.
struct Arguments {
    groups: u32,
    inputs: u32,
    x_stride: u32,
    tokens: u32,
    first: u32,
    rows: u32,
    row_words: u32,
    ids_at: u32,
    scale: f32,
    positions_at: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> weights: array<u32>;
@group(0) @binding(1) var<storage, read> weights4: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> plan: array<u32>;
@group(0) @binding(3) var<storage, read> positions: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let group = id.x;
    let token = id.y + id.z * 32768u;
    if group >= a.groups || token >= a.tokens {
        return;
    }
    let row = plan[a.ids_at + token] - a.first;
    if row >= a.rows {
        return;
    }
    let w = fetch(row * a.row_words, group);
    //@ i 8
    {
        let four = level4(w, $iu) * a.scale;
        for (var j = 0u; j < 4u; j++) {
            let c = 32u * group + 4u * $iu + j;
            if c < a.inputs {
                var v = four[j];
                if POSITIONS {
                    v += positions[plan[a.positions_at + token] * a.inputs + c];
                }
                x[token * a.x_stride + c] = v;
            }
        }
    }
    //@
}
