// The matrix of a gated DeltaNet at a chunk's end: S ← exp(G) · S + Σ exp(G − G[j]) · k[j] ⊗ u[j]. A workgroup to a channel of a key
// and a value head of a piece.
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
    const UNITS = VALUE_HEADS * KEY_DIM;
    let number = id.x + id.y * count.x;
    if number / UNITS >= a.pieces {
        return;
    }
    let piece = piece_of(number / UNITS);
    if piece.next == NOTHING {
        return;
    }
    let head = number % UNITS / KEY_DIM;
    let i = number % KEY_DIM;
    let key_head = select(head / GROUP, head % KEY_HEADS, TILED);
    let last = row_number(piece, 63u, DECAYS_AT + head);
    let key = row_number(piece, thread, KEYS_AT + key_head * KEY_DIM + i);
    left[thread] = exp(last - row_number(piece, thread, DECAYS_AT + head)) * key;
    workgroupBarrier();
    let whole = exp(last);
    for (var c = thread; c < VALUE_DIM; c += 64u) {
        let at = TAIL + (head * KEY_DIM + i) * VALUE_DIM + c;
        var sum = whole * state_number(piece, at);
        for (var j = 0u; j < 64u; j++) {
            sum = fma(left[j], row_number(piece, j, U_AT + head * VALUE_DIM + c), sum);
        }
        y[number / UNITS * COUNT + at] = sum;
    }
}
