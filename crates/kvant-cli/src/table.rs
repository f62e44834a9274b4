//! Text in columns.

use std::io::{self, Write};

/// A column by its heading, and the side its cells stand on.
#[derive(Clone, Copy)]
pub enum Column<'h> {
    /// Words.
    Left(&'h str),
    /// Numbers.
    Right(&'h str),
}

/// Rows of cells.
pub struct Table {
    /// For each column, whether it stands to the right; columns beyond these stand to the left.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[Column<'_>]) -> Self {
        let heading = |column: &Column<'_>| match *column {
            Column::Left(text) | Column::Right(text) => text.to_owned(),
        };
        Self {
            right: columns.iter().map(|column| matches!(column, Column::Right(_))).collect(),
            rows: vec![columns.iter().map(heading).collect()],
        }
    }

    /// A table without headings, all of words.
    pub fn plain() -> Self {
        Self { right: Vec::new(), rows: Vec::new() }
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
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let padded = match self.right.get(column) {
                    Some(true) => format!("{cell:>width$}  "),
                    _ => format!("{cell:<width$}  "),
                };
                line.push_str(&padded);
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Table};

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[Column::Left("name"), Column::Right("size"), Column::Left("note")]);
        table.row(["é", "5", "8 bits"].map(String::from));
        table.row(["longer", "1000", "4 bits"].map(String::from));
        let mut out = Vec::new();
        table.write(&mut out, 2).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  name    size  note\n  é          5  8 bits\n  longer  1000  4 bits\n"
        );
    }
}
