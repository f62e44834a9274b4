//! Text in columns. Cells may come from files: they pass through [`shown::cell`].

use crate::shown;
use std::io::{self, Write};

/// A column by its heading, and the side its cells stand on.
#[derive(Clone, Copy)]
pub enum Column<'h> {
    /// Words.
    Left(&'h str),
    /// Numbers.
    Right(&'h str),
}

/// How dark the ground of a cell is, from 0 (as the terminal has it) to 5.
pub type Shade = u8;

/// Grounds from the faintest to the strongest, in the 256 colours of terminals; white or black letters on them.
const GROUNDS: [&str; 5] =
    ["48;5;230;38;5;16", "48;5;222;38;5;16", "48;5;214;38;5;16", "48;5;202;38;5;16", "48;5;160;38;5;231"];

/// Rows of cells.
pub struct Table {
    /// For each column, whether it stands to the right; columns beyond these stand to the left.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    /// Shades of the cells of a row, by its number.
    shades: Vec<(usize, Vec<Shade>)>,
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
            shades: Vec::new(),
        }
    }

    /// A table without headings, all of words.
    pub fn plain() -> Self {
        Self { right: Vec::new(), rows: Vec::new(), shades: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| shown::cell(&cell)).collect());
    }

    /// Adds a row whose cells have a ground of their own. For terminals only: elsewhere the codes would be in the way.
    pub fn shaded_row(&mut self, cells: impl IntoIterator<Item = (String, Shade)>) {
        let (cells, shades): (Vec<String>, Vec<Shade>) =
            cells.into_iter().map(|(cell, shade)| (shown::cell(&cell), shade)).unzip();
        self.shades.push((self.rows.len(), shades));
        self.rows.push(cells);
    }

    fn shade(&self, row: usize, column: usize) -> Shade {
        let shades = self.shades.iter().find(|(number, _)| *number == row);
        shades.and_then(|(_, shades)| shades.get(column)).copied().unwrap_or(0)
    }

    /// Writes it, each line after `indent` spaces.
    pub fn write(&self, out: &mut dyn Write, indent: usize) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = " ".repeat(indent);
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let padded = match self.right.get(column) {
                    Some(true) => format!("{cell:>width$}"),
                    _ => format!("{cell:<width$}"),
                };
                match self.shade(number, column) {
                    0 => line.push_str(&padded),
                    shade => {
                        let ground = GROUNDS[usize::from(shade).min(GROUNDS.len()) - 1];
                        line.push_str(&format!("\x1b[{ground}m{padded}\x1b[0m"));
                    }
                }
                line.push_str("  ");
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
    fn shades_surround_the_cell_and_change_no_width() {
        let mut table = Table::new(&[Column::Right("a"), Column::Right("bb")]);
        table.shaded_row([("1".to_owned(), 0), ("2".to_owned(), 5)]);
        let mut out = Vec::new();
        table.write(&mut out, 0).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a  bb\n1  \x1b[48;5;160;38;5;231m 2\x1b[0m\n");
    }

    /// The formatter of the standard library panics at 65,536.
    #[test]
    fn a_cell_of_65536_letters_is_no_panic() {
        let mut table = Table::new(&[Column::Left("name"), Column::Right("size")]);
        table.row(["x".repeat(65_536), "y".repeat(70_000)]);
        table.row(["short\x1b[2J".to_owned(), "1".to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out, 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.len() < 4000 && !text.contains('\x1b') && text.contains('…'), "{text}");
    }

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
