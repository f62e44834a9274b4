
// Tiles of visits that share an expert: what `group.wgsl` wrote.
const GROUPED = true;

@group(0) @binding(5) var<storage, read> list: array<u32>;

struct TokenTile {
    first: u32,
    end: u32,
    // The first row of its expert's matrix.
    row: u32,
}

// Nothing for those behind the last.
fn tile_at(number: u32, size: u32) -> TokenTile {
    if number >= list[0] {
        return TokenTile(0u, 0u, 0u);
    }
    let at = 2u + 3u * number;
    return TokenTile(list[at], list[at + 1u], list[at + 2u] * a.expert_rows);
}

fn visit(token: u32) -> u32 {
    return list[list[1] + token];
}
