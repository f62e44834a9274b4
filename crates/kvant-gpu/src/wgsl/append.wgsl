// Rows of a pass into exact pages. A workgroup to a run of rows of one page; a thread owns whole words, so that numbers beside each
// other in a word are never written by two.
struct Arguments {
    records_at: u32,
    records: u32,
    x_stride: u32,
    x_at: u32,
    x_head: u32,
    mark: u32,
    largest: f32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;

fn bits_of(v: f32) -> u32 {
    // By its bits: Metal compares as if no number were NaN.
    if (bitcast<u32>(v) & 0x7fffffffu) > bitcast<u32>(a.largest) {
        atomicMax(&status[0], a.mark);
    }
    if WIDE {
        return bitcast<u32>(v);
    }
    if BRAIN {
        return brain_bits(v);
    }
    return half_bits(v);
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let record = id.x + id.y * count.x;
    if record >= a.records {
        return;
    }
    let at = a.records_at + 6u * record;
    let page = plan[at];
    let tokens = select(TOKENS, 32u, plan[at + 1u] == 0u);
    let first = plan[at + 2u];
    let row = plan[at + 3u];
    let rows = plan[at + 4u];
    let base = row * a.x_stride + a.x_at + plan[at + 5u] * a.x_head;
    let per_word = select(2u, 1u, WIDE);
    let words = (tokens * DIM + per_word - 1u) / per_word;
    for (var word = thread; word < words; word += 64u) {
        var value = 0u;
        var replaced = 0u;
        for (var i = 0u; i < per_word; i++) {
            let e = per_word * word + i;
            var token = e / DIM;
            var c = e % DIM;
            if KEYS {
                token = e % tokens;
                c = e / tokens;
            }
            if token - first < rows && c < DIM && token < tokens {
                let mask = select(0xffffu << (16u * i), 0xffffffffu, WIDE);
                replaced |= mask;
                value |= (bits_of(x[base + (token - first) * a.x_stride + c]) << (16u * i)) & mask;
            }
        }
        if replaced == 0xffffffffu {
            set_page_word(page, word, value);
        } else if replaced != 0u {
            set_page_word(page, word, (page_word(page, word) & ~replaced) | value);
        }
    }
}
