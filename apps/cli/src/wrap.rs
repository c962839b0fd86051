//! Breaks streamed prose at words instead of at the terminal's edge.

/// Holds back the word that is being written until it is known to fit on the line.
#[derive(Debug)]
pub struct Wrap {
    width: usize,
    column: usize,
    word: String,
    /// White space before the word, dropped where the line is broken.
    space: String,
}

impl Wrap {
    /// For lines of so many columns; 0 never breaks.
    pub fn new(width: usize) -> Self {
        Self { width, column: 0, word: String::new(), space: String::new() }
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
        if fits || self.column == 0 {
            out.push_str(&self.space);
            self.column += space + word;
        } else {
            out.push('\n');
            self.column = word;
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

/// Columns on the screen, near enough: wide characters of East Asia count twice.
fn columns(text: &str) -> usize {
    let wide =
        |c: char| matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{ffdc}' | '\u{1f300}'..);
    text.chars().map(|c| if wide(c) { 2 } else { 1 }).sum()
}

#[cfg(test)]
mod tests {
    use super::Wrap;

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
    fn leaves_alone_what_fits_or_cannot_be_broken() {
        assert_eq!(wrap(0, &["a b", "  c\n"]), "a b  c\n");
        assert_eq!(wrap(80, &["  indented\n", "  text "]), "  indented\n  text ");
        assert_eq!(wrap(4, &["abcdefgh ij"]), "abcdefgh\nij");
    }
}
