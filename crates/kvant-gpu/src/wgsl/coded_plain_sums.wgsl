                for (; t + 4u * VALUE_STEP <= end; t += 4u * VALUE_STEP) {
                    let place = value_place(task, first, t);
                    //@ s SPARSE
                    if !are_read(task, first, t, 1u) {
                        continue;
                    }
                    //@
                    //@ u VALUE_STEP
                    let v$u = value4_coded(place.x, c, place.y / 4u + $uu);
                    //@
                    //@ u VALUE_STEP
                    //@ k COLS
                    sum$i_$k = weighted(v$u, weights[32u * $ku + t / 4u + $uu], sum$i_$k);
                    //@
                    //@
                }
                for (; t < end; t += 4u) {
                    let place = value_place(task, first, t);
                    //@ s SPARSE
                    if !are_read(task, first, t, 1u) {
                        continue;
                    }
                    //@
                    let v = value4_coded(place.x, c, place.y / 4u);
                    //@ k COLS
                    sum$i_$k = weighted(v, weights[32u * $ku + t / 4u], sum$i_$k);
                    //@
                }
