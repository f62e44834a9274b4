// The matrix of a Mamba-2 mixer at a chunk's end: S ← exp(L) · S + Σ exp(L − L[j]) · (dt · x)[j] ⊗ B[j]. A workgroup to a channel of a
// piece.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
}

var<workgroup> left: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    let number = id.x + id.y * count.x;
    if number / INNER >= a.pieces {
        return;
    }
    let piece = piece_of(number / INNER);
    if piece.next == NOTHING {
        return;
    }
    let own = number % INNER;
    let head = own / HEAD_DIM;
    let group = head / (HEADS / GROUPS);
    let last = row_number(piece, 63u, DECAYS_AT + head);
    left[thread] = exp(last - row_number(piece, thread, DECAYS_AT + head)) * row_number(piece, thread, INPUTS_AT + own);
    workgroupBarrier();
    let whole = exp(last);
    for (var n = thread; n < STATE; n += 64u) {
        let at = TAIL + own * STATE + n;
        var sum = whole * state_number(piece, at);
        for (var j = 0u; j < 64u; j++) {
            sum = fma(left[j], row_number(piece, j, B_AT + group * STATE + n), sum);
        }
        y[number / INNER * COUNT + at] = sum;
    }
}
