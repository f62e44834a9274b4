//FOLD
            //@ k 4
            let q$k = queries[$ku * FOURS + channels];
            let x$k = q$k * channel_scales;
            let m$k = most_of(x$k);
            let z$k = dot(q$k, channel_zeros);
            //@
            // Each quarter of the team ends up with the maximum and the zeros' part of one query, lane / 8.
            let upper = half == 1u;
            let second = (lane & 8u) != 0u;
            let ma = max(select(m0, m2, upper), other(select(m2, m0, upper), 16u, thread));
            let mb = max(select(m1, m3, upper), other(select(m3, m1, upper), 16u, thread));
            var m = max(select(ma, mb, second), other(select(mb, ma, second), 8u, thread));
            m = max(m, other(m, 4u, thread));
            m = max(m, other(m, 2u, thread));
            m = max(m, other(m, 1u, thread));
            let za = select(z0, z2, upper) + other(select(z2, z0, upper), 16u, thread);
            let zb = select(z1, z3, upper) + other(select(z3, z1, upper), 16u, thread);
            var z = select(za, zb, second) + other(select(zb, za, second), 8u, thread);
            z += other(z, 4u, thread);
            z += other(z, 2u, thread);
            z += other(z, 1u, thread);
            let most = max(m, 1.0e-30);
            let inverse = 127.0 / most;
            let one = most * (1.0 / (127.0 * 16.0));
            let words = vec4<u32>(
                bytes(x0, of_lane(inverse, 0u, thread)), bytes(x1, of_lane(inverse, 8u, thread)),
                bytes(x2, of_lane(inverse, 16u, thread)), bytes(x3, of_lane(inverse, 24u, thread)),
            );
            memory[own + channels] = select(words, words.zwxy, odd);
            step = vec2<f32>(of_lane(one, 16u * half, thread), of_lane(one, 16u * half + 8u, thread));
            base = vec2<f32>(of_lane(z, 16u * half, thread), of_lane(z, 16u * half + 8u, thread));
//WEIGHTS
            //@ g 4
            let a$g = max(select(m0_$g, m1_$g, second), other(select(m1_$g, m0_$g, second), 8u, thread));
            //@
            let third = (lane & 4u) != 0u;
            let b0 = max(select(a0, a2, third), other(select(a2, a0, third), 4u, thread));
            let b1 = max(select(a1, a3, third), other(select(a3, a1, third), 4u, thread));
            let fourth = (lane & 2u) != 0u;
            var m = max(select(b0, b1, fourth), other(select(b1, b0, fourth), 2u, thread));
            m = max(m, other(m, 1u, thread));
//PARTS_TOGETHER
