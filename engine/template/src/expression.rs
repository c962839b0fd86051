//! Parser of expressions. Operators and brackets wait for their operands on an explicit stack, so that the
//! nesting of an expression does not use the call stack.

use super::emitter::{Emitter, MovedCode};
use super::error::TemplateError;
use super::lexer::Token;
use super::limits::EXPRESSION_DEPTH_MAX;
use super::operators::{COMPARE, Callee, Pending, arithmetic, binding, comparison, precedence};
use super::program::{Comparison, Constant, Op};

type ParseResult<T> = Result<T, TemplateError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ParseState {
    Operand,
    Operator,
    Done,
}

/// Constructs that an expression may contain in its context.
#[derive(Clone, Copy)]
pub(crate) struct AllowedConstructs {
    /// True to allow `a, b` without brackets.
    pub(crate) tuple: bool,
    /// True to allow `a if b else c` without brackets.
    pub(crate) conditional: bool,
}

/// Parses one expression, up to the first token that is not part of it.
pub(crate) fn parse_expression(
    emitter: &mut Emitter<'_>,
    allowed: AllowedConstructs,
) -> ParseResult<()> {
    Expression::new(emitter, allowed).run(ParseState::Operand)
}

/// Parses filters for a value that is computed later, as in `{% filter upper | trim %}`.
pub(crate) fn parse_filters(emitter: &mut Emitter<'_>) -> ParseResult<()> {
    let mut expression =
        Expression::new(emitter, AllowedConstructs { tuple: false, conditional: false });
    let state = expression.filter()?;
    expression.run(state)
}

struct Expression<'e, 's> {
    emitter: &'e mut Emitter<'s>,
    pending: Vec<Pending>,
    allowed: AllowedConstructs,
    /// Index of the first instruction of the current item.
    start: usize,
    /// Number of items that a comma ended.
    items: u32,
    is_tuple: bool,
    /// True if no comma ended the last item.
    is_open: bool,
}

impl<'e, 's> Expression<'e, 's> {
    fn new(emitter: &'e mut Emitter<'s>, allowed: AllowedConstructs) -> Self {
        let start = emitter.here();
        let (pending, items) = (Vec::new(), 0);
        Self { emitter, pending, allowed, start, items, is_tuple: false, is_open: true }
    }

    fn run(mut self, mut state: ParseState) -> ParseResult<()> {
        loop {
            state = match state {
                ParseState::Operand => self.operand()?,
                ParseState::Operator => self.operator()?,
                ParseState::Done => break,
            };
        }
        self.close()?;
        if !self.pending.is_empty() {
            return Err(self.emitter.expected("the end of a bracket"));
        }
        if self.is_tuple {
            self.emitter.emit(Op::Tuple(self.items + u32::from(self.is_open)))?;
        }
        Ok(())
    }

    fn push(&mut self, pending: Pending) -> ParseResult<ParseState> {
        if self.pending.len() >= EXPRESSION_DEPTH_MAX {
            return Err(self.emitter.error("an expression is nested too deeply"));
        }
        self.pending.push(pending);
        Ok(ParseState::Operand)
    }

    fn emit(&mut self, op: Op) -> ParseResult<ParseState> {
        self.emitter.emit(op)?;
        Ok(ParseState::Operator)
    }

