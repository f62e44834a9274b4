
// Everything is decided by the page itself: a mean, a leak, a width and a scale for what the leak leaves (`trellis/keys.rs`).
const QUADS = PADDED / 4u;
const CHANNELS = (PADDED + 127u) / 128u;

var<workgroup> means: array<f32, PADDED>;
// Around the mean: sums of squares and of products of neighbours; of what the leak leaves the sum of squares and the largest.
var<workgroup> squares: array<f32, PADDED>;
var<workgroup> products: array<f32, PADDED>;
var<workgroup> largest: array<f32, PADDED>;
var<workgroup> firsts: array<f32, PADDED>;
var<workgroup> scales: array<f32, PADDED>;
// Of quads: leaks in 256ths, places among widths, what another bit gains, and what it takes.
var<workgroup> leaks: array<u32, QUADS>;
var<workgroup> places: array<u32, QUADS>;
var<workgroup> gains: array<f32, QUADS>;
var<workgroup> loud: array<vec2<f32>, QUADS>;

fn factor_of(t: u32) -> f32 {
    return 1.0;
}

fn inverse_factor(t: u32) -> f32 {
    return 1.0;
}

fn width_of(place: u32) -> u32 {
    return select(place, 8u, place == 7u);
}

// The error of a quad at a place among widths: power, and what the leak leaves.
fn error_of(q: u32, place: u32) -> f32 {
    let power = loud[q];
    let rho = f32(leaks[q]) / 256.0;
    let distortion = DISTORTIONS[place];
    var weight = 1.0;
    if !PLANNED && power.x > 0.0 {
        weight = divided(1.0, square_root(square_root(power.x)));
    }
    if place == 0u {
        return weight * power.x;
    }
    return weight * divided(power.y * distortion, 1.0 - rho * rho * distortion);
}

fn cost_of(place: u32) -> u32 {
    return select(1u, 2u, place == 6u);
}

fn gain_of(q: u32, place: u32) -> f32 {
    if place == 7u {
        return -NEVER;
    }
    return (error_of(q, place) - error_of(q, place + 1u)) / f32(cost_of(place));
}

fn encode_page(thread: u32) {
    for (var c = thread; c < PADDED; c += 128u) {
        var sum = 0.0;
        for (var t = 0u; t < 128u; t++) {
            sum += number(t, c);
        }
        let mean = sum * (1.0 / 128.0);
        var square = 0.0;
        var product = 0.0;
        var before = 0.0;
        for (var t = 0u; t < 128u; t++) {
            let x = number(t, c) - mean;
            if t == 0u {
                firsts[c] = abs(x);
            }
            square += x * x;
            product += x * before;
            before = x;
        }
        means[c] = mean;
        squares[c] = square;
        products[c] = product;
    }
    workgroupBarrier();
    // The leak that is nearest to how much neighbours have in common.
    for (var q = thread; q < QUADS; q += 128u) {
        var square = 0.0;
        var product = 0.0;
        for (var j = 0u; j < 4u; j++) {
            square += squares[4u * q + j];
            product += products[4u * q + j];
        }
        var ratio = 0.0;
        if square > 0.0 {
            ratio = divided(256.0 * product, square);
        }
        var leak = 0u;
        for (var n = 1u; n < 5u; n++) {
            if abs(f32(LEAKS[n]) - ratio) < abs(f32(leak) - ratio) {
                leak = LEAKS[n];
            }
        }
        leaks[q] = leak;
        loud[q].x = square;
        places[q] = 0u;
    }
    workgroupBarrier();
    for (var c = thread; c < PADDED; c += 128u) {
        let rho = f32(leaks[c / 4u]) / 256.0;
        let offset = (1.0 - rho) * means[c];
        var square = 0.0;
        var most = 0.0;
        var before = number(0u, c);
        for (var t = 1u; t < 128u; t++) {
            let x = number(t, c);
            let e = x - rho * before - offset;
            square += e * e;
            most = max(most, abs(e));
            before = x;
        }
        products[c] = square;
        largest[c] = most;
    }
    workgroupBarrier();
    for (var q = thread; q < QUADS; q += 128u) {
        loud[q].y = ((products[4u * q] + products[4u * q + 1u]) + products[4u * q + 2u]) + products[4u * q + 3u];
        gains[q] = gain_of(q, 0u);
    }
    workgroupBarrier();
    // One bit after the other to where it helps most; of equals to the first.
    if thread == 0u {
        var rest = QUAD_BITS;
        for (var n = 0u; n < QUAD_BITS; n++) {
            var best = QUADS;
            var most = -NEVER;
            for (var q = 0u; q < QUADS; q++) {
                if places[q] < 7u && cost_of(places[q]) <= rest && gains[q] > most {
                    best = q;
                    most = gains[q];
                }
            }
            if best == QUADS {
                break;
            }
            rest -= cost_of(places[best]);
            places[best] += 1u;
            gains[best] = gain_of(best, places[best]);
            if rest == 0u {
                break;
            }
        }
    }
    workgroupBarrier();
    for (var q = thread; q < QUADS; q += 128u) {
        header[q] = leaks[q] | width_of(places[q]);
    }
    // The scale of what a channel codes, large enough that the largest level reaches the largest of it.
    for (var c = thread; c < DIM; c += 128u) {
        let place = places[c / 4u];
        let leak = leaks[c / 4u];
        let rho = f32(leak) / 256.0;
        var wanted = divided(abs(means[c]), 63.0);
        if place > 0u {
            let top = unit_of(table_of(width_of(place))) * REACH[place];
            let deviation = square_root(divided(products[c], 127.0));
            wanted = max(wanted, divided(deviation, square_root(1.0 - rho * rho * DISTORTIONS[place])));
            wanted = max(wanted, divided(largest[c], top));
            wanted = max(wanted, divided(firsts[c], first_step(leak, 0u) * top));
        }
        let e = exponent(wanted);
        let scale = scale_of_byte(e);
        var steps = 0.0;
        if scale > 0.0 {
            steps = clamp(round(divided(2.0 * means[c], scale)), -127.0, 127.0);
        }
        header[SCALES_AT + c] = e;
        header[SCALES_AT + PADDED + c] = bitcast<u32>(i32(steps)) & 255u;
        scales[c] = scale;
        means[c] = 0.5 * steps * scale;
    }
    write_header(thread);
    var codes_at = CODES_AT;
    for (var q = 0u; q < QUADS; q++) {
        let bits = width_of(workgroupUniformLoad(&places[q]));
        if bits == 0u {
            continue;
        }
        for (var i = thread; i < 512u; i += 128u) {
            let c = 4u * q + i % 4u;
            var x = 0.0;
            if c < DIM && scales[c] > 0.0 {
                x = (number(i / 4u, c) - means[c]) * divided(1.0, scales[c] * unit_of(table_of(bits)));
            }
            numbers[i] = x;
        }
        search(thread, bits, workgroupUniformLoad(&leaks[q]));
        for (var i = thread; i < 16u * bits; i += 128u) {
            var word = 0u;
            for (var channel = 0u; channel < 4u; channel++) {
                if 4u * q + channel < DIM {
                    word |= stream_byte(bits, channel, i % 16u, i / 16u) << (8u * channel);
                }
            }
            units[i] = word;
        }
        workgroupBarrier();
        write_units(thread, codes_at, 16u * bits);
        codes_at += 64u * bits;
    }
}
