//! Every limit on what a caller asks answers to look like: schemas and grammars are as hostile as any other input.

use llguidance::api::ParserLimits;

/// Longest JSON schema, as text.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;

/// Longest grammar.
pub const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// Longest regular expression.
pub const REGEX_BYTES_MAX: usize = 16 << 10;

/// Most choices, and the bytes of all together.
pub const CHOICES_MAX: usize = 1024;
/// Most bytes of all choices together.
pub const CHOICE_BYTES_MAX: usize = 64 << 10;

/// Most tools that calls are constrained to.
pub const TOOLS_MAX: usize = 128;

/// Deepest nesting of a schema, and of the brackets of a grammar or regular expression: they are read recursively.
pub const DEPTH_MAX: usize = 64;

/// Largest number of repetitions in a regular expression, a grammar or a schema's `minItems` and the like: each may
/// become a symbol.
pub const REPEAT_MAX: u64 = 10_000;

/// Largest common multiple of the `multipleOf` that apply to one value: its automaton has a state for each remainder.
pub const MULTIPLE_MAX: u64 = 100_000;

/// Maximum number of patterns that apply to one value: their automaton has up to the product of their states.
pub const CONJOINED_PATTERNS_MAX: usize = 8;

/// Most parts that are looked at or copied where a schema is rewritten for the grammar engine.
pub(crate) const REWRITE_PARTS_MAX: u64 = 50_000;

/// Deepest nesting of a schema as it is rewritten.
pub(crate) const REWRITE_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// Longest token that a grammar sees; longer ones are never chosen under a constraint.
pub(crate) const TOKEN_BYTES_MAX: usize = 512;

/// Most bytes of a vocabulary's tokens, of which each may become a node of the trie, which has room for 2^22.
pub(crate) const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 1024;

/// Longest reason that is passed on: a library's words may be as long as the grammar.
pub(crate) const REASON_CHARS_MAX: usize = 400;

/// Compiled grammars that a guide keeps, one for each vocabulary and form of tool calls.
pub(crate) const COMPILED_MAX: usize = 4;

/// Work on the first transitions of a grammar's lexer, in the grammar engine's units of about 100 ns.
pub(crate) const COMPILE_FUEL: u64 = 1_000_000;

/// Work and memory of one grammar; beyond, it is refused, or its generation ends with an error.
pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // At 1 to 2 kB each.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
