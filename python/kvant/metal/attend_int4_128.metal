// attend.wgsl of kvant-gpu for int4 pages, heads of 128 channels and 4 queries that share a reading, as naga translates it.
// Not edited: `KVANT_WRITE_METAL=1 cargo test -p kvant-gpu metal_texts` writes it.
// language: metal3.1
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size9;
    uint size11;
    uint size12;
    uint size13;
    uint size14;
    uint size15;
};

struct type_4 {
    metal::float4 inner[128];
};
struct type_5 {
    float inner[4];
};
struct type_6 {
    float inner[32];
};
struct type_7 {
    uint inner[3];
};
struct Arguments {
    uint tasks_at;
    uint tasks;
    uint coded_at;
    uint table_at;
    uint group;
    uint window;
    uint sinks_window;
    float scale;
    float cap;
    uint sinks;
    uint q_stride;
    uint q_head;
    uint p_stride;
    uint p_head;
    uint sinks_row;
    uint turns_at;
};
struct Task {
    uint row;
    uint tokens;
    uint head;
    uint column;
    uint position;
    uint start;
    uint end;
    uint key_form;
    uint value_form;
    uint key_table;
    uint value_table;
};
typedef uint type_8[1];
typedef float type_9[1];
constant uint COLS = 4u;
constant uint Q4_ = 32u;
constant uint KEY_FOURS = 32u;
constant uint KEY_DIM = 128u;
constant uint VALUE_DIM = 128u;
constant uint CHANNELS = 1u;
constant uint KEY_TOKENS = 64u;
constant uint VALUE_TOKENS = 64u;
constant bool PREPARED = false;
constant bool LATENT = false;
constant bool VALUE_PREPARED = true;
constant uint KV_HEADS = 1u;
constant bool ALONG = false;
constant uint KEY_STEP = 8u;
constant uint EXACT_STEP = 8u;
constant uint VALUE_STEP = 8u;
constant uint CHUNK_STEP = 4u;
constant uint VALUE_PAGES = 3u;

