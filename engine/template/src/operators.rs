//! Operators and brackets of expressions, with their precedence.

use super::emitter::MovedCode;
use super::program::{Arithmetic, Comparison};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Callee {
    Value,
    Method(u32),
    Filter(u32),
    Test { name: u32, negated: bool },
}

pub(crate) enum Pending {
    Negate,
    Positive,
    Not,
    Arithmetic(Arithmetic),
    Compare {
        comparison: Comparison,
        jumps: Vec<usize>,
    },
    And(usize),
    Or(usize),
    Group {
        items: u32,
        is_tuple: bool,
        start: usize,
    },
    List {
        items: u32,
        start: usize,
    },
    Dict {
        items: u32,
        in_value: bool,
        start: usize,
    },
    Subscript {
        colons: u32,
        start: usize,
    },
    Arguments {
        callee: Callee,
        count: usize,
        names: Vec<u32>,
        start: usize,
    },
    /// Argument without brackets, as in `x is divisibleby 3`.
    TestArgument {
        name: u32,
        negated: bool,
    },
    /// `value if`, waiting for the condition.
    Condition {
        value: MovedCode,
        start: usize,
    },
    /// `value if condition else`.
    Else {
        jump: usize,
        start: usize,
    },
}

/// Returns the precedence of an operator; higher binds tighter.
pub(crate) fn precedence(pending: &Pending) -> Option<u8> {
    Some(match pending {
        Pending::Or(_) => 1,
        Pending::And(_) => 2,
        Pending::Not => 3,
        Pending::Compare { .. } => COMPARE,
        Pending::Arithmetic(operation) => binding(*operation),
        Pending::Negate | Pending::Positive => 9,
        _ => return None,
    })
}

pub(crate) const COMPARE: u8 = 4;

pub(crate) fn binding(operation: Arithmetic) -> u8 {
    match operation {
        Arithmetic::Add | Arithmetic::Subtract => 5,
        Arithmetic::Concat => 6,
        Arithmetic::Power => 8,
        _ => 7,
    }
}

pub(crate) fn arithmetic(symbol: &str) -> Option<Arithmetic> {
    Some(match symbol {
        "+" => Arithmetic::Add,
        "-" => Arithmetic::Subtract,
        "~" => Arithmetic::Concat,
        "*" => Arithmetic::Multiply,
        "/" => Arithmetic::Divide,
        "//" => Arithmetic::FloorDivide,
        "%" => Arithmetic::Remainder,
        "**" => Arithmetic::Power,
        _ => return None,
    })
}

pub(crate) fn comparison(symbol: &str) -> Option<Comparison> {
    Some(match symbol {
        "==" => Comparison::Equal,
        "!=" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}
