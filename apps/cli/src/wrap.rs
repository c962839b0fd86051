//! Breaks streamed prose at words instead of at the terminal's edge.

/// Holds back the word that is being written until it is known to fit on the line.
#[derive(Debug)]
pub struct Wrap {
    width: usize,
    /// Spaces before a line that goes on where another was broken.
    indent: usize,
    column: usize,
    word: String,
    /// White space before the word, dropped where the line is broken.
    space: String,
}

impl Wrap {
    /// For lines of so many columns; 0 never breaks.
    pub fn new(width: usize) -> Self {
        Self { width, indent: 0, column: 0, word: String::new(), space: String::new() }
    }

    /// The same where so many columns stand on the line already, and others go on further right.
    pub fn hanging(width: usize, column: usize, indent: usize) -> Self {
        Self { indent, column, ..Self::new(width) }
    }

    /// More text; gives back what can be shown.
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

    /// What was held back.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.place(&mut out);
        out + &std::mem::take(&mut self.space)
    }

    /// Writes the word that is complete, on a new line if it does not fit.
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
        // A word longer than a line was broken by the terminal.
        if self.width > 0 && self.column > self.width {
            self.column = (self.column - 1) % self.width + 1;
        }
        self.word.clear();
        self.space.clear();
    }
}

/// Narrower terminals are left to break lines where they like.
const WIDTH_MIN: usize = 20;

/// Where a narrow terminal goes on with a line of two columns.
const NARROW_INDENT: usize = 4;

/// Lines broken between words. What is broken goes on below its own beginning, or below the second
/// column of a line that has two.
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

/// Text behind a label of so many columns: all of it stays to the right of the label, so that
/// nothing in it looks like a label.
pub fn labelled(label: usize, text: &str, width: usize) -> String {
    let width = if width < WIDTH_MIN { 0 } else { width };
    let lines = text.split('\n').map(|line| {
        let mut wrap = Wrap::hanging(width, label, label);
        wrap.add(line) + &wrap.finish()
    });
    lines.collect::<Vec<_>>().join(&format!("\n{}", " ".repeat(label)))
}

/// Columns on the screen, near enough: wide characters of East Asia count twice, colours not.
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
