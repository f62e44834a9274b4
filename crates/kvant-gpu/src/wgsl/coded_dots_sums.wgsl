                let group = select(0u, c / VALUE_GROUP, VALUE_BY_TOKEN);
                let centre = value_centre(c);
                for (; c < VALUE_CODED && t < end; t += 16u * CHUNK_STEP) {
                    //@ s SPARSE
                    if !are_read(task, first, t, min(16u * CHUNK_STEP, end - t)) {
                        continue;
                    }
                    //@
                    //@ u CHUNK_STEP
                    let place$u = value_place(task, first, min(t + 16u * $uu, end - 16u));
                    let codes$u = vec4<u32>(
                        value_bytes(place$u.x, c, place$u.y / 4u), value_bytes(place$u.x, c, place$u.y / 4u + 1u),
                        value_bytes(place$u.x, c, place$u.y / 4u + 2u), value_bytes(place$u.x, c, place$u.y / 4u + 3u),
                    );
                    //@
                    //@ u CHUNK_STEP
                    if t + 16u * $uu < end {
                        //@ k COLS
                        {
                            let n = ($ku * VALUE_GROUPS + group) * VALUE_CHUNKS + t / 16u + $uu;
                            let m = weight_scales[n];
                            let products = f32(256 * dots(codes$u, weight_high[n]) + dots(codes$u, weight_low[n]));
                            let whole = fma(products, m.x, fma(centre, m.y, m.z));
                            if VALUE_BY_CHANNEL {
                                let zero = value_channel_zero(place$u.x, c) * m.w;
                                sum$i_$k += fma(value_channel_scale(place$u.x, c), whole, zero);
                            } else {
                                sum$i_$k += whole;
                            }
                        }
                        //@
                    }
                    //@
                }
                t = end;
