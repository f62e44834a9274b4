//! Text in columns.

use std::io::{self, Write};

/// Rows of cells; numbers to the right, everything else to the left.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|text| (*text).to_owned()).collect()] }
    }

    /// A table without headings.
    pub fn plain() -> Self {
        Self { rows: Vec::new() }
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
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, width) in row.iter().zip(&widths) {
                let padding = " ".repeat(width - cell.chars().count());
                let is_number = cell.starts_with(|c: char| c.is_ascii_digit());
                let (left, right) = if is_number { (padding.as_str(), "") } else { ("", padding.as_str()) };
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
        let mut table = Table::new(&["name", "size"]);
        table.row(["é".to_owned(), "5".to_owned()]);
        table.row(["longer".to_owned(), "1000".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out, 2).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  name    size\n  é          5\n  longer  1000\n");
    }
}