    /// Parses a value, or a prefix before one.
    fn operand(&mut self) -> ParseResult<ParseState> {
        let token = self.emitter.advance()?;
        let here = self.emitter.here();
        match token {
            Token::Name("not") => self.push(Pending::Not),
            Token::Name("true" | "True") => self.emit(Op::Bool(true)),
            Token::Name("false" | "False") => self.emit(Op::Bool(false)),
            Token::Name("none" | "None") => self.emit(Op::None),
            Token::Name(name) => {
                let name = self.emitter.name(name);
                self.emit(Op::Load(name))
            }
            Token::Int(number) => self.emit(Op::Int(number)),
            Token::Float(number) => {
                let number = self.emitter.constant(Constant::Float(number));
                self.emit(Op::Constant(number))
            }
            Token::Text(text) => {
                let mut text = text.into_owned();
                while let Token::Text(more) = &self.emitter.token {
                    text.push_str(more);
                    self.emitter.advance()?;
                }
                let number = self.emitter.text(&text);
                self.emit(Op::Constant(number))
            }
            Token::Symbol("-") => self.push(Pending::Negate),
            Token::Symbol("+") => self.push(Pending::Positive),
            Token::Symbol("(") if self.emitter.skip_symbol(")")? => self.emit(Op::Tuple(0)),
            Token::Symbol("(") => {
                self.push(Pending::Group { items: 0, is_tuple: false, start: here })
            }
            Token::Symbol("[") if self.emitter.skip_symbol("]")? => self.emit(Op::List(0)),
            Token::Symbol("[") => self.push(Pending::List { items: 0, start: here }),
            Token::Symbol("{") if self.emitter.skip_symbol("}")? => self.emit(Op::Dict(0)),
            Token::Symbol("{") => {
                self.push(Pending::Dict { items: 0, in_value: false, start: here })
            }
            other => {
                self.emitter.token = other;
                Err(self.emitter.expected("a value"))
            }
        }
    }

    /// Parses the continuation after a value.
    fn operator(&mut self) -> ParseResult<ParseState> {
        match self.emitter.token {
            Token::Symbol(".") => self.attribute(),
            Token::Symbol("[") => {
                self.emitter.advance()?;
                let start = self.emitter.here();
                self.push(Pending::Subscript { colons: 0, start })?;
                self.slice_gap()
            }
            Token::Symbol("(") => self.call(Callee::Value),
            Token::Symbol("|") => {
                self.finish_signs()?;
                self.emitter.advance()?;
                self.filter()
            }
            Token::Name("is") => {
                self.finish_signs()?;
                self.emitter.advance()?;
                self.test()
            }
            Token::Symbol(symbol) => {
                self.finish_test_argument()?;
                if let Some(operation) = arithmetic(symbol) {
                    self.emitter.advance()?;
                    self.reduce(binding(operation))?;
                    return self.push(Pending::Arithmetic(operation));
                }
                if let Some(comparison) = comparison(symbol) {
                    self.emitter.advance()?;
                    return self.compare(comparison);
                }
                self.delimiter(symbol)
            }
            Token::Name(name) => {
                self.finish_test_argument()?;
                self.word(name)
            }
            _ => Ok(ParseState::Done),
        }
    }

    fn word(&mut self, name: &str) -> ParseResult<ParseState> {
        match name {
            "and" => {
                self.emitter.advance()?;
                self.reduce(2)?;
                let jump = self.emitter.emit(Op::JumpIfFalseOrPop(0))?;
                self.push(Pending::And(jump))
            }
            "or" => {
                self.emitter.advance()?;
                self.reduce(1)?;
                let jump = self.emitter.emit(Op::JumpIfTrueOrPop(0))?;
                self.push(Pending::Or(jump))
            }
            "in" => {
                self.emitter.advance()?;
                self.compare(Comparison::In)
            }
            "not" if matches!(self.emitter.peek()?, Token::Name("in")) => {
                self.emitter.advance()?;
                self.emitter.advance()?;
                self.compare(Comparison::NotIn)
            }
            "if" => self.condition(),
            "else" => {
                self.reduce(0)?;
                let Some(Pending::Condition { value, .. }) =
                    self.pending.pop_if(|top| matches!(top, Pending::Condition { .. }))
                else {
                    return Ok(ParseState::Done);
                };
                self.emitter.advance()?;
                let jump = self.place_condition(value)?;
                let start = self.emitter.here();
                self.push(Pending::Else { jump, start })
            }
            _ => Ok(ParseState::Done),
        }
    }

    /// Parses `value if`. The instructions of the value are moved behind those of the condition.
    fn condition(&mut self) -> ParseResult<ParseState> {
        self.reduce(0)?;
        if matches!(self.pending.last(), Some(Pending::Condition { .. })) {
            self.finish_condition()?;
        }
        let start = match self.pending.last() {
            None if !self.allowed.conditional => return Ok(ParseState::Done),
            None => self.start,
            Some(
                Pending::Group { start, .. }
                | Pending::List { start, .. }
                | Pending::Dict { start, .. }
                | Pending::Subscript { start, .. }
                | Pending::Arguments { start, .. }
                | Pending::Condition { start, .. }
                | Pending::Else { start, .. },
            ) => *start,
            Some(_) => return Err(self.emitter.expected("an operator")),
        };
        self.emitter.advance()?;
        let value = self.emitter.take_from(start)?;
        self.push(Pending::Condition { value, start })
    }

