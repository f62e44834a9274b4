// Which experts a token visits, and with which weights. A workgroup to a token; a thread has the experts thread, thread + 128, ….
// Of equal ranks the lower number wins; what is written is in the order of numbers.
struct Arguments {
    tokens: u32,
    x_stride: u32,
    logit_scale: f32,
    epsilon: f32,
    least: f32,
    scale: f32,
}

const NONE = -3.0e38;

var<immediate> a: Arguments;
// (tokens, experts).
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read> expert_scale: array<f32>;
// (tokens, chosen): expert and weight.
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

var<workgroup> scores: array<f32, EXPERTS>;
var<workgroup> ranks: array<f32, EXPERTS>;
var<workgroup> is_chosen: array<u32, EXPERTS>;
var<workgroup> group_ranks: array<f32, GROUP_COUNT>;
var<workgroup> experts: array<u32, CHOSEN>;
var<workgroup> shares: array<f32, CHOSEN>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let token = id.x + id.y * count.x;
    if token >= a.tokens {
        return;
    }
    for (var e = thread; e < EXPERTS; e += 128u) {
        let v = a.logit_scale * logits[token * a.x_stride + e];
        scores[e] = select(v, 1.0 / (1.0 + exp(-v)), SIGMOID);
    }
    workgroupBarrier();
    if SOFTMAX {
        var top = NONE;
        for (var e = 0u; e < EXPERTS; e++) {
            top = max(top, scores[e]);
        }
        var sum = 0.0;
        for (var e = 4u * thread; e < EXPERTS; e += 512u) {
            for (var j = e; j < min(e + 4u, EXPERTS); j++) {
                sum += exp(scores[j] - top);
            }
        }
        let all = added(thread, sum);
        for (var e = thread; e < EXPERTS; e += 128u) {
            scores[e] = exp(scores[e] - top) / all;
        }
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += 128u) {
        var rank = scores[e];
        if BIAS {
            rank += bias[e];
        }
        ranks[e] = rank;
    }
    workgroupBarrier();
    if GROUPED {
        choose_groups(thread);
    }
    for (var e = thread; e < EXPERTS; e += 128u) {
        var better = 0u;
        for (var other = 0u; other < EXPERTS; other++) {
            if ranks[other] > ranks[e] || (ranks[other] == ranks[e] && other < e) {
                better++;
            }
        }
        is_chosen[e] = select(0u, 1u, better < CHOSEN);
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += 128u) {
        if is_chosen[e] == 1u {
            var place = 0u;
            for (var other = 0u; other < e; other++) {
                place += is_chosen[other];
            }
            experts[place] = e;
            shares[place] = scores[e];
        }
    }
    workgroupBarrier();
    if thread == 0u {
        weigh();
    }
    workgroupBarrier();
    if thread < CHOSEN {
        let expert = experts[thread];
        var share = shares[thread] * a.scale;
        if EXPERT_SCALE {
            share *= expert_scale[expert];
        }
        let at = 2u * (token * CHOSEN + thread);
        routes[at] = expert;
        routes[at + 1u] = bitcast<u32>(share);
    }
}

// Experts outside the best groups cannot be chosen. A group's rank is the sum of its best experts'.
fn choose_groups(thread: u32) {
    let size = EXPERTS / GROUP_COUNT;
    for (var g = thread; g < GROUP_COUNT; g += 128u) {
        var sum = 0.0;
        for (var e = g * size; e < (g + 1u) * size; e++) {
            var better = 0u;
            for (var other = g * size; other < (g + 1u) * size; other++) {
                if ranks[other] > ranks[e] || (ranks[other] == ranks[e] && other < e) {
                    better++;
                }
            }
            if better < GROUP_BEST {
                sum += ranks[e];
            }
        }
        group_ranks[g] = sum;
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += 128u) {
        let g = e / size;
        var better = 0u;
        for (var other = 0u; other < GROUP_COUNT; other++) {
            if group_ranks[other] > group_ranks[g] || (group_ranks[other] == group_ranks[g] && other < g) {
                better++;
            }
        }
        if better >= GROUPS_KEPT {
            ranks[e] = NONE;
        }
    }
    workgroupBarrier();
}

fn weigh() {
    if SOFTMAX_OF_CHOSEN {
        var top = NONE;
        for (var i = 0u; i < CHOSEN; i++) {
            top = max(top, shares[i]);
        }
        var all = 0.0;
        for (var i = 0u; i < CHOSEN; i++) {
            shares[i] = exp(shares[i] - top);
            all += shares[i];
        }
        for (var i = 0u; i < CHOSEN; i++) {
            shares[i] /= all;
        }
    }
    if RENORMALISED {
        var all = 0.0;
        for (var i = 0u; i < CHOSEN; i++) {
            all += shares[i];
        }
        let divisor = max(all, a.least) + a.epsilon;
        for (var i = 0u; i < CHOSEN; i++) {
            shares[i] /= divisor;
        }
    }
}
