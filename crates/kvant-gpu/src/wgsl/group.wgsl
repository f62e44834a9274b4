// Visits by expert: how many tiles there are and where their visits are listed; of each tile the first place in that list, the one behind
// its last and its expert; and the visits, expert after expert. One workgroup.
struct Arguments {
    visits: u32,
    tile: u32,
    sorted_at: u32,
}

var<immediate> a: Arguments;
// (visits): expert and weight.
@group(0) @binding(0) var<storage, read> routes: array<u32>;
@group(0) @binding(1) var<storage, read_write> list: array<u32>;

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> firsts: array<u32, EXPERTS>;
var<workgroup> tiles: array<u32, EXPERTS>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    for (var e = thread; e < EXPERTS; e += 256u) {
        atomicStore(&counts[e], 0u);
    }
    workgroupBarrier();
    for (var v = thread; v < a.visits; v += 256u) {
        atomicAdd(&counts[min(routes[2u * v], EXPERTS - 1u)], 1u);
    }
    workgroupBarrier();
    if thread == 0u {
        var first = 0u;
        var tile = 0u;
        for (var e = 0u; e < EXPERTS; e++) {
            let count = atomicLoad(&counts[e]);
            firsts[e] = first;
            tiles[e] = tile;
            first += count;
            tile += (count + a.tile - 1u) / a.tile;
        }
        list[0] = tile;
        list[1] = a.sorted_at;
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += 256u) {
        let end = firsts[e] + atomicLoad(&counts[e]);
        var at = 2u + 3u * tiles[e];
        for (var first = firsts[e]; first < end; first += a.tile) {
            list[at] = first;
            list[at + 1u] = min(first + a.tile, end);
            list[at + 2u] = e;
            at += 3u;
        }
        // From here on the next place of the expert.
        atomicStore(&counts[e], firsts[e]);
    }
    workgroupBarrier();
    for (var v = thread; v < a.visits; v += 256u) {
        let place = atomicAdd(&counts[min(routes[2u * v], EXPERTS - 1u)], 1u);
        list[a.sorted_at + place] = v;
    }
}
