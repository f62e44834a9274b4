
// Codes of four bits as f32. Queries are multiplied by the scales of channels once for a page, and values by those of tokens.
const CODED = true;
const KEY_CHUNKS = KEY_CODED / 16u;
// A chunk of 16 channels and one place that is free, so that threads of neighbouring chunks write to other banks.
const SCALED = 17u * KEY_CHUNKS;

// (page of the 256 positions, channels): the four queries under the page's scales.
var<workgroup> scaled: array<vec4<f32>, 4u * SCALED>;
// (page, 16 channels): what zeros and centres of codes add.
var<workgroup> key_zeros: array<vec4<f32>, 4u * KEY_CHUNKS>;
// (group, fours of positions): scales of values.
var<workgroup> token_scales: array<vec4<f32>, 64u * VALUE_GROUPS>;

fn levels_of(word: u32, e: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8((word >> (4u * e)) & 0x0f0f0f0fu));
}

fn ready_scores(thread: u32, task: Task, first: u32) {
    if task.key_form == 0u {
        // Queries that this brings are there.
        workgroupBarrier();
        for (var n = thread; n < 4u * COLS * KEY_CHUNKS; n += 128u) {
            let column = n % COLS;
            let chunk = n / COLS % KEY_CHUNKS;
            let number = n / (KEY_CHUNKS * COLS);
            let page = held(key_place(task, min(first + number * KEY_TOKENS, task.end - 1u)).x, KEY_CODED_QUADS);
            var zeros = 0.0;
            //@ i 4
            {
                let q = queries[Q4 * column + 4u * chunk + $iu];
                let x = q * key_channel_scale(page, 4u * chunk + $iu);
                zeros += dot(q, key_channel_zero(page, 4u * chunk + $iu)) + KEY_CENTRE * ((x.x + x.y) + (x.z + x.w));
                //@ j 4
                scaled[number * SCALED + 17u * chunk + 4u * $iu + $ju][column] = x[$j];
                //@
            }
            //@
            key_zeros[number * KEY_CHUNKS + chunk][column] = zeros;
        }
    }
    if task.value_form == 0u {
        for (var n = thread; n < 64u * VALUE_GROUPS; n += 128u) {
            let group = n / 64u;
            let t = min(4u * (n % 64u), task.end - first - 1u);
            let page = held(value_page(task, first, t / VALUE_TOKENS), VALUE_CODED_QUADS);
            token_scales[n] = value_token_scale(page, group, t % VALUE_TOKENS / 4u);
        }
    }
}

fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {}

// Two positions of a coded page: two words for eight channels.
fn coded_scores(thread: u32, task: Task, position: u32) -> Two {
    let place = key_place(task, position);
    let page = held(place.x, KEY_CODED_QUADS);
    let number = 2u * thread / KEY_TOKENS;
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(0.0);
    for (var c = 0u; c < KEY_CHUNKS; c += KEY_STEP) {
        let start = KEY_CODES + place.y / 2u + c * KEY_TOKENS;
        //@ u KEY_STEP
        //@ j 2
        let pair$u_$j = page_pair(page, start + (2u * $uu + $ju) * (KEY_TOKENS / 2u));
        //@
        //@
        //@ u KEY_STEP
        //@ j 2
        //@ e 2
        {
            let at = number * SCALED + 17u * (c + $uu) + 8u * $ju + 4u * $eu;
            let y0 = levels_of(pair$u_$j.x, $eu);
            let y1 = levels_of(pair$u_$j.y, $eu);
            //@ b 4
            s0 = fma(vec4<f32>(y0[$b]), scaled[at + $bu], s0);
            s1 = fma(vec4<f32>(y1[$b]), scaled[at + $bu], s1);
            //@
        }
        //@
        //@
        s0 += key_zeros[number * KEY_CHUNKS + c + $uu];
        s1 += key_zeros[number * KEY_CHUNKS + c + $uu];
        //@
    }
    return Two(s0, s1);
}

// Two channels of the chunks of a set: two words for eight positions.
fn coded_sums(task: Task, pair: u32, team: u32, end: u32) -> Two {
    var sum0 = vec4<f32>(0.0);
    var sum1 = vec4<f32>(0.0);
    let group = 2u * pair / VALUE_GROUP;
    let start = VALUE_CODES + pair / 8u * VALUE_TOKENS + pair % 8u + team * VALUE_CHUNKS * 16u;
    for (var n = 0u; n < (end + VALUE_TOKENS - 1u) / VALUE_TOKENS && team * VALUE_CHUNKS < 4u; n++) {
        let page = held(value_pages[n], VALUE_CODED_QUADS);
        //@ u VALUE_CHUNKS
        //@ j 2
        let pair$u_$j = page_pair(page, start + 8u * (2u * $uu + $ju));
        //@
        //@
        //@ u VALUE_CHUNKS
        //@ j 2
        //@ e 2
        {
            let four = 16u * n + 4u * (team * VALUE_CHUNKS + $uu) + 2u * $ju + $eu;
            let scales = token_scales[64u * group + four];
            let y0 = (levels_of(pair$u_$j.x, $eu) + VALUE_CENTRE) * scales;
            let y1 = (levels_of(pair$u_$j.y, $eu) + VALUE_CENTRE) * scales;
            //@ b 4
            sum0 = fma(vec4<f32>(y0[$b]), weights[4u * four + $bu], sum0);
            sum1 = fma(vec4<f32>(y1[$b]), weights[4u * four + $bu], sum1);
            //@
        }
        //@
        //@
        //@
    }
    return Two(sum0, sum1);
}
