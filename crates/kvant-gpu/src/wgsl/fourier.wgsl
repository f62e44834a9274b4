// The way into the basis of an SRFT, in place, after channels were multiplied by their signs: neighbours are complex numbers, whose
// transform of half the length is taken in stages (Stockham), then evens and odds are separated and packed.
const HALF = DIM / 2u;

// e^(−2πik/d).
fn root(k: u32) -> vec2<f32> {
    let at = basis_at + DIM + 2u * (k % DIM);
    return vec2<f32>(basis[at], basis[at + 1u]);
}

fn times(a: vec2<f32>, w: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(fma(-a.y, w.y, a.x * w.x), fma(a.y, w.x, a.x * w.y));
}

fn number(at: u32, k: u32) -> vec2<f32> {
    return vec2<f32>(tile[at + 2u * k], tile[at + 2u * k + 1u]);
}

fn set_number(at: u32, k: u32, x: vec2<f32>) {
    tile[at + 2u * k] = x.x;
    tile[at + 2u * k + 1u] = x.y;
}

//STAGES

// [Re X₀, Re X_half, √2 Re X₁, √2 Im X₁, …] of the complex numbers Z.
fn separate(thread: u32) {
    const PAIRS = HALF / 2u + 1u;
    workgroupBarrier();
    for (var i = thread; i < 16u * PAIRS; i += 128u) {
        let at = i / PAIRS * WIDTH;
        let k = i % PAIRS;
        if k == 0u {
            let z = number(at, 0u);
            set_number(at, 0u, vec2<f32>(z.x + z.y, z.x - z.y));
        } else {
            let x = number(at, k);
            let y = number(at, HALF - k);
            let even = vec2<f32>(x.x + y.x, x.y - y.y);
            let odd = times(vec2<f32>(x.x - y.x, x.y + y.y), root(k));
            if 2u * k != HALF {
                set_number(at, HALF - k, vec2<f32>(even.x - odd.y, -(even.y + odd.x)) * 0.70710677);
            }
            set_number(at, k, vec2<f32>(even.x + odd.y, even.y - odd.x) * 0.70710677);
        }
    }
}
