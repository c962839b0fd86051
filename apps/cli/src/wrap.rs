//! Wraps streamed prose at words instead of at the edge of the terminal.

/// A wrapper that holds back the current word until it is known to fit on the line.
#[derive(Debug)]
pub struct Wrap {
    width: usize,
    /// Indentation of continuation lines in columns.
    indent: usize,
    column: usize,
    word: String,
    /// White space before the word, dropped at a line break.
    space: String,
}

impl Wrap {
    /// Creates a wrapper for lines of `width` columns; 0 disables wrapping.
    pub fn new(width: usize) -> Self {
        Self { width, indent: 0, column: 0, word: String::new(), space: String::new() }
    }

    /// Creates a wrapper for a line on which `column` columns are occupied, with indented continuation lines.
    pub fn hanging(width: usize, column: usize, indent: usize) -> Self {
        Self { indent, column, ..Self::new(width) }
    }

    /// Adds text and returns the part that can be printed.
    pub fn add(&mut self, text: &str) -> String {
        let mut out = String::new();
        for character in text.chars() {
            match character {
                '\n' => {
                    self.place(&mut out);
                    self.space.clear();
                    out.push('\n');
                    self.column = 0;
                }
                ' ' | '\t' => {
                    self.place(&mut out);
                    self.space.push(character);
                }
                _ => self.word.push(character),
            }
        }
        out
    }

    /// Returns the text that was held back.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.place(&mut out);
        out + &std::mem::take(&mut self.space)
    }

    /// Writes the completed word, on a new line if it does not fit.
    fn place(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (space, word) = (columns(&self.space), columns(&self.word));
        let fits = self.width == 0 || self.column + space + word < self.width;
        if fits || self.column <= self.indent {
            out.push_str(&self.space);
            self.column += space + word;
        } else {
            out.push('\n');
            out.push_str(&" ".repeat(self.indent));
            self.column = self.indent + word;
        }
        out.push_str(&self.word);
        // The terminal itself has broken a word longer than a line.
        if self.width > 0 && self.column > self.width {
            self.column = (self.column - 1) % self.width + 1;
        }
        self.word.clear();
        self.space.clear();
    }
}

/// Minimum terminal width in columns for wrapping.
const WIDTH_MIN: usize = 20;

/// Indentation of continuation lines of a two-column line on a narrow terminal.
const NARROW_INDENT: usize = 4;

/// Wraps lines at words. Continuation lines are indented like their line, or like its second column.
pub fn lines(text: &str, width: usize) -> String {
    let wrapped = text.split('\n').map(|line| {
        let width = if width < WIDTH_MIN { 0 } else { width };
        let leading = columns(line) - columns(line.trim_start());
        let second = line.trim_start().find("  ").map(|gap| {
            let rest = &line.trim_start()[gap..];
            columns(line) - columns(rest.trim_start())
        });
        let indent = match second {
            Some(column) if column * 2 < width => column,
            Some(_) => leading + NARROW_INDENT,
            None => leading,
        };
        let mut wrap = Wrap::hanging(width, 0, indent);
        wrap.add(line) + &wrap.finish()
    });
    wrapped.collect::<Vec<_>>().join("\n")
}

/// Wraps text to the right of a label of `label` columns, so that no part of the text can look like a label.
pub fn labelled(label: usize, text: &str, width: usize) -> String {
    let width = if width < WIDTH_MIN { 0 } else { width };
    let lines = text.split('\n').map(|line| {
        let mut wrap = Wrap::hanging(width, label, label);
        wrap.add(line) + &wrap.finish()
    });
    lines.collect::<Vec<_>>().join(&format!("\n{}", " ".repeat(label)))
}

/// Returns the approximate width of a text in columns. Wide East Asian characters count twice, colour codes
/// not at all.
pub fn columns(text: &str) -> usize {
    let wide =
        |c: char| matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{ffdc}' | '\u{1f300}'..);
    let mut is_color = false;
    let of = |c: char| match (c, is_color) {
        ('\x1b', _) => {
            is_color = true;
            0
        }
        (_, true) => {
            is_color = c != 'm';
            0
        }
        _ => 1 + usize::from(wide(c)),
    };
    text.chars().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(width: usize, pieces: &[&str]) -> String {
        let mut wrap = Wrap::new(width);
        let shown: String = pieces.iter().map(|piece| wrap.add(piece)).collect();
        shown + &wrap.finish()
    }

    #[test]
    fn breaks_between_words_however_they_arrive() {
        let expected = "one two\nthree\nfour\n\nfive";
        let text = "one two three four\n\nfive";
        assert_eq!(wrap(10, &[text]), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(wrap(10, &letters), expected);
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(columns("\x1b[1m\x1b[31merror:\x1b[0m 船"), 9);
    }

    #[test]
    fn leaves_alone_what_fits_or_cannot_be_broken() {
        assert_eq!(wrap(0, &["a b", "  c\n"]), "a b  c\n");
        assert_eq!(wrap(80, &["  indented\n", "  text "]), "  indented\n  text ");
        assert_eq!(wrap(4, &["abcdefgh ij"]), "abcdefgh\nij");
    }

    #[test]
    fn what_was_broken_goes_on_below_its_beginning() {
        let text = "The first line is long.\n  The second is indented.\n";
        let expected = "The first line is\nlong.\n  The second is\n  indented.\n";
        assert_eq!(lines(text, 21), expected);
        let table = "/clear    forget the conversation at once";
        let expected = "/clear    forget the\n          conversation at\n          once";
        assert_eq!(lines(table, 27), expected);
        let expected = "/clear    forget\n    the\n    conversation at\n    once";
        assert_eq!(lines(table, 20), expected);
        assert_eq!(lines(text, 0), text);
    }

    #[test]
    fn nothing_in_a_message_looks_like_a_label() {
        let text = "cannot open the file\n  try: evil words";
        let expected = "cannot open the\n       file\n         try: evil\n       words";
        assert_eq!(labelled(7, text, 24), expected);
        assert_eq!(labelled(7, text, 0), "cannot open the file\n         try: evil words");
    }
}
