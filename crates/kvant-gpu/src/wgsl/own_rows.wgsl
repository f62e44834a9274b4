
// Keys and values of one token of each sequence into their exact pages.

// The key of a record: page, whether it is not the sinks', token of the page, row, 1, kv head.
fn write_key(thread: u32, at: u32) {
    turn_key(thread, plan[at + 3u], plan[at + 5u]);
    let tokens = select(PAGE_TOKENS, 32u, plan[at + 1u] == 0u);
    for (var c = thread; c < DIM; c += 128u) {
        let e = c * tokens + plan[at + 2u];
        if KEY_WIDE {
            set_page_word(plan[at], e, key_bits(noted(h[c], bitcast<f32>(KEY_LARGEST))));
        } else {
            // Words of a page of keys have tokens beside each other, and this pass has one of them.
            let shift = 16u * (e % 2u);
            let others = page_word(plan[at], e / 2u) & ~(0xffffu << shift);
            set_page_word(plan[at], e / 2u, others | (key_bits(noted(h[c], bitcast<f32>(KEY_LARGEST))) << shift));
        }
    }
}

// The value of a record.
fn write_value(thread: u32, at: u32) {
    let base = plan[at + 3u] * X_STRIDE + V_AT + plan[at + 5u] * V_STEP;
    let to = plan[at + 2u] * VALUE_DIM;
    if VALUE_WIDE {
        for (var c = thread; c < VALUE_DIM; c += 128u) {
            set_page_word(plan[at], to + c, value_bits(value_of(base + c)));
        }
    } else {
        for (var c = 2u * thread; c < VALUE_DIM; c += 256u) {
            let word = value_bits(value_of(base + c)) | (value_bits(value_of(base + c + 1u)) << 16u);
            set_page_word(plan[at], (to + c) / 2u, word);
        }
    }
}

fn value_of(at: u32) -> f32 {
    return noted(x[at], bitcast<f32>(VALUE_LARGEST));
}

fn noted(v: f32, largest: f32) -> f32 {
    // By its bits: Metal compares as if no number were NaN.
    if (bitcast<u32>(v) & 0x7fffffffu) > bitcast<u32>(largest) {
        atomicMax(&status[0], a.mark);
    }
    return v;
}
