// Exact pages to pages of any codec, as kvant-codec writes them: what all encoders share.
//
// A job is a page of one side and kv head: its exact rows go into the codec's basis in memory of the job's own, then into scales and codes. The order of
// sums is the CPU's, and so are pages to the byte, in the model's basis, in Walsh-Hadamard ones and in those of a plan; a Fourier basis is a matrix here,
// whose sums have another order: a number in the middle between two codes may get the other one.
#pragma once
#include "trellis.cuh"

struct GeneralEncodeParams {
    u8* pages;                    // page memory
    const uint4* jobs[2];         // keys, values: exact page and page of codes by unit, kv head
    const PageForm* forms;        // (kv_heads, keys and values)
    const PageForm* exact_forms;  // (keys and values)
    const TrellisTables* tables;
    int* refused;                 // the largest 1 + job whose numbers cannot be stored
    float* room;                  // (jobs of the launch, 2, room_floats)
    u64 room_floats;
    int counts[2];                // jobs
    int first, part;              // the first job of the launch; which part of pages it makes
};
constexpr int ENCODING_THREADS = 256, ENCODING_WARPS = ENCODING_THREADS / WARP;
constexpr int ENCODED_DIM = 512, ENCODED_TOKENS = 128;

// Memory of a job, rows of whole 16 channels.
struct EncodeRoom {
    float *rows, *inverse, *zero, *channel_inverse, *channel_zero;  // (tokens, stride); (groups, tokens) twice; (stride) twice
    u8* codes;                                                       // (tokens, stride), or a word for every token and 16 channels
    int stride;
    DEVICE EncodeRoom(float* room, const PageForm& form) {
        stride = (form.dim + 15) / 16 * 16;
        const int factors = form.tokens * stride / 16;
        rows = room, inverse = rows + form.tokens * stride, zero = inverse + factors;
        channel_inverse = zero + factors, channel_zero = channel_inverse + stride;
        codes = reinterpret_cast<u8*>(channel_zero + stride);
    }
};
struct EncodeJob {
    int number;  // below zero: none
    uint4 job;
    const PageForm* form;
    float* room;
    DEVICE EncodeJob(const GeneralEncodeParams& p, int at, int side) {
        number = p.first + at;
        if (number >= p.counts[side]) number = -1;
        if (number < 0) return;
        job = __ldg(p.jobs[side] + number);
        form = p.forms + 2 * job.z + side;
        room = p.room + (2 * (u64)at + side) * p.room_floats;
    }
};

DEVICE float rounded_as(float x, int bytes) { return bytes == 2 ? f16_to_f32(f32_to_f16(x)) : x; }
DEVICE bool stores(float x, int bytes) { return fabsf(x) <= (bytes == 2 ? 65504.f : 1e30f); }  // false for NaN
DEVICE void store_number(u8* to, int i, int bytes, float x) {
    const u32 word = bytes == 2 ? (u32)f32_to_f16(x) : __float_as_uint(x);
    for (int b = 0; b < bytes; b++) to[bytes * i + b] = (u8)(word >> 8 * b);
}
DEVICE float reciprocal_of(float scale) { return fabsf(scale) > 1.17549435e-38f ? over(1.f, scale) : 0.f; }
