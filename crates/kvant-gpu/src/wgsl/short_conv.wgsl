// A gated short convolution: C · conv(B · x). A thread to a channel of a piece, which goes through its tokens.
struct Arguments {
    pieces_at: u32,
    pieces: u32,
    mark: u32,
    x_stride: u32,
    y_stride: u32,
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
    if number / BLOCKS >= a.pieces || c >= CHANNELS {
        return;
    }
    let piece = piece_of(number / BLOCKS);
    //@ i TAPS
    var input$i = 0.0;
    if $iu + 1u < KERNEL {
        input$i = earlier_input(piece, piece.before + $iu, c);
    }
    //@
    for (var t = 0u; t < piece.tokens; t++) {
        let at = (piece.row + t) * a.x_stride + c;
        let own = x[at] * x[at + 2u * CHANNELS];
        hold_row(piece, piece.before + t, c, own);
        var sum = 0.0;
        if BIAS {
            sum = params[KERNEL * CHANNELS + c];
        }
        //@ i TAPS
        {
            let v = select(input$i, own, $iu + 1u == KERNEL);
            sum = fma(params[$iu * CHANNELS + c], v, sum);
        }
        //@
        y[(piece.row + t) * a.y_stride + c] = x[at + CHANNELS] * convolved(sum);
        //SHIFT
    }
}
