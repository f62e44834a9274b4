// The tokens of a piece through a Mamba-2 mixer: y = exp(L) · S · C + Σ exp(L − L[j]) · (C · B[j]) · (dt · x)[j] + D · x, with S at the
// chunk's start and the rows since. A workgroup to a head of a piece.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
    x_stride: u32,
    y_stride: u32,
}

// Of the chunk's tokens: sums of decays, and what is left of each times C[t] · B[j].
var<workgroup> decays: array<f32, 64>;
var<workgroup> shares: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    let head = number % HEADS;
    if number / HEADS >= a.pieces {
        return;
    }
    let piece = piece_of(number / HEADS);
    let group = head / (HEADS / GROUPS);
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
            sum += x[(piece.row + t) * a.x_stride + CHANNELS + head];
            decays[piece.before + t] = sum;
            hold_row(piece, piece.before + t, DECAYS_AT + head, sum);
        }
    }
    workgroupBarrier();
    for (var t = 0u; t < piece.tokens; t++) {
        let token = piece.before + t;
        let row = (piece.row + t) * a.x_stride;
        let c_at = row + INNER + (GROUPS + group) * STATE;
        if thread <= token {
            var sum = 0.0;
            for (var n = 0u; n < STATE; n++) {
                sum = fma(row_number(piece, thread, B_AT + group * STATE + n), x[c_at + n], sum);
            }
            shares[thread] = exp(decays[token] - decays[thread]) * sum;
        }
        workgroupBarrier();
        let decay = exp(decays[token]);
        for (var p = thread; p < HEAD_DIM; p += 64u) {
            let own = head * HEAD_DIM + p;
            var sum = 0.0;
            if piece.state != NOTHING {
                for (var n = 0u; n < STATE; n++) {
                    sum = fma(state_number(piece, TAIL + own * STATE + n), x[c_at + n], sum);
                }
            }
            sum = fma(decay, sum, params[DT_AT + 2u * HEADS + head] * x[row + own]);
            for (var j = 0u; j <= token; j++) {
                sum = fma(shares[j], row_number(piece, j, INPUTS_AT + own), sum);
            }
            y[(piece.row + t) * a.y_stride + own] = sum;
        }
        workgroupBarrier();
    }
}
