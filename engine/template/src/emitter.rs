//! Emitter of a template's instructions during parsing.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::{TemplateError, TemplateErrorKind};
use super::lexer::{Lexer, Token};
use super::limits::{INSTRUCTIONS_MAX, INSTRUCTIONS_MOVED_MAX};
use super::program::{CallShape, Constant, Name, Op, Program, function_named};

/// Instructions that were removed for insertion elsewhere.
pub(crate) struct MovedCode {
    code: Vec<Op>,
    lines: Vec<u32>,
}

/// Tokens of a template, and the program that is built from them.
pub(crate) struct Emitter<'s> {
    lexer: Lexer<'s>,
    pub(crate) token: Token<'s>,
    ahead: Option<Token<'s>>,
    /// Line of `token`.
    line: usize,
    pub(crate) program: Program,
    texts: HashMap<Arc<String>, u32>,
    argument_lists: HashMap<Vec<u32>, u16>,
    moved: usize,
}

impl<'s> Emitter<'s> {
    pub(crate) fn new(source: &'s str) -> Result<Self, TemplateError> {
        let mut program = Program::default();
        program.argument_names.push(vec![]);
        let mut emitter = Self {
            lexer: Lexer::new(source),
            token: Token::End,
            ahead: None,
            line: 1,
            program,
            texts: HashMap::new(),
            argument_lists: HashMap::new(),
            moved: 0,
        };
        emitter.advance()?;
        Ok(emitter)
    }

    /// Returns an error at the current token.
    pub(crate) fn error(&self, why: impl Into<String>) -> TemplateError {
        TemplateError { line: self.line, kind: TemplateErrorKind::Syntax(why.into()) }
    }

    /// Returns an error that names the expected and the found token.
    pub(crate) fn expected(&self, what: &str) -> TemplateError {
        let found = match &self.token {
            Token::Data(_) => "text".into(),
            Token::VariableBegin => "`{{`".into(),
            Token::VariableEnd => "`}}`".into(),
            Token::BlockBegin => "`{%`".into(),
            Token::BlockEnd => "`%}`".into(),
            Token::Name(name) => format!("`{name}`"),
            Token::Text(_) => "a text".into(),
            Token::Int(number) => format!("`{number}`"),
            Token::Float(number) => format!("`{number}`"),
            Token::Symbol(symbol) => format!("`{symbol}`"),
            Token::End => "the end of the template".into(),
        };
        self.error(format!("expected {what}, found {found}"))
    }

