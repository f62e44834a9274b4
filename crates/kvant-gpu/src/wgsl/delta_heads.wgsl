// What a gated DeltaNet has of a token: q and k of length 1 and v, through the convolution, beta and the decay. A workgroup to a head
// of a token.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
    x_stride: u32,
    y_stride: u32,
    // Tokens of the longest piece.
    tokens: u32,
}

var<workgroup> head_values: array<f32, MOST_DIM>;

// The column of a channel of the convolution's input.
fn column(c: u32) -> u32 {
    if c < KEY_WIDTH {
        return Q_AT + c / KEY_DIM * Q_STEP + c % KEY_DIM;
    }
    if c < 2u * KEY_WIDTH {
        let k = c - KEY_WIDTH;
        return K_AT + k / KEY_DIM * Q_STEP + k % KEY_DIM;
    }
    let v = c - 2u * KEY_WIDTH;
    let head = v / VALUE_DIM;
    return V_AT + head / GROUP * V_STEP + head % GROUP * VALUE_DIM + v % VALUE_DIM;
}

fn input_at(piece: Piece, at: u32, c: u32) -> f32 {
    let first = piece.before + KERNEL - 1u;
    if at < first {
        return earlier_input(piece, at, c);
    }
    return x[(piece.row + at - first) * a.x_stride + column(c)];
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    const HEADS = 2u * KEY_HEADS + VALUE_HEADS;
    let number = id.x + id.y * count.x;
    let head = number % HEADS;
    let t = number / HEADS % a.tokens;
    let place = number / HEADS / a.tokens;
    if place >= a.pieces {
        return;
    }
    let piece = piece_of(place);
    if t >= piece.tokens {
        return;
    }
    let is_value = head >= 2u * KEY_HEADS;
    let first = select(head * KEY_DIM, 2u * KEY_WIDTH + (head - 2u * KEY_HEADS) * VALUE_DIM, is_value);
    let dim = select(KEY_DIM, VALUE_DIM, is_value);
    let token = piece.before + t;
    let to = (piece.row + t) * a.y_stride;
    var square = 0.0;
    for (var i = thread; i < dim; i += 128u) {
        let c = first + i;
        var sum = 0.0;
        if BIAS {
            sum = params[KERNEL * CHANNELS + c];
        }
        for (var tap = 0u; tap < KERNEL; tap++) {
            sum = fma(params[tap * CHANNELS + c], input_at(piece, token + tap, c), sum);
        }
        hold_row(piece, token, c, input_at(piece, token + KERNEL - 1u, c));
        let v = convolved(sum);
        head_values[i] = v;
        square = fma(v, v, square);
    }
    let length = sqrt(added(thread, square) + QK_EPS);
    for (var i = thread; i < dim; i += 128u) {
        var v = head_values[i];
        if !is_value {
            v /= length;
            if head < KEY_HEADS {
                v *= QUERY_SCALE;
            } else {
                hold_row(piece, token, KEYS_AT + (head - KEY_HEADS) * KEY_DIM + i, v);
            }
        }
        y[to + first + i] = v;
    }
    if is_value && thread == 0u {
        let own = head - 2u * KEY_HEADS;
        let row = (piece.row + t) * a.x_stride;
        let small = own / GROUP * B_STEP + own % GROUP;
        y[to + CHANNELS + own] = 1.0 / (1.0 + exp(-x[row + B_AT + small]));
        let decay = params[DECAY_AT + own] * softplus(x[row + A_AT + small] + params[DECAY_AT + VALUE_HEADS + own]);
        y[to + CHANNELS + VALUE_HEADS + own] = decay;
    }
}
