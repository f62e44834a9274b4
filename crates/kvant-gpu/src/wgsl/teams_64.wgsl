//FOLD
            //@ k 2
            let q$k = queries[(2u * half + $ku) * FOURS + channels];
            let x$k = q$k * channel_scales;
            let m$k = most_of(x$k);
            let z$k = dot(q$k, channel_zeros);
            //@
            // Each quarter of the team ends up with the maximum and the zeros' part of one query, lane / 8.
            let second = (lane & 8u) != 0u;
            var m = max(select(m0, m1, second), other(select(m1, m0, second), 8u, thread));
            m = max(m, other(m, 4u, thread));
            m = max(m, other(m, 2u, thread));
            m = max(m, other(m, 1u, thread));
            var z = select(z0, z1, second) + other(select(z1, z0, second), 8u, thread);
            z += other(z, 4u, thread);
            z += other(z, 2u, thread);
            z += other(z, 1u, thread);
            let most = max(m, 1.0e-30);
            let inverse = 127.0 / most;
            let one = most * (1.0 / (127.0 * 16.0));
            let at = own + channels;
            let from_query = 2u * (half ^ select(0u, 1u, odd));
            memory[at][from_query] = bytes(x0, of_lane(inverse, 16u * half, thread));
            memory[at][from_query + 1u] = bytes(x1, of_lane(inverse, 16u * half + 8u, thread));
            step = vec2<f32>(of_lane(one, 16u * half, thread), of_lane(one, 16u * half + 8u, thread));
            base = vec2<f32>(of_lane(z, 16u * half, thread), of_lane(z, 16u * half + 8u, thread));
//WEIGHTS
            //@ g 2
            let a$g = max(select(m0_$g, m1_$g, second), other(select(m1_$g, m0_$g, second), 8u, thread));
            //@
            let third = (lane & 4u) != 0u;
            var m = max(select(a0, a1, third), other(select(a1, a0, third), 4u, thread));
            m = max(m, other(m, 2u, thread));
            m = max(m, other(m, 1u, thread));
//PARTS_TOGETHER
    sum$k += other_4(sum$k, 16u, thread);
