
// Recurrent state: pieces of a pass, each in one chunk of 64 tokens, and what they read and write. A page is the store's, or one of
// `scratch` where nobody keeps it.
var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
@group(0) @binding(1) var<storage, read> params: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> scratch: array<u32>;

const NOTHING = 0xffffffffu;

struct Piece {
    // First row of the pass, tokens, and tokens of the chunk before them.
    row: u32,
    tokens: u32,
    before: u32,
    // Pages: the state at the chunk's start, rows, and the state at its end where it is full.
    state: u32,
    rows: u32,
    next: u32,
}

fn piece_of(number: u32) -> Piece {
    let at = a.pieces_at + 6u * number;
    return Piece(plan[at], plan[at + 1u], plan[at + 2u], plan[at + 3u], plan[at + 4u], plan[at + 5u]);
}

fn held_word(page: u32, word: u32) -> u32 {
    if page >= 0xf8000000u {
        return scratch[((page & 0x07ffffffu) << 2u) + word];
    }
    return page_word(page, word);
}

fn hold_word(page: u32, word: u32, value: u32) {
    if page >= 0xf8000000u {
        scratch[((page & 0x07ffffffu) << 2u) + word] = value;
    } else {
        set_page_word(page, word, value);
    }
}

// A number of the row of a token of the chunk.
fn row_number(piece: Piece, token: u32, c: u32) -> f32 {
    return bitcast<f32>(held_word(piece.rows, token * ROW + c));
}

fn hold_row(piece: Piece, token: u32, c: u32, v: f32) {
    // By its bits: Metal compares as if no number were NaN.
    if (bitcast<u32>(v) & 0x7fffffffu) >= 0x7f800000u {
        atomicMax(&status[0], a.mark);
    }
    hold_word(piece.rows, token * ROW + c, bitcast<u32>(v));
}

// A number of the state at the chunk's start.
fn state_number(piece: Piece, i: u32) -> f32 {
    if piece.state == NOTHING {
        return 0.0;
    }
    if STATE_TYPE == 0u {
        return bitcast<f32>(held_word(piece.state, i));
    }
    if STATE_TYPE == 1u {
        return bitcast<f32>((held_word(piece.state, i / 2u) >> (16u * (i % 2u))) << 16u);
    }
    let codes = held_word(piece.state, (COUNT + 63u) / 64u + i / 4u);
    let code = bitcast<i32>(codes << (24u - 8u * (i % 4u))) >> 24u;
    return bitcast<f32>(held_word(piece.state, i / 64u)) * f32(code);
}

// An input of the convolution before this pass: `at` counts from KERNEL − 1 places before the chunk's start.
fn earlier_input(piece: Piece, at: u32, c: u32) -> f32 {
    if at < KERNEL - 1u {
        return state_number(piece, at * CHANNELS + c);
    }
    return row_number(piece, at - (KERNEL - 1u), c);
}

fn softplus(v: f32) -> f32 {
    // ln(1 + t) for small t without loss.
    let t = exp(-abs(v));
    let u = 1.0 + t;
    var rest = t;
    if u != 1.0 {
        rest = log(u) * (t / (u - 1.0));
    }
    return max(v, 0.0) + rest;
}

fn convolved(v: f32) -> f32 {
    if ACTIVATED {
        return act(v);
    }
    return v;
}
