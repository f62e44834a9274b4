    // A page is as long as a step.
    begin_quads(thread, page);
    //@ k COLS
    var fixed$k = vec4<f32>(0.0);
    //@
    for (var q = 0u; q < QUADS; q++) {
        let zeros = quad_zeros[q];
        //@ k COLS
        fixed$k = fma(zeros, queries[Q4 * $ku + q], fixed$k);
        //@
    }
    //@ k COLS
    total$k = (fixed$k.x + fixed$k.y) + (fixed$k.z + fixed$k.w);
    //@
    let leaks = workgroupUniformLoad(&quad_leaks);
    for (var n = 0u; n < 16u; n++) {
        if ((leaks >> n) & 1u) == 0u {
            continue;
        }
        //@ k COLS
        var part$k = vec4<f32>(0.0);
        //@
        for (var q = 0u; q < QUADS; q++) {
            let quad = quads[q];
            if (quad & 15u) == 0u || ((quad >> 4u) & 15u) != n {
                continue;
            }
            let y = quad_factors[q] * quad_levels(page, quad, token);
            //@ k COLS
            part$k = fma(y, queries[Q4 * $ku + q], part$k);
            //@
        }
        let step = first_step(16u * n, token);
        //@ k COLS
        carried[128u * $ku + thread] = ((part$k.x + part$k.y) + (part$k.z + part$k.w)) * step;
        //@
        if n > 0u {
            carry(thread, token, f32(n) / 16.0);
        }
        //@ k COLS
        total$k += carried[128u * $ku + thread];
        //@
        workgroupBarrier();
    }
