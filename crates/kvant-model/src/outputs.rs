//! What comes of a pass.

use crate::pass::Wanted;
use crate::rows::Rows;
use crate::top::TopTokens;

/// What a pass gives of a wanted row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Output<'a> {
    /// Its logits, `(vocabulary)`.
    Logits(&'a [f32]),
    /// Its best tokens.
    Top(&'a TopTokens),
    /// Its hidden state after the final norm, `(hidden)`.
    Hidden(&'a [f32]),
}

impl<'a> Output<'a> {
    /// Its logits; none where it came as something else.
    pub fn logits(self) -> &'a [f32] {
        match self {
            Self::Logits(logits) => logits,
            Self::Top(_) | Self::Hidden(_) => &[],
        }
    }

    /// Its hidden state; none where it came as something else.
    pub fn hidden(self) -> &'a [f32] {
        match self {
            Self::Hidden(hidden) => hidden,
            Self::Logits(_) | Self::Top(_) => &[],
        }
    }
}

/// What a pass gives of all wanted rows, chunk after chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    logits: Rows,
    hidden: Option<Rows>,
    /// By row.
    places: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq)]
enum Place {
    /// A row of `logits`.
    Logits(usize),
    Top(TopTokens),
    /// A row of `hidden`.
    Hidden(usize),
}

impl Outputs {
    /// Rows that have come one after another, as their best tokens or else as the next row of `logits`.
    ///
    /// # Panics
    /// When `logits` has not as many rows as there are places for.
    pub fn new(logits: Rows, rows: impl IntoIterator<Item = Option<TopTokens>>) -> Self {
        let mut next = 0..logits.tokens();
        let place = |row: Option<TopTokens>| match row {
            Some(top) => Place::Top(top),
            None => Place::Logits(next.next().expect("a row of logits for every row without a list")),
        };
        let places = rows.into_iter().map(place).collect();
        assert!(next.is_empty(), "rows of logits that belong to no row: {next:?}");
        Self { logits, hidden: None, places }
    }

    /// The same rows, with the hidden states that were wanted in their places among them.
    ///
    /// # Panics
    /// When they are not as many as were wanted.
    #[must_use]
    pub fn with_hidden(self, wanted: &Wanted, hidden: Rows) -> Self {
        assert_eq!(hidden.tokens(), wanted.hidden.len(), "hidden states that nobody wanted");
        let mut places = self.places;
        for (row, &number) in wanted.hidden_numbers.iter().enumerate() {
            places.insert(number, Place::Hidden(row));
        }
        Self { logits: self.logits, hidden: Some(hidden), places }
    }

    /// Number of wanted rows.
    pub fn rows(&self) -> usize {
        self.places.len()
    }

    /// What came of a row.
    pub fn row(&self, row: usize) -> Output<'_> {
        match &self.places[row] {
            Place::Logits(row) => Output::Logits(self.logits.row(*row)),
            Place::Top(top) => Output::Top(top),
            Place::Hidden(row) => Output::Hidden(self.hidden.as_ref().map_or(&[], |rows| rows.row(*row))),
        }
    }

    /// Takes the list of a row, where it came as one.
    pub fn take_top(&mut self, row: usize) -> Option<TopTokens> {
        match self.places.get_mut(row)? {
            Place::Logits(_) | Place::Hidden(_) => None,
            Place::Top(top) => Some(std::mem::take(top)),
        }
    }

    /// All rows that came as logits, `(rows, vocabulary)`.
    pub fn into_logits(self) -> Rows {
        self.logits
    }
}

impl From<Rows> for Outputs {
    fn from(logits: Rows) -> Self {
        let places = (0..logits.tokens()).map(Place::Logits).collect();
        Self { logits, hidden: None, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::{Chunk, Form, Pass};

    #[test]
    fn rows_keep_their_order_whatever_they_come_as() {
        let top = TopTokens { tokens: vec![(7, 1.5)], mass: None };
        let logits = Rows::from_vec(vec![1.0, 2.0, 3.0, 4.0], 2);
        let outputs = Outputs::new(logits.clone(), [None, Some(top.clone()), None]);
        assert_eq!(outputs.rows(), 3);
        assert_eq!(outputs.row(0), Output::Logits(&[1.0, 2.0]));
        assert_eq!((outputs.row(1), outputs.row(1).logits().len()), (Output::Top(&top.clone()), 0));
        assert_eq!(outputs.row(2).logits(), [3.0, 4.0]);
        let mut taken = outputs.clone();
        assert_eq!((taken.take_top(1), taken.take_top(2), taken.take_top(3)), (Some(top), None, None));
        assert_eq!(Outputs::from(logits).row(1).logits(), [3.0, 4.0]);
    }

    #[test]
    fn hidden_states_stand_where_they_were_wanted() {
        let chunks = [
            Chunk::new(&[1, 2], 0..2).form(Form::Hidden),
            Chunk::new(&[3], 0..1),
            Chunk::new(&[4], 0..1).form(Form::Hidden),
        ];
        let wanted = Pass::new(&chunks).wanted();
        let hidden = Rows::from_vec(vec![0.1, 0.2, 0.3], 1);
        let outputs = Outputs::from(Rows::from_vec(vec![9.0], 1)).with_hidden(&wanted, hidden);
        let found: Vec<f32> = (0..4).map(|row| outputs.row(row)).map(|o| o.hidden().iter().sum()).collect();
        assert_eq!((found, outputs.row(2).logits()), (vec![0.1, 0.2, 0.0, 0.3], &[9.0][..]));
    }
}
