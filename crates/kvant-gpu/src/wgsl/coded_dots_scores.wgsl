            // The kind is the page of the 128 positions where channels have scales there.
            let kind = select(0u, thread / KEY_TOKENS, KEY_BY_CHANNEL) * (COLS * KEY_CHUNKS);
            //@ c KEY_CHUNKS
            let codes$c = vec4<u32>(
                key_bytes(place.x, place.y, 4u * $cu), key_bytes(place.x, place.y, 4u * $cu + 1u),
                key_bytes(place.x, place.y, 4u * $cu + 2u), key_bytes(place.x, place.y, 4u * $cu + 3u),
            );
            //@
            //@ c KEY_CHUNKS
            //@ k COLS
            {
                let n = kind + $ku * KEY_CHUNKS + $cu;
                let m = query_scales[n];
                let whole = fma(f32(256 * dots(codes$c, query_high[n]) + dots(codes$c, query_low[n])), m.x, m.z);
                if KEY_BY_TOKEN {
                    let group = $cu * 16u / KEY_GROUP;
                    let zeros = fma(key_token_zero(place.x, place.y, group), m.y, m.w);
                    total$k.x += fma(key_token_scale(place.x, place.y, group), whole, zeros);
                } else {
                    total$k.x += whole + m.w;
                }
            }
            //@
            //@
