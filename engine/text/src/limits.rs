//! Every bound of tokenizers and templates.

use std::time::Duration;

/// Largest `tokenizer.json`; the largest published ones have about 35 MB.
pub(super) const TOKENIZER_BYTES_MAX: usize = 128 << 20;

/// Highest token id plus one; published vocabularies stay below 300,000.
pub(super) const VOCAB_SIZE_MAX: usize = 1 << 22;

/// Values of a `tokenizer.json`, each of which takes some hundred bytes while it is read; the largest published ones
/// have 2 million.
pub(super) const VALUES_MAX: usize = 6 << 20;

/// Characters of what was found in a file that an error repeats.
pub(super) const FOUND_CHARS_MAX: usize = 200;

/// Longest text that is tokenized at once: more than a million tokens.
pub(super) const TEXT_BYTES_MAX: usize = 5 << 20;

/// Bytes that a text may take while it is tokenized, by the estimates below.
pub(super) const ENCODE_BYTES_MAX: usize = 960 << 20;

/// What the tokenizer library holds for a byte of text, for a word while words are made of a text and after that, and
/// for a byte of the longest word.
pub(super) const BYTES_PER_TEXT_BYTE: usize = 40;
pub(super) const BYTES_PER_SPLIT: usize = 360;
pub(super) const BYTES_PER_WORD: usize = 320;
pub(super) const BYTES_PER_WORD_BYTE: usize = 80;

/// Time that any text may take to tokenize, and the time for each MiB of it. A slow machine does a MiB per second.
pub(super) const ENCODE_TIME: Duration = Duration::from_secs(5);
pub(super) const ENCODE_TIME_PER_MIB: Duration = Duration::from_secs(15);

/// Matches and words between two looks at the clock and at the caller's wish to cancel.
pub(super) const STEPS_BETWEEN_LOOKS: u32 = 16;

/// Longest template that is compiled.
pub(super) const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Parts of one kind, those in sequences counted.
pub(super) const PARTS_MAX: usize = 32;

/// Sequences within sequences.
pub(super) const DEPTH_MAX: usize = 3;

/// Bytes of a regular expression; GPT-4o's has 300.
pub(super) const PATTERN_BYTES_MAX: usize = 2048;

/// Groups that look around, and references to groups, of a regular expression: each cuts it into parts with automata
/// of their own.
pub(super) const LOOKS_MAX: usize = 16;

/// Automata that the regular expressions of one kind of parts may be cut into: at their groups that look around, and
/// at their alternatives. Published tokenizers have at most 40.
pub(super) const AUTOMATA_MAX: usize = 96;

/// Bytes of one automaton of a regular expression.
pub(super) const AUTOMATON_BYTES_MAX: usize = 4 << 20;

/// Bytes of a text that a part looks for or puts in.
pub(super) const WORD_BYTES_MAX: usize = 256;

/// How many times longer all replacements together may make a text.
pub(super) const GROWTH_MAX: usize = 64;

/// Pieces of a template for special tokens, and ids of all of them.
pub(super) const TEMPLATE_PIECES_MAX: usize = 64;

/// Added tokens, bytes of their texts, and of one of them: an automaton looks for all of them, from the start of each
/// again.
pub(super) const ADDED_MAX: usize = 1 << 16;
pub(super) const ADDED_BYTES_MAX: usize = 1 << 20;
pub(super) const ADDED_TEXT_BYTES_MAX: usize = 1 << 10;
