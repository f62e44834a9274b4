// What a page looks like on the device. src/layout has the same rules in Rust, and the way from and to the canonical layout.
//
// A *half page* is one side of 64 tokens of one kv head; it lies anywhere in the page memory at a multiple of UNIT bytes, and a
// page table has its number in units. Orders below go from the slowest index to the fastest; a lane is 4g+t.
#pragma once
#include "device.cuh"

constexpr int PAGE_TOKENS = 64;
constexpr int UNIT = 128;  // bytes: a line of L2; pages that begin inside one cost 7 % of the time at 128k

// int4 keys (`ch4`): per channel a scale and a zero, k = zero + scale*code.        36 D bytes
//   scales  2D  [ks/2][t][ks%2][c][e] f16, channel = 16ks+8c+2t+e
//   zeros   2D  [ks/2][t][c][ks%2][e] f16
//   codes  32D  [mt][ks/4][g][t][ks%4] words; token = 16mt+8r+g, channel = 16ks+8c+2t+e, code 4r+8c+16e bits up
// int4 values (`rot4g32`): per token and 32 channels a scale, v = scale*(code-8).  36 D bytes
//   codes  32D  [mt][g][t][ks] words; channel = 16mt+8r+g, token = 16ks+8c+2t+e, code 4r+8c+16e bits up
//   scales  4D  [group][ks/2][t][ks%2][c][e] f16, token = 16ks+8c+2t+e
// Both halves side by side in shared memory are one stage of the ring: every 16-byte load of a lane is four words of A fragments,
// or four pairs of scales as B fragments want them.
template <int D>
struct Int4 {
    static constexpr int HALF = 36 * D;
    static constexpr int K_SCALE = 0, K_ZERO = 2 * D, K_CODES = 4 * D;
    static constexpr int V_CODES = HALF, V_SCALE = HALF + 32 * D;
    static constexpr int BYTES = 2 * HALF;
};

// f16, either side: tiles of 16 tokens, 32 D bytes each, so that a tile is one contiguous copy.
//   keys    [tile][ks][lane][j] words: token = 16tile + 8(j%2) + g, channels 16ks + 8(j/2) + 2t, +1
//   values  [tile][mt][lane][j] words: channel = 16mt + 8(j%2) + g, tokens 16tile + 8(j/2) + 2t, +1
template <int D>
struct Exact {
    static constexpr int TOKENS = 16;  // of a tile
    static constexpr int TILE = 32 * D;
    static constexpr int HALF = 4 * TILE;
    static DEVICE int key_at(int token, int channel) {  // in halves, from the half page's start
        const int tile = token / 16, r = token / 8 % 2, g = token % 8;
        const int ks = channel / 16, c = channel / 8 % 2, t = channel / 2 % 4, e = channel % 2;
        return tile * (TILE / 2) + ks * 256 + (4 * g + t) * 8 + (2 * c + r) * 2 + e;
    }
    static DEVICE int value_at(int token, int channel) {
        const int tile = token / 16, c = token / 8 % 2, t = token / 2 % 4, e = token % 2;
        const int mt = channel / 16, r = channel / 8 % 2, g = channel % 8;
        return tile * (TILE / 2) + mt * 256 + (4 * g + t) * 8 + (2 * c + r) * 2 + e;
    }
};

// Entries of page tables: which half pages hold the keys and the values.
typedef uint2 PageEntry;
DEVICE const u8* half_page(const u8* memory, u32 unit) { return memory + (u64)unit * UNIT; }