    /// Places the value after its condition. Returns the jump over the alternative.
    fn place_condition(&mut self, value: MovedCode) -> ParseResult<usize> {
        let otherwise = self.emitter.emit(Op::JumpIfFalse(0))?;
        self.emitter.put_back(value)?;
        let end = self.emitter.emit(Op::Jump(0))?;
        self.emitter.land(otherwise);
        Ok(end)
    }

    /// Ends `value if condition` without `else`. The value is undefined if the condition is false.
    fn finish_condition(&mut self) -> ParseResult<()> {
        if let Some(Pending::Condition { value, .. }) = self.pending.pop() {
            let jump = self.place_condition(value)?;
            self.emitter.emit(Op::Undefined)?;
            self.emitter.land(jump);
        }
        Ok(())
    }

    fn compare(&mut self, comparison: Comparison) -> ParseResult<ParseState> {
        self.reduce(COMPARE + 1)?;
        let mut jumps = vec![];
        if let Some(Pending::Compare { comparison, jumps: earlier }) =
            self.pending.pop_if(|top| matches!(top, Pending::Compare { .. }))
        {
            jumps = earlier;
            jumps.push(self.emitter.emit(Op::CompareChain(comparison, 0))?);
        }
        self.push(Pending::Compare { comparison, jumps })
    }

    /// Applies pending signs first: filters and tests apply to the signed value.
    fn finish_signs(&mut self) -> ParseResult<()> {
        self.finish_test_argument()?;
        self.reduce(9)
    }

    fn finish_test_argument(&mut self) -> ParseResult<()> {
        if let Some(Pending::TestArgument { name, negated }) =
            self.pending.pop_if(|top| matches!(top, Pending::TestArgument { .. }))
        {
            self.emit_call(Callee::Test { name, negated }, 1, &[])?;
        }
        Ok(())
    }

    /// Emits all pending operators with a precedence of at least `least`.
    fn reduce(&mut self, least: u8) -> ParseResult<()> {
        self.finish_test_argument()?;
        while let Some(top) = self.pending.pop_if(|top| precedence(top).is_some_and(|p| p >= least))
        {
            match top {
                Pending::Negate => self.emit(Op::Negate)?,
                Pending::Positive => self.emit(Op::Positive)?,
                Pending::Not => self.emit(Op::Not)?,
                Pending::Arithmetic(operation) => self.emit(Op::Arithmetic(operation))?,
                Pending::And(jump) | Pending::Or(jump) => {
                    self.emitter.land(jump);
                    ParseState::Operator
                }
                Pending::Compare { comparison, jumps } => {
                    self.emitter.emit(Op::Compare(comparison))?;
                    jumps.into_iter().for_each(|jump| self.emitter.land(jump));
                    ParseState::Operator
                }
                _ => return Err(self.emitter.expected("an operator")),
            };
        }
        Ok(())
    }

    /// Ends everything up to the enclosing bracket.
    fn close(&mut self) -> ParseResult<()> {
        loop {
            self.reduce(0)?;
            match self.pending.last() {
                Some(Pending::Condition { .. }) => self.finish_condition()?,
                Some(Pending::Else { jump, .. }) => {
                    let jump = *jump;
                    self.pending.pop();
                    self.emitter.land(jump);
                }
                _ => return Ok(()),
            }
        }
    }

    fn attribute(&mut self) -> ParseResult<ParseState> {
        self.emitter.advance()?;
        match self.emitter.advance()? {
            Token::Name(name) => {
                let name = self.emitter.name(name);
                if self.emitter.is_symbol("(") {
                    return self.call(Callee::Method(name));
                }
                self.emit(Op::Attribute(name))
            }
            Token::Int(number) => {
                self.emit(Op::Int(number))?;
                self.emit(Op::Item)
            }
            other => {
                self.emitter.token = other;
                Err(self.emitter.expected("a name or a number"))
            }
        }
    }

