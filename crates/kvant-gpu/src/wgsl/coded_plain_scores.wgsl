            for (var c = 0u; c < KEY_FOURS; c += KEY_STEP) {
                //@ u KEY_STEP
                let y$u = key4_coded(place.x, place.y, c + $uu);
                //@
                //@ u KEY_STEP
                //@ k COLS
                total$k = fma(y$u, queries[Q4 * $ku + c + $uu], total$k);
                //@
                //@
            }
