                let page = value_pages[0];
                var bits = trellis_value_bits(c / 16u);
                //@ s SPARSE
                bits = select(0u, bits, are_read(task, first, 0u, 1u));
                //@
                if bits > 0u {
                    let table = table_of(bits);
                    let codes_at = value_codes_at(c / 16u) + 4u * (c % 16u);
                    let nibble = (page_byte(page, VALUE_SCALES + c / 2u) >> (4u * (c % 2u))) & 15u;
                    let scale = value_whole * eighths(2 * (i32(nibble) - 8)) * unit_of(table);
                    var window = start_of(table);
                    var y = 0.0;
                    var held = 0u;
                    var have = 0u;
                    for (; t < end; t++) {
                        if have < bits {
                            // Byte `at` of the run of eight tokens.
                            let run = t / 8u;
                            let at = ((t % 8u) * bits + have) / 8u;
                            held = (held << 8u) | page_byte(page, codes_at + 64u * ((run % 4u) * bits + at) + run / 4u);
                            have += 8u;
                        }
                        have -= bits;
                        window = ((window << bits) | ((held >> have) & ((1u << bits) - 1u))) & 255u;
                        y = fma(y, value_leak, value_steps[t] * level_of(table, window));
                        let v = y * scale;
                        //@ k COLS
                        sum$i_$k = fma(v, weights[32u * $ku + t / 4u][t % 4u], sum$i_$k);
                        //@
                    }
                }
                t = end;
