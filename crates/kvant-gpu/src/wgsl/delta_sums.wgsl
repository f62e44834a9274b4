                var y = 0.0;
                for (; t < end; t += 4u) {
                    let place = value_place(task, first, t);
                    //@ s SPARSE
                    if !are_read(task, first, t, 1u) {
                        continue;
                    }
                    //@
                    if place.y == 0u {
                        y = value_frame(place.x, c);
                    }
                    let d = value4_coded(place.x, c, place.y / 4u);
                    let d0 = y + d.x;
                    let d1 = d0 + d.y;
                    let d2 = d1 + d.z;
                    y = d2 + d.w;
                    let v = there(vec4<f32>(d0, d1, d2, y), t, end);
                    //@ k COLS
                    sum$i_$k = weighted(v, weights[32u * $ku + t / 4u], sum$i_$k);
                    //@
                }
