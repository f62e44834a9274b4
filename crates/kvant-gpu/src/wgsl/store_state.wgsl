// The state at a chunk's end into its page, as the numbers it is kept in: the convolution's last inputs, and the matrix that a kernel
// before has left. A workgroup to 64 numbers of a piece.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
}

var<workgroup> tops: array<f32, 64>;
var<workgroup> words: array<u32, 64>;

fn upper_half(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    const GROUPS_OF_64 = (COUNT + 63u) / 64u;
    let number = id.x + id.y * count.x;
    if number / GROUPS_OF_64 >= a.pieces {
        return;
    }
    let piece = piece_of(number / GROUPS_OF_64);
    if piece.next == NOTHING {
        return;
    }
    let group = number % GROUPS_OF_64;
    let i = 64u * group + thread;
    var v = 0.0;
    if i < TAIL {
        v = row_number(piece, 64u - (KERNEL - 1u) + i / CHANNELS, i % CHANNELS);
    } else if i < COUNT {
        v = x[number / GROUPS_OF_64 * COUNT + i];
    }
    var largest = 0x7f7fffffu;
    if STATE_TYPE == 1u {
        // What rounds to a finite bfloat16.
        largest = 0x7f7f7fffu;
    }
    if (bitcast<u32>(v) & 0x7fffffffu) > largest {
        atomicMax(&status[0], a.mark);
    }
    if STATE_TYPE == 0u {
        if i < COUNT {
            hold_word(piece.next, i, bitcast<u32>(v));
        }
        return;
    }
    if STATE_TYPE == 1u {
        words[thread] = upper_half(v);
        workgroupBarrier();
        if thread % 2u == 0u && i < COUNT {
            hold_word(piece.next, i / 2u, words[thread] | (words[thread + 1u] << 16u));
        }
        return;
    }
    tops[thread] = abs(v);
    for (var step = 32u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if thread < step {
            tops[thread] = max(tops[thread], tops[thread + step]);
        }
    }
    workgroupBarrier();
    var inverse = 0.0;
    var scale = 0.0;
    // Below this a reciprocal could overflow.
    if tops[0] > 1e-30 {
        inverse = 127.0 / tops[0];
        scale = tops[0] / 127.0;
    }
    words[thread] = bitcast<u32>(i32(round(v * inverse))) & 0xffu;
    workgroupBarrier();
    if thread == 0u {
        hold_word(piece.next, group, bitcast<u32>(scale));
    }
    if thread % 4u == 0u && i < COUNT {
        let pair = words[thread] | (words[thread + 1u] << 8u);
        hold_word(piece.next, GROUPS_OF_64 + i / 4u, pair | (words[thread + 2u] << 16u) | (words[thread + 3u] << 24u));
    }
}
