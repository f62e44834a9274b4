// Channels whose widths a map has: their sections, and their codes into words.
var<private> map_at: u32;

fn begin_head(head: u32) {
    basis_at = head * BASIS_STEP;
    map_at = head * MAP_STEP;
    coded = map[map_at];
    zero_at = map[map_at + 1u];
}

fn section_of(c: u32) -> u32 {
    return select(0u, map[map_at + 2u + c / ROW_CHANNELS] >> 24u, c < coded);
}

fn code_at(first: u32, r: u32, u: u32, half: u32, lane: u32, j: u32, section: u32) -> u32 {
    return //CODE;
}

fn pack(thread: u32, first: u32) {
    for (var i = thread; i < 32u * UNITS * ROWS; i += 128u) {
        let w = i % 32u;
        let u = (i / 32u) % UNITS;
        let r = i / (32u * UNITS);
        let entry = map[map_at + 2u + r];
        let bits = (entry >> 20u) & 15u;
        let section = entry >> 24u;
        // Planes of 4, 2 and 1 bits follow each other; 8 bits are one plane.
        let two = 4u * (bits & 4u);
        let one = 4u * (bits & 6u);
        var word = 0u;
        if w < 4u * bits {
            for (var j = 0u; j < 4u; j++) {
                if bits == 8u {
                    word |= code_at(first, r, u, w / 16u, w % 16u, j, section) << (8u * j);
                } else if w < two {
                    word |= (code_at(first, r, u, 0u, w, j, section) & 15u) << (8u * j);
                    word |= (code_at(first, r, u, 1u, w, j, section) & 15u) << (8u * j + 4u);
                } else if w < one {
                    let p = w - two;
                    for (var n = 0u; n < 4u; n++) {
                        let code = code_at(first, r, u, p / 4u, p % 4u + 4u * n, j, section) >> (bits & 4u);
                        word |= (code & 3u) << (8u * j + 2u * n);
                    }
                } else {
                    let p = w - one;
                    for (var n = 0u; n < 8u; n++) {
                        let code = code_at(first, r, u, p / 2u, 8u * (p % 2u) + n, j, section) >> (bits & 6u);
                        word |= (code & 1u) << (4u * n + j);
                    }
                }
            }
            set_page_word(target_page, (entry & 0xfffffu) + (//UNIT) * 4u * bits + w, word);
        }
    }
}
