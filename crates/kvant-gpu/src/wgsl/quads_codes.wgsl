
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

// Codes of four bits become numbers without being converted: in the highest four bits of an f16's fraction under the exponent
// of 16 a code is 16 more than itself, which KEY_CENTRE and VALUE_CENTRE take off. Of a word's eight, `levelsDE` has those of
// number 4 E + D and two further.
fn levels00(word: u32) -> vec2<f32> {
    return unpack2x16float(((word << 6u) & 0x03c003c0u) | 0x4c004c00u);
}

fn levels01(word: u32) -> vec2<f32> {
    return unpack2x16float(((word << 2u) & 0x03c003c0u) | 0x4c004c00u);
}

fn levels10(word: u32) -> vec2<f32> {
    return unpack2x16float(((word >> 2u) & 0x03c003c0u) | 0x4c004c00u);
}

fn levels11(word: u32) -> vec2<f32> {
    return unpack2x16float(((word >> 6u) & 0x03c003c0u) | 0x4c004c00u);
}

fn ready_scores(thread: u32, task: Task, first: u32) {
    if task.key_form == 0u {
        for (var n = thread; n < 4u * COLS * KEY_CHUNKS; n += 128u) {
            let column = n % COLS;
            let chunk = n / COLS % KEY_CHUNKS;
            let number = n / (KEY_CHUNKS * COLS);
            let page = held(pages[listed + number], KEY_CODED_QUADS);
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
            let page = held(pages[listed + 4u + t / VALUE_TOKENS], VALUE_CODED_QUADS);
            token_scales[n] = value_token_scale(page, group, t % VALUE_TOKENS / 4u);
        }
    }
}

// What a thread has asked for and not met yet: codes of its keys for KEY_STEP eights of channels, of its values for OCTETS eights of
// positions. Loops ask for the next while they go through these, and the first are asked for before anybody waits.
//@ u KEY_STEP
var<private> key_left$u: vec2<u32>;
var<private> key_right$u: vec2<u32>;
//@
//@ u OCTETS
var<private> value_left$u: vec2<u32>;
var<private> value_right$u: vec2<u32>;
//@
// The page and the place of the first codes of its keys, and the place of those of its values in every page.
var<private> key_page: u32;
var<private> key_start: u32;
var<private> value_start: u32;

// Four positions by half of the channels.
fn ask_keys(task: Task, position: u32, quad: u32, half: u32) {
    if task.key_form == 0u && position < task.end {
        key_page = held(pages[listed + quad / KEY_TOKENS], KEY_CODED_QUADS);
        key_start = KEY_CODES + quad % KEY_TOKENS / 2u + half * KEY_CHUNKS * (KEY_TOKENS / 2u);
        ask_eights(0u);
    }
}

// Eights of channels from one on: four words for each.
fn ask_eights(n: u32) {
    //@ u KEY_STEP
    key_left$u = page_pair(key_page, key_start + (n + $uu) * (KEY_TOKENS / 2u));
    key_right$u = page_pair(key_page, key_start + (n + $uu) * (KEY_TOKENS / 2u) + 1u);
    //@
}

// Four channels of the positions of a set.
fn ask_values(task: Task, four: u32, team: u32) {
    if task.value_form == 0u && team < SETS && team * OCTETS < 8u {
        value_start = VALUE_CODES + four / 4u * VALUE_TOKENS + 2u * (four % 4u) + team * OCTETS * 8u;
        ask_page(0u);
    }
}

// The eights of positions of a page: four words for each.
fn ask_page(n: u32) {
    let page = held(pages[listed + 4u + n], VALUE_CODED_QUADS);
    //@ u OCTETS
    value_left$u = page_pair(page, value_start + 8u * $uu);
    value_right$u = page_pair(page, value_start + 8u * $uu + 1u);
    //@
}

fn coded_scores(quad: u32, half: u32) -> Four {
    let number = quad / KEY_TOKENS;
    var s = Four();
    for (var n = 0u; n < KEY_CHUNKS; n += KEY_STEP) {
        //@ u KEY_STEP
        let left$u = key_left$u;
        let right$u = key_right$u;
        //@
        if n + KEY_STEP < KEY_CHUNKS {
            ask_eights(n + KEY_STEP);
        }
        //@ u KEY_STEP
        {
            let eight = half * KEY_CHUNKS + n + $uu;
            let at = number * SCALED + 17u * (eight / 2u) + 8u * (eight % 2u);
            //@ d 2
            //@ e 2
            {
                let y0 = levels$d$e(left$u.x);
                let y1 = levels$d$e(left$u.y);
                let y2 = levels$d$e(right$u.x);
                let y3 = levels$d$e(right$u.y);
                //@ h 2
                {
                    let q = scaled[at + 4u * $eu + $du + 2u * $hu];
                    //@ i 4
                    s.n$i = fma(vec4<f32>(y$i[$h]), q, s.n$i);
                    //@
                }
                //@
            }
            //@
            //@
        }
        //@
    }
    for (var chunk = half; chunk < KEY_CHUNKS; chunk += 2u) {
        let zeros = key_zeros[number * KEY_CHUNKS + chunk];
        //@ i 4
        s.n$i += zeros;
        //@
    }
    return s;
}

fn coded_sums(four: u32, team: u32, end: u32) -> Four {
    var s = Four();
    if team * OCTETS >= 8u {
        return s;
    }
    let group = 4u * four / VALUE_GROUP;
    let count = (end + VALUE_TOKENS - 1u) / VALUE_TOKENS;
    for (var n = 0u; n < count; n++) {
        //@ u OCTETS
        let left$u = value_left$u;
        let right$u = value_right$u;
        //@
        var is_more = n + 1u < count;
        //@ s SPARSE
        is_more = is_more && is_read(n + 1u);
        //@
        if is_more {
            ask_page(n + 1u);
        }
        //@ s SPARSE
        if !is_read(n) {
            continue;
        }
        //@
        //@ u OCTETS
        {
            let at = 16u * n + 2u * (team * OCTETS + $uu);
            //@ e 2
            let scales$e = token_scales[64u * group + at + $eu];
            let centres$e = VALUE_CENTRE * scales$e;
            //@
            //@ d 2
            //@ e 2
            {
                let two = vec2<f32>(scales$e[$d], scales$e[$d + 2]);
                let of_centre = vec2<f32>(centres$e[$d], centres$e[$d + 2]);
                let y0 = fma(levels$d$e(left$u.x), two, of_centre);
                let y1 = fma(levels$d$e(left$u.y), two, of_centre);
                let y2 = fma(levels$d$e(right$u.x), two, of_centre);
                let y3 = fma(levels$d$e(right$u.y), two, of_centre);
                //@ h 2
                {
                    let w = kept(4u * (at + $eu) + $du + 2u * $hu);
                    //@ i 4
                    s.n$i = fma(vec4<f32>(y$i[$h]), w, s.n$i);
                    //@
                }
                //@
            }
            //@
            //@
        }
        //@
    }
    return s;
}
