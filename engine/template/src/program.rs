//! A parsed template: one flat list of instructions. Jumps are relative, so that a conditional expression can
//! be moved behind its condition.

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

/// Arguments of a call: values on the stack, the last of which are named.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallShape {
    pub(crate) count: u16,
    pub(crate) names: u16,
}

/// One instruction. Operands are numbers of constants, names and macros. Jumps are relative to the jump
/// instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    /// Prints a constant text.
    Raw(u32),
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
    /// Unpacks a sequence of the given length, with the first value on top.
    Unpack(u32),
    Attribute(u32),
    Item,
    /// Slices with start, stop and step.
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
    Iterate,
    /// Starts a loop that filters items.
    IterateToChoose,
    /// Advances to the next item, or jumps if there is none.
    Next(i32),
    /// Keeps the current item if the value is true.
    Choose,
    /// Ends a filtering loop and pushes its items.
    EndChoice,
    /// Ends a loop. Jumps if the loop had items.
    EndLoop(i32),
    PushScope,
    PopScope,
    Capture,
    EndCapture,
    DropCapture,
    MakeMacro(u32),
    /// Jumps if the parameter was given.
    JumpIfGiven(u32, i32),
    Return,
}

#[derive(Debug, Clone)]
pub(crate) struct MacroCode {
    pub(crate) name: u32,
    pub(crate) parameters: Vec<u32>,
    pub(crate) entry: usize,
}

/// A name of the template: a variable, attribute, filter or parameter.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) text: Arc<String>,
    pub(crate) function: Option<Function>,
    pub(crate) is_loop: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Constant {
    Text(Arc<String>),
    Float(f64),
}

#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) code: Vec<Op>,
    pub(crate) lines: Vec<u32>,
    pub(crate) constants: Vec<Constant>,
    pub(crate) names: Vec<Name>,
    pub(crate) macros: Vec<MacroCode>,
    /// Names of named arguments per call shape; the first list is empty.
    pub(crate) argument_names: Vec<Vec<u32>>,
    /// Numbers of names, keyed by text.
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
