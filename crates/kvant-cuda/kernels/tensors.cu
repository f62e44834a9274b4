// Tensors of another library, as torch has them: queries, keys and values of a model that runs elsewhere come in, what attention sums
// up to goes out. A tensor is (batch, heads, tokens, D) in f32, f16 or bf16, with channels side by side and any strides before them; it is
// read and written where it lies. One CTA of D threads per row and head; a row is a token of a sequence that is no padding.
#include "pages.cuh"

enum TensorNumber { TENSOR_F32, TENSOR_F16, TENSOR_BF16 };
struct Tensor {
    u8* data;
    long long batch, head, token;  // strides, in numbers
    int number, zero;
    DEVICE u64 at(int2 place, int h, int c) const { return place.x * batch + h * head + place.y * token + c; }
    DEVICE float read(u64 at) const {
        if (number == TENSOR_F32) return reinterpret_cast<const float*>(data)[at];
        const u16 x = reinterpret_cast<const u16*>(data)[at];
        return number == TENSOR_F16 ? f16_to_f32(x) : __int_as_float((u32)x << 16);
    }
    DEVICE void write(u64 at, u16 half) const {
        const u32 bits = __float_as_uint(f16_to_f32(half));
        if (number == TENSOR_F32) reinterpret_cast<u32*>(data)[at] = bits;
        else if (number == TENSOR_F16) reinterpret_cast<u16*>(data)[at] = half;
        else reinterpret_cast<u16*>(data)[at] = (bits << 1) > 0xff000000u ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // NaN; to nearest, ties to even
    }
};

struct FromTensorsParams {
    Tensor q, k, v;
    const int2* places;      // (rows): batch and token
    u16* queries;            // (rows, heads, D) f16
    u8* pages;               // page memory
    const PageEntry* exact;  // (rows, kv_heads, exact_stride)
    const int4* targets;     // (rows): row of `exact`, exact page, token of it
    int* refused;            // the largest 1 + row whose numbers f16 does not hold; may be memory of the host
    int heads, kv_heads, exact_stride;  // no heads: keys and values alone; no kv heads: queries alone
};
// Queries as f16 rows, keys and values into the exact pages of their tokens. Grid: (rows, heads and twice the kv heads).
template <int D>
DEVICE void from_tensors(const FromTensorsParams& p) {
    const int row = blockIdx.x, h = blockIdx.y, c = threadIdx.x, kv = h - p.heads;
    const bool is_query = kv < 0, is_value = kv >= p.kv_heads;
    const Tensor& from = is_query ? p.q : is_value ? p.v : p.k;
    pdl_wait();
    pdl_trigger();
    const int2 place = __ldg(p.places + row);
    const int own = is_query ? h : is_value ? kv - p.kv_heads : kv;
    const u16 y = f32_to_f16(from.read(from.at(place, own, c)));
    if (!(fabsf(f16_to_f32(y)) <= 65504.f)) atomicMax(p.refused, 1 + row);
    if (is_query) {
        p.queries[((u64)row * p.heads + h) * D + c] = y;
        return;
    }
    const int4 target = __ldg(p.targets + row);
    const PageEntry entry = __ldg(p.exact + ((u64)target.x * p.kv_heads + own) * p.exact_stride + target.y);
    u16* page = reinterpret_cast<u16*>(p.pages + (u64)(is_value ? entry.y : entry.x) * UNIT);
    page[is_value ? Exact<D>::value_at(target.z, c) : Exact<D>::key_at(target.z, c)] = y;
}
#define FROM_TENSORS(NAME, D) \
    extern "C" __global__ void __launch_bounds__(D) NAME(const __grid_constant__ FromTensorsParams p) { from_tensors<D>(p); }
FROM_TENSORS(from_tensors_d64, 64)
FROM_TENSORS(from_tensors_d80, 80)
FROM_TENSORS(from_tensors_d96, 96)
FROM_TENSORS(from_tensors_d128, 128)
FROM_TENSORS(from_tensors_d192, 192)
FROM_TENSORS(from_tensors_d256, 256)
FROM_TENSORS(from_tensors_d512, 512)

struct ToTensorParams {
    const u16* x;        // (rows, heads, D) f16
    Tensor y;
    const int2* places;  // (rows)
    int heads;
};
// Grid: (rows, heads); as many threads as channels.
extern "C" __global__ void __launch_bounds__(512) to_tensor(const __grid_constant__ ToTensorParams p) {
    const int row = blockIdx.x, h = blockIdx.y, c = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const u16 x = __ldcg(p.x + ((u64)row * p.heads + h) * blockDim.x + c);
    p.y.write(p.y.at(__ldg(p.places + row), h, c), x);
}
