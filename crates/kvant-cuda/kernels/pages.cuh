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
// Where 64 does not divide D, a load has the same step along k of all four tiles of tokens:
//   codes  32D  of 4 bits: [ks][g][t][mt] words;  64D  of 8 bits: [ks][c][g][t][mt] words
// and at an odd number of steps the last one's scales are [t][c][e], and so are its zeros.
// Values (`rot4g32`, `sym8g32`): per token and 32 channels a scale, v = scale*(code-8) or scale*(code-128).
//   codes  32D  of 4 bits: [mt][g][t][ks] words, code 4r+8c+16e bits up
//          64D  of 8 bits: [mt][ks/2][g][t][ks%2][c] words, code 8r+16e bits up
//   scales 128 bytes a group  [group][ks/2][t][ks%2][c][e] f16; the last group may have 16 channels
// Heads of more than 256 channels lie as heads of 128, one after the other: a warp's share is contiguous.
constexpr int part_of(int d) { return d > 256 ? 128 : d; }
template <int D, int BITS>
struct KeyPage {
    static constexpr int SCALE = 0, ZERO = 2 * D, CODES = 4 * D, HALF = CODES + 8 * BITS * D;
    static constexpr bool BY_STEP = D % 64 != 0;  // how codes lie
};
template <int D, int BITS>
struct ValuePage {
    static constexpr int CODES = 0, SCALE = 8 * BITS * D, HALF = SCALE + 128 * ((D + 31) / 32);
};

// Keys of a plan (`klt`): channels in rows of 8 with a width each, 0 to 6 or 8 bits, not rising; k = zero + scale*code in the plan's basis.
//   scales, zeros  [row][t][e] f16 each, of the rows that have codes
//   codes  planes of 4, 2 and 1 bits, the lowest bits first, plane by plane and of a plane row by row: 4 bits of all rows of 4 bits and more, the
//          upper 4 of 8; 2 bits of 6, then of 3 and 2; 1 bit of 5, of 3, of 1. Bits up, of token 16mt+8r+g and channel 2t+e of the row:
//          4 bits  [g][t][mt/2] words, 16e + 8(mt%2) + 4r;  2 bits  [g][t] words, 16e + 8(mt/2) + 4r + 2(mt%2);  1 bit  [g][t] halves, 8e + 4r + mt
// A page of 128 tokens has the codes of its first 64 tokens like this, then those of the others; two entries of a table name it.
struct KeyWidths {        // of one kv head
    int rows, codes;      // rows that have codes; bytes of the codes of 64 tokens
    u8 count[8];          // rows of 1 … 8 bits
    u8 bits[24];          // of every row
    int halves, zero[1];  // 64 tokens that share scales: 1 or 2
};
template <int D>
struct PlannedKeyPage {
    static constexpr int ROWS = D / 8, BYTES = 4 * D + 42 * D;  // at most: 5.25 bits on average
    static DEVICE int scale(int row) { return 16 * row; }
    static DEVICE int zero(int row, int rows) { return 16 * (rows + row); }
    static DEVICE int codes(int rows) { return 32 * rows; }
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
