//! Words on a line: wrapped at the right edge, with bold, slanted and code letters where Markdown has them.

use unicode_width::UnicodeWidthChar;

/// Codes of terminals for a style: on and off.
const BOLD: (&str, &str) = ("\x1b[1m", "\x1b[22m");
const ITALIC: (&str, &str) = ("\x1b[3m", "\x1b[23m");
const CODE: (&str, &str) = ("\x1b[36m", "\x1b[39m");

/// Text that flows.
#[derive(Debug, Default)]
pub(super) struct Flow {
    width: usize,
    is_styled: bool,
    /// Where the cursor is.
    column: usize,
    /// Where lines after the first begin.
    indent: usize,
    /// Blanks before the word.
    spaces: usize,
    /// The word that is being spelt, codes included, and its width without them.
    word: String,
    word_width: usize,
    /// A star of which it is not known yet what it means.
    star: bool,
    /// What came before that: a letter or digit.
    after_letter: bool,
    is_bold: bool,
    is_italic: bool,
    is_code: bool,
}

impl Flow {
    pub(super) fn new(width: usize, is_styled: bool) -> Self {
        Self { width, is_styled, ..Self::default() }
    }

    /// Begins a paragraph or an item after `mark`, which takes as many columns as it has letters; later lines stand below what
    /// follows it.
    pub(super) fn begin(&mut self, mark: &str, shown: &str, out: &mut String) {
        out.push_str(shown);
        self.column = mark.chars().count();
        self.indent = if self.column < self.width / 2 { self.column } else { 0 };
        self.after_letter = false;
    }

    /// Takes a letter that is not a line break.
    pub(super) fn letter(&mut self, letter: char, out: &mut String) {
        if !self.is_styled {
            return self.plain(letter, out);
        }
        if std::mem::take(&mut self.star) {
            if letter == '*' {
                return self.toggle(Style::Bold);
            }
            let opens = !letter.is_whitespace() && !self.after_letter;
            match self.is_italic || opens {
                true => self.toggle(Style::Italic),
                false => self.plain('*', out),
            }
        }
        match letter {
            '`' => self.toggle(Style::Code),
            '*' if !self.is_code => self.star = true,
            other => self.plain(other, out),
        }
    }

    fn toggle(&mut self, style: Style) {
        let (is_on, (on, off)) = match style {
            Style::Bold => (&mut self.is_bold, BOLD),
            Style::Italic => (&mut self.is_italic, ITALIC),
            Style::Code => (&mut self.is_code, CODE),
        };
        *is_on = !*is_on;
        self.word.push_str(if *is_on { on } else { off });
        self.after_letter = !*is_on;
    }

    fn plain(&mut self, letter: char, out: &mut String) {
        self.after_letter = letter.is_alphanumeric();
        match letter {
            ' ' => {
                self.flush(out);
                self.spaces += 1;
            }
            '\t' => {
                self.flush(out);
                self.spaces += 4;
            }
            // A terminal would obey it.
            control if control.is_control() => {}
            letter => {
                let width = letter.width().unwrap_or(0);
                // Wide letters may be parted anywhere.
                if width == 2 {
                    self.flush(out);
                }
                self.word.push(letter);
                self.word_width += width;
                if width == 2 {
                    self.flush(out);
                }
            }
        }
    }

    /// Writes the word that was spelt, on a new line if this one is full.
    fn flush(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if self.word_width > 0
            && self.column + self.spaces + self.word_width > self.width
            && self.column > self.indent
        {
            out.push('\n');
            out.push_str(&" ".repeat(self.indent));
            (self.column, self.spaces) = (self.indent, 0);
        }
        out.push_str(&" ".repeat(self.spaces));
        out.push_str(&self.word);
        self.column += self.spaces + self.word_width;
        (self.spaces, self.word_width) = (0, 0);
        self.word.clear();
    }

    /// Ends the line, or the text: whatever is open is closed.
    pub(super) fn end(&mut self, out: &mut String) {
        if std::mem::take(&mut self.star) {
            match self.is_italic {
                true => self.toggle(Style::Italic),
                false => self.plain('*', out),
            }
        }
        for (is_open, style) in
            [(self.is_bold, Style::Bold), (self.is_italic, Style::Italic), (self.is_code, Style::Code)]
        {
            if is_open {
                self.toggle(style);
            }
        }
        self.flush(out);
        (self.column, self.indent, self.spaces) = (0, 0, 0);
        self.after_letter = false;
    }
}

#[derive(Clone, Copy)]
enum Style {
    Bold,
    Italic,
    Code,
}
