// Exact pages into radii and angles: a workgroup to a page, a thread to sixteen channels of a token. Neighbours become a radius and an
// angle, their radii again, four times (`codec/polar.rs` of kvant-codec).
const BLOCKS = (DIM + 15u) / 16u;

// The angles of every block, the first level lowest.
var<workgroup> angles: array<vec2<u32>, TOKENS * BLOCKS>;
var<workgroup> radii: array<f32, TOKENS * BLOCKS>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let record = id.x + id.y * count.x;
    if record >= a.records {
        return;
    }
    let at = a.records_at + 5u * record;
    source = plan[at];
    have = plan[at + 1u];
    target_page = plan[at + 2u];
    basis_at = plan[at + 3u] * BASIS_STEP;
    mark = plan[at + 4u];
    for (var n = thread; n < TOKENS * BLOCKS; n += 128u) {
        var x: array<f32, 16>;
        for (var j = 0u; j < 16u; j++) {
            x[j] = number(n / BLOCKS, 16u * (n % BLOCKS) + j);
        }
        var word = vec2<u32>(0u);
        for (var level = 0u; level < 4u; level++) {
            let width = width_of(level);
            let pairs = 8u >> level;
            let codes = 1u << width;
            for (var pair = 0u; pair < pairs; pair++) {
                let p = vec2<f32>(x[2u * pair], x[2u * pair + 1u]);
                // The nearest angle is the one whose direction the point goes furthest in.
                var best = 0u;
                var most = -3.0e38;
                for (var code = 0u; code < codes; code++) {
                    let along = p.x * direction(level, code).x + p.y * direction(level, code).y;
                    if along > most {
                        best = code;
                        most = along;
                    }
                }
                let bit = start_of(level) + pair * width;
                if bit < 32u {
                    word.x |= best << bit;
                    if bit + width > 32u {
                        word.y |= best >> (32u - bit);
                    }
                } else {
                    word.y |= best << (bit - 32u);
                }
                let size = max(abs(p.x), abs(p.y));
                var radius = 0.0;
                if size > 0.0 {
                    let q = vec2<f32>(divided(p.x, size), divided(p.y, size));
                    radius = size * square_root(q.x * q.x + q.y * q.y);
                }
                x[pair] = radius;
            }
        }
        if (bitcast<u32>(x[0]) & 0x7fffffffu) > bitcast<u32>(f32(LARGEST)) {
            atomicMax(&status[0], mark);
        }
        angles[n] = word;
        radii[n] = x[0];
    }
    workgroupBarrier();
    let per_word = select(2u, 1u, WIDE_RADII);
    for (var word = thread; word < TOKENS * BLOCKS / per_word; word += 128u) {
        var bits = bitcast<u32>(radii[word]);
        if !WIDE_RADII {
            bits = half_bits(radii[2u * word]) | (half_bits(radii[2u * word + 1u]) << 16u);
        }
        set_page_word(target_page, word, bits);
    }
    // Every word of the angles has those of the blocks that it meets.
    for (var word = thread; word < TOKENS * BLOCKS * BLOCK_BITS / 32u; word += 128u) {
        var bits = 0u;
        let first = 32u * word / BLOCK_BITS;
        for (var n = first; n < TOKENS * BLOCKS && n * BLOCK_BITS < 32u * word + 32u; n++) {
            // Where the block begins, from the word's first bit on.
            let begin = i32(n * BLOCK_BITS) - i32(32u * word);
            bits |= shifted(angles[n].x, begin) | shifted(angles[n].y, begin + 32);
        }
        set_page_word(target_page, RADIUS_WORDS + word, bits);
    }
}

// A word moved up by so many bits, or down.
fn shifted(word: u32, by: i32) -> u32 {
    if by >= 32 || by <= -32 {
        return 0u;
    }
    if by >= 0 {
        return word << u32(by);
    }
    return word >> u32(-by);
}
