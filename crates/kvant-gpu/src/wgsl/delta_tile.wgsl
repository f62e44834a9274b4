// What every channel was decoded to, up to the token before.
var<workgroup> decoded: array<f32, DIM>;

// Sixteen tokens as differences, each from what the one before will be decoded to. The first token of a page is kept as scales are.
fn delta_tile(thread: u32, first: u32) {
    if first == 0u {
        workgroupBarrier();
        for (var c = thread; c < DIM; c += 128u) {
            check(tile[c]);
            decoded[c] = select(stored(tile[c]), tile[c], WIDE_FIRST);
        }
        workgroupBarrier();
        let per_word = select(2u, 1u, WIDE_FIRST);
        for (var word = thread; word < DIM / per_word; word += 128u) {
            let c = per_word * word;
            set_page_word(target_page, word, entry_word(decoded[c], decoded[min(c + 1u, DIM - 1u)]));
        }
    }
    for (var t = 0u; t < 16u; t++) {
        workgroupBarrier();
        for (var c = thread; c < DIM; c += 128u) {
            tile[t * WIDTH + c] -= decoded[c];
        }
        workgroupBarrier();
        for (var c = thread; c < DIM; c += 128u) {
            let group = c / GROUP * GROUP;
            let section = section_of(group);
            var extent = begun();
            for (var j = group; j < min(group + GROUP, DIM); j++) {
                extent = joined(extent, tile[t * WIDTH + j], 0u);
            }
            let scale = scale_of(extent, section).x;
            let code = code_of(tile[t * WIDTH + c], inverse_of(scale), 0.0, section);
            decoded[c] += (f32(code) - DELTA_CENTRE) * scale;
        }
    }
}
