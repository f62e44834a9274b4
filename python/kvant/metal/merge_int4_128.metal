// merge.wgsl of kvant-gpu for int4 pages, heads of 128 channels and 4 queries that share a reading, as naga translates it.
// Not edited: `KVANT_WRITE_METAL=1 cargo test -p kvant-gpu metal_texts` writes it.
// language: metal3.1
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size5;
};

struct Arguments {
    uint rows_at;
    uint rows;
    uint tasks_at;
    uint heads;
    uint group;
    uint y_stride;
    uint y_at;
    uint mark;
    uint turns_at;
    uint k_records_at;
    uint v_records_at;
    uint records;
};
typedef uint type_2[1];
typedef float type_4[1];
struct type_5 {
    float inner[128];
};
constant uint COLS = 4u;
constant uint VALUE_DIM = 128u;
constant bool MOVED = true;
constant uint FINISH_STEP = 0u;
constant uint FINISH_AHEAD = 32u;
constant uint AHEAD = 32u;
constant bool SINK_LOGITS = false;

void write_rows(
    uint thread_1,
    uint number
) {
    return;
}

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

float largest(
    uint thread_2,
    float v_1,
    threadgroup type_5& shares
) {
    uint step = 64u;
    shares.inner[metal::min(unsigned(thread_2), 127u)] = v_1;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e22 = step;
            step = naga_div(_e22, 2u);
        }
        loop_init = false;
        uint _e6 = step;
        if (_e6 > 0u) {
        } else {
            break;
        }
        {
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e9 = step;
            if (thread_2 < _e9) {
                float _e15 = shares.inner[metal::min(unsigned(thread_2), 127u)];
                uint _e17 = step;
                float _e20 = shares.inner[metal::min(unsigned(thread_2 + _e17), 127u)];
                shares.inner[metal::min(unsigned(thread_2), 127u)] = metal::max(_e15, _e20);
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float _e27 = shares.inner[0];
    return _e27;
}
uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct main_Input {
};
void main_(
  uint thread_
, metal::uint3 id
, metal::uint3 count
, thread Arguments const& a
, device type_2 const& plan
, device type_4 const& partials
, device type_4 const& finish
, device type_4 const& logits
, device type_4& y
, threadgroup type_5& coded
, threadgroup type_5& shares
, threadgroup type_5& denominators
, thread _mslBufferSizes const& _buffer_sizes
) {
    float own = -300000000000000000000000000000000000000.0;
    uint s = {};
    float top = {};
    float all = 0.0;
    float in_coded = 0.0;
    float exact0_ = 0.0;
    float moved0_ = 0.0;
    uint begin = 0u;
    float share = {};
    float denominator = {};
    bool local = {};
    uint n = {};
    uint n_1 = {};
    float v = {};
    bool local_1 = {};
    uint j = 0u;
    uint number_1 = id.x + (id.y * count.x);
    uint _e10 = a.heads;
    uint row = naga_div(number_1, _e10);
    uint _e14 = a.heads;
    uint head = naga_mod(number_1, _e14);
    uint _e18 = a.rows;
    if (row >= _e18) {
        uint _e22 = a.rows;
        uint _e25 = a.heads;
        write_rows(thread_, number_1 - (_e22 * _e25));
        return;
    }
    uint _e30 = a.rows_at;
    uint at = _e30 + (4u * row);
    uint splits = plan[metal::min(unsigned(at + 1u), (_buffer_sizes.size1 - 0 - 4) / 4)];
    uint _e43 = plan[metal::min(unsigned(at + 3u), (_buffer_sizes.size1 - 0 - 4) / 4)];
    uint _e46 = a.group;
    uint _e50 = a.group;
    uint column = (_e43 * _e46) + naga_mod(head, _e50);
    uint _e55 = plan[metal::min(unsigned(at), (_buffer_sizes.size1 - 0 - 4) / 4)];
    uint _e58 = a.group;
    uint _e64 = plan[metal::min(unsigned(at + 2u), (_buffer_sizes.size1 - 0 - 4) / 4)];
    uint first = _e55 + (((naga_div(head, _e58) * _e64) + naga_div(column, COLS)) * splits);
    uint base = (first * 520u) + (naga_mod(column, COLS) * 130u);
    s = thread_;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e101 = s;
            s = _e101 + 128u;
        }
        loop_init_1 = false;
        uint _e81 = s;
        if (_e81 < splits) {
        } else {
            break;
        }
        {
            uint _e84 = s;
            float _e90 = partials[metal::min(unsigned((base + (_e84 * 520u)) + 1u), (_buffer_sizes.size2 - 0 - 4) / 4)];
            if (_e90 > 0.0) {
                float _e93 = own;
                uint _e95 = s;
                float _e99 = partials[metal::min(unsigned(base + (_e95 * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                own = metal::max(_e93, _e99);
            }
        }
    }
    float _e104 = own;
    float _e105 = largest(thread_, _e104, shares);
    top = _e105;
    if (SINK_LOGITS) {
        float _e108 = top;
        float _e111 = logits[metal::min(unsigned(head), (_buffer_sizes.size4 - 0 - 4) / 4)];
        top = metal::max(_e108, _e111);
    }
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e1458 = begin;
            begin = _e1458 + 128u;
        }
        loop_init_2 = false;
        uint _e123 = begin;
        if (_e123 < splits) {
        } else {
            break;
        }
        {
            uint _e125 = begin;
            uint s_1 = _e125 + thread_;
            share = 0.0;
            denominator = 0.0;
            if (s_1 < splits) {
                float total = partials[metal::min(unsigned((base + (s_1 * 520u)) + 1u), (_buffer_sizes.size2 - 0 - 4) / 4)];
                if (total > 0.0) {
                    float _e145 = partials[metal::min(unsigned(base + (s_1 * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                    float _e146 = top;
                    share = metal::exp(_e145 - _e146);
                    float _e149 = share;
                    denominator = total * _e149;
                    if (MOVED) {
                        uint _e157 = a.tasks_at;
                        uint _e165 = plan[metal::min(unsigned((_e157 + (11u * (first + s_1))) + 8u), (_buffer_sizes.size1 - 0 - 4) / 4)];
                        local = _e165 == 0u;
                    } else {
                        local = false;
                    }
                    bool _e169 = local;
                    if (_e169) {
                        float _e170 = share;
                        share = -(_e170);
                        float _e172 = denominator;
                        denominator = -(_e172);
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            float _e176 = share;
            shares.inner[metal::min(unsigned(thread_), 127u)] = _e176;
            float _e179 = denominator;
            denominators.inner[metal::min(unsigned(thread_), 127u)] = _e179;
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            uint _e181 = begin;
            uint end = metal::min(128u, splits - _e181);
            n = 0u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e412 = n;
                    n = _e412 + 16u;
                }
                loop_init_3 = false;
                uint _e186 = n;
                if (_e186 < end) {
                } else {
                    break;
                }
                {
                    uint _e189 = n;
                    float denominator0_ = denominators.inner[metal::min(unsigned(_e189 + 0u), 127u)];
                    uint _e195 = n;
                    float denominator1_ = denominators.inner[metal::min(unsigned(_e195 + 1u), 127u)];
                    uint _e201 = n;
                    float denominator2_ = denominators.inner[metal::min(unsigned(_e201 + 2u), 127u)];
                    uint _e207 = n;
                    float denominator3_ = denominators.inner[metal::min(unsigned(_e207 + 3u), 127u)];
                    uint _e213 = n;
                    float denominator4_ = denominators.inner[metal::min(unsigned(_e213 + 4u), 127u)];
                    uint _e219 = n;
                    float denominator5_ = denominators.inner[metal::min(unsigned(_e219 + 5u), 127u)];
                    uint _e225 = n;
                    float denominator6_ = denominators.inner[metal::min(unsigned(_e225 + 6u), 127u)];
                    uint _e231 = n;
                    float denominator7_ = denominators.inner[metal::min(unsigned(_e231 + 7u), 127u)];
                    uint _e237 = n;
                    float denominator8_ = denominators.inner[metal::min(unsigned(_e237 + 8u), 127u)];
                    uint _e243 = n;
                    float denominator9_ = denominators.inner[metal::min(unsigned(_e243 + 9u), 127u)];
                    uint _e249 = n;
                    float denominator10_ = denominators.inner[metal::min(unsigned(_e249 + 10u), 127u)];
                    uint _e255 = n;
                    float denominator11_ = denominators.inner[metal::min(unsigned(_e255 + 11u), 127u)];
                    uint _e261 = n;
                    float denominator12_ = denominators.inner[metal::min(unsigned(_e261 + 12u), 127u)];
                    uint _e267 = n;
                    float denominator13_ = denominators.inner[metal::min(unsigned(_e267 + 13u), 127u)];
                    uint _e273 = n;
                    float denominator14_ = denominators.inner[metal::min(unsigned(_e273 + 14u), 127u)];
                    uint _e279 = n;
                    float denominator15_ = denominators.inner[metal::min(unsigned(_e279 + 15u), 127u)];
                    float _e284 = all;
                    all = _e284 + metal::abs(denominator0_);
                    float _e287 = in_coded;
                    in_coded = _e287 + metal::max(-(denominator0_), 0.0);
                    float _e292 = all;
                    all = _e292 + metal::abs(denominator1_);
                    float _e295 = in_coded;
                    in_coded = _e295 + metal::max(-(denominator1_), 0.0);
                    float _e300 = all;
                    all = _e300 + metal::abs(denominator2_);
                    float _e303 = in_coded;
                    in_coded = _e303 + metal::max(-(denominator2_), 0.0);
                    float _e308 = all;
                    all = _e308 + metal::abs(denominator3_);
                    float _e311 = in_coded;
                    in_coded = _e311 + metal::max(-(denominator3_), 0.0);
                    float _e316 = all;
                    all = _e316 + metal::abs(denominator4_);
                    float _e319 = in_coded;
                    in_coded = _e319 + metal::max(-(denominator4_), 0.0);
                    float _e324 = all;
                    all = _e324 + metal::abs(denominator5_);
                    float _e327 = in_coded;
                    in_coded = _e327 + metal::max(-(denominator5_), 0.0);
                    float _e332 = all;
                    all = _e332 + metal::abs(denominator6_);
                    float _e335 = in_coded;
                    in_coded = _e335 + metal::max(-(denominator6_), 0.0);
                    float _e340 = all;
                    all = _e340 + metal::abs(denominator7_);
                    float _e343 = in_coded;
                    in_coded = _e343 + metal::max(-(denominator7_), 0.0);
                    float _e348 = all;
                    all = _e348 + metal::abs(denominator8_);
                    float _e351 = in_coded;
                    in_coded = _e351 + metal::max(-(denominator8_), 0.0);
                    float _e356 = all;
                    all = _e356 + metal::abs(denominator9_);
                    float _e359 = in_coded;
                    in_coded = _e359 + metal::max(-(denominator9_), 0.0);
                    float _e364 = all;
                    all = _e364 + metal::abs(denominator10_);
                    float _e367 = in_coded;
                    in_coded = _e367 + metal::max(-(denominator10_), 0.0);
                    float _e372 = all;
                    all = _e372 + metal::abs(denominator11_);
                    float _e375 = in_coded;
                    in_coded = _e375 + metal::max(-(denominator11_), 0.0);
                    float _e380 = all;
                    all = _e380 + metal::abs(denominator12_);
                    float _e383 = in_coded;
                    in_coded = _e383 + metal::max(-(denominator12_), 0.0);
                    float _e388 = all;
                    all = _e388 + metal::abs(denominator13_);
                    float _e391 = in_coded;
                    in_coded = _e391 + metal::max(-(denominator13_), 0.0);
                    float _e396 = all;
                    all = _e396 + metal::abs(denominator14_);
                    float _e399 = in_coded;
                    in_coded = _e399 + metal::max(-(denominator14_), 0.0);
                    float _e404 = all;
                    all = _e404 + metal::abs(denominator15_);
                    float _e407 = in_coded;
                    in_coded = _e407 + metal::max(-(denominator15_), 0.0);
                }
            }
            if ((thread_ + 0u) < VALUE_DIM) {
                uint _e419 = begin;
                uint c = (((base + (_e419 * 520u)) + 2u) + thread_) + 0u;
                n_1 = 0u;
                bool loop_init_4 = true;
                while(true) {
                    if (!loop_init_4) {
                        uint _e1455 = n_1;
                        n_1 = _e1455 + AHEAD;
                    }
                    loop_init_4 = false;
                    uint _e429 = n_1;
                    if (_e429 < end) {
                    } else {
                        break;
                    }
                    {
                        uint _e432 = n_1;
                        float v0_ = partials[metal::min(unsigned(c + (metal::min(_e432 + 0u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e443 = n_1;
                        float v1_ = partials[metal::min(unsigned(c + (metal::min(_e443 + 1u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e454 = n_1;
                        float v2_ = partials[metal::min(unsigned(c + (metal::min(_e454 + 2u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e465 = n_1;
                        float v3_ = partials[metal::min(unsigned(c + (metal::min(_e465 + 3u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e476 = n_1;
                        float v4_ = partials[metal::min(unsigned(c + (metal::min(_e476 + 4u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e487 = n_1;
                        float v5_ = partials[metal::min(unsigned(c + (metal::min(_e487 + 5u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e498 = n_1;
                        float v6_ = partials[metal::min(unsigned(c + (metal::min(_e498 + 6u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e509 = n_1;
                        float v7_ = partials[metal::min(unsigned(c + (metal::min(_e509 + 7u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e520 = n_1;
                        float v8_ = partials[metal::min(unsigned(c + (metal::min(_e520 + 8u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e531 = n_1;
                        float v9_ = partials[metal::min(unsigned(c + (metal::min(_e531 + 9u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e542 = n_1;
                        float v10_ = partials[metal::min(unsigned(c + (metal::min(_e542 + 10u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e553 = n_1;
                        float v11_ = partials[metal::min(unsigned(c + (metal::min(_e553 + 11u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e564 = n_1;
                        float v12_ = partials[metal::min(unsigned(c + (metal::min(_e564 + 12u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e575 = n_1;
                        float v13_ = partials[metal::min(unsigned(c + (metal::min(_e575 + 13u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e586 = n_1;
                        float v14_ = partials[metal::min(unsigned(c + (metal::min(_e586 + 14u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e597 = n_1;
                        float v15_ = partials[metal::min(unsigned(c + (metal::min(_e597 + 15u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e608 = n_1;
                        float v16_ = partials[metal::min(unsigned(c + (metal::min(_e608 + 16u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e619 = n_1;
                        float v17_ = partials[metal::min(unsigned(c + (metal::min(_e619 + 17u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e630 = n_1;
                        float v18_ = partials[metal::min(unsigned(c + (metal::min(_e630 + 18u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e641 = n_1;
                        float v19_ = partials[metal::min(unsigned(c + (metal::min(_e641 + 19u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e652 = n_1;
                        float v20_ = partials[metal::min(unsigned(c + (metal::min(_e652 + 20u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e663 = n_1;
                        float v21_ = partials[metal::min(unsigned(c + (metal::min(_e663 + 21u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e674 = n_1;
                        float v22_ = partials[metal::min(unsigned(c + (metal::min(_e674 + 22u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e685 = n_1;
                        float v23_ = partials[metal::min(unsigned(c + (metal::min(_e685 + 23u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e696 = n_1;
                        float v24_ = partials[metal::min(unsigned(c + (metal::min(_e696 + 24u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e707 = n_1;
                        float v25_ = partials[metal::min(unsigned(c + (metal::min(_e707 + 25u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e718 = n_1;
                        float v26_ = partials[metal::min(unsigned(c + (metal::min(_e718 + 26u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e729 = n_1;
                        float v27_ = partials[metal::min(unsigned(c + (metal::min(_e729 + 27u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e740 = n_1;
                        float v28_ = partials[metal::min(unsigned(c + (metal::min(_e740 + 28u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e751 = n_1;
                        float v29_ = partials[metal::min(unsigned(c + (metal::min(_e751 + 29u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e762 = n_1;
                        float v30_ = partials[metal::min(unsigned(c + (metal::min(_e762 + 30u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e773 = n_1;
                        float v31_ = partials[metal::min(unsigned(c + (metal::min(_e773 + 31u, end - 1u) * 520u)), (_buffer_sizes.size2 - 0 - 4) / 4)];
                        uint _e784 = n_1;
                        float _e788 = shares.inner[metal::min(unsigned(_e784 + 0u), 127u)];
                        float _e791 = exact0_;
                        exact0_ = metal::fma(v0_, metal::max(_e788, 0.0), _e791);
                        uint _e794 = n_1;
                        float _e798 = shares.inner[metal::min(unsigned(_e794 + 0u), 127u)];
                        float _e802 = moved0_;
                        moved0_ = metal::fma(v0_, metal::max(-(_e798), 0.0), _e802);
                        uint _e805 = n_1;
                        float _e809 = shares.inner[metal::min(unsigned(_e805 + 1u), 127u)];
                        float _e812 = exact0_;
                        exact0_ = metal::fma(v1_, metal::max(_e809, 0.0), _e812);
                        uint _e815 = n_1;
                        float _e819 = shares.inner[metal::min(unsigned(_e815 + 1u), 127u)];
                        float _e823 = moved0_;
                        moved0_ = metal::fma(v1_, metal::max(-(_e819), 0.0), _e823);
                        uint _e826 = n_1;
                        float _e830 = shares.inner[metal::min(unsigned(_e826 + 2u), 127u)];
                        float _e833 = exact0_;
                        exact0_ = metal::fma(v2_, metal::max(_e830, 0.0), _e833);
                        uint _e836 = n_1;
                        float _e840 = shares.inner[metal::min(unsigned(_e836 + 2u), 127u)];
                        float _e844 = moved0_;
                        moved0_ = metal::fma(v2_, metal::max(-(_e840), 0.0), _e844);
                        uint _e847 = n_1;
                        float _e851 = shares.inner[metal::min(unsigned(_e847 + 3u), 127u)];
                        float _e854 = exact0_;
                        exact0_ = metal::fma(v3_, metal::max(_e851, 0.0), _e854);
                        uint _e857 = n_1;
                        float _e861 = shares.inner[metal::min(unsigned(_e857 + 3u), 127u)];
                        float _e865 = moved0_;
                        moved0_ = metal::fma(v3_, metal::max(-(_e861), 0.0), _e865);
                        uint _e868 = n_1;
                        float _e872 = shares.inner[metal::min(unsigned(_e868 + 4u), 127u)];
                        float _e875 = exact0_;
                        exact0_ = metal::fma(v4_, metal::max(_e872, 0.0), _e875);
                        uint _e878 = n_1;
                        float _e882 = shares.inner[metal::min(unsigned(_e878 + 4u), 127u)];
                        float _e886 = moved0_;
                        moved0_ = metal::fma(v4_, metal::max(-(_e882), 0.0), _e886);
                        uint _e889 = n_1;
                        float _e893 = shares.inner[metal::min(unsigned(_e889 + 5u), 127u)];
                        float _e896 = exact0_;
                        exact0_ = metal::fma(v5_, metal::max(_e893, 0.0), _e896);
                        uint _e899 = n_1;
                        float _e903 = shares.inner[metal::min(unsigned(_e899 + 5u), 127u)];
                        float _e907 = moved0_;
                        moved0_ = metal::fma(v5_, metal::max(-(_e903), 0.0), _e907);
                        uint _e910 = n_1;
                        float _e914 = shares.inner[metal::min(unsigned(_e910 + 6u), 127u)];
                        float _e917 = exact0_;
                        exact0_ = metal::fma(v6_, metal::max(_e914, 0.0), _e917);
                        uint _e920 = n_1;
                        float _e924 = shares.inner[metal::min(unsigned(_e920 + 6u), 127u)];
                        float _e928 = moved0_;
                        moved0_ = metal::fma(v6_, metal::max(-(_e924), 0.0), _e928);
                        uint _e931 = n_1;
                        float _e935 = shares.inner[metal::min(unsigned(_e931 + 7u), 127u)];
                        float _e938 = exact0_;
                        exact0_ = metal::fma(v7_, metal::max(_e935, 0.0), _e938);
                        uint _e941 = n_1;
                        float _e945 = shares.inner[metal::min(unsigned(_e941 + 7u), 127u)];
                        float _e949 = moved0_;
                        moved0_ = metal::fma(v7_, metal::max(-(_e945), 0.0), _e949);
                        uint _e952 = n_1;
                        float _e956 = shares.inner[metal::min(unsigned(_e952 + 8u), 127u)];
                        float _e959 = exact0_;
                        exact0_ = metal::fma(v8_, metal::max(_e956, 0.0), _e959);
                        uint _e962 = n_1;
                        float _e966 = shares.inner[metal::min(unsigned(_e962 + 8u), 127u)];
                        float _e970 = moved0_;
                        moved0_ = metal::fma(v8_, metal::max(-(_e966), 0.0), _e970);
                        uint _e973 = n_1;
                        float _e977 = shares.inner[metal::min(unsigned(_e973 + 9u), 127u)];
                        float _e980 = exact0_;
                        exact0_ = metal::fma(v9_, metal::max(_e977, 0.0), _e980);
                        uint _e983 = n_1;
                        float _e987 = shares.inner[metal::min(unsigned(_e983 + 9u), 127u)];
                        float _e991 = moved0_;
                        moved0_ = metal::fma(v9_, metal::max(-(_e987), 0.0), _e991);
                        uint _e994 = n_1;
                        float _e998 = shares.inner[metal::min(unsigned(_e994 + 10u), 127u)];
                        float _e1001 = exact0_;
                        exact0_ = metal::fma(v10_, metal::max(_e998, 0.0), _e1001);
                        uint _e1004 = n_1;
                        float _e1008 = shares.inner[metal::min(unsigned(_e1004 + 10u), 127u)];
                        float _e1012 = moved0_;
                        moved0_ = metal::fma(v10_, metal::max(-(_e1008), 0.0), _e1012);
                        uint _e1015 = n_1;
                        float _e1019 = shares.inner[metal::min(unsigned(_e1015 + 11u), 127u)];
                        float _e1022 = exact0_;
                        exact0_ = metal::fma(v11_, metal::max(_e1019, 0.0), _e1022);
                        uint _e1025 = n_1;
                        float _e1029 = shares.inner[metal::min(unsigned(_e1025 + 11u), 127u)];
                        float _e1033 = moved0_;
                        moved0_ = metal::fma(v11_, metal::max(-(_e1029), 0.0), _e1033);
                        uint _e1036 = n_1;
                        float _e1040 = shares.inner[metal::min(unsigned(_e1036 + 12u), 127u)];
                        float _e1043 = exact0_;
                        exact0_ = metal::fma(v12_, metal::max(_e1040, 0.0), _e1043);
                        uint _e1046 = n_1;
                        float _e1050 = shares.inner[metal::min(unsigned(_e1046 + 12u), 127u)];
                        float _e1054 = moved0_;
                        moved0_ = metal::fma(v12_, metal::max(-(_e1050), 0.0), _e1054);
                        uint _e1057 = n_1;
                        float _e1061 = shares.inner[metal::min(unsigned(_e1057 + 13u), 127u)];
                        float _e1064 = exact0_;
                        exact0_ = metal::fma(v13_, metal::max(_e1061, 0.0), _e1064);
                        uint _e1067 = n_1;
                        float _e1071 = shares.inner[metal::min(unsigned(_e1067 + 13u), 127u)];
                        float _e1075 = moved0_;
                        moved0_ = metal::fma(v13_, metal::max(-(_e1071), 0.0), _e1075);
                        uint _e1078 = n_1;
                        float _e1082 = shares.inner[metal::min(unsigned(_e1078 + 14u), 127u)];
                        float _e1085 = exact0_;
                        exact0_ = metal::fma(v14_, metal::max(_e1082, 0.0), _e1085);
                        uint _e1088 = n_1;
                        float _e1092 = shares.inner[metal::min(unsigned(_e1088 + 14u), 127u)];
                        float _e1096 = moved0_;
                        moved0_ = metal::fma(v14_, metal::max(-(_e1092), 0.0), _e1096);
                        uint _e1099 = n_1;
                        float _e1103 = shares.inner[metal::min(unsigned(_e1099 + 15u), 127u)];
                        float _e1106 = exact0_;
                        exact0_ = metal::fma(v15_, metal::max(_e1103, 0.0), _e1106);
                        uint _e1109 = n_1;
                        float _e1113 = shares.inner[metal::min(unsigned(_e1109 + 15u), 127u)];
                        float _e1117 = moved0_;
                        moved0_ = metal::fma(v15_, metal::max(-(_e1113), 0.0), _e1117);
                        uint _e1120 = n_1;
                        float _e1124 = shares.inner[metal::min(unsigned(_e1120 + 16u), 127u)];
                        float _e1127 = exact0_;
                        exact0_ = metal::fma(v16_, metal::max(_e1124, 0.0), _e1127);
                        uint _e1130 = n_1;
                        float _e1134 = shares.inner[metal::min(unsigned(_e1130 + 16u), 127u)];
                        float _e1138 = moved0_;
                        moved0_ = metal::fma(v16_, metal::max(-(_e1134), 0.0), _e1138);
                        uint _e1141 = n_1;
                        float _e1145 = shares.inner[metal::min(unsigned(_e1141 + 17u), 127u)];
                        float _e1148 = exact0_;
                        exact0_ = metal::fma(v17_, metal::max(_e1145, 0.0), _e1148);
                        uint _e1151 = n_1;
                        float _e1155 = shares.inner[metal::min(unsigned(_e1151 + 17u), 127u)];
                        float _e1159 = moved0_;
                        moved0_ = metal::fma(v17_, metal::max(-(_e1155), 0.0), _e1159);
                        uint _e1162 = n_1;
                        float _e1166 = shares.inner[metal::min(unsigned(_e1162 + 18u), 127u)];
                        float _e1169 = exact0_;
                        exact0_ = metal::fma(v18_, metal::max(_e1166, 0.0), _e1169);
                        uint _e1172 = n_1;
                        float _e1176 = shares.inner[metal::min(unsigned(_e1172 + 18u), 127u)];
                        float _e1180 = moved0_;
                        moved0_ = metal::fma(v18_, metal::max(-(_e1176), 0.0), _e1180);
                        uint _e1183 = n_1;
                        float _e1187 = shares.inner[metal::min(unsigned(_e1183 + 19u), 127u)];
                        float _e1190 = exact0_;
                        exact0_ = metal::fma(v19_, metal::max(_e1187, 0.0), _e1190);
                        uint _e1193 = n_1;
                        float _e1197 = shares.inner[metal::min(unsigned(_e1193 + 19u), 127u)];
                        float _e1201 = moved0_;
                        moved0_ = metal::fma(v19_, metal::max(-(_e1197), 0.0), _e1201);
                        uint _e1204 = n_1;
                        float _e1208 = shares.inner[metal::min(unsigned(_e1204 + 20u), 127u)];
                        float _e1211 = exact0_;
                        exact0_ = metal::fma(v20_, metal::max(_e1208, 0.0), _e1211);
                        uint _e1214 = n_1;
                        float _e1218 = shares.inner[metal::min(unsigned(_e1214 + 20u), 127u)];
                        float _e1222 = moved0_;
                        moved0_ = metal::fma(v20_, metal::max(-(_e1218), 0.0), _e1222);
                        uint _e1225 = n_1;
                        float _e1229 = shares.inner[metal::min(unsigned(_e1225 + 21u), 127u)];
                        float _e1232 = exact0_;
                        exact0_ = metal::fma(v21_, metal::max(_e1229, 0.0), _e1232);
                        uint _e1235 = n_1;
                        float _e1239 = shares.inner[metal::min(unsigned(_e1235 + 21u), 127u)];
                        float _e1243 = moved0_;
                        moved0_ = metal::fma(v21_, metal::max(-(_e1239), 0.0), _e1243);
                        uint _e1246 = n_1;
                        float _e1250 = shares.inner[metal::min(unsigned(_e1246 + 22u), 127u)];
                        float _e1253 = exact0_;
                        exact0_ = metal::fma(v22_, metal::max(_e1250, 0.0), _e1253);
                        uint _e1256 = n_1;
                        float _e1260 = shares.inner[metal::min(unsigned(_e1256 + 22u), 127u)];
                        float _e1264 = moved0_;
                        moved0_ = metal::fma(v22_, metal::max(-(_e1260), 0.0), _e1264);
                        uint _e1267 = n_1;
                        float _e1271 = shares.inner[metal::min(unsigned(_e1267 + 23u), 127u)];
                        float _e1274 = exact0_;
                        exact0_ = metal::fma(v23_, metal::max(_e1271, 0.0), _e1274);
                        uint _e1277 = n_1;
                        float _e1281 = shares.inner[metal::min(unsigned(_e1277 + 23u), 127u)];
                        float _e1285 = moved0_;
                        moved0_ = metal::fma(v23_, metal::max(-(_e1281), 0.0), _e1285);
                        uint _e1288 = n_1;
                        float _e1292 = shares.inner[metal::min(unsigned(_e1288 + 24u), 127u)];
                        float _e1295 = exact0_;
                        exact0_ = metal::fma(v24_, metal::max(_e1292, 0.0), _e1295);
                        uint _e1298 = n_1;
                        float _e1302 = shares.inner[metal::min(unsigned(_e1298 + 24u), 127u)];
                        float _e1306 = moved0_;
                        moved0_ = metal::fma(v24_, metal::max(-(_e1302), 0.0), _e1306);
                        uint _e1309 = n_1;
                        float _e1313 = shares.inner[metal::min(unsigned(_e1309 + 25u), 127u)];
                        float _e1316 = exact0_;
                        exact0_ = metal::fma(v25_, metal::max(_e1313, 0.0), _e1316);
                        uint _e1319 = n_1;
                        float _e1323 = shares.inner[metal::min(unsigned(_e1319 + 25u), 127u)];
                        float _e1327 = moved0_;
                        moved0_ = metal::fma(v25_, metal::max(-(_e1323), 0.0), _e1327);
                        uint _e1330 = n_1;
                        float _e1334 = shares.inner[metal::min(unsigned(_e1330 + 26u), 127u)];
                        float _e1337 = exact0_;
                        exact0_ = metal::fma(v26_, metal::max(_e1334, 0.0), _e1337);
                        uint _e1340 = n_1;
                        float _e1344 = shares.inner[metal::min(unsigned(_e1340 + 26u), 127u)];
                        float _e1348 = moved0_;
                        moved0_ = metal::fma(v26_, metal::max(-(_e1344), 0.0), _e1348);
                        uint _e1351 = n_1;
                        float _e1355 = shares.inner[metal::min(unsigned(_e1351 + 27u), 127u)];
                        float _e1358 = exact0_;
                        exact0_ = metal::fma(v27_, metal::max(_e1355, 0.0), _e1358);
                        uint _e1361 = n_1;
                        float _e1365 = shares.inner[metal::min(unsigned(_e1361 + 27u), 127u)];
                        float _e1369 = moved0_;
                        moved0_ = metal::fma(v27_, metal::max(-(_e1365), 0.0), _e1369);
                        uint _e1372 = n_1;
                        float _e1376 = shares.inner[metal::min(unsigned(_e1372 + 28u), 127u)];
                        float _e1379 = exact0_;
                        exact0_ = metal::fma(v28_, metal::max(_e1376, 0.0), _e1379);
                        uint _e1382 = n_1;
                        float _e1386 = shares.inner[metal::min(unsigned(_e1382 + 28u), 127u)];
                        float _e1390 = moved0_;
                        moved0_ = metal::fma(v28_, metal::max(-(_e1386), 0.0), _e1390);
                        uint _e1393 = n_1;
                        float _e1397 = shares.inner[metal::min(unsigned(_e1393 + 29u), 127u)];
                        float _e1400 = exact0_;
                        exact0_ = metal::fma(v29_, metal::max(_e1397, 0.0), _e1400);
                        uint _e1403 = n_1;
                        float _e1407 = shares.inner[metal::min(unsigned(_e1403 + 29u), 127u)];
                        float _e1411 = moved0_;
                        moved0_ = metal::fma(v29_, metal::max(-(_e1407), 0.0), _e1411);
                        uint _e1414 = n_1;
                        float _e1418 = shares.inner[metal::min(unsigned(_e1414 + 30u), 127u)];
                        float _e1421 = exact0_;
                        exact0_ = metal::fma(v30_, metal::max(_e1418, 0.0), _e1421);
                        uint _e1424 = n_1;
                        float _e1428 = shares.inner[metal::min(unsigned(_e1424 + 30u), 127u)];
                        float _e1432 = moved0_;
                        moved0_ = metal::fma(v30_, metal::max(-(_e1428), 0.0), _e1432);
                        uint _e1435 = n_1;
                        float _e1439 = shares.inner[metal::min(unsigned(_e1435 + 31u), 127u)];
                        float _e1442 = exact0_;
                        exact0_ = metal::fma(v31_, metal::max(_e1439, 0.0), _e1442);
                        uint _e1445 = n_1;
                        float _e1449 = shares.inner[metal::min(unsigned(_e1445 + 31u), 127u)];
                        float _e1453 = moved0_;
                        moved0_ = metal::fma(v31_, metal::max(-(_e1449), 0.0), _e1453);
                    }
                }
            }
        }
    }
    if (SINK_LOGITS) {
        float _e1462 = all;
        float _e1465 = logits[metal::min(unsigned(head), (_buffer_sizes.size4 - 0 - 4) / 4)];
        float _e1466 = top;
        all = _e1462 + metal::exp(_e1465 - _e1466);
    }
    if ((thread_ + 0u) < VALUE_DIM) {
        float _e1478 = moved0_;
        coded.inner[metal::min(unsigned(thread_ + 0u), 127u)] = _e1478;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint _e1481 = a.group;
    uint finish_at = naga_div(head, _e1481) * FINISH_STEP;
    if ((thread_ + 0u) < VALUE_DIM) {
        uint c_1 = thread_ + 0u;
        float _e1491 = exact0_;
        v = _e1491;
        if (MOVED) {
            float _e1496 = in_coded;
            local_1 = _e1496 > 0.0;
        } else {
            local_1 = false;
        }
        bool _e1500 = local_1;
        if (_e1500) {
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e2082 = j;
                    j = _e2082 + FINISH_AHEAD;
                }
                loop_init_5 = false;
                uint _e1503 = j;
                if (_e1503 < VALUE_DIM) {
                } else {
                    break;
                }
                {
                    uint _e1507 = j;
                    float f0_ = finish[metal::min(unsigned((finish_at + ((_e1507 + 0u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1517 = j;
                    float f1_ = finish[metal::min(unsigned((finish_at + ((_e1517 + 1u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1527 = j;
                    float f2_ = finish[metal::min(unsigned((finish_at + ((_e1527 + 2u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1537 = j;
                    float f3_ = finish[metal::min(unsigned((finish_at + ((_e1537 + 3u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1547 = j;
                    float f4_ = finish[metal::min(unsigned((finish_at + ((_e1547 + 4u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1557 = j;
                    float f5_ = finish[metal::min(unsigned((finish_at + ((_e1557 + 5u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1567 = j;
                    float f6_ = finish[metal::min(unsigned((finish_at + ((_e1567 + 6u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1577 = j;
                    float f7_ = finish[metal::min(unsigned((finish_at + ((_e1577 + 7u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1587 = j;
                    float f8_ = finish[metal::min(unsigned((finish_at + ((_e1587 + 8u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1597 = j;
                    float f9_ = finish[metal::min(unsigned((finish_at + ((_e1597 + 9u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1607 = j;
                    float f10_ = finish[metal::min(unsigned((finish_at + ((_e1607 + 10u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1617 = j;
                    float f11_ = finish[metal::min(unsigned((finish_at + ((_e1617 + 11u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1627 = j;
                    float f12_ = finish[metal::min(unsigned((finish_at + ((_e1627 + 12u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1637 = j;
                    float f13_ = finish[metal::min(unsigned((finish_at + ((_e1637 + 13u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1647 = j;
                    float f14_ = finish[metal::min(unsigned((finish_at + ((_e1647 + 14u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1657 = j;
                    float f15_ = finish[metal::min(unsigned((finish_at + ((_e1657 + 15u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1667 = j;
                    float f16_ = finish[metal::min(unsigned((finish_at + ((_e1667 + 16u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1677 = j;
                    float f17_ = finish[metal::min(unsigned((finish_at + ((_e1677 + 17u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1687 = j;
                    float f18_ = finish[metal::min(unsigned((finish_at + ((_e1687 + 18u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1697 = j;
                    float f19_ = finish[metal::min(unsigned((finish_at + ((_e1697 + 19u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1707 = j;
                    float f20_ = finish[metal::min(unsigned((finish_at + ((_e1707 + 20u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1717 = j;
                    float f21_ = finish[metal::min(unsigned((finish_at + ((_e1717 + 21u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1727 = j;
                    float f22_ = finish[metal::min(unsigned((finish_at + ((_e1727 + 22u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1737 = j;
                    float f23_ = finish[metal::min(unsigned((finish_at + ((_e1737 + 23u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1747 = j;
                    float f24_ = finish[metal::min(unsigned((finish_at + ((_e1747 + 24u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1757 = j;
                    float f25_ = finish[metal::min(unsigned((finish_at + ((_e1757 + 25u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1767 = j;
                    float f26_ = finish[metal::min(unsigned((finish_at + ((_e1767 + 26u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1777 = j;
                    float f27_ = finish[metal::min(unsigned((finish_at + ((_e1777 + 27u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1787 = j;
                    float f28_ = finish[metal::min(unsigned((finish_at + ((_e1787 + 28u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1797 = j;
                    float f29_ = finish[metal::min(unsigned((finish_at + ((_e1797 + 29u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1807 = j;
                    float f30_ = finish[metal::min(unsigned((finish_at + ((_e1807 + 30u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1817 = j;
                    float f31_ = finish[metal::min(unsigned((finish_at + ((_e1817 + 31u) * VALUE_DIM)) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
                    uint _e1827 = j;
                    float _e1831 = coded.inner[metal::min(unsigned(_e1827 + 0u), 127u)];
                    float _e1832 = v;
                    v = metal::fma(f0_, _e1831, _e1832);
                    uint _e1835 = j;
                    float _e1839 = coded.inner[metal::min(unsigned(_e1835 + 1u), 127u)];
                    float _e1840 = v;
                    v = metal::fma(f1_, _e1839, _e1840);
                    uint _e1843 = j;
                    float _e1847 = coded.inner[metal::min(unsigned(_e1843 + 2u), 127u)];
                    float _e1848 = v;
                    v = metal::fma(f2_, _e1847, _e1848);
                    uint _e1851 = j;
                    float _e1855 = coded.inner[metal::min(unsigned(_e1851 + 3u), 127u)];
                    float _e1856 = v;
                    v = metal::fma(f3_, _e1855, _e1856);
                    uint _e1859 = j;
                    float _e1863 = coded.inner[metal::min(unsigned(_e1859 + 4u), 127u)];
                    float _e1864 = v;
                    v = metal::fma(f4_, _e1863, _e1864);
                    uint _e1867 = j;
                    float _e1871 = coded.inner[metal::min(unsigned(_e1867 + 5u), 127u)];
                    float _e1872 = v;
                    v = metal::fma(f5_, _e1871, _e1872);
                    uint _e1875 = j;
                    float _e1879 = coded.inner[metal::min(unsigned(_e1875 + 6u), 127u)];
                    float _e1880 = v;
                    v = metal::fma(f6_, _e1879, _e1880);
                    uint _e1883 = j;
                    float _e1887 = coded.inner[metal::min(unsigned(_e1883 + 7u), 127u)];
                    float _e1888 = v;
                    v = metal::fma(f7_, _e1887, _e1888);
                    uint _e1891 = j;
                    float _e1895 = coded.inner[metal::min(unsigned(_e1891 + 8u), 127u)];
                    float _e1896 = v;
                    v = metal::fma(f8_, _e1895, _e1896);
                    uint _e1899 = j;
                    float _e1903 = coded.inner[metal::min(unsigned(_e1899 + 9u), 127u)];
                    float _e1904 = v;
                    v = metal::fma(f9_, _e1903, _e1904);
                    uint _e1907 = j;
                    float _e1911 = coded.inner[metal::min(unsigned(_e1907 + 10u), 127u)];
                    float _e1912 = v;
                    v = metal::fma(f10_, _e1911, _e1912);
                    uint _e1915 = j;
                    float _e1919 = coded.inner[metal::min(unsigned(_e1915 + 11u), 127u)];
                    float _e1920 = v;
                    v = metal::fma(f11_, _e1919, _e1920);
                    uint _e1923 = j;
                    float _e1927 = coded.inner[metal::min(unsigned(_e1923 + 12u), 127u)];
                    float _e1928 = v;
                    v = metal::fma(f12_, _e1927, _e1928);
                    uint _e1931 = j;
                    float _e1935 = coded.inner[metal::min(unsigned(_e1931 + 13u), 127u)];
                    float _e1936 = v;
                    v = metal::fma(f13_, _e1935, _e1936);
                    uint _e1939 = j;
                    float _e1943 = coded.inner[metal::min(unsigned(_e1939 + 14u), 127u)];
                    float _e1944 = v;
                    v = metal::fma(f14_, _e1943, _e1944);
                    uint _e1947 = j;
                    float _e1951 = coded.inner[metal::min(unsigned(_e1947 + 15u), 127u)];
                    float _e1952 = v;
                    v = metal::fma(f15_, _e1951, _e1952);
                    uint _e1955 = j;
                    float _e1959 = coded.inner[metal::min(unsigned(_e1955 + 16u), 127u)];
                    float _e1960 = v;
                    v = metal::fma(f16_, _e1959, _e1960);
                    uint _e1963 = j;
                    float _e1967 = coded.inner[metal::min(unsigned(_e1963 + 17u), 127u)];
                    float _e1968 = v;
                    v = metal::fma(f17_, _e1967, _e1968);
                    uint _e1971 = j;
                    float _e1975 = coded.inner[metal::min(unsigned(_e1971 + 18u), 127u)];
                    float _e1976 = v;
                    v = metal::fma(f18_, _e1975, _e1976);
                    uint _e1979 = j;
                    float _e1983 = coded.inner[metal::min(unsigned(_e1979 + 19u), 127u)];
                    float _e1984 = v;
                    v = metal::fma(f19_, _e1983, _e1984);
                    uint _e1987 = j;
                    float _e1991 = coded.inner[metal::min(unsigned(_e1987 + 20u), 127u)];
                    float _e1992 = v;
                    v = metal::fma(f20_, _e1991, _e1992);
                    uint _e1995 = j;
                    float _e1999 = coded.inner[metal::min(unsigned(_e1995 + 21u), 127u)];
                    float _e2000 = v;
                    v = metal::fma(f21_, _e1999, _e2000);
                    uint _e2003 = j;
                    float _e2007 = coded.inner[metal::min(unsigned(_e2003 + 22u), 127u)];
                    float _e2008 = v;
                    v = metal::fma(f22_, _e2007, _e2008);
                    uint _e2011 = j;
                    float _e2015 = coded.inner[metal::min(unsigned(_e2011 + 23u), 127u)];
                    float _e2016 = v;
                    v = metal::fma(f23_, _e2015, _e2016);
                    uint _e2019 = j;
                    float _e2023 = coded.inner[metal::min(unsigned(_e2019 + 24u), 127u)];
                    float _e2024 = v;
                    v = metal::fma(f24_, _e2023, _e2024);
                    uint _e2027 = j;
                    float _e2031 = coded.inner[metal::min(unsigned(_e2027 + 25u), 127u)];
                    float _e2032 = v;
                    v = metal::fma(f25_, _e2031, _e2032);
                    uint _e2035 = j;
                    float _e2039 = coded.inner[metal::min(unsigned(_e2035 + 26u), 127u)];
                    float _e2040 = v;
                    v = metal::fma(f26_, _e2039, _e2040);
                    uint _e2043 = j;
                    float _e2047 = coded.inner[metal::min(unsigned(_e2043 + 27u), 127u)];
                    float _e2048 = v;
                    v = metal::fma(f27_, _e2047, _e2048);
                    uint _e2051 = j;
                    float _e2055 = coded.inner[metal::min(unsigned(_e2051 + 28u), 127u)];
                    float _e2056 = v;
                    v = metal::fma(f28_, _e2055, _e2056);
                    uint _e2059 = j;
                    float _e2063 = coded.inner[metal::min(unsigned(_e2059 + 29u), 127u)];
                    float _e2064 = v;
                    v = metal::fma(f29_, _e2063, _e2064);
                    uint _e2067 = j;
                    float _e2071 = coded.inner[metal::min(unsigned(_e2067 + 30u), 127u)];
                    float _e2072 = v;
                    v = metal::fma(f30_, _e2071, _e2072);
                    uint _e2075 = j;
                    float _e2079 = coded.inner[metal::min(unsigned(_e2075 + 31u), 127u)];
                    float _e2080 = v;
                    v = metal::fma(f31_, _e2079, _e2080);
                }
            }
            float _e2085 = v;
            float _e2091 = finish[metal::min(unsigned((finish_at + 16384u) + c_1), (_buffer_sizes.size3 - 0 - 4) / 4)];
            float _e2092 = in_coded;
            v = _e2085 + (_e2091 * _e2092);
        }
        uint _e2098 = a.y_at;
        uint _e2101 = a.y_stride;
        float _e2109 = v;
        float _e2110 = all;
        y[metal::min(unsigned(((_e2098 + (row * _e2101)) + (head * VALUE_DIM)) + c_1), (_buffer_sizes.size5 - 0 - 4) / 4)] = _e2109 / _e2110;
        return;
    } else {
        return;
    }
}

kernel void merge_int4_128(
    device const uint* plan [[buffer(0)]],
    device const float* partials [[buffer(1)]],
    device const float* finish [[buffer(2)]],
    device const float* logits [[buffer(3)]],
    device float* y [[buffer(4)]],
    device const uint* arguments [[buffer(5)]],
    device const uint* sizes [[buffer(6)]],
    uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
    metal::uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]],
    metal::uint3 threadgroups_per_grid [[threadgroups_per_grid]]
) {
    Arguments own_arguments = *(device Arguments const*)arguments;
    threadgroup type_5 coded;
    threadgroup type_5 shares;
    threadgroup type_5 denominators;
    _mslBufferSizes own_sizes = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    main_(thread_index_in_threadgroup, threadgroup_position_in_grid, threadgroups_per_grid, own_arguments, *(device type_2 const*)plan, *(device type_4 const*)partials, *(device type_4 const*)finish, *(device type_4 const*)logits, *(device type_4*)y, coded, shares, denominators, own_sizes);
}