    /// Parses a dotted name of a filter or test.
    fn dotted_name(&mut self) -> ParseResult<u32> {
        let mut name = self.emitter.expect_name()?.to_owned();
        while self.emitter.skip_symbol(".")? {
            name.push('.');
            name.push_str(self.emitter.expect_name()?);
        }
        Ok(self.emitter.name(&name))
    }

    fn filter(&mut self) -> ParseResult<ParseState> {
        let name = self.dotted_name()?;
        if self.emitter.is_symbol("(") {
            return self.call(Callee::Filter(name));
        }
        self.emit_call(Callee::Filter(name), 0, &[])
    }

    fn test(&mut self) -> ParseResult<ParseState> {
        let negated = self.emitter.skip_name("not")?;
        let name = self.dotted_name()?;
        match self.emitter.token {
            Token::Symbol("(") => self.call(Callee::Test { name, negated }),
            Token::Name("else" | "or" | "and" | "if" | "recursive") => {
                self.emit_call(Callee::Test { name, negated }, 0, &[])
            }
            Token::Name("is") => Err(self.emitter.error("tests with `is` cannot be chained")),
            Token::Name("in") | Token::Name("not") => {
                self.emit_call(Callee::Test { name, negated }, 0, &[])
            }
            Token::Name(_)
            | Token::Text(_)
            | Token::Int(_)
            | Token::Float(_)
            | Token::Symbol("[" | "{") => self.push(Pending::TestArgument { name, negated }),
            _ => self.emit_call(Callee::Test { name, negated }, 0, &[]),
        }
    }

    fn call(&mut self, callee: Callee) -> ParseResult<ParseState> {
        self.emitter.advance()?;
        if self.emitter.skip_symbol(")")? {
            return self.emit_call(callee, 0, &[]);
        }
        let start = self.emitter.here();
        self.push(Pending::Arguments { callee, count: 0, names: vec![], start })?;
        self.argument_name()
    }

    /// Parses the name of a named argument, if there is one.
    fn argument_name(&mut self) -> ParseResult<ParseState> {
        if self.emitter.is_symbol("*") || self.emitter.is_symbol("**") {
            return Err(self.emitter.error("unpacked arguments (`*`, `**`) are not supported"));
        }
        let mut named = match self.emitter.token {
            Token::Name(name) => Some(name),
            _ => None,
        };
        if named.is_some() && !matches!(self.emitter.peek()?, Token::Symbol("=")) {
            named = None;
        }
        let number = named.map(|name| self.emitter.name(name));
        if let Some(Pending::Arguments { names, .. }) = self.pending.last_mut() {
            match number {
                Some(number) if names.contains(&number) => {
                    return Err(self.emitter.error("an argument is named twice"));
                }
                Some(number) => names.push(number),
                None if !names.is_empty() => {
                    return Err(self.emitter.error("an unnamed argument after a named one"));
                }
                None => {}
            }
        }
        if number.is_some() {
            self.emitter.advance()?;
            self.emitter.advance()?;
        }
        Ok(ParseState::Operand)
    }

    fn emit_call(
        &mut self,
        callee: Callee,
        count: usize,
        names: &[u32],
    ) -> ParseResult<ParseState> {
        let shape = self.emitter.shape(count, names)?;
        match callee {
            Callee::Value => self.emit(Op::Call(shape)),
            Callee::Method(name) => self.emit(Op::Method(name, shape)),
            Callee::Filter(name) => self.emit(Op::Filter(name, shape)),
            Callee::Test { name, negated: false } => self.emit(Op::Test(name, shape)),
            Callee::Test { name, negated: true } => {
                self.emit(Op::Test(name, shape))?;
                self.emit(Op::Not)
            }
        }
    }

    /// Emits `None` for omitted bounds of a slice.
    fn slice_gap(&mut self) -> ParseResult<ParseState> {
        loop {
            let Some(Pending::Subscript { colons, .. }) = self.pending.last_mut() else {
                return Err(self.emitter.expected("a value"));
            };
            if matches!(self.emitter.token, Token::Symbol(":")) && *colons < 2 {
                *colons += 1;
                self.emitter.emit(Op::None)?;
                self.emitter.advance()?;
            } else if matches!(self.emitter.token, Token::Symbol("]")) && *colons > 0 {
                return self.emit(Op::None);
            } else {
                return Ok(ParseState::Operand);
            }
        }
    }

