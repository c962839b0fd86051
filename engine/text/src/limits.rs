//! Limits of tokenizers and templates.

use std::time::Duration;

/// Maximum size of `tokenizer.json` in bytes. The largest published ones have about 35 MB.
pub(super) const TOKENIZER_BYTES_MAX: usize = 128 << 20;

/// Maximum number of token ids. Published vocabularies stay below 300,000.
pub(super) const VOCAB_SIZE_MAX: usize = 1 << 22;

/// Maximum number of values in a `tokenizer.json`. Each takes some hundred bytes while the file is read. The
/// largest published ones have 2 million.
pub(super) const VALUES_MAX: usize = 6 << 20;

/// Maximum number of characters of file content that an error quotes.
pub(super) const FOUND_CHARS_MAX: usize = 200;

/// Maximum length in bytes of a text that is tokenized at once: more than a million tokens.
pub(super) const TEXT_BYTES_MAX: usize = 5 << 20;

/// Maximum memory in bytes for tokenizing a text, by the estimates below.
pub(super) const ENCODE_BYTES_MAX: usize = 960 << 20;

/// Minimum estimate in bytes at which an encoding checks that its memory is available.
pub(super) const PROBE_BYTES_MIN: usize = 1 << 20;

/// Memory that the tokenizer library holds, in bytes: per byte of text, per word while a text is split, per
/// word afterwards, and per byte of the longest word.
pub(super) const BYTES_PER_TEXT_BYTE: usize = 40;
pub(super) const BYTES_PER_SPLIT: usize = 360;
pub(super) const BYTES_PER_WORD: usize = 320;
pub(super) const BYTES_PER_WORD_BYTE: usize = 80;

/// Time limit for tokenizing a text: a base, and an addition per MiB. A slow machine tokenizes one MiB per
/// second.
pub(super) const ENCODE_TIME: Duration = Duration::from_secs(5);
pub(super) const ENCODE_TIME_PER_MIB: Duration = Duration::from_secs(15);

/// Number of matches and words between two checks of the clock and of cancellation.
pub(super) const STEPS_BETWEEN_LOOKS: u32 = 16;

/// Maximum size of a template in bytes.
pub(super) const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of parts of one kind, including those inside sequences.
pub(super) const PARTS_MAX: usize = 32;

/// Maximum nesting of sequences.
pub(super) const DEPTH_MAX: usize = 3;

/// Maximum length in bytes of a regular expression. GPT-4o's has 300.
pub(super) const PATTERN_BYTES_MAX: usize = 2048;

/// Maximum number of look-around groups and back-references in a regular expression. Each splits the
/// expression into parts with separate automata.
pub(super) const LOOKS_MAX: usize = 16;

/// Maximum number of automata that the regular expressions of one kind of parts may compile to. Look-around
/// groups and alternatives each add one. Published tokenizers have at most 40.
pub(super) const AUTOMATA_MAX: usize = 96;

/// Maximum size in bytes of one automaton of a regular expression.
pub(super) const AUTOMATON_BYTES_MAX: usize = 4 << 20;

/// Maximum number of backtracking steps per match. Matches of published tokenizers take a few.
pub(super) const BACKTRACKS_MAX: usize = 1_000_000;

/// Maximum length in bytes of a text that a part searches for or inserts.
pub(super) const WORD_BYTES_MAX: usize = 256;

/// Maximum factor by which all replacements together may lengthen a text.
pub(super) const GROWTH_MAX: usize = 64;

/// Maximum number of pieces, and of ids in total, of a template for special tokens.
pub(super) const TEMPLATE_PIECES_MAX: usize = 64;

/// Limits of added tokens: their number, their total length and the length of one in bytes. One automaton
/// searches for all of them and restarts at the start of each.
pub(super) const ADDED_MAX: usize = 1 << 16;
pub(super) const ADDED_BYTES_MAX: usize = 1 << 20;
pub(super) const ADDED_TEXT_BYTES_MAX: usize = 1 << 10;
