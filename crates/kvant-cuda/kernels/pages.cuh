// What a page looks like on the device. src/layout has the same rules in Rust, and the way from and to the canonical layout.
//
// A *half page* is one side of 64 tokens of one kv head; it lies anywhere in the page memory at a multiple of UNIT bytes, and a
// page table has its number in units. Orders below go from the slowest index to the fastest; a lane is 4g+t.
#pragma once
#include "device.cuh"

constexpr int PAGE_TOKENS = 64;
constexpr int UNIT = 128;  // bytes: a line of L2; pages that begin inside one cost 7 % of the time at 128k

// Codes lie in the order of A fragments, so that every 16-byte load of a lane is whole fragments; scales in that of B fragments.
// Tokens of keys and channels of values are rows, 16mt+8r+g; channels of keys and tokens of values go along k, 16ks+8c+2t+e.
//
// Keys (`ch4`, `ch8`): per channel a scale and a zero, k = zero + scale*code.
//   scales  2D  [ks/2][t][ks%2][c][e] f16
//   zeros   2D  [ks/2][t][c][ks%2][e] f16
//   codes  32D  of 4 bits: [mt][ks/4][g][t][ks%4] words, code 4r+8c+16e bits up
//          64D  of 8 bits: [mt][ks/2][g][t][ks%2][c] words, code 8r+16e bits up
// Values (`rot4g32`, `sym8g32`): per token and 32 channels a scale, v = scale*(code-8) or scale*(code-128).
//   codes  32D  of 4 bits: [mt][g][t][ks] words, code 4r+8c+16e bits up
//          64D  of 8 bits: [mt][ks/2][g][t][ks%2][c] words, code 8r+16e bits up
//   scales  4D  [group][ks/2][t][ks%2][c][e] f16
template <int D, int BITS>
struct KeyPage {
    static constexpr int SCALE = 0, ZERO = 2 * D, CODES = 4 * D, HALF = CODES + 8 * BITS * D;
};
template <int D, int BITS>
struct ValuePage {
    static constexpr int CODES = 0, SCALE = 8 * BITS * D, HALF = SCALE + 4 * D;
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