    /// Parses a comma, a colon or a closing bracket.
    fn delimiter(&mut self, symbol: &str) -> ParseResult<ParseState> {
        match symbol {
            "," => {
                self.close()?;
                self.comma()
            }
            ":" => {
                self.close()?;
                match self.pending.last_mut() {
                    Some(Pending::Dict { in_value, start, .. }) if !*in_value => {
                        (*in_value, *start) = (true, self.emitter.here());
                        self.emitter.advance()?;
                        Ok(ParseState::Operand)
                    }
                    Some(Pending::Subscript { colons, start }) if *colons < 2 => {
                        (*colons, *start) = (*colons + 1, self.emitter.here());
                        self.emitter.advance()?;
                        self.slice_gap()
                    }
                    _ => Err(self.emitter.expected("an operator")),
                }
            }
            ")" | "]" | "}" => {
                self.close()?;
                self.close_bracket(symbol, 1)
            }
            _ => Ok(ParseState::Done),
        }
    }

    fn comma(&mut self) -> ParseResult<ParseState> {
        let here = self.emitter.here();
        let closing = match self.pending.last_mut() {
            None if !self.allowed.tuple => return Ok(ParseState::Done),
            None => {
                (self.items, self.is_tuple, self.start) = (self.items + 1, true, here);
                self.emitter.advance()?;
                self.is_open = !matches!(
                    self.emitter.token,
                    Token::BlockEnd | Token::VariableEnd | Token::Symbol("=")
                );
                return Ok(if self.is_open { ParseState::Operand } else { ParseState::Done });
            }
            Some(Pending::Group { items, is_tuple, start }) => {
                (*items, *is_tuple, *start) = (*items + 1, true, here);
                ")"
            }
            Some(Pending::List { items, start }) => {
                (*items, *start) = (*items + 1, here);
                "]"
            }
            Some(Pending::Dict { items, in_value, start }) if *in_value => {
                (*items, *in_value, *start) = (*items + 1, false, here);
                "}"
            }
            Some(Pending::Arguments { count, start, .. }) => {
                (*count, *start) = (*count + 1, here);
                ")"
            }
            _ => return Err(self.emitter.expected("an operator")),
        };
        self.emitter.advance()?;
        if self.emitter.is_symbol(closing) {
            return self.close_bracket(closing, 0);
        }
        match self.pending.last() {
            Some(Pending::Arguments { .. }) => self.argument_name(),
            _ => Ok(ParseState::Operand),
        }
    }

    /// Closes the top bracket. `open` is 1 unless a comma precedes the end.
    fn close_bracket(&mut self, symbol: &str, open: u32) -> ParseResult<ParseState> {
        let Some(top) = self.pending.pop() else { return Ok(ParseState::Done) };
        let expected = match &top {
            Pending::List { .. } | Pending::Subscript { .. } => "]",
            Pending::Dict { .. } => "}",
            _ => ")",
        };
        if symbol != expected {
            return Err(self.emitter.expected(&format!("`{expected}`")));
        }
        self.emitter.advance()?;
        match top {
            Pending::Group { items, is_tuple: true, .. } => self.emit(Op::Tuple(items + open)),
            Pending::Group { .. } => Ok(ParseState::Operator),
            Pending::List { items, .. } => self.emit(Op::List(items + open)),
            Pending::Dict { items, in_value, .. } if in_value || open == 0 => {
                self.emit(Op::Dict(items + open))
            }
            Pending::Subscript { colons: 0, .. } => self.emit(Op::Item),
            Pending::Subscript { colons, .. } => {
                if colons == 1 {
                    self.emitter.emit(Op::None)?;
                }
                self.emit(Op::Slice)
            }
            Pending::Arguments { callee, count, names, .. } => {
                self.emit_call(callee, count + open as usize, &names)
            }
            _ => Err(self.emitter.error("a bracket that is not ended")),
        }
    }
}
