
// Tiles of rows that share a head, whose matrices lie one after another: row r of head h is row HEADS · r + h.
const GROUPED = true;

struct TokenTile {
    first: u32,
    end: u32,
    // The first row of its head's matrix.
    row: u32,
}

var<private> head: u32;

fn tile_at(number: u32, size: u32) -> TokenTile {
    let rows = a.tokens / HEADS;
    let tiles = (rows + size - 1u) / size;
    head = number / tiles;
    return TokenTile(number % tiles * size, select(0u, rows, head < HEADS), head * a.expert_rows);
}

fn visit(token: u32) -> u32 {
    return min(token, a.tokens / HEADS - 1u) * HEADS + head;
}
