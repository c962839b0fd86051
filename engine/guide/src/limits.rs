//! Limits on guides. Schemas and grammars are untrusted input.

use llguidance::api::ParserLimits;

/// Maximum length of a JSON schema in bytes of text.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;

/// Maximum length of a grammar in bytes.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// Maximum number of rules in a grammar in GBNF.
pub const GBNF_RULES_MAX: usize = 4096;

/// Maximum nesting of rules in a grammar in GBNF, which the grammar engine compiles recursively.
pub const GBNF_NESTING_MAX: usize = 128;

/// Maximum number of rules and terminals in a grammar in Lark's syntax. The grammar engine compiles definitions
/// that refer to each other recursively.
pub const LARK_DEFINITIONS_MAX: usize = 1024;

/// Maximum number of brackets that are opened in a grammar in Lark's syntax, which it compiles recursively as well.
pub const LARK_BRACKETS_MAX: usize = 8192;

/// Stack in bytes for the compilation of a grammar, which a chain of the most definitions and brackets fits.
#[cfg(not(target_family = "wasm"))]
pub(crate) const COMPILE_STACK_BYTES: usize = 64 << 20;

/// Maximum length of a regular expression in bytes.
pub const REGEX_BYTES_MAX: usize = 16 << 10;

/// Maximum number of choices.
pub const CHOICES_MAX: usize = 1024;
/// Maximum total length of all choices in bytes.
pub const CHOICE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of tools in a tool guide.
pub const TOOLS_MAX: usize = 1024;

/// Maximum nesting of a schema, and of the brackets of a grammar or regular expression, which are parsed
/// recursively.
pub const DEPTH_MAX: usize = 64;

/// Maximum number of repetitions in a regular expression, a grammar or a schema's `minItems` and similar
/// keywords. Each repetition may become a symbol.
pub const REPEAT_MAX: u64 = 10_000;

/// Maximum `maxLength` that is enforced, in characters. The grammar engine's lexer has several states for each
/// counted character, and up to 50,000 in all.
pub const COUNTED_LENGTH_MAX: u64 = 4096;

/// Maximum `maxLength` of a text in a schema, in characters.
pub const LENGTH_MAX: u64 = 1 << 20;

/// Maximum common multiple of the `multipleOf` that apply to one value. Its automaton has a state for each
/// remainder.
pub const MULTIPLE_MAX: u64 = 100_000;

/// Maximum number of patterns that apply to one value: their automaton has up to the product of their states.
pub const CONJOINED_PATTERNS_MAX: usize = 8;

/// Maximum number of digits in a row in a number, where the schema has no longer one and the grammar allows to end
/// it. Integers of 64 bits and the shortest text of each float fit.
pub const NUMBER_DIGITS: usize = 20;

/// Maximum number of digits in an exponent.
pub const EXPONENT_DIGITS: usize = 2;

/// Part of an answer's limit on tokens in which JSON is closed, one in so many, up to [`CLOSING_TOKENS`].
pub const CLOSING_SHARE: usize = 8;

/// Maximum number of tokens before an answer's limit in which JSON is closed.
pub const CLOSING_TOKENS: usize = 64;

/// Maximum number of characters in a part of a GBNF grammar that becomes one terminal, repetitions included.
pub(crate) const TERMINAL_CHARS_MAX: u64 = 20_000;

/// Maximum number of nodes, and of characters and classes, in a GBNF grammar whose terminals are chosen by
/// analysis. Beyond it each character is a terminal.
pub(crate) const LEXED_NODES_MAX: usize = 8192;
pub(crate) const LEXED_POSITIONS_MAX: usize = 2048;
/// Maximum number of updates of a node's first and last positions in that analysis.
pub(crate) const LEXED_UPDATES_MAX: usize = 200_000;
/// Maximum number of transitions between positions, and of pairs of transitions, in that analysis.
pub(crate) const LEXED_EDGES_MAX: usize = 200_000;
pub(crate) const LEXED_PAIRS_MAX: usize = 4_000_000;

/// Maximum number of parts that are visited or copied while a schema is rewritten for the grammar engine.
pub(crate) const REWRITE_PARTS_MAX: u64 = 50_000;

/// Maximum nesting of a schema during rewriting.
pub(crate) const REWRITE_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// Maximum length in bytes of a token that a grammar sees. Longer tokens are never chosen under a constraint.
pub(crate) const TOKEN_BYTES_MAX: usize = 512;

/// Maximum total length of a vocabulary's tokens in bytes. Each byte may become a node of the trie, which
/// holds up to 2^22.
pub(crate) const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 1024;

/// Maximum length of a quoted reason in characters. A library's message may be as long as the grammar.
pub(crate) const REASON_CHARS_MAX: usize = 400;

/// Maximum number of compiled grammars that a guide caches, one for each vocabulary and form of tool calls.
pub(crate) const COMPILED_MAX: usize = 4;

/// Work limit for the first transitions of a grammar's lexer, in the grammar engine's units of about 100 ns.
pub(crate) const COMPILE_FUEL: u64 = 1_000_000;

/// Returns the limits on work and memory of one grammar. A grammar that exceeds them is rejected, or its
/// generation ends with an error.
pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // Each state takes 1 to 2 kB.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
