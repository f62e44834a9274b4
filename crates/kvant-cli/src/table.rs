//! Text in columns.

use std::io::{self, Write};

/// Rows of cells. Columns of numbers stand to the right, all others to the left.
pub struct Table {
    headings: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { headings: 1, rows: vec![headings.iter().map(|text| (*text).to_owned()).collect()] }
    }

    /// A table without headings.
    pub fn plain() -> Self {
        Self { headings: 0, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes it, each line after `indent` spaces.
    pub fn write(&self, out: &mut dyn Write, indent: usize) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let is_number = |column: usize| {
            let mut cells = self.rows[self.headings..].iter().filter_map(|row| row.get(column));
            cells.all(|cell| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let layout: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), is_number(c))).collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, (width, is_number)) in row.iter().zip(&layout) {
                let padding = " ".repeat(width - cell.chars().count());
                let (left, right) = if *is_number { (padding.as_str(), "") } else { ("", padding.as_str()) };
                line.push_str(&format!("{left}{cell}{right}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "size", "note"]);
        table.row(["é", "5", "8 bits"].map(String::from));
        table.row(["longer", "1000", "none"].map(String::from));
        let mut out = Vec::new();
        table.write(&mut out, 2).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  name    size  note\n  é          5  8 bits\n  longer  1000  none\n"
        );
    }
}
