
// Tiles of all tokens, one after another.
const GROUPED = false;

struct TokenTile {
    first: u32,
    end: u32,
    row: u32,
}

fn tile_at(number: u32, size: u32) -> TokenTile {
    return TokenTile(number * size, a.tokens, 0u);
}

fn visit(token: u32) -> u32 {
    return token;
}
