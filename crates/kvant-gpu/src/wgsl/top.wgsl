// The tokens of rows that rank first: higher logit, of equals the lower id. A workgroup ranks up to 2048 candidates of a row and keeps
// the first COUNT; what workgroups keep are the candidates of the next dispatch, until one workgroup is left.
struct Arguments {
    stride: u32,
    candidates: u32,
    from_stride: u32,
    to_stride: u32,
}

const NONE = 0xffffffffu;

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> kept: array<u32>;
@group(0) @binding(2) var<storage, read_write> to: array<u32>;

var<workgroup> keys: array<u32, 2048>;
var<workgroup> ids: array<u32, 2048>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    for (var i = thread; i < 2048u; i += 256u) {
        let candidate = 2048u * group.x + i;
        var id = NONE;
        if candidate < a.candidates {
            id = candidate;
            if !FIRST {
                id = kept[row * a.from_stride + candidate];
            }
        }
        var key = 0u;
        if id != NONE {
            key = rank(logits[row * a.stride + id]);
        }
        keys[i] = key;
        ids[i] = id;
    }
    workgroupBarrier();
    if COUNT == 1u {
        for (var step = 1024u; step > 0u; step /= 2u) {
            for (var i = thread; i < step; i += 256u) {
                if is_before(i + step, i) {
                    keys[i] = keys[i + step];
                    ids[i] = ids[i + step];
                }
            }
            workgroupBarrier();
        }
    } else {
        // Bitonic: runs of `size` go up and down in turns.
        for (var size = 2u; size <= 2048u; size *= 2u) {
            for (var step = size / 2u; step > 0u; step /= 2u) {
                for (var i = thread; i < 1024u; i += 256u) {
                    let first = 2u * step * (i / step) + i % step;
                    if is_before(first + step, first) == ((first & size) == 0u) {
                        let key = keys[first];
                        let id = ids[first];
                        keys[first] = keys[first + step];
                        ids[first] = ids[first + step];
                        keys[first + step] = key;
                        ids[first + step] = id;
                    }
                }
                workgroupBarrier();
            }
        }
    }
    for (var i = thread; i < COUNT; i += 256u) {
        if LAST {
            // Ids with their logits to the bit.
            to[row * a.to_stride + 2u * i] = ids[i];
            if ids[i] != NONE {
                to[row * a.to_stride + 2u * i + 1u] = bitcast<u32>(logits[row * a.stride + ids[i]]);
            }
        } else {
            to[row * a.to_stride + COUNT * group.x + i] = ids[i];
        }
    }
}

// Larger for what ranks higher; both zeros are equals, and what is not a number ranks before all.
fn rank(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return NONE;
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits != size);
}

fn is_before(i: u32, j: u32) -> bool {
    return keys[i] > keys[j] || (keys[i] == keys[j] && ids[i] < ids[j]);
}
