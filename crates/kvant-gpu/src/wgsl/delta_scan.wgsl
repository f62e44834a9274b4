// The tokens of a piece through a gated DeltaNet, one after another: u = β · (v − Sᵀk), S ← S + k ⊗ u, o = Sᵀq, where S decays and is
// never written down: it is that at the chunk's start, and the rows since. A workgroup to a value head of a piece.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
    x_stride: u32,
    y_stride: u32,
}

// Of the chunk's tokens: sums of decays, and what is left of each times k[j] · k[t] and k[j] · q[t].
var<workgroup> decays: array<f32, 64>;
var<workgroup> with_key: array<f32, 64>;
var<workgroup> with_query: array<f32, 64>;

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let head = number % VALUE_HEADS;
    if number / VALUE_HEADS >= a.pieces {
        return;
    }
    let piece = piece_of(number / VALUE_HEADS);
    let key_head = select(head / GROUP, head % KEY_HEADS, TILED);
    if thread < piece.before {
        decays[thread] = row_number(piece, thread, DECAYS_AT + head);
    }
    workgroupBarrier();
    if thread == 0u {
        var sum = 0.0;
        if piece.before > 0u {
            sum = decays[piece.before - 1u];
        }
        for (var t = 0u; t < piece.tokens; t++) {
            sum += x[(piece.row + t) * a.x_stride + CHANNELS + VALUE_HEADS + head];
            decays[piece.before + t] = sum;
            hold_row(piece, piece.before + t, DECAYS_AT + head, sum);
        }
    }
    workgroupBarrier();
    let matrix = TAIL + head * KEY_DIM * VALUE_DIM;
    for (var t = 0u; t < piece.tokens; t++) {
        let token = piece.before + t;
        let row = (piece.row + t) * a.x_stride;
        let q = row + key_head * KEY_DIM;
        let k = q + KEY_WIDTH;
        let j = thread % 64u;
        if j <= token {
            let other = select(q, k, thread < 64u);
            var sum = 0.0;
            for (var i = 0u; i < KEY_DIM; i++) {
                sum = fma(row_number(piece, j, KEYS_AT + key_head * KEY_DIM + i), x[other + i], sum);
            }
            sum *= exp(decays[token] - decays[j]);
            if thread < 64u {
                with_key[j] = sum;
            } else {
                with_query[j] = sum;
            }
        }
        workgroupBarrier();
        let decay = exp(decays[token]);
        for (var c = thread; c < VALUE_DIM; c += 128u) {
            var held = 0.0;
            var read = 0.0;
            if piece.state != NOTHING {
                for (var i = 0u; i < KEY_DIM; i++) {
                    let s = state_number(piece, matrix + i * VALUE_DIM + c);
                    held = fma(s, x[k + i], held);
                    read = fma(s, x[q + i], read);
                }
            }
            held *= decay;
            read *= decay;
            for (var n = 0u; n < token; n++) {
                let u = row_number(piece, n, U_AT + head * VALUE_DIM + c);
                held = fma(with_key[n], u, held);
                read = fma(with_query[n], u, read);
            }
            let v = x[row + 2u * KEY_WIDTH + head * VALUE_DIM + c];
            let u = x[row + CHANNELS + head] * (v - held);
            hold_row(piece, token, U_AT + head * VALUE_DIM + c, u);
            y[(piece.row + t) * a.y_stride + head * VALUE_DIM + c] = fma(with_query[token], u, read);
        }
        workgroupBarrier();
    }
}
