// What a Mamba-2 mixer has of a token: x, B and C through the convolution, dt · x, and the decay dt · A. A thread to a channel of a token.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
    x_stride: u32,
    y_stride: u32,
    // Tokens of the longest piece.
    tokens: u32,
}

fn input_at(piece: Piece, at: u32, c: u32) -> f32 {
    let first = piece.before + KERNEL - 1u;
    if at < first {
        return earlier_input(piece, at, c);
    }
    var scale = X_SCALE;
    if c >= INNER + GROUPS * STATE {
        scale = C_SCALE;
    } else if c >= INNER {
        scale = B_SCALE;
    }
    return scale * x[(piece.row + at - first) * a.x_stride + INNER + c];
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    const BLOCKS = (CHANNELS + 63u) / 64u;
    let number = id.x + id.y * count.x;
    let c = 64u * (number % BLOCKS) + thread;
    let t = number / BLOCKS % a.tokens;
    let place = number / BLOCKS / a.tokens;
    if place >= a.pieces || c >= CHANNELS {
        return;
    }
    let piece = piece_of(place);
    if t >= piece.tokens {
        return;
    }
    let token = piece.before + t;
    var sum = 0.0;
    if BIAS {
        sum = params[KERNEL * CHANNELS + c];
    }
    for (var tap = 0u; tap < KERNEL; tap++) {
        sum = fma(params[tap * CHANNELS + c], input_at(piece, token + tap, c), sum);
    }
    hold_row(piece, token, c, input_at(piece, token + KERNEL - 1u, c));
    let v = convolved(sum);
    let to = (piece.row + t) * a.y_stride;
    y[to + c] = v;
    if c < INNER {
        let head = c / HEAD_DIM;
        let raw = DT_SCALE * x[(piece.row + t) * a.x_stride + INNER + CHANNELS + head];
        var dt = softplus(raw + params[DT_AT + head]);
        if LIMITED {
            dt = clamp(dt, DT_LEAST, DT_MOST);
        }
        hold_row(piece, token, INPUTS_AT + c, dt * v);
        if c % HEAD_DIM == 0u {
            y[to + CHANNELS + head] = dt * params[DT_AT + HEADS + head];
        }
    } else if c < INNER + GROUPS * STATE {
        hold_row(piece, token, B_AT + c - INNER, v);
    }
}
