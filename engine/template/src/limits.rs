//! Every bound of the interpreter.

use std::time::Duration;

/// Longest template that is parsed.
pub(crate) const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Most instructions of a parsed template; the longest published ones have some 3,000.
pub(crate) const INSTRUCTIONS_MAX: usize = 300_000;

/// Most instructions that conditional expressions may move while a template is parsed.
pub(crate) const INSTRUCTIONS_MOVED_MAX: usize = 10_000_000;

/// Deepest nesting of expressions, in operators and brackets that wait for their end.
pub(crate) const EXPRESSION_DEPTH_MAX: usize = 400;

/// Deepest nesting of blocks.
pub(crate) const BLOCK_DEPTH_MAX: usize = 200;

/// Most macros of a template.
pub(crate) const MACROS_MAX: usize = 10_000;

/// Deepest nesting of lists and maps.
pub(crate) const VALUE_DEPTH_MAX: u16 = 200;

/// Deepest nesting of macro calls.
pub(crate) const CALL_DEPTH_MAX: usize = 200;

/// Filters that apply another filter or test to every item, inside each other.
pub(crate) const FILTER_DEPTH_MAX: u32 = 4;

/// Most values that wait for their use: arguments of calls, items of literals.
pub(crate) const STACK_VALUES_MAX: usize = 65_536;

/// Longest range, as in jinja2's sandbox.
pub(crate) const RANGE_ITEMS_MAX: usize = 100_000;

/// Work of one instruction. A unit is about a nanosecond.
pub(crate) const INSTRUCTION_WORK: u64 = 20;

/// Work of making a text or list, with its allocation.
pub(crate) const ALLOCATION_WORK: u64 = 60;

/// Work of copying a value into a list or comparing two.
pub(crate) const ITEM_WORK: u64 = 12;

/// Work of entering and leaving a macro.
pub(crate) const CALL_WORK: u64 = 300;

/// Work between two looks at the clock and at the caller's wish to cancel.
pub(crate) const CHECK_WORK: u64 = 1_000_000;

/// What one rendering may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Bytes that values, output and variables may occupy at a time.
    pub memory_bytes: usize,
    /// Longest output, and longest single text.
    pub text_bytes: usize,
    /// Units of work: about one for every nanosecond of an optimized build.
    pub work: u64,
    /// Wall-clock time.
    pub deadline: Duration,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 48 << 20,
            text_bytes: 16 << 20,
            work: 250_000_000,
            deadline: Duration::from_secs(10),
        }
    }
}