Task task_of(
    uint number,
    thread Arguments const& a,
    device type_8 const& plan,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint _e3 = a.tasks_at;
    uint at_4 = _e3 + (11u * number);
    uint _e9 = plan[metal::min(unsigned(at_4), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e14 = plan[metal::min(unsigned(at_4 + 1u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e19 = plan[metal::min(unsigned(at_4 + 2u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e24 = plan[metal::min(unsigned(at_4 + 3u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e29 = plan[metal::min(unsigned(at_4 + 4u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e34 = plan[metal::min(unsigned(at_4 + 5u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e39 = plan[metal::min(unsigned(at_4 + 6u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e44 = plan[metal::min(unsigned(at_4 + 7u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e49 = plan[metal::min(unsigned(at_4 + 8u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e54 = plan[metal::min(unsigned(at_4 + 9u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    uint _e59 = plan[metal::min(unsigned(at_4 + 10u), (_buffer_sizes.size9 - 0 - 4) / 4)];
    return Task {_e9, _e14, _e19, _e24, _e29, _e34, _e39, _e44, _e49, _e54, _e59};
}

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}

void begin(
    uint thread_1,
    Task task,
    threadgroup type_4& queries,
    threadgroup type_5& offsets,
    thread Arguments const& a,
    device type_9 const& prepared,
    device type_9 const& q,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint i = {};
    metal::float4 four = {};
    bool local_1 = {};
    bool local_2 = {};
    bool local_3 = {};
    bool local_4 = {};
    bool local_5 = {};
    bool local_6 = {};
    bool local_7 = {};
    bool is_coded = task.key_form == 0u;
    uint _e9 = a.sinks_row;
    uint first_6 = task.row + ((task.key_form == 2u) ? _e9 : 0u);
    i = thread_1;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e221 = i;
            i = _e221 + 128u;
        }
        loop_init = false;
        uint _e16 = i;
        if (_e16 < 128u) {
        } else {
            break;
        }
        {
            uint _e20 = i;
            uint column = task.column + naga_div(_e20, Q4_);
            uint _e25 = i;
            uint c_3 = 4u * naga_mod(_e25, Q4_);
            four = metal::float4(0.0);
            uint _e35 = a.group;
            if (column < (task.tokens * _e35)) {
                uint _e40 = a.group;
                uint row = first_6 + naga_div(column, _e40);
                uint _e46 = a.group;
                uint _e50 = a.group;
                uint head = (task.head * _e46) + naga_mod(column, _e50);
                if ((c_3 + 0u) < KEY_DIM) {
                    if (PREPARED) {
                        local_1 = is_coded;
                    } else {
                        local_1 = false;
                    }
                    bool _e61 = local_1;
                    if (_e61) {
                        uint _e66 = a.p_stride;
                        uint _e70 = a.p_head;
                        float _e77 = prepared[metal::min(unsigned((((row * _e66) + (head * _e70)) + c_3) + 0u), (_buffer_sizes.size11 - 0 - 4) / 4)];
                        four.x = _e77;
                    } else {
                        uint _e82 = a.q_stride;
                        uint _e86 = a.q_head;
                        float _e93 = q[metal::min(unsigned((((row * _e82) + (head * _e86)) + c_3) + 0u), (_buffer_sizes.size12 - 0 - 4) / 4)];
                        four.x = _e93;
                    }
                }
                if ((c_3 + 1u) < KEY_DIM) {
                    if (PREPARED) {
                        local_2 = is_coded;
                    } else {
                        local_2 = false;
                    }
                    bool _e102 = local_2;
                    if (_e102) {
                        uint _e107 = a.p_stride;
                        uint _e111 = a.p_head;
                        float _e118 = prepared[metal::min(unsigned((((row * _e107) + (head * _e111)) + c_3) + 1u), (_buffer_sizes.size11 - 0 - 4) / 4)];
                        four.y = _e118;
                    } else {
                        uint _e123 = a.q_stride;
                        uint _e127 = a.q_head;
                        float _e134 = q[metal::min(unsigned((((row * _e123) + (head * _e127)) + c_3) + 1u), (_buffer_sizes.size12 - 0 - 4) / 4)];
                        four.y = _e134;
                    }
                }
                if ((c_3 + 2u) < KEY_DIM) {
                    if (PREPARED) {
                        local_3 = is_coded;
                    } else {
                        local_3 = false;
                    }
                    bool _e143 = local_3;
                    if (_e143) {
                        uint _e148 = a.p_stride;
                        uint _e152 = a.p_head;
                        float _e159 = prepared[metal::min(unsigned((((row * _e148) + (head * _e152)) + c_3) + 2u), (_buffer_sizes.size11 - 0 - 4) / 4)];
                        four.z = _e159;
                    } else {
                        uint _e164 = a.q_stride;
                        uint _e168 = a.q_head;
                        float _e175 = q[metal::min(unsigned((((row * _e164) + (head * _e168)) + c_3) + 2u), (_buffer_sizes.size12 - 0 - 4) / 4)];
                        four.z = _e175;
                    }
                }
                if ((c_3 + 3u) < KEY_DIM) {
                    if (PREPARED) {
                        local_4 = is_coded;
                    } else {
                        local_4 = false;
                    }
                    bool _e184 = local_4;
                    if (_e184) {
                        uint _e189 = a.p_stride;
                        uint _e193 = a.p_head;
                        float _e200 = prepared[metal::min(unsigned((((row * _e189) + (head * _e193)) + c_3) + 3u), (_buffer_sizes.size11 - 0 - 4) / 4)];
                        four.w = _e200;
                    } else {
                        uint _e205 = a.q_stride;
                        uint _e209 = a.q_head;
                        float _e216 = q[metal::min(unsigned((((row * _e205) + (head * _e209)) + c_3) + 3u), (_buffer_sizes.size12 - 0 - 4) / 4)];
                        four.w = _e216;
                    }
                }
            }
            uint _e218 = i;
            metal::float4 _e220 = four;
            queries.inner[metal::min(unsigned(_e218), 127u)] = _e220;
        }
    }
    uint column_1 = task.column + thread_1;
    if (PREPARED) {
        local_5 = is_coded;
    } else {
        local_5 = false;
    }
    bool _e230 = local_5;
    if (_e230) {
        local_6 = thread_1 < COLS;
    } else {
        local_6 = false;
    }
    bool _e236 = local_6;
    if (_e236) {
        uint _e242 = a.group;
        local_7 = column_1 < (task.tokens * _e242);
    } else {
        local_7 = false;
    }
    bool _e246 = local_7;
    if (_e246) {
        uint _e250 = a.group;
        uint row_1 = task.row + naga_div(column_1, _e250);
        uint _e256 = a.group;
        uint _e260 = a.group;
        uint head_1 = (task.head * _e256) + naga_mod(column_1, _e260);
        uint _e268 = a.p_stride;
        uint _e272 = a.p_head;
        float _e278 = prepared[metal::min(unsigned(((row_1 * _e268) + (head_1 * _e272)) + KEY_DIM), (_buffer_sizes.size11 - 0 - 4) / 4)];
        offsets.inner[metal::min(unsigned(thread_1), 3u)] = _e278;
        return;
    } else {
        return;
    }
}

void begin_latents(
    uint thread_2,
    Task task_1
) {
    return;
}

uint value_page(
    Task task_2,
    uint first_1,
    uint number_1,
    thread Arguments const& a,
    device type_8 const& plan,
    thread _mslBufferSizes const& _buffer_sizes
) {
    if (task_2.value_form == 2u) {
        uint _e9 = a.table_at;
        uint _e13 = plan[metal::min(unsigned(_e9 + task_2.value_table), (_buffer_sizes.size9 - 0 - 4) / 4)];
        return _e13;
    }
    uint _e16 = a.table_at;
    uint _e19 = a.coded_at;
    uint table = ((task_2.value_form == 0u) ? _e19 : _e16) + task_2.value_table;
    uint _e31 = a.sinks;
    uint last = naga_div((task_2.end - 1u) - _e31, VALUE_TOKENS);
    uint _e38 = a.sinks;
    uint _e46 = plan[metal::min(unsigned(table + metal::min(naga_div(first_1 - _e38, VALUE_TOKENS) + number_1, last)), (_buffer_sizes.size9 - 0 - 4) / 4)];
    return _e46;
}

void ready_scores(
    uint thread_3,
    Task task_3,
    uint first_2
) {
    return;
}

metal::uint2 key_place(
    Task task_4,
    uint position,
    thread Arguments const& a,
    device type_8 const& plan,
    thread _mslBufferSizes const& _buffer_sizes
) {
    if (task_4.key_form == 2u) {
        uint _e8 = a.table_at;
        uint _e12 = plan[metal::min(unsigned(_e8 + task_4.key_table), (_buffer_sizes.size9 - 0 - 4) / 4)];
        return metal::uint2(_e12, position);
    }
    uint _e16 = a.sinks;
    uint index_3 = position - _e16;
    uint _e20 = a.table_at;
    uint _e23 = a.coded_at;
    uint table_1 = ((task_4.key_form == 0u) ? _e23 : _e20) + task_4.key_table;
    uint _e35 = plan[metal::min(unsigned(table_1 + naga_div(index_3, KEY_TOKENS)), (_buffer_sizes.size9 - 0 - 4) / 4)];
    return metal::uint2(_e35, naga_mod(index_3, KEY_TOKENS));
}

uint page_word(
    uint page,
    uint word,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint at_5 = ((page & 134217727u) << 2u) + word;
    switch(page >> 27u) {
        case 1u: {
            uint _e11 = pages1_[metal::min(unsigned(at_5), (_buffer_sizes.size13 - 0 - 4) / 4)];
            return _e11;
        }
        default: {
            uint _e14 = pages0_[metal::min(unsigned(at_5), (_buffer_sizes.size14 - 0 - 4) / 4)];
            return _e14;
        }
    }
}

uint codes0_(
    uint page_1,
    uint at,
    uint half_,
    uint lane,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint codes = 0u;
    uint _e6 = codes;
    uint _e10 = page_word(page_1, (at + 0u) + lane, pages1_, pages0_, _buffer_sizes);
    codes = _e6 | (((_e10 >> (4u * half_)) & 252645135u) << 0u);
    uint _e19 = codes;
    return _e19;
}

metal::float4 levels0_(
    uint page_2,
    uint at_1,
    uint half_1,
    uint lane_1,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint _e4 = codes0_(page_2, at_1, half_1, lane_1, pages1_, pages0_, _buffer_sizes);
    metal::uint4 c_4 = uint4(as_type<packed_uchar4>(_e4));
    return static_cast<metal::float4>(c_4);
}

metal::float4 key4_coded(
    uint page_3,
    uint token,
    uint four_1,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 y = metal::float4(0.0);
    if ((4u * four_1) < 128u) {
        uint at_6 = (128u + (naga_div((4u * four_1) - 0u, 8u) * 64u)) + (naga_div(token, 16u) * 16u);
        metal::float4 _e29 = levels0_(page_3, at_6, naga_mod(four_1, 2u), naga_mod(token, 16u), pages1_, pages0_, _buffer_sizes);
        y = _e29;
    }
    metal::float4 _e30 = y;
    uint _e37 = page_word(page_3, 0u + naga_div(4u * four_1, 2u), pages1_, pages0_, _buffer_sizes);
    uint _e47 = page_word(page_3, (0u + naga_div(4u * four_1, 2u)) + 1u, pages1_, pages0_, _buffer_sizes);
    uint _e56 = page_word(page_3, 64u + naga_div(4u * four_1, 2u), pages1_, pages0_, _buffer_sizes);
    uint _e66 = page_word(page_3, (64u + naga_div(4u * four_1, 2u)) + 1u, pages1_, pages0_, _buffer_sizes);
    y = metal::fma(_e30, metal::float4(float2(as_type<half2>(_e37)), float2(as_type<half2>(_e47))), metal::float4(float2(as_type<half2>(_e56)), float2(as_type<half2>(_e66))));
    metal::float4 _e70 = y;
    return _e70;
}

float half_of(
    uint word_1,
    uint index
) {
    metal::float2 pair = float2(as_type<half2>(word_1));
    return (index == 1u) ? pair.y : pair.x;
}

float key_number(
    uint page_4,
    uint index_1,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint _e4 = page_word(page_4, naga_div(index_1, 2u), pages1_, pages0_, _buffer_sizes);
    float _e7 = half_of(_e4, naga_mod(index_1, 2u));
    return _e7;
}

metal::float4 key4_exact(
    uint page_5,
    uint token_1,
    uint four_2,
    uint tokens,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 y_1 = metal::float4(0.0);
    float _e14 = key_number(page_5, (((4u * four_2) + 0u) * tokens) + token_1, pages1_, pages0_, _buffer_sizes);
    y_1.x = _e14;
    float _e22 = key_number(page_5, (((4u * four_2) + 1u) * tokens) + token_1, pages1_, pages0_, _buffer_sizes);
    y_1.y = _e22;
    float _e30 = key_number(page_5, (((4u * four_2) + 2u) * tokens) + token_1, pages1_, pages0_, _buffer_sizes);
    y_1.z = _e30;
    float _e38 = key_number(page_5, (((4u * four_2) + 3u) * tokens) + token_1, pages1_, pages0_, _buffer_sizes);
    y_1.w = _e38;
    metal::float4 _e39 = y_1;
    return _e39;
}

metal::float4 key4_or_own(
    Task task_5,
    uint position_1,
    uint page_6,
    uint token_2,
    uint four_3,
    uint tokens_1,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 _e6 = key4_exact(page_6, token_2, four_3, tokens_1, pages1_, pages0_, _buffer_sizes);
    return _e6;
}

void scored(
    uint thread_4,
    Task task_6,
    uint position_2,
    bool is_there,
    uint k,
    metal::float4 total_1,
    threadgroup type_5& offsets,
    threadgroup type_4& weights,
    thread Arguments const& a
) {
    bool local_8 = {};
    bool local_9 = {};
    bool local_10 = {};
    bool local_11 = {};
    bool local_12 = {};
    float s = {};
    uint column_2 = task_6.column + k;
    uint _e11 = a.group;
    uint own = task_6.position + naga_div(column_2, _e11);
    uint _e16 = a.window;
    uint _e19 = a.sinks_window;
    uint window = (task_6.key_form == 2u) ? _e19 : _e16;
    if (is_there) {
        uint _e29 = a.group;
        local_8 = column_2 < (task_6.tokens * _e29);
    } else {
        local_8 = false;
    }
    bool _e33 = local_8;
    if (_e33) {
        local_9 = position_2 <= own;
    } else {
        local_9 = false;
    }
    bool _e38 = local_9;
    if (_e38) {
        local_10 = (own - position_2) < window;
    } else {
        local_10 = false;
    }
    bool is_seen = local_10;
    if (true) {
        if (ALONG) {
            local_12 = task_6.key_form == 0u;
        } else {
            local_12 = false;
        }
        bool _e55 = local_12;
        local_11 = _e55;
    } else {
        local_11 = true;
    }
    bool is_held = local_11;
    float _e68 = weights.inner[metal::min(unsigned((32u * k) + naga_div(thread_4, 4u)), 127u)][metal::min(unsigned(naga_mod(thread_4, 4u)), 3u)];
    float held = is_held ? _e68 : 0.0;
    float _e73 = a.scale;
    float _e83 = offsets.inner[metal::min(unsigned(k), 3u)];
    s = _e73 * ((((total_1.x + total_1.y) + (total_1.z + total_1.w)) + _e83) + held);
    float _e90 = a.cap;
    if (_e90 > 0.0) {
        float _e95 = a.cap;
        float _e96 = s;
        float _e99 = a.cap;
        s = _e95 * metal::tanh(metal::clamp(_e96 / _e99, -15.0, 15.0));
    }
    float _e116 = s;
    weights.inner[metal::min(unsigned((32u * k) + naga_div(thread_4, 4u)), 127u)][metal::min(unsigned(naga_mod(thread_4, 4u)), 3u)] = is_seen ? _e116 : -300000000000000000000000000000000000000.0;
    return;
}

void score(
    uint thread_5,
    Task task_7,
    uint first_3,
    threadgroup type_4& queries,
    threadgroup type_5& offsets,
    threadgroup type_4& weights,
    thread Arguments const& a,
    device type_8 const& plan,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 total0_ = metal::float4(0.0);
    metal::float4 total1_ = metal::float4(0.0);
    metal::float4 total2_ = metal::float4(0.0);
    metal::float4 total3_ = metal::float4(0.0);
    uint c = 0u;
    uint c_1 = 0u;
    uint position_4 = first_3 + thread_5;
    bool is_there_1 = position_4 < task_7.end;
    if (is_there_1) {
        metal::uint2 _e18 = key_place(task_7, position_4, a, plan, _buffer_sizes);
        if (task_7.key_form == 0u) {
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e395 = c;
                    c = _e395 + KEY_STEP;
                }
                loop_init_1 = false;
                uint _e24 = c;
                if (_e24 < KEY_FOURS) {
                } else {
                    break;
                }
                {
                    uint _e29 = c;
                    metal::float4 _e32 = key4_coded(_e18.x, _e18.y, _e29 + 0u, pages1_, pages0_, _buffer_sizes);
                    uint _e35 = c;
                    metal::float4 _e38 = key4_coded(_e18.x, _e18.y, _e35 + 1u, pages1_, pages0_, _buffer_sizes);
                    uint _e41 = c;
                    metal::float4 _e44 = key4_coded(_e18.x, _e18.y, _e41 + 2u, pages1_, pages0_, _buffer_sizes);
                    uint _e47 = c;
                    metal::float4 _e50 = key4_coded(_e18.x, _e18.y, _e47 + 3u, pages1_, pages0_, _buffer_sizes);
                    uint _e53 = c;
                    metal::float4 _e56 = key4_coded(_e18.x, _e18.y, _e53 + 4u, pages1_, pages0_, _buffer_sizes);
                    uint _e59 = c;
                    metal::float4 _e62 = key4_coded(_e18.x, _e18.y, _e59 + 5u, pages1_, pages0_, _buffer_sizes);
                    uint _e65 = c;
                    metal::float4 _e68 = key4_coded(_e18.x, _e18.y, _e65 + 6u, pages1_, pages0_, _buffer_sizes);
                    uint _e71 = c;
                    metal::float4 _e74 = key4_coded(_e18.x, _e18.y, _e71 + 7u, pages1_, pages0_, _buffer_sizes);
                    uint _e77 = c;
                    metal::float4 _e82 = queries.inner[metal::min(unsigned((0u + _e77) + 0u), 127u)];
                    metal::float4 _e83 = total0_;
                    total0_ = metal::fma(_e32, _e82, _e83);
                    uint _e87 = c;
                    metal::float4 _e92 = queries.inner[metal::min(unsigned((32u + _e87) + 0u), 127u)];
                    metal::float4 _e93 = total1_;
                    total1_ = metal::fma(_e32, _e92, _e93);
                    uint _e97 = c;
                    metal::float4 _e102 = queries.inner[metal::min(unsigned((64u + _e97) + 0u), 127u)];
                    metal::float4 _e103 = total2_;
                    total2_ = metal::fma(_e32, _e102, _e103);
                    uint _e107 = c;
                    metal::float4 _e112 = queries.inner[metal::min(unsigned((96u + _e107) + 0u), 127u)];
                    metal::float4 _e113 = total3_;
                    total3_ = metal::fma(_e32, _e112, _e113);
                    uint _e117 = c;
                    metal::float4 _e122 = queries.inner[metal::min(unsigned((0u + _e117) + 1u), 127u)];
                    metal::float4 _e123 = total0_;
                    total0_ = metal::fma(_e38, _e122, _e123);
                    uint _e127 = c;
                    metal::float4 _e132 = queries.inner[metal::min(unsigned((32u + _e127) + 1u), 127u)];
                    metal::float4 _e133 = total1_;
                    total1_ = metal::fma(_e38, _e132, _e133);
                    uint _e137 = c;
                    metal::float4 _e142 = queries.inner[metal::min(unsigned((64u + _e137) + 1u), 127u)];
                    metal::float4 _e143 = total2_;
                    total2_ = metal::fma(_e38, _e142, _e143);
                    uint _e147 = c;
                    metal::float4 _e152 = queries.inner[metal::min(unsigned((96u + _e147) + 1u), 127u)];
                    metal::float4 _e153 = total3_;
                    total3_ = metal::fma(_e38, _e152, _e153);
                    uint _e157 = c;
                    metal::float4 _e162 = queries.inner[metal::min(unsigned((0u + _e157) + 2u), 127u)];
                    metal::float4 _e163 = total0_;
                    total0_ = metal::fma(_e44, _e162, _e163);
                    uint _e167 = c;
                    metal::float4 _e172 = queries.inner[metal::min(unsigned((32u + _e167) + 2u), 127u)];
                    metal::float4 _e173 = total1_;
                    total1_ = metal::fma(_e44, _e172, _e173);
                    uint _e177 = c;
                    metal::float4 _e182 = queries.inner[metal::min(unsigned((64u + _e177) + 2u), 127u)];
                    metal::float4 _e183 = total2_;
                    total2_ = metal::fma(_e44, _e182, _e183);
                    uint _e187 = c;
                    metal::float4 _e192 = queries.inner[metal::min(unsigned((96u + _e187) + 2u), 127u)];
                    metal::float4 _e193 = total3_;
                    total3_ = metal::fma(_e44, _e192, _e193);
                    uint _e197 = c;
                    metal::float4 _e202 = queries.inner[metal::min(unsigned((0u + _e197) + 3u), 127u)];
                    metal::float4 _e203 = total0_;
                    total0_ = metal::fma(_e50, _e202, _e203);
                    uint _e207 = c;
                    metal::float4 _e212 = queries.inner[metal::min(unsigned((32u + _e207) + 3u), 127u)];
                    metal::float4 _e213 = total1_;
                    total1_ = metal::fma(_e50, _e212, _e213);
                    uint _e217 = c;
                    metal::float4 _e222 = queries.inner[metal::min(unsigned((64u + _e217) + 3u), 127u)];
                    metal::float4 _e223 = total2_;
                    total2_ = metal::fma(_e50, _e222, _e223);
                    uint _e227 = c;
                    metal::float4 _e232 = queries.inner[metal::min(unsigned((96u + _e227) + 3u), 127u)];
                    metal::float4 _e233 = total3_;
                    total3_ = metal::fma(_e50, _e232, _e233);
                    uint _e237 = c;
                    metal::float4 _e242 = queries.inner[metal::min(unsigned((0u + _e237) + 4u), 127u)];
                    metal::float4 _e243 = total0_;
                    total0_ = metal::fma(_e56, _e242, _e243);
                    uint _e247 = c;
                    metal::float4 _e252 = queries.inner[metal::min(unsigned((32u + _e247) + 4u), 127u)];
                    metal::float4 _e253 = total1_;
                    total1_ = metal::fma(_e56, _e252, _e253);
                    uint _e257 = c;
                    metal::float4 _e262 = queries.inner[metal::min(unsigned((64u + _e257) + 4u), 127u)];
                    metal::float4 _e263 = total2_;
                    total2_ = metal::fma(_e56, _e262, _e263);
                    uint _e267 = c;
                    metal::float4 _e272 = queries.inner[metal::min(unsigned((96u + _e267) + 4u), 127u)];
                    metal::float4 _e273 = total3_;
                    total3_ = metal::fma(_e56, _e272, _e273);
                    uint _e277 = c;
                    metal::float4 _e282 = queries.inner[metal::min(unsigned((0u + _e277) + 5u), 127u)];
                    metal::float4 _e283 = total0_;
                    total0_ = metal::fma(_e62, _e282, _e283);
                    uint _e287 = c;
                    metal::float4 _e292 = queries.inner[metal::min(unsigned((32u + _e287) + 5u), 127u)];
                    metal::float4 _e293 = total1_;
                    total1_ = metal::fma(_e62, _e292, _e293);
                    uint _e297 = c;
                    metal::float4 _e302 = queries.inner[metal::min(unsigned((64u + _e297) + 5u), 127u)];
                    metal::float4 _e303 = total2_;
                    total2_ = metal::fma(_e62, _e302, _e303);
                    uint _e307 = c;
                    metal::float4 _e312 = queries.inner[metal::min(unsigned((96u + _e307) + 5u), 127u)];
                    metal::float4 _e313 = total3_;
                    total3_ = metal::fma(_e62, _e312, _e313);
                    uint _e317 = c;
                    metal::float4 _e322 = queries.inner[metal::min(unsigned((0u + _e317) + 6u), 127u)];
                    metal::float4 _e323 = total0_;
                    total0_ = metal::fma(_e68, _e322, _e323);
                    uint _e327 = c;
                    metal::float4 _e332 = queries.inner[metal::min(unsigned((32u + _e327) + 6u), 127u)];
                    metal::float4 _e333 = total1_;
                    total1_ = metal::fma(_e68, _e332, _e333);
                    uint _e337 = c;
                    metal::float4 _e342 = queries.inner[metal::min(unsigned((64u + _e337) + 6u), 127u)];
                    metal::float4 _e343 = total2_;
                    total2_ = metal::fma(_e68, _e342, _e343);
                    uint _e347 = c;
                    metal::float4 _e352 = queries.inner[metal::min(unsigned((96u + _e347) + 6u), 127u)];
                    metal::float4 _e353 = total3_;
                    total3_ = metal::fma(_e68, _e352, _e353);
                    uint _e357 = c;
                    metal::float4 _e362 = queries.inner[metal::min(unsigned((0u + _e357) + 7u), 127u)];
                    metal::float4 _e363 = total0_;
                    total0_ = metal::fma(_e74, _e362, _e363);
                    uint _e367 = c;
                    metal::float4 _e372 = queries.inner[metal::min(unsigned((32u + _e367) + 7u), 127u)];
                    metal::float4 _e373 = total1_;
                    total1_ = metal::fma(_e74, _e372, _e373);
                    uint _e377 = c;
                    metal::float4 _e382 = queries.inner[metal::min(unsigned((64u + _e377) + 7u), 127u)];
                    metal::float4 _e383 = total2_;
                    total2_ = metal::fma(_e74, _e382, _e383);
                    uint _e387 = c;
                    metal::float4 _e392 = queries.inner[metal::min(unsigned((96u + _e387) + 7u), 127u)];
                    metal::float4 _e393 = total3_;
                    total3_ = metal::fma(_e74, _e392, _e393);
                }
            }
        } else {
            uint tokens_4 = (task_7.key_form == 2u) ? 32u : KEY_TOKENS;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e777 = c_1;
                    c_1 = _e777 + EXACT_STEP;
                }
                loop_init_2 = false;
                uint _e406 = c_1;
                if (_e406 < 32u) {
                } else {
                    break;
                }
                {
                    uint _e411 = c_1;
                    metal::float4 _e414 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e411 + 0u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e417 = c_1;
                    metal::float4 _e420 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e417 + 1u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e423 = c_1;
                    metal::float4 _e426 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e423 + 2u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e429 = c_1;
                    metal::float4 _e432 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e429 + 3u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e435 = c_1;
                    metal::float4 _e438 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e435 + 4u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e441 = c_1;
                    metal::float4 _e444 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e441 + 5u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e447 = c_1;
                    metal::float4 _e450 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e447 + 6u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e453 = c_1;
                    metal::float4 _e456 = key4_or_own(task_7, position_4, _e18.x, _e18.y, _e453 + 7u, tokens_4, pages1_, pages0_, _buffer_sizes);
                    uint _e459 = c_1;
                    metal::float4 _e464 = queries.inner[metal::min(unsigned((0u + _e459) + 0u), 127u)];
                    metal::float4 _e465 = total0_;
                    total0_ = metal::fma(_e414, _e464, _e465);
                    uint _e469 = c_1;
                    metal::float4 _e474 = queries.inner[metal::min(unsigned((32u + _e469) + 0u), 127u)];
                    metal::float4 _e475 = total1_;
                    total1_ = metal::fma(_e414, _e474, _e475);
                    uint _e479 = c_1;
                    metal::float4 _e484 = queries.inner[metal::min(unsigned((64u + _e479) + 0u), 127u)];
                    metal::float4 _e485 = total2_;
                    total2_ = metal::fma(_e414, _e484, _e485);
                    uint _e489 = c_1;
                    metal::float4 _e494 = queries.inner[metal::min(unsigned((96u + _e489) + 0u), 127u)];
                    metal::float4 _e495 = total3_;
                    total3_ = metal::fma(_e414, _e494, _e495);
                    uint _e499 = c_1;
                    metal::float4 _e504 = queries.inner[metal::min(unsigned((0u + _e499) + 1u), 127u)];
                    metal::float4 _e505 = total0_;
                    total0_ = metal::fma(_e420, _e504, _e505);
                    uint _e509 = c_1;
                    metal::float4 _e514 = queries.inner[metal::min(unsigned((32u + _e509) + 1u), 127u)];
                    metal::float4 _e515 = total1_;
                    total1_ = metal::fma(_e420, _e514, _e515);
                    uint _e519 = c_1;
                    metal::float4 _e524 = queries.inner[metal::min(unsigned((64u + _e519) + 1u), 127u)];
                    metal::float4 _e525 = total2_;
                    total2_ = metal::fma(_e420, _e524, _e525);
                    uint _e529 = c_1;
                    metal::float4 _e534 = queries.inner[metal::min(unsigned((96u + _e529) + 1u), 127u)];
                    metal::float4 _e535 = total3_;
                    total3_ = metal::fma(_e420, _e534, _e535);
                    uint _e539 = c_1;
                    metal::float4 _e544 = queries.inner[metal::min(unsigned((0u + _e539) + 2u), 127u)];
                    metal::float4 _e545 = total0_;
                    total0_ = metal::fma(_e426, _e544, _e545);
                    uint _e549 = c_1;
                    metal::float4 _e554 = queries.inner[metal::min(unsigned((32u + _e549) + 2u), 127u)];
                    metal::float4 _e555 = total1_;
                    total1_ = metal::fma(_e426, _e554, _e555);
                    uint _e559 = c_1;
                    metal::float4 _e564 = queries.inner[metal::min(unsigned((64u + _e559) + 2u), 127u)];
                    metal::float4 _e565 = total2_;
                    total2_ = metal::fma(_e426, _e564, _e565);
                    uint _e569 = c_1;
                    metal::float4 _e574 = queries.inner[metal::min(unsigned((96u + _e569) + 2u), 127u)];
                    metal::float4 _e575 = total3_;
                    total3_ = metal::fma(_e426, _e574, _e575);
                    uint _e579 = c_1;
                    metal::float4 _e584 = queries.inner[metal::min(unsigned((0u + _e579) + 3u), 127u)];
                    metal::float4 _e585 = total0_;
                    total0_ = metal::fma(_e432, _e584, _e585);
                    uint _e589 = c_1;
                    metal::float4 _e594 = queries.inner[metal::min(unsigned((32u + _e589) + 3u), 127u)];
                    metal::float4 _e595 = total1_;
                    total1_ = metal::fma(_e432, _e594, _e595);
                    uint _e599 = c_1;
                    metal::float4 _e604 = queries.inner[metal::min(unsigned((64u + _e599) + 3u), 127u)];
                    metal::float4 _e605 = total2_;
                    total2_ = metal::fma(_e432, _e604, _e605);
                    uint _e609 = c_1;
                    metal::float4 _e614 = queries.inner[metal::min(unsigned((96u + _e609) + 3u), 127u)];
                    metal::float4 _e615 = total3_;
                    total3_ = metal::fma(_e432, _e614, _e615);
                    uint _e619 = c_1;
                    metal::float4 _e624 = queries.inner[metal::min(unsigned((0u + _e619) + 4u), 127u)];
                    metal::float4 _e625 = total0_;
                    total0_ = metal::fma(_e438, _e624, _e625);
                    uint _e629 = c_1;
                    metal::float4 _e634 = queries.inner[metal::min(unsigned((32u + _e629) + 4u), 127u)];
                    metal::float4 _e635 = total1_;
                    total1_ = metal::fma(_e438, _e634, _e635);
                    uint _e639 = c_1;
                    metal::float4 _e644 = queries.inner[metal::min(unsigned((64u + _e639) + 4u), 127u)];
                    metal::float4 _e645 = total2_;
                    total2_ = metal::fma(_e438, _e644, _e645);
                    uint _e649 = c_1;
                    metal::float4 _e654 = queries.inner[metal::min(unsigned((96u + _e649) + 4u), 127u)];
                    metal::float4 _e655 = total3_;
                    total3_ = metal::fma(_e438, _e654, _e655);
                    uint _e659 = c_1;
                    metal::float4 _e664 = queries.inner[metal::min(unsigned((0u + _e659) + 5u), 127u)];
                    metal::float4 _e665 = total0_;
                    total0_ = metal::fma(_e444, _e664, _e665);
                    uint _e669 = c_1;
                    metal::float4 _e674 = queries.inner[metal::min(unsigned((32u + _e669) + 5u), 127u)];
                    metal::float4 _e675 = total1_;
                    total1_ = metal::fma(_e444, _e674, _e675);
                    uint _e679 = c_1;
                    metal::float4 _e684 = queries.inner[metal::min(unsigned((64u + _e679) + 5u), 127u)];
                    metal::float4 _e685 = total2_;
                    total2_ = metal::fma(_e444, _e684, _e685);
                    uint _e689 = c_1;
                    metal::float4 _e694 = queries.inner[metal::min(unsigned((96u + _e689) + 5u), 127u)];
                    metal::float4 _e695 = total3_;
                    total3_ = metal::fma(_e444, _e694, _e695);
                    uint _e699 = c_1;
                    metal::float4 _e704 = queries.inner[metal::min(unsigned((0u + _e699) + 6u), 127u)];
                    metal::float4 _e705 = total0_;
                    total0_ = metal::fma(_e450, _e704, _e705);
                    uint _e709 = c_1;
                    metal::float4 _e714 = queries.inner[metal::min(unsigned((32u + _e709) + 6u), 127u)];
                    metal::float4 _e715 = total1_;
                    total1_ = metal::fma(_e450, _e714, _e715);
                    uint _e719 = c_1;
                    metal::float4 _e724 = queries.inner[metal::min(unsigned((64u + _e719) + 6u), 127u)];
                    metal::float4 _e725 = total2_;
                    total2_ = metal::fma(_e450, _e724, _e725);
                    uint _e729 = c_1;
                    metal::float4 _e734 = queries.inner[metal::min(unsigned((96u + _e729) + 6u), 127u)];
                    metal::float4 _e735 = total3_;
                    total3_ = metal::fma(_e450, _e734, _e735);
                    uint _e739 = c_1;
                    metal::float4 _e744 = queries.inner[metal::min(unsigned((0u + _e739) + 7u), 127u)];
                    metal::float4 _e745 = total0_;
                    total0_ = metal::fma(_e456, _e744, _e745);
                    uint _e749 = c_1;
                    metal::float4 _e754 = queries.inner[metal::min(unsigned((32u + _e749) + 7u), 127u)];
                    metal::float4 _e755 = total1_;
                    total1_ = metal::fma(_e456, _e754, _e755);
                    uint _e759 = c_1;
                    metal::float4 _e764 = queries.inner[metal::min(unsigned((64u + _e759) + 7u), 127u)];
                    metal::float4 _e765 = total2_;
                    total2_ = metal::fma(_e456, _e764, _e765);
                    uint _e769 = c_1;
                    metal::float4 _e774 = queries.inner[metal::min(unsigned((96u + _e769) + 7u), 127u)];
                    metal::float4 _e775 = total3_;
                    total3_ = metal::fma(_e456, _e774, _e775);
                }
            }
        }
    }
    metal::float4 _e781 = total0_;
    scored(thread_5, task_7, position_4, is_there_1, 0u, _e781, offsets, weights, a);
    metal::float4 _e783 = total1_;
    scored(thread_5, task_7, position_4, is_there_1, 1u, _e783, offsets, weights, a);
    metal::float4 _e785 = total2_;
    scored(thread_5, task_7, position_4, is_there_1, 2u, _e785, offsets, weights, a);
    metal::float4 _e787 = total3_;
    scored(thread_5, task_7, position_4, is_there_1, 3u, _e787, offsets, weights, a);
    return;
}

void ready_sums(
    uint thread_6,
    Task task_8,
    uint first_4,
    uint end
) {
    return;
}

metal::uint2 value_place(
    Task task_9,
    uint first_5,
    uint t_1,
    threadgroup type_7& value_pages,
    thread Arguments const& a
) {
    if (task_9.value_form == 2u) {
        uint _e8 = value_pages.inner[0];
        return metal::uint2(_e8, first_5 + t_1);
    }
    uint _e14 = a.sinks;
    uint index_4 = (first_5 + t_1) - _e14;
    uint _e21 = a.sinks;
    uint _e27 = value_pages.inner[metal::min(unsigned(naga_div(index_4, VALUE_TOKENS) - naga_div(first_5 - _e21, VALUE_TOKENS)), 2u)];
    return metal::uint2(_e27, naga_mod(index_4, VALUE_TOKENS));
}

uint value_codes0_(
    uint page_7,
    uint at_2,
    uint half_2,
    uint lane_2,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint codes_1 = 0u;
    uint _e6 = codes_1;
    uint _e10 = page_word(page_7, (at_2 + 0u) + lane_2, pages1_, pages0_, _buffer_sizes);
    codes_1 = _e6 | (((_e10 >> (4u * half_2)) & 252645135u) << 0u);
    uint _e19 = codes_1;
    return _e19;
}

metal::float4 value_levels0_(
    uint page_8,
    uint at_3,
    uint half_3,
    uint lane_3,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint _e4 = value_codes0_(page_8, at_3, half_3, lane_3, pages1_, pages0_, _buffer_sizes);
    metal::uint4 c_5 = uint4(as_type<packed_uchar4>(_e4));
    return static_cast<metal::float4>(c_5) - metal::float4(8.0);
}

metal::float4 value4_coded(
    uint page_9,
    uint channel,
    uint four_4,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 y_2 = metal::float4(0.0);
    if (channel < 128u) {
        uint at_7 = (128u + (naga_div(channel - 0u, 16u) * 128u)) + (naga_div(four_4, 2u) * 16u);
        metal::float4 _e27 = value_levels0_(page_9, at_7, naga_mod(four_4, 2u), naga_mod(channel - 0u, 16u), pages1_, pages0_, _buffer_sizes);
        y_2 = _e27;
    }
    metal::float4 _e28 = y_2;
    uint _e40 = page_word(page_9, 0u + naga_div((naga_div(channel, 32u) * 64u) + (4u * four_4), 2u), pages1_, pages0_, _buffer_sizes);
    uint _e55 = page_word(page_9, (0u + naga_div((naga_div(channel, 32u) * 64u) + (4u * four_4), 2u)) + 1u, pages1_, pages0_, _buffer_sizes);
    y_2 = _e28 * metal::float4(float2(as_type<half2>(_e40)), float2(as_type<half2>(_e55)));
    metal::float4 _e59 = y_2;
    return _e59;
}

float weighted(
    metal::float4 v,
    metal::float4 w,
    float sum
) {
    return metal::fma(v.w, w.w, metal::fma(v.z, w.z, metal::fma(v.y, w.y, metal::fma(v.x, w.x, sum))));
}

float value_number(
    uint page_10,
    uint index_2,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    uint _e4 = page_word(page_10, naga_div(index_2, 2u), pages1_, pages0_, _buffer_sizes);
    float _e7 = half_of(_e4, naga_mod(index_2, 2u));
    return _e7;
}

metal::float4 value4_exact(
    uint page_11,
    uint channel_1,
    uint token_3,
    uint tokens_2,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 y_3 = metal::float4(0.0);
    float _e16 = value_number(page_11, (metal::min(token_3 + 0u, tokens_2 - 1u) * 128u) + channel_1, pages1_, pages0_, _buffer_sizes);
    y_3.x = _e16;
    float _e26 = value_number(page_11, (metal::min(token_3 + 1u, tokens_2 - 1u) * 128u) + channel_1, pages1_, pages0_, _buffer_sizes);
    y_3.y = _e26;
    float _e36 = value_number(page_11, (metal::min(token_3 + 2u, tokens_2 - 1u) * 128u) + channel_1, pages1_, pages0_, _buffer_sizes);
    y_3.z = _e36;
    float _e46 = value_number(page_11, (metal::min(token_3 + 3u, tokens_2 - 1u) * 128u) + channel_1, pages1_, pages0_, _buffer_sizes);
    y_3.w = _e46;
    metal::float4 _e47 = y_3;
    return _e47;
}

metal::float4 value4_or_own(
    Task task_10,
    uint position_3,
    uint page_12,
    uint c_2,
    uint token_4,
    uint tokens_3,
    device type_8 const& pages1_,
    device type_8 const& pages0_,
    thread _mslBufferSizes const& _buffer_sizes
) {
    metal::float4 _e6 = value4_exact(page_12, c_2, token_4, tokens_3, pages1_, pages0_, _buffer_sizes);
    return _e6;
}

metal::float4 there(
    metal::float4 v_1,
    uint t_2,
    uint end_1
) {
    return metal::select(metal::float4(0.0), v_1, (metal::uint4(t_2) + metal::uint4(0u, 1u, 2u, 3u)) < metal::uint4(end_1));
}

uint spread(
    uint bits
) {
    return (((bits & 1u) | ((bits & 2u) << 7u)) | ((bits & 4u) << 14u)) | ((bits & 8u) << 21u);
}

struct main_Input {
};
void main_(
  uint thread_
, metal::uint3 id
, metal::uint3 count
, threadgroup type_4& queries
, threadgroup type_5& offsets
, threadgroup type_4& weights
, threadgroup type_6& lanes
, threadgroup type_5& tops
, threadgroup type_5& totals
, threadgroup type_5& factors
, threadgroup type_7& value_pages
, thread Arguments const& a
, device type_8 const& plan
, device type_9 const& prepared
, device type_9 const& q
, device type_8 const& pages1_
, device type_8 const& pages0_
, device type_9& partials
, thread _mslBufferSizes const& _buffer_sizes
) {
    uint kv_head = {};
    float sum0_0_ = 0.0;
    float sum0_1_ = 0.0;
    float sum0_2_ = 0.0;
    float sum0_3_ = 0.0;
    uint first = {};
    float top = {};
    float top_1 = {};
    float total = {};
    metal::float4 e = {};
    metal::float4 e_1 = {};
    metal::float4 e_2 = {};
    metal::float4 e_3 = {};
    bool local = {};
    float all = {};
    uint t = {};
    uint number_2 = id.x + (id.y * count.x);
    uint _e10 = a.tasks;
    if (number_2 >= _e10) {
        return;
    }
    Task _e12 = task_of(number_2, a, plan, _buffer_sizes);
    kv_head = _e12.head;
    if (thread_ < COLS) {
        tops.inner[metal::min(unsigned(thread_), 3u)] = -300000000000000000000000000000000000000.0;
        totals.inner[metal::min(unsigned(thread_), 3u)] = 0.0;
        offsets.inner[metal::min(unsigned(thread_), 3u)] = 0.0;
    }
    begin(thread_, _e12, queries, offsets, a, prepared, q, _buffer_sizes);
    if (LATENT) {
        begin_latents(thread_, _e12);
    }
    first = _e12.start;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e1522 = first;
            first = _e1522 + 128u;
        }
        loop_init_3 = false;
        uint _e37 = first;
        if (_e37 < _e12.end) {
        } else {
            break;
        }
        {
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (thread_ < VALUE_PAGES) {
                uint _e44 = first;
                uint _e45 = value_page(_e12, _e44, thread_, a, plan, _buffer_sizes);
                value_pages.inner[metal::min(unsigned(thread_), 2u)] = _e45;
            }
            uint _e46 = first;
            ready_scores(thread_, _e12, _e46);
            uint _e47 = first;
            score(thread_, _e12, _e47, queries, offsets, weights, a, plan, pages1_, pages0_, _buffer_sizes);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint column_3 = naga_div(thread_, 8u);
            uint lane_4 = naga_mod(thread_, 8u);
            if (column_3 < COLS) {
                top = -300000000000000000000000000000000000000.0;
                {
                    metal::float4 s_1 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 0u), 127u)];
                    float _e64 = top;
                    top = metal::max(_e64, metal::max(metal::max(s_1.x, s_1.y), metal::max(s_1.z, s_1.w)));
                }
                {
                    metal::float4 s_2 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 8u), 127u)];
                    float _e81 = top;
                    top = metal::max(_e81, metal::max(metal::max(s_2.x, s_2.y), metal::max(s_2.z, s_2.w)));
                }
                {
                    metal::float4 s_3 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 16u), 127u)];
                    float _e98 = top;
                    top = metal::max(_e98, metal::max(metal::max(s_3.x, s_3.y), metal::max(s_3.z, s_3.w)));
                }
                {
                    metal::float4 s_4 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 24u), 127u)];
                    float _e115 = top;
                    top = metal::max(_e115, metal::max(metal::max(s_4.x, s_4.y), metal::max(s_4.z, s_4.w)));
                }
                float _e126 = top;
                lanes.inner[metal::min(unsigned(thread_), 31u)] = _e126;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            top_1 = -300000000000000000000000000000000000000.0;
            total = 0.0;
            if (column_3 < COLS) {
                float _e135 = tops.inner[metal::min(unsigned(column_3), 3u)];
                top_1 = _e135;
                float _e136 = top_1;
                float _e143 = lanes.inner[metal::min(unsigned((8u * column_3) + 0u), 31u)];
                top_1 = metal::max(_e136, _e143);
                float _e145 = top_1;
                float _e152 = lanes.inner[metal::min(unsigned((8u * column_3) + 1u), 31u)];
                top_1 = metal::max(_e145, _e152);
                float _e154 = top_1;
                float _e161 = lanes.inner[metal::min(unsigned((8u * column_3) + 2u), 31u)];
                top_1 = metal::max(_e154, _e161);
                float _e163 = top_1;
                float _e170 = lanes.inner[metal::min(unsigned((8u * column_3) + 3u), 31u)];
                top_1 = metal::max(_e163, _e170);
                float _e172 = top_1;
                float _e179 = lanes.inner[metal::min(unsigned((8u * column_3) + 4u), 31u)];
                top_1 = metal::max(_e172, _e179);
                float _e181 = top_1;
                float _e188 = lanes.inner[metal::min(unsigned((8u * column_3) + 5u), 31u)];
                top_1 = metal::max(_e181, _e188);
                float _e190 = top_1;
                float _e197 = lanes.inner[metal::min(unsigned((8u * column_3) + 6u), 31u)];
                top_1 = metal::max(_e190, _e197);
                float _e199 = top_1;
                float _e206 = lanes.inner[metal::min(unsigned((8u * column_3) + 7u), 31u)];
                top_1 = metal::max(_e199, _e206);
                {
                    metal::float4 s_5 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 0u), 127u)];
                    float _e216 = top_1;
                    e = metal::select(metal::exp(s_5 - metal::float4(_e216)), metal::float4(0.0), s_5 <= metal::float4(-300000000000000000000000000000000000000.0));
                    metal::float4 _e234 = e;
                    weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 0u), 127u)] = _e234;
                    float _e235 = total;
                    float _e237 = e.x;
                    float _e239 = e.y;
                    float _e242 = e.z;
                    float _e245 = e.w;
                    total = _e235 + (((_e237 + _e239) + _e242) + _e245);
                }
                {
                    metal::float4 s_6 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 8u), 127u)];
                    float _e256 = top_1;
                    e_1 = metal::select(metal::exp(s_6 - metal::float4(_e256)), metal::float4(0.0), s_6 <= metal::float4(-300000000000000000000000000000000000000.0));
                    metal::float4 _e274 = e_1;
                    weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 8u), 127u)] = _e274;
                    float _e275 = total;
                    float _e277 = e_1.x;
                    float _e279 = e_1.y;
                    float _e282 = e_1.z;
                    float _e285 = e_1.w;
                    total = _e275 + (((_e277 + _e279) + _e282) + _e285);
                }
                {
                    metal::float4 s_7 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 16u), 127u)];
                    float _e296 = top_1;
                    e_2 = metal::select(metal::exp(s_7 - metal::float4(_e296)), metal::float4(0.0), s_7 <= metal::float4(-300000000000000000000000000000000000000.0));
                    metal::float4 _e314 = e_2;
                    weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 16u), 127u)] = _e314;
                    float _e315 = total;
                    float _e317 = e_2.x;
                    float _e319 = e_2.y;
                    float _e322 = e_2.z;
                    float _e325 = e_2.w;
                    total = _e315 + (((_e317 + _e319) + _e322) + _e325);
                }
                {
                    metal::float4 s_8 = weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 24u), 127u)];
                    float _e336 = top_1;
                    e_3 = metal::select(metal::exp(s_8 - metal::float4(_e336)), metal::float4(0.0), s_8 <= metal::float4(-300000000000000000000000000000000000000.0));
                    metal::float4 _e354 = e_3;
                    weights.inner[metal::min(unsigned(((32u * column_3) + lane_4) + 24u), 127u)] = _e354;
                    float _e355 = total;
                    float _e357 = e_3.x;
                    float _e359 = e_3.y;
                    float _e362 = e_3.z;
                    float _e365 = e_3.w;
                    total = _e355 + (((_e357 + _e359) + _e362) + _e365);
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (column_3 < COLS) {
                float _e372 = total;
                lanes.inner[metal::min(unsigned(thread_), 31u)] = _e372;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            if (column_3 < COLS) {
                local = lane_4 == 0u;
            } else {
                local = false;
            }
            bool _e380 = local;
            if (_e380) {
                float _e383 = tops.inner[metal::min(unsigned(column_3), 3u)];
                float _e384 = top_1;
                float factor = metal::exp(_e383 - _e384);
                float _e389 = totals.inner[metal::min(unsigned(column_3), 3u)];
                all = _e389 * factor;
                float _e392 = all;
                float _e399 = lanes.inner[metal::min(unsigned((8u * column_3) + 0u), 31u)];
                all = _e392 + _e399;
                float _e401 = all;
                float _e408 = lanes.inner[metal::min(unsigned((8u * column_3) + 1u), 31u)];
                all = _e401 + _e408;
                float _e410 = all;
                float _e417 = lanes.inner[metal::min(unsigned((8u * column_3) + 2u), 31u)];
                all = _e410 + _e417;
                float _e419 = all;
                float _e426 = lanes.inner[metal::min(unsigned((8u * column_3) + 3u), 31u)];
                all = _e419 + _e426;
                float _e428 = all;
                float _e435 = lanes.inner[metal::min(unsigned((8u * column_3) + 4u), 31u)];
                all = _e428 + _e435;
                float _e437 = all;
                float _e444 = lanes.inner[metal::min(unsigned((8u * column_3) + 5u), 31u)];
                all = _e437 + _e444;
                float _e446 = all;
                float _e453 = lanes.inner[metal::min(unsigned((8u * column_3) + 6u), 31u)];
                all = _e446 + _e453;
                float _e455 = all;
                float _e462 = lanes.inner[metal::min(unsigned((8u * column_3) + 7u), 31u)];
                all = _e455 + _e462;
                float _e466 = all;
                totals.inner[metal::min(unsigned(column_3), 3u)] = _e466;
                factors.inner[metal::min(unsigned(column_3), 3u)] = factor;
                float _e471 = top_1;
                tops.inner[metal::min(unsigned(column_3), 3u)] = _e471;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e474 = first;
            uint end_2 = metal::min(128u, _e12.end - _e474);
            uint _e477 = first;
            ready_sums(thread_, _e12, _e477, end_2);
            if ((thread_ + 0u) < VALUE_DIM) {
                uint c_6 = thread_ + 0u;
                float _e484 = sum0_0_;
                float _e487 = factors.inner[0];
                sum0_0_ = _e484 * _e487;
                float _e489 = sum0_1_;
                float _e492 = factors.inner[1];
                sum0_1_ = _e489 * _e492;
                float _e494 = sum0_2_;
                float _e497 = factors.inner[2];
                sum0_2_ = _e494 * _e497;
                float _e499 = sum0_3_;
                float _e502 = factors.inner[3];
                sum0_3_ = _e499 * _e502;
                t = 0u;
                if (_e12.value_form == 0u) {
                    bool loop_init_4 = true;
                    while(true) {
                        if (!loop_init_4) {
                            uint _e956 = t;
                            t = _e956 + 32u;
                        }
                        loop_init_4 = false;
                        uint _e509 = t;
                        if ((_e509 + 32u) <= end_2) {
                        } else {
                            break;
                        }
                        {
                            uint _e513 = first;
                            uint _e514 = t;
                            metal::uint2 _e515 = value_place(_e12, _e513, _e514, value_pages, a);
                            metal::float4 _e522 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 0u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e529 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 1u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e536 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 2u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e543 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 3u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e550 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 4u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e557 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 5u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e564 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 6u, pages1_, pages0_, _buffer_sizes);
                            metal::float4 _e571 = value4_coded(_e515.x, c_6, naga_div(_e515.y, 4u) + 7u, pages1_, pages0_, _buffer_sizes);
                            uint _e574 = t;
                            metal::float4 _e581 = weights.inner[metal::min(unsigned((0u + naga_div(_e574, 4u)) + 0u), 127u)];
                            float _e582 = sum0_0_;
                            float _e583 = weighted(_e522, _e581, _e582);
                            sum0_0_ = _e583;
                            uint _e586 = t;
                            metal::float4 _e593 = weights.inner[metal::min(unsigned((32u + naga_div(_e586, 4u)) + 0u), 127u)];
                            float _e594 = sum0_1_;
                            float _e595 = weighted(_e522, _e593, _e594);
                            sum0_1_ = _e595;
                            uint _e598 = t;
                            metal::float4 _e605 = weights.inner[metal::min(unsigned((64u + naga_div(_e598, 4u)) + 0u), 127u)];
                            float _e606 = sum0_2_;
                            float _e607 = weighted(_e522, _e605, _e606);
                            sum0_2_ = _e607;
                            uint _e610 = t;
                            metal::float4 _e617 = weights.inner[metal::min(unsigned((96u + naga_div(_e610, 4u)) + 0u), 127u)];
                            float _e618 = sum0_3_;
                            float _e619 = weighted(_e522, _e617, _e618);
                            sum0_3_ = _e619;
                            uint _e622 = t;
                            metal::float4 _e629 = weights.inner[metal::min(unsigned((0u + naga_div(_e622, 4u)) + 1u), 127u)];
                            float _e630 = sum0_0_;
                            float _e631 = weighted(_e529, _e629, _e630);
                            sum0_0_ = _e631;
                            uint _e634 = t;
                            metal::float4 _e641 = weights.inner[metal::min(unsigned((32u + naga_div(_e634, 4u)) + 1u), 127u)];
                            float _e642 = sum0_1_;
                            float _e643 = weighted(_e529, _e641, _e642);
                            sum0_1_ = _e643;
                            uint _e646 = t;
                            metal::float4 _e653 = weights.inner[metal::min(unsigned((64u + naga_div(_e646, 4u)) + 1u), 127u)];
                            float _e654 = sum0_2_;
                            float _e655 = weighted(_e529, _e653, _e654);
                            sum0_2_ = _e655;
                            uint _e658 = t;
                            metal::float4 _e665 = weights.inner[metal::min(unsigned((96u + naga_div(_e658, 4u)) + 1u), 127u)];
                            float _e666 = sum0_3_;
                            float _e667 = weighted(_e529, _e665, _e666);
                            sum0_3_ = _e667;
                            uint _e670 = t;
                            metal::float4 _e677 = weights.inner[metal::min(unsigned((0u + naga_div(_e670, 4u)) + 2u), 127u)];
                            float _e678 = sum0_0_;
                            float _e679 = weighted(_e536, _e677, _e678);
                            sum0_0_ = _e679;
                            uint _e682 = t;
                            metal::float4 _e689 = weights.inner[metal::min(unsigned((32u + naga_div(_e682, 4u)) + 2u), 127u)];
                            float _e690 = sum0_1_;
                            float _e691 = weighted(_e536, _e689, _e690);
                            sum0_1_ = _e691;
                            uint _e694 = t;
                            metal::float4 _e701 = weights.inner[metal::min(unsigned((64u + naga_div(_e694, 4u)) + 2u), 127u)];
                            float _e702 = sum0_2_;
                            float _e703 = weighted(_e536, _e701, _e702);
                            sum0_2_ = _e703;
                            uint _e706 = t;
                            metal::float4 _e713 = weights.inner[metal::min(unsigned((96u + naga_div(_e706, 4u)) + 2u), 127u)];
                            float _e714 = sum0_3_;
                            float _e715 = weighted(_e536, _e713, _e714);
                            sum0_3_ = _e715;
                            uint _e718 = t;
                            metal::float4 _e725 = weights.inner[metal::min(unsigned((0u + naga_div(_e718, 4u)) + 3u), 127u)];
                            float _e726 = sum0_0_;
                            float _e727 = weighted(_e543, _e725, _e726);
                            sum0_0_ = _e727;
                            uint _e730 = t;
                            metal::float4 _e737 = weights.inner[metal::min(unsigned((32u + naga_div(_e730, 4u)) + 3u), 127u)];
                            float _e738 = sum0_1_;
                            float _e739 = weighted(_e543, _e737, _e738);
                            sum0_1_ = _e739;
                            uint _e742 = t;
                            metal::float4 _e749 = weights.inner[metal::min(unsigned((64u + naga_div(_e742, 4u)) + 3u), 127u)];
                            float _e750 = sum0_2_;
                            float _e751 = weighted(_e543, _e749, _e750);
                            sum0_2_ = _e751;
                            uint _e754 = t;
                            metal::float4 _e761 = weights.inner[metal::min(unsigned((96u + naga_div(_e754, 4u)) + 3u), 127u)];
                            float _e762 = sum0_3_;
                            float _e763 = weighted(_e543, _e761, _e762);
                            sum0_3_ = _e763;
                            uint _e766 = t;
                            metal::float4 _e773 = weights.inner[metal::min(unsigned((0u + naga_div(_e766, 4u)) + 4u), 127u)];
                            float _e774 = sum0_0_;
                            float _e775 = weighted(_e550, _e773, _e774);
                            sum0_0_ = _e775;
                            uint _e778 = t;
                            metal::float4 _e785 = weights.inner[metal::min(unsigned((32u + naga_div(_e778, 4u)) + 4u), 127u)];
                            float _e786 = sum0_1_;
                            float _e787 = weighted(_e550, _e785, _e786);
                            sum0_1_ = _e787;
                            uint _e790 = t;
                            metal::float4 _e797 = weights.inner[metal::min(unsigned((64u + naga_div(_e790, 4u)) + 4u), 127u)];
                            float _e798 = sum0_2_;
                            float _e799 = weighted(_e550, _e797, _e798);
                            sum0_2_ = _e799;
                            uint _e802 = t;
                            metal::float4 _e809 = weights.inner[metal::min(unsigned((96u + naga_div(_e802, 4u)) + 4u), 127u)];
                            float _e810 = sum0_3_;
                            float _e811 = weighted(_e550, _e809, _e810);
                            sum0_3_ = _e811;
                            uint _e814 = t;
                            metal::float4 _e821 = weights.inner[metal::min(unsigned((0u + naga_div(_e814, 4u)) + 5u), 127u)];
                            float _e822 = sum0_0_;
                            float _e823 = weighted(_e557, _e821, _e822);
                            sum0_0_ = _e823;
                            uint _e826 = t;
                            metal::float4 _e833 = weights.inner[metal::min(unsigned((32u + naga_div(_e826, 4u)) + 5u), 127u)];
                            float _e834 = sum0_1_;
                            float _e835 = weighted(_e557, _e833, _e834);
                            sum0_1_ = _e835;
                            uint _e838 = t;
                            metal::float4 _e845 = weights.inner[metal::min(unsigned((64u + naga_div(_e838, 4u)) + 5u), 127u)];
                            float _e846 = sum0_2_;
                            float _e847 = weighted(_e557, _e845, _e846);
                            sum0_2_ = _e847;
                            uint _e850 = t;
                            metal::float4 _e857 = weights.inner[metal::min(unsigned((96u + naga_div(_e850, 4u)) + 5u), 127u)];
                            float _e858 = sum0_3_;
                            float _e859 = weighted(_e557, _e857, _e858);
                            sum0_3_ = _e859;
                            uint _e862 = t;
                            metal::float4 _e869 = weights.inner[metal::min(unsigned((0u + naga_div(_e862, 4u)) + 6u), 127u)];
                            float _e870 = sum0_0_;
                            float _e871 = weighted(_e564, _e869, _e870);
                            sum0_0_ = _e871;
                            uint _e874 = t;
                            metal::float4 _e881 = weights.inner[metal::min(unsigned((32u + naga_div(_e874, 4u)) + 6u), 127u)];
                            float _e882 = sum0_1_;
                            float _e883 = weighted(_e564, _e881, _e882);
                            sum0_1_ = _e883;
                            uint _e886 = t;
                            metal::float4 _e893 = weights.inner[metal::min(unsigned((64u + naga_div(_e886, 4u)) + 6u), 127u)];
                            float _e894 = sum0_2_;
                            float _e895 = weighted(_e564, _e893, _e894);
                            sum0_2_ = _e895;
                            uint _e898 = t;
                            metal::float4 _e905 = weights.inner[metal::min(unsigned((96u + naga_div(_e898, 4u)) + 6u), 127u)];
                            float _e906 = sum0_3_;
                            float _e907 = weighted(_e564, _e905, _e906);
                            sum0_3_ = _e907;
                            uint _e910 = t;
                            metal::float4 _e917 = weights.inner[metal::min(unsigned((0u + naga_div(_e910, 4u)) + 7u), 127u)];
                            float _e918 = sum0_0_;
                            float _e919 = weighted(_e571, _e917, _e918);
                            sum0_0_ = _e919;
                            uint _e922 = t;
                            metal::float4 _e929 = weights.inner[metal::min(unsigned((32u + naga_div(_e922, 4u)) + 7u), 127u)];
                            float _e930 = sum0_1_;
                            float _e931 = weighted(_e571, _e929, _e930);
                            sum0_1_ = _e931;
                            uint _e934 = t;
                            metal::float4 _e941 = weights.inner[metal::min(unsigned((64u + naga_div(_e934, 4u)) + 7u), 127u)];
                            float _e942 = sum0_2_;
                            float _e943 = weighted(_e571, _e941, _e942);
                            sum0_2_ = _e943;
                            uint _e946 = t;
                            metal::float4 _e953 = weights.inner[metal::min(unsigned((96u + naga_div(_e946, 4u)) + 7u), 127u)];
                            float _e954 = sum0_3_;
                            float _e955 = weighted(_e571, _e953, _e954);
                            sum0_3_ = _e955;
                        }
                    }
                    bool loop_init_5 = true;
                    while(true) {
                        if (!loop_init_5) {
                            uint _e1009 = t;
                            t = _e1009 + 4u;
                        }
                        loop_init_5 = false;
                        uint _e959 = t;
                        if (_e959 < end_2) {
                        } else {
                            break;
                        }
                        {
                            uint _e961 = first;
                            uint _e962 = t;
                            metal::uint2 _e963 = value_place(_e12, _e961, _e962, value_pages, a);
                            metal::float4 _e968 = value4_coded(_e963.x, c_6, naga_div(_e963.y, 4u), pages1_, pages0_, _buffer_sizes);
                            uint _e971 = t;
                            metal::float4 _e976 = weights.inner[metal::min(unsigned(0u + naga_div(_e971, 4u)), 127u)];
                            float _e977 = sum0_0_;
                            float _e978 = weighted(_e968, _e976, _e977);
                            sum0_0_ = _e978;
                            uint _e981 = t;
                            metal::float4 _e986 = weights.inner[metal::min(unsigned(32u + naga_div(_e981, 4u)), 127u)];
                            float _e987 = sum0_1_;
                            float _e988 = weighted(_e968, _e986, _e987);
                            sum0_1_ = _e988;
                            uint _e991 = t;
                            metal::float4 _e996 = weights.inner[metal::min(unsigned(64u + naga_div(_e991, 4u)), 127u)];
                            float _e997 = sum0_2_;
                            float _e998 = weighted(_e968, _e996, _e997);
                            sum0_2_ = _e998;
                            uint _e1001 = t;
                            metal::float4 _e1006 = weights.inner[metal::min(unsigned(96u + naga_div(_e1001, 4u)), 127u)];
                            float _e1007 = sum0_3_;
                            float _e1008 = weighted(_e968, _e1006, _e1007);
                            sum0_3_ = _e1008;
                        }
                    }
                } else {
                    uint tokens_5 = (_e12.value_form == 2u) ? 32u : VALUE_TOKENS;
                    bool loop_init_6 = true;
                    while(true) {
                        if (!loop_init_6) {
                            uint _e1519 = t;
                            t = _e1519 + 32u;
                        }
                        loop_init_6 = false;
                        uint _e1018 = t;
                        if (_e1018 < end_2) {
                        } else {
                            break;
                        }
                        {
                            uint _e1020 = first;
                            uint _e1021 = t;
                            metal::uint2 _e1022 = value_place(_e12, _e1020, _e1021, value_pages, a);
                            uint _e1023 = first;
                            uint _e1024 = t;
                            metal::float4 _e1032 = value4_or_own(_e12, (_e1023 + _e1024) + 0u, _e1022.x, c_6, _e1022.y + 0u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1033 = first;
                            uint _e1034 = t;
                            metal::float4 _e1042 = value4_or_own(_e12, (_e1033 + _e1034) + 4u, _e1022.x, c_6, _e1022.y + 4u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1043 = first;
                            uint _e1044 = t;
                            metal::float4 _e1052 = value4_or_own(_e12, (_e1043 + _e1044) + 8u, _e1022.x, c_6, _e1022.y + 8u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1053 = first;
                            uint _e1054 = t;
                            metal::float4 _e1062 = value4_or_own(_e12, (_e1053 + _e1054) + 12u, _e1022.x, c_6, _e1022.y + 12u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1063 = first;
                            uint _e1064 = t;
                            metal::float4 _e1072 = value4_or_own(_e12, (_e1063 + _e1064) + 16u, _e1022.x, c_6, _e1022.y + 16u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1073 = first;
                            uint _e1074 = t;
                            metal::float4 _e1082 = value4_or_own(_e12, (_e1073 + _e1074) + 20u, _e1022.x, c_6, _e1022.y + 20u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1083 = first;
                            uint _e1084 = t;
                            metal::float4 _e1092 = value4_or_own(_e12, (_e1083 + _e1084) + 24u, _e1022.x, c_6, _e1022.y + 24u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            uint _e1093 = first;
                            uint _e1094 = t;
                            metal::float4 _e1102 = value4_or_own(_e12, (_e1093 + _e1094) + 28u, _e1022.x, c_6, _e1022.y + 28u, tokens_5, pages1_, pages0_, _buffer_sizes);
                            {
                                uint _e1103 = t;
                                metal::float4 _e1106 = there(_e1032, _e1103 + 0u, end_2);
                                uint _e1109 = t;
                                metal::float4 _e1116 = weights.inner[metal::min(unsigned((0u + naga_div(_e1109, 4u)) + 0u), 127u)];
                                float _e1117 = sum0_0_;
                                float _e1118 = weighted(_e1106, _e1116, _e1117);
                                sum0_0_ = _e1118;
                                uint _e1121 = t;
                                metal::float4 _e1128 = weights.inner[metal::min(unsigned((32u + naga_div(_e1121, 4u)) + 0u), 127u)];
                                float _e1129 = sum0_1_;
                                float _e1130 = weighted(_e1106, _e1128, _e1129);
                                sum0_1_ = _e1130;
                                uint _e1133 = t;
                                metal::float4 _e1140 = weights.inner[metal::min(unsigned((64u + naga_div(_e1133, 4u)) + 0u), 127u)];
                                float _e1141 = sum0_2_;
                                float _e1142 = weighted(_e1106, _e1140, _e1141);
                                sum0_2_ = _e1142;
                                uint _e1145 = t;
                                metal::float4 _e1152 = weights.inner[metal::min(unsigned((96u + naga_div(_e1145, 4u)) + 0u), 127u)];
                                float _e1153 = sum0_3_;
                                float _e1154 = weighted(_e1106, _e1152, _e1153);
                                sum0_3_ = _e1154;
                            }
                            {
                                uint _e1155 = t;
                                metal::float4 _e1158 = there(_e1042, _e1155 + 4u, end_2);
                                uint _e1161 = t;
                                metal::float4 _e1168 = weights.inner[metal::min(unsigned((0u + naga_div(_e1161, 4u)) + 1u), 127u)];
                                float _e1169 = sum0_0_;
                                float _e1170 = weighted(_e1158, _e1168, _e1169);
                                sum0_0_ = _e1170;
                                uint _e1173 = t;
                                metal::float4 _e1180 = weights.inner[metal::min(unsigned((32u + naga_div(_e1173, 4u)) + 1u), 127u)];
                                float _e1181 = sum0_1_;
                                float _e1182 = weighted(_e1158, _e1180, _e1181);
                                sum0_1_ = _e1182;
                                uint _e1185 = t;
                                metal::float4 _e1192 = weights.inner[metal::min(unsigned((64u + naga_div(_e1185, 4u)) + 1u), 127u)];
                                float _e1193 = sum0_2_;
                                float _e1194 = weighted(_e1158, _e1192, _e1193);
                                sum0_2_ = _e1194;
                                uint _e1197 = t;
                                metal::float4 _e1204 = weights.inner[metal::min(unsigned((96u + naga_div(_e1197, 4u)) + 1u), 127u)];
                                float _e1205 = sum0_3_;
                                float _e1206 = weighted(_e1158, _e1204, _e1205);
                                sum0_3_ = _e1206;
                            }
                            {
                                uint _e1207 = t;
                                metal::float4 _e1210 = there(_e1052, _e1207 + 8u, end_2);
                                uint _e1213 = t;
                                metal::float4 _e1220 = weights.inner[metal::min(unsigned((0u + naga_div(_e1213, 4u)) + 2u), 127u)];
                                float _e1221 = sum0_0_;
                                float _e1222 = weighted(_e1210, _e1220, _e1221);
                                sum0_0_ = _e1222;
                                uint _e1225 = t;
                                metal::float4 _e1232 = weights.inner[metal::min(unsigned((32u + naga_div(_e1225, 4u)) + 2u), 127u)];
                                float _e1233 = sum0_1_;
                                float _e1234 = weighted(_e1210, _e1232, _e1233);
                                sum0_1_ = _e1234;
                                uint _e1237 = t;
                                metal::float4 _e1244 = weights.inner[metal::min(unsigned((64u + naga_div(_e1237, 4u)) + 2u), 127u)];
                                float _e1245 = sum0_2_;
                                float _e1246 = weighted(_e1210, _e1244, _e1245);
                                sum0_2_ = _e1246;
                                uint _e1249 = t;
                                metal::float4 _e1256 = weights.inner[metal::min(unsigned((96u + naga_div(_e1249, 4u)) + 2u), 127u)];
                                float _e1257 = sum0_3_;
                                float _e1258 = weighted(_e1210, _e1256, _e1257);
                                sum0_3_ = _e1258;
                            }
                            {
                                uint _e1259 = t;
                                metal::float4 _e1262 = there(_e1062, _e1259 + 12u, end_2);
                                uint _e1265 = t;
                                metal::float4 _e1272 = weights.inner[metal::min(unsigned((0u + naga_div(_e1265, 4u)) + 3u), 127u)];
                                float _e1273 = sum0_0_;
                                float _e1274 = weighted(_e1262, _e1272, _e1273);
                                sum0_0_ = _e1274;
                                uint _e1277 = t;
                                metal::float4 _e1284 = weights.inner[metal::min(unsigned((32u + naga_div(_e1277, 4u)) + 3u), 127u)];
                                float _e1285 = sum0_1_;
                                float _e1286 = weighted(_e1262, _e1284, _e1285);
                                sum0_1_ = _e1286;
                                uint _e1289 = t;
                                metal::float4 _e1296 = weights.inner[metal::min(unsigned((64u + naga_div(_e1289, 4u)) + 3u), 127u)];
                                float _e1297 = sum0_2_;
                                float _e1298 = weighted(_e1262, _e1296, _e1297);
                                sum0_2_ = _e1298;
                                uint _e1301 = t;
                                metal::float4 _e1308 = weights.inner[metal::min(unsigned((96u + naga_div(_e1301, 4u)) + 3u), 127u)];
                                float _e1309 = sum0_3_;
                                float _e1310 = weighted(_e1262, _e1308, _e1309);
                                sum0_3_ = _e1310;
                            }
                            {
                                uint _e1311 = t;
                                metal::float4 _e1314 = there(_e1072, _e1311 + 16u, end_2);
                                uint _e1317 = t;
                                metal::float4 _e1324 = weights.inner[metal::min(unsigned((0u + naga_div(_e1317, 4u)) + 4u), 127u)];
                                float _e1325 = sum0_0_;
                                float _e1326 = weighted(_e1314, _e1324, _e1325);
                                sum0_0_ = _e1326;
                                uint _e1329 = t;
                                metal::float4 _e1336 = weights.inner[metal::min(unsigned((32u + naga_div(_e1329, 4u)) + 4u), 127u)];
                                float _e1337 = sum0_1_;
                                float _e1338 = weighted(_e1314, _e1336, _e1337);
                                sum0_1_ = _e1338;
                                uint _e1341 = t;
                                metal::float4 _e1348 = weights.inner[metal::min(unsigned((64u + naga_div(_e1341, 4u)) + 4u), 127u)];
                                float _e1349 = sum0_2_;
                                float _e1350 = weighted(_e1314, _e1348, _e1349);
                                sum0_2_ = _e1350;
                                uint _e1353 = t;
                                metal::float4 _e1360 = weights.inner[metal::min(unsigned((96u + naga_div(_e1353, 4u)) + 4u), 127u)];
                                float _e1361 = sum0_3_;
                                float _e1362 = weighted(_e1314, _e1360, _e1361);
                                sum0_3_ = _e1362;
                            }
                            {
                                uint _e1363 = t;
                                metal::float4 _e1366 = there(_e1082, _e1363 + 20u, end_2);
                                uint _e1369 = t;
                                metal::float4 _e1376 = weights.inner[metal::min(unsigned((0u + naga_div(_e1369, 4u)) + 5u), 127u)];
                                float _e1377 = sum0_0_;
                                float _e1378 = weighted(_e1366, _e1376, _e1377);
                                sum0_0_ = _e1378;
                                uint _e1381 = t;
                                metal::float4 _e1388 = weights.inner[metal::min(unsigned((32u + naga_div(_e1381, 4u)) + 5u), 127u)];
                                float _e1389 = sum0_1_;
                                float _e1390 = weighted(_e1366, _e1388, _e1389);
                                sum0_1_ = _e1390;
                                uint _e1393 = t;
                                metal::float4 _e1400 = weights.inner[metal::min(unsigned((64u + naga_div(_e1393, 4u)) + 5u), 127u)];
                                float _e1401 = sum0_2_;
                                float _e1402 = weighted(_e1366, _e1400, _e1401);
                                sum0_2_ = _e1402;
                                uint _e1405 = t;
                                metal::float4 _e1412 = weights.inner[metal::min(unsigned((96u + naga_div(_e1405, 4u)) + 5u), 127u)];
                                float _e1413 = sum0_3_;
                                float _e1414 = weighted(_e1366, _e1412, _e1413);
                                sum0_3_ = _e1414;
                            }
                            {
                                uint _e1415 = t;
                                metal::float4 _e1418 = there(_e1092, _e1415 + 24u, end_2);
                                uint _e1421 = t;
                                metal::float4 _e1428 = weights.inner[metal::min(unsigned((0u + naga_div(_e1421, 4u)) + 6u), 127u)];
                                float _e1429 = sum0_0_;
                                float _e1430 = weighted(_e1418, _e1428, _e1429);
                                sum0_0_ = _e1430;
                                uint _e1433 = t;
                                metal::float4 _e1440 = weights.inner[metal::min(unsigned((32u + naga_div(_e1433, 4u)) + 6u), 127u)];
                                float _e1441 = sum0_1_;
                                float _e1442 = weighted(_e1418, _e1440, _e1441);
                                sum0_1_ = _e1442;
                                uint _e1445 = t;
                                metal::float4 _e1452 = weights.inner[metal::min(unsigned((64u + naga_div(_e1445, 4u)) + 6u), 127u)];
                                float _e1453 = sum0_2_;
                                float _e1454 = weighted(_e1418, _e1452, _e1453);
                                sum0_2_ = _e1454;
                                uint _e1457 = t;
                                metal::float4 _e1464 = weights.inner[metal::min(unsigned((96u + naga_div(_e1457, 4u)) + 6u), 127u)];
                                float _e1465 = sum0_3_;
                                float _e1466 = weighted(_e1418, _e1464, _e1465);
                                sum0_3_ = _e1466;
                            }
                            {
                                uint _e1467 = t;
                                metal::float4 _e1470 = there(_e1102, _e1467 + 28u, end_2);
                                uint _e1473 = t;
                                metal::float4 _e1480 = weights.inner[metal::min(unsigned((0u + naga_div(_e1473, 4u)) + 7u), 127u)];
                                float _e1481 = sum0_0_;
                                float _e1482 = weighted(_e1470, _e1480, _e1481);
                                sum0_0_ = _e1482;
                                uint _e1485 = t;
                                metal::float4 _e1492 = weights.inner[metal::min(unsigned((32u + naga_div(_e1485, 4u)) + 7u), 127u)];
                                float _e1493 = sum0_1_;
                                float _e1494 = weighted(_e1470, _e1492, _e1493);
                                sum0_1_ = _e1494;
                                uint _e1497 = t;
                                metal::float4 _e1504 = weights.inner[metal::min(unsigned((64u + naga_div(_e1497, 4u)) + 7u), 127u)];
                                float _e1505 = sum0_2_;
                                float _e1506 = weighted(_e1470, _e1504, _e1505);
                                sum0_2_ = _e1506;
                                uint _e1509 = t;
                                metal::float4 _e1516 = weights.inner[metal::min(unsigned((96u + naga_div(_e1509, 4u)) + 7u), 127u)];
                                float _e1517 = sum0_3_;
                                float _e1518 = weighted(_e1470, _e1516, _e1517);
                                sum0_3_ = _e1518;
                            }
                        }
                    }
                }
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint to = (COLS * number_2) * 130u;
    if ((thread_ + 0u) < VALUE_DIM) {
        float _e1542 = sum0_0_;
        partials[metal::min(unsigned((((to + 0u) + 2u) + thread_) + 0u), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1542;
        float _e1552 = sum0_1_;
        partials[metal::min(unsigned((((to + 130u) + 2u) + thread_) + 0u), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1552;
        float _e1562 = sum0_2_;
        partials[metal::min(unsigned((((to + 260u) + 2u) + thread_) + 0u), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1562;
        float _e1572 = sum0_3_;
        partials[metal::min(unsigned((((to + 390u) + 2u) + thread_) + 0u), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1572;
    }
    if (thread_ < COLS) {
        float _e1582 = tops.inner[metal::min(unsigned(thread_), 3u)];
        partials[metal::min(unsigned(to + (thread_ * 130u)), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1582;
        float _e1592 = totals.inner[metal::min(unsigned(thread_), 3u)];
        partials[metal::min(unsigned((to + (thread_ * 130u)) + 1u), (_buffer_sizes.size15 - 0 - 4) / 4)] = _e1592;
        return;
    } else {
        return;
    }
}

kernel void attend_int4_128(
    device const uint* plan [[buffer(0)]],
    device const float* q [[buffer(1)]],
    device const float* prepared [[buffer(2)]],
    device float* partials [[buffer(3)]],
    device const uint* pages0 [[buffer(4)]],
    device const uint* pages1 [[buffer(5)]],
    device const uint* arguments [[buffer(6)]],
    device const uint* sizes [[buffer(7)]],
    uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
    metal::uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]],
    metal::uint3 threadgroups_per_grid [[threadgroups_per_grid]]
) {
    threadgroup type_4 queries;
    threadgroup type_5 offsets;
    threadgroup type_4 weights;
    threadgroup type_6 lanes;
    threadgroup type_5 tops;
    threadgroup type_5 totals;
    threadgroup type_5 factors;
    threadgroup type_7 value_pages;
    Arguments own_arguments = *(device Arguments const*)arguments;
    _mslBufferSizes own_sizes = {sizes[0], sizes[2], sizes[1], sizes[5], sizes[4], sizes[3]};
    main_(thread_index_in_threadgroup, threadgroup_position_in_grid, threadgroups_per_grid, queries, offsets, weights, lanes, tops, totals, factors, value_pages, own_arguments, *(device type_8 const*)plan, *(device type_9 const*)prepared, *(device type_9 const*)q, *(device type_8 const*)pages1, *(device type_8 const*)pages0, *(device type_9*)partials, own_sizes);
}
