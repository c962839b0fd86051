//! A parsed template: one flat list of instructions, whose jumps are relative, so that a conditional
//! expression can be moved behind its condition.

use std::collections::HashMap;
use std::sync::Arc;

use super::value::Function;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Concat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// What a call passes: values on the stack, of which the last are named.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallShape {
    pub(crate) count: u16,
    /// Which list of names.
    pub(crate) names: u16,
}

/// One instruction. Numbers are those of constants, names, macros; jumps count instructions from
/// the one that jumps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    /// Prints a constant text.
    Raw(u32),
    /// Prints the value.
    Print,
    Constant(u32),
    Int(i64),
    Bool(bool),
    None,
    Undefined,
    Load(u32),
    Store(u32),
    /// `set namespace.attribute`.
    StoreAttribute(u32, u32),
    /// A sequence of that many values, the first on top.
    Unpack(u32),
    Attribute(u32),
    Item,
    /// Start, stop and step.
    Slice,
    Negate,
    Positive,
    Not,
    Arithmetic(Arithmetic),
    Compare(Comparison),
    /// A comparison in a chain: keeps its right side, or jumps with `False`.
    CompareChain(Comparison, i32),
    Jump(i32),
    JumpIfFalse(i32),
    JumpIfFalseOrPop(i32),
    JumpIfTrueOrPop(i32),
    List(u32),
    Tuple(u32),
    Dict(u32),
    Call(CallShape),
    Method(u32, CallShape),
    Filter(u32, CallShape),
    Test(u32, CallShape),
    /// Starts a loop over the value.
    Iterate,
    /// Starts a loop that only chooses items.
    IterateToChoose,
    /// The next item, or a jump.
    Next(i32),
    /// Keeps the present item if the value is true.
    Choose,
    /// Ends a loop that chooses; its items are the value.
    EndChoice,
    /// Ends a loop; jumps if it had items.
    EndLoop(i32),
    PushScope,
    PopScope,
    /// Printed text becomes a value.
    Capture,
    EndCapture,
    /// Forgets captured text.
    DropCapture,
    MakeMacro(u32),
    /// Jumps unless the parameter is missing.
    JumpIfGiven(u32, i32),
    Return,
}

/// A macro's beginning and parameters.
#[derive(Debug, Clone)]
pub(crate) struct MacroCode {
    pub(crate) name: u32,
    pub(crate) parameters: Vec<u32>,
    pub(crate) entry: usize,
}

/// A name of the template: a variable, an attribute, a filter, a parameter.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) text: Arc<String>,
    /// The function of that name.
    pub(crate) function: Option<Function>,
    pub(crate) is_loop: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Constant {
    Text(Arc<String>),
    Float(f64),
}

/// A parsed template.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) code: Vec<Op>,
    /// The line of each instruction.
    pub(crate) lines: Vec<u32>,
    pub(crate) constants: Vec<Constant>,
    pub(crate) names: Vec<Name>,
    pub(crate) macros: Vec<MacroCode>,
    /// Names of named arguments, call by call; the first list is empty.
    pub(crate) argument_names: Vec<Vec<u32>>,
    /// Numbers of names by their text.
    pub(crate) name_numbers: HashMap<String, u32>,
}

impl Program {
    pub(crate) fn name(&self, number: u32) -> &str {
        &self.names[number as usize].text
    }
}

pub(crate) fn function_named(name: &str) -> Option<Function> {
    Some(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        "joiner" => Function::Joiner,
        "cycler" => Function::Cycler,
        _ => return None,
    })
}
