
// Numbers of exact pages in a codec's basis, made when they are asked for, so that none of them lies anywhere.
struct Arguments {
    records_at: u32,
    records: u32,
}

var<immediate> a: Arguments;
@group(0) @binding(0) var<storage, read> plan: array<u32>;
// Of every kv head (channels of the model, channels of the codec), then the mean.
@group(0) @binding(1) var<storage, read> basis: array<f32>;
@group(0) @binding(2) var<storage, read_write> status: array<atomic<u32>>;

var<private> have: u32;
var<private> source: u32;
var<private> target_page: u32;
var<private> mark: u32;
var<private> basis_at: u32;

// A number in the codec's basis; the last token stands for those that are not there.
fn number(token: u32, c: u32) -> f32 {
    if c >= DIM {
        return 0.0;
    }
    let t = min(token, have - 1u);
    if !MOVED {
        return number_at(source, exact_index(t, c));
    }
    // Four at a time: a driver in software counts the turns of all loops.
    var sum = 0.0;
    for (var j = 0u; j < DIM; j += 4u) {
        sum = with_term(t, c, j, sum);
        if j + 1u < DIM {
            sum = with_term(t, c, j + 1u, sum);
        }
        if j + 2u < DIM {
            sum = with_term(t, c, j + 2u, sum);
        }
        if j + 3u < DIM {
            sum = with_term(t, c, j + 3u, sum);
        }
    }
    return sum;
}

fn with_term(t: u32, c: u32, j: u32, sum: f32) -> f32 {
    var x = number_at(source, exact_index(t, j));
    if MEAN {
        x -= basis[basis_at + DIM * DIM + j];
    }
    return fma(x, basis[basis_at + j * DIM + c], sum);
}

fn exact_index(t: u32, c: u32) -> u32 {
    return select(t * DIM + c, c * TOKENS + t, KEYS);
}
