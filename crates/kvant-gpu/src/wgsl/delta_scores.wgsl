    //@ k COLS
    var part$k = vec4<f32>(0.0);
    //@
    for (var c = 0u; c < KEY_FOURS; c++) {
        var y = key4_coded(page, token, c);
        if token == 0u {
            y += key_frame(page, c);
        }
        //@ k COLS
        part$k = fma(y, queries[Q4 * $ku + c], part$k);
        //@
    }
    //@ k COLS
    carried[128u * $ku + thread] = (part$k.x + part$k.y) + (part$k.z + part$k.w);
    //@
    carry(thread, token, 1.0);
    //@ k COLS
    total$k = carried[128u * $ku + thread];
    //@