    fn lex(&mut self) -> Result<Token<'s>, TemplateError> {
        let token = self.lexer.next();
        token.map_err(|error| TemplateError {
            line: self.lexer.line(),
            kind: TemplateErrorKind::Syntax(error.0),
        })
    }

    /// Advances to the next token and returns the current one.
    pub(crate) fn advance(&mut self) -> Result<Token<'s>, TemplateError> {
        let next = match self.ahead.take() {
            Some(next) => next,
            None => {
                self.line = self.lexer.line();
                self.lex()?
            }
        };
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// Returns the token after the current one.
    pub(crate) fn peek(&mut self) -> Result<&Token<'s>, TemplateError> {
        let next = match self.ahead.take() {
            Some(next) => next,
            None => self.lex()?,
        };
        Ok(self.ahead.insert(next))
    }

    pub(crate) fn is_symbol(&self, symbol: &str) -> bool {
        matches!(&self.token, Token::Symbol(found) if *found == symbol)
    }

    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(&self.token, Token::Name(found) if *found == name)
    }

    /// Skips a symbol. Returns whether it was present.
    pub(crate) fn skip_symbol(&mut self, symbol: &str) -> Result<bool, TemplateError> {
        let found = self.is_symbol(symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(crate) fn skip_name(&mut self, name: &str) -> Result<bool, TemplateError> {
        let found = self.is_name(name);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(crate) fn expect_symbol(&mut self, symbol: &str) -> Result<(), TemplateError> {
        if self.skip_symbol(symbol)? { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    pub(crate) fn expect_name(&mut self) -> Result<&'s str, TemplateError> {
        match self.token {
            Token::Name(name) => {
                self.advance()?;
                Ok(name)
            }
            _ => Err(self.expected("a name")),
        }
    }

    pub(crate) fn expect_block_end(&mut self) -> Result<(), TemplateError> {
        match self.token {
            Token::BlockEnd => self.advance().map(|_| ()),
            _ => Err(self.expected("`%}`")),
        }
    }

    pub(crate) fn here(&self) -> usize {
        self.program.code.len()
    }

    /// Appends an instruction and returns its index.
    pub(crate) fn emit(&mut self, op: Op) -> Result<usize, TemplateError> {
        if self.here() >= INSTRUCTIONS_MAX {
            return Err(self.error(format!("more than {INSTRUCTIONS_MAX} instructions")));
        }
        self.program.code.push(op);
        // A template has fewer lines than bytes, so that they fit in `u32`.
        self.program.lines.push(self.line as u32);
        Ok(self.here() - 1)
    }

    /// Sets the target of the jump at `from` to the next instruction.
    pub(crate) fn land(&mut self, from: usize) {
        let to = self.here();
        self.land_at(from, to);
    }

    pub(crate) fn land_at(&mut self, from: usize, to: usize) {
        // Both are below the limit on instructions.
        let distance = to as i32 - from as i32;
        if let Some(
            Op::Jump(by)
            | Op::JumpIfFalse(by)
            | Op::JumpIfFalseOrPop(by)
            | Op::JumpIfTrueOrPop(by)
            | Op::CompareChain(_, by)
            | Op::Next(by)
            | Op::EndLoop(by)
            | Op::JumpIfGiven(_, by),
        ) = self.program.code.get_mut(from)
        {
            *by = distance;
        }
    }

    /// Emits a jump back to `to`.
    pub(crate) fn jump_to(&mut self, to: usize) -> Result<(), TemplateError> {
        let from = self.emit(Op::Jump(0))?;
        self.land_at(from, to);
        Ok(())
    }

    /// Removes all instructions from `start` on.
    pub(crate) fn take_from(&mut self, start: usize) -> Result<MovedCode, TemplateError> {
        self.moved += self.here() - start;
        if self.moved > INSTRUCTIONS_MOVED_MAX {
            return Err(self.error("conditional expressions are nested too deeply"));
        }
        let program = &mut self.program;
        Ok(MovedCode { code: program.code.split_off(start), lines: program.lines.split_off(start) })
    }

    pub(crate) fn put_back(&mut self, moved: MovedCode) -> Result<(), TemplateError> {
        if self.here() + moved.code.len() > INSTRUCTIONS_MAX {
            return Err(self.error(format!("more than {INSTRUCTIONS_MAX} instructions")));
        }
        self.program.code.extend(moved.code);
        self.program.lines.extend(moved.lines);
        Ok(())
    }

    /// Returns the number of a constant text, which is added if new.
    pub(crate) fn text(&mut self, text: &str) -> u32 {
        let text: Arc<String> = Arc::new(text.into());
        if let Some(number) = self.texts.get(&text) {
            return *number;
        }
        let number = self.constant(Constant::Text(Arc::clone(&text)));
        self.texts.insert(text, number);
        number
    }

    pub(crate) fn constant(&mut self, constant: Constant) -> u32 {
        self.program.constants.push(constant);
        // A template has fewer constants than bytes.
        (self.program.constants.len() - 1) as u32
    }

    /// Returns the number of a name, which is added if new.
    pub(crate) fn name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.program.name_numbers.get(name) {
            return *number;
        }
        // A template has fewer names than bytes.
        let number = self.program.names.len() as u32;
        let (function, is_loop) = (function_named(name), name == "loop");
        self.program.names.push(Name { text: Arc::new(name.into()), function, is_loop });
        self.program.name_numbers.insert(name.into(), number);
        number
    }

    /// Returns the shape of a call with `count` values. The last ones have the given names.
    pub(crate) fn shape(
        &mut self,
        count: usize,
        names: &[u32],
    ) -> Result<CallShape, TemplateError> {
        let too_many = "too many arguments or calls with named ones";
        let count = u16::try_from(count).map_err(|_| self.error(too_many))?;
        if names.is_empty() {
            return Ok(CallShape { count, names: 0 });
        }
        if let Some(known) = self.argument_lists.get(names) {
            return Ok(CallShape { count, names: *known });
        }
        let number = u16::try_from(self.program.argument_names.len());
        let number = number.map_err(|_| self.error(too_many))?;
        self.program.argument_names.push(names.to_vec());
        self.argument_lists.insert(names.to_vec(), number);
        Ok(CallShape { count, names: number })
    }
}
