//! Limits of the interpreter.

use std::time::Duration;

/// Maximum size of a template in bytes.
pub(crate) const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of instructions of a parsed template. The longest published ones have about 3,000.
pub(crate) const INSTRUCTIONS_MAX: usize = 300_000;

/// Maximum number of instructions that conditional expressions may move during parsing.
pub(crate) const INSTRUCTIONS_MOVED_MAX: usize = 10_000_000;

/// Maximum nesting of expressions, in pending operators and brackets.
pub(crate) const EXPRESSION_DEPTH_MAX: usize = 400;

/// Maximum nesting of blocks.
pub(crate) const BLOCK_DEPTH_MAX: usize = 200;

/// Maximum number of macros in a template.
pub(crate) const MACROS_MAX: usize = 10_000;

/// Maximum nesting of lists and maps.
pub(crate) const VALUE_DEPTH_MAX: u16 = 200;

/// Maximum nesting of macro calls.
pub(crate) const CALL_DEPTH_MAX: usize = 200;

/// Maximum nesting of filters that apply another filter or test to each item.
pub(crate) const FILTER_DEPTH_MAX: u32 = 4;

/// Maximum number of pending values: arguments of calls, items of literals.
pub(crate) const STACK_VALUES_MAX: usize = 65_536;

/// Maximum length of a range, as in jinja2's sandbox.
pub(crate) const RANGE_ITEMS_MAX: usize = 100_000;

/// Work per instruction. One unit is about a nanosecond.
pub(crate) const INSTRUCTION_WORK: u64 = 20;

/// Work of creating a text or list, including its allocation.
pub(crate) const ALLOCATION_WORK: u64 = 60;

/// Work of copying a value into a list or comparing two values.
pub(crate) const ITEM_WORK: u64 = 12;

/// Work of entering and leaving a macro.
pub(crate) const CALL_WORK: u64 = 300;

/// Work between two checks of the clock and of cancellation.
pub(crate) const CHECK_WORK: u64 = 1_000_000;

/// Resource limits of one rendering.
///
/// ```
/// use nestling_template::{RenderLimits, RenderOptions, Template, TemplateErrorKind};
///
/// let limits = RenderLimits { work: 100_000, ..RenderLimits::default() };
/// let options = RenderOptions { limits, ..RenderOptions::default() };
/// let template = Template::parse("{% for i in range(90000) %}{{ i }}{% endfor %}")?;
/// let error = template.render(&serde_json::Map::new(), &options).err();
/// let kind = error.map(|error| error.kind);
/// assert_eq!(kind, Some(TemplateErrorKind::Work { limit: 100_000 }));
/// # Ok::<(), nestling_template::TemplateError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Maximum memory of values, output and variables in bytes.
    pub memory_bytes: usize,
    /// Maximum length of the output and of any text in bytes.
    pub text_bytes: usize,
    /// Maximum work in units of about one nanosecond in an optimized build.
    pub work: u64,
    /// Wall-clock time limit.
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
