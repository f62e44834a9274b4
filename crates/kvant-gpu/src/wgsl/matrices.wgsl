
// Products of many tokens by cooperative matrices: ROWS outputs of COLUMNS tokens to a workgroup, whose subgroups of 32 threads have
// I × J matrices of SIDE × SIDE sums in f32 each, ACROSS subgroups beside each other along the outputs.
//
// A group of 32 inputs at a time, half of the threads unpack weights into workgroup memory and the other half bring numbers of x there,
// both rounded to f16. x is divided by 16 before that, so that numbers up to a million are finite.

// (output, input) and (token, input), 40 inputs from one to the next: rows start in different banks.
const STRIDE = 40u;
var<workgroup> ws: array<Element, ROWS * STRIDE / WIDE>;
var<workgroup> xs: array<Element, COLUMNS * STRIDE / WIDE>;
// A matrix of every subgroup.
var<workgroup> outs: array<f32, THREADS / 32 * SIDE * SIDE>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) id: vec3<u32>) {
    let subgroup = thread / 32u;
    let own_rows = (subgroup % ACROSS) * (I * SIDE);
    let own_columns = (subgroup / ACROSS) * (J * SIDE);
    let tile = tile_at(id.x, COLUMNS);
    // Read so that the translator sees all threads return, or none: matrices need all of them. It goes through the memory of sums (tiles are
    // shorter than f32 counts): a variable of its own may move the matrices off the 16 bytes that loading them asks for.
    if GROUPED {
        if thread == 0u {
            outs[0] = f32(tile.end);
        }
        if workgroupUniformLoad(&outs[0]) == 0.0 {
            return;
        }
    }
    let first = tile.first;
    let place = thread % HALF;
    let unpacks = thread < HALF;
    //@ i I
    //@ j J
    var sum$i_$j = Sums();
    //@
    //@
    // What the next group needs is asked for before this one is multiplied.
    //@ n ROW_STEPS
    let row$n = (tile.row + min(id.y * ROWS + place + HALF * $nu, a.outputs - 1u)) * a.row_words;
    var w$n = fetch(row$n, 0u);
    //@
    //@ n X_STEPS
    let t$n = (place + HALF * $nu) / 8u;
    var v$n = vec4<f32>(0.0);
    //@
    let four = place % 8u;
    if !unpacks {
        //@ n X_STEPS
        v$n = input(first + t$n, four);
        //@
    }
    for (var group = 0u; group < a.groups; group++) {
        if unpacks {
            //@ n ROW_STEPS
            //@ f 8
            put_weights((place + HALF * $nu) * STRIDE + 4u * $fu, level4(w$n, $fu));
            //@
            //@
        } else {
            //@ n X_STEPS
            put_x(t$n * STRIDE + 4u * four, 0.0625 * v$n);
            //@
        }
        workgroupBarrier();
        if group + 1u < a.groups {
            if unpacks {
                //@ n ROW_STEPS
                w$n = fetch(row$n, group + 1u);
                //@
            } else {
                //@ n X_STEPS
                v$n = input(first + t$n, 8u * (group + 1u) + four);
                //@
            }
        }
        //@ k DEPTH
        {
            //@ i I
            let a$i = coopLoadT<Weights>(&ws[((own_rows + $iu * SIDE) * STRIDE + $ku * SIDE) / WIDE], STRIDE / WIDE);
            //@
            //@ j J
            {
                let b = coopLoad<Inputs>(&xs[((own_columns + $ju * SIDE) * STRIDE + $ku * SIDE) / WIDE], STRIDE / WIDE);
                //@ i I
                sum$i_$j = coopMultiplyAdd(a$i, b, sum$i_$j);
                //@
            }
            //@
        }
        //@
        workgroupBarrier();
    }
    let lane = thread % 32u;
    //@ i I
    //@ j J
    // (token, output).
    coopStore(sum$i_$j, &outs[subgroup * (SIDE * SIDE)], SIDE);
    workgroupBarrier();
    for (var e = lane; e < SIDE * SIDE; e += 32u) {
        let o = id.y * ROWS + own_rows + $iu * SIDE + e % SIDE;
        let token = first + own_columns + $ju * SIDE + e / SIDE;
        if token < tile.end && o < a.outputs {
            store(visit(token), o, a.bias_at + tile.row + o, 16.0 * outs[subgroup * (SIDE * SIDE) + e]);
        }
    }
    workgroupBarrier();
    //@
    //@
}
