//! Parser of tags. A stack of open blocks determines the block that an end tag closes.

use super::emitter::{Emitter, MovedCode};
use super::error::{TemplateError, TemplateErrorKind};
use super::expression::{AllowedConstructs, parse_expression, parse_filters};
use super::lexer::Token;
use super::limits::{BLOCK_DEPTH_MAX, MACROS_MAX, SOURCE_BYTES_MAX};
use super::program::{MacroCode, Op, Program};

type ParseResult<T> = Result<T, TemplateError>;

/// `ANY` allows `a, b` and `a if b else c` without brackets; `ONE` allows only the latter.
const ANY: AllowedConstructs = AllowedConstructs { tuple: true, conditional: true };
const ONE: AllowedConstructs = AllowedConstructs { tuple: false, conditional: true };

enum Target {
    Name(u32),
    Attribute(u32, u32),
    Names(Vec<u32>),
}

enum Block {
    If {
        otherwise: Option<usize>,
        ends: Vec<usize>,
    },
    For {
        next: usize,
        breaks: Vec<usize>,
    },
    /// The `else` branch of a loop.
    Else {
        end: usize,
    },
    Set {
        target: Target,
        filters: MovedCode,
    },
    Filter {
        filters: MovedCode,
    },
    Macro {
        over: usize,
    },
    Call {
        over: usize,
    },
    /// `with` and `generation` blocks.
    Scope {
        end: &'static str,
    },
}

impl Block {
    fn end(&self) -> &'static str {
        match self {
            Self::If { .. } => "endif",
            Self::For { .. } | Self::Else { .. } => "endfor",
            Self::Set { .. } => "endset",
            Self::Filter { .. } => "endfilter",
            Self::Macro { .. } => "endmacro",
            Self::Call { .. } => "endcall",
            Self::Scope { end } => end,
        }
    }
}

pub(crate) fn parse(source: &str) -> ParseResult<Program> {
    if source.len() > SOURCE_BYTES_MAX {
        let why = format!("{} bytes, at most {SOURCE_BYTES_MAX} are accepted", source.len());
        return Err(TemplateError { line: 0, kind: TemplateErrorKind::Syntax(why) });
    }
    let normalized;
    let source = if source.contains('\r') {
        normalized = source.replace("\r\n", "\n").replace('\r', "\n");
        normalized.as_str()
    } else {
        source
    };
    let mut parser = Parser { emitter: Emitter::new(source)?, blocks: vec![] };
    while parser.statement()? {}
    if let Some(block) = parser.blocks.last() {
        return Err(parser.emitter.expected(&format!("`{}`", block.end())));
    }
    Ok(parser.emitter.program)
}

struct Parser<'s> {
    emitter: Emitter<'s>,
    blocks: Vec<Block>,
}

impl Parser<'_> {
    /// Parses one text or one tag. Returns `false` at the end.
    fn statement(&mut self) -> ParseResult<bool> {
        match self.emitter.advance()? {
            Token::Data(text) => {
                let text = self.emitter.text(text);
                self.emitter.emit(Op::Raw(text))?;
            }
            Token::VariableBegin => {
                parse_expression(&mut self.emitter, ANY)?;
                if self.emitter.token != Token::VariableEnd {
                    return Err(self.emitter.expected("`}}`"));
                }
                self.emitter.emit(Op::Print)?;
                self.emitter.advance()?;
            }
            Token::BlockBegin => {
                let name = self.emitter.expect_name()?;
                self.tag(name)?;
                self.emitter.expect_block_end()?;
            }
            Token::End => return Ok(false),
            _ => return Err(self.emitter.expected("a tag")),
        }
        Ok(true)
    }

    fn tag(&mut self, name: &str) -> ParseResult<()> {
        match name {
            "if" => {
                parse_expression(
                    &mut self.emitter,
                    AllowedConstructs { tuple: true, conditional: false },
                )?;
                let otherwise = Some(self.emitter.emit(Op::JumpIfFalse(0))?);
                self.open(Block::If { otherwise, ends: vec![] })
            }
            "elif" => self.else_if(),
            "else" => self.otherwise(),
            "for" => self.for_loop(),
            "set" => self.set(),
            "macro" => self.macro_block(),
            "call" => self.call_block(),
            "filter" => {
                let filters = self.filters()?;
                self.capture()?;
                self.open(Block::Filter { filters })
            }
            "with" => self.with(),
            "generation" => {
                self.emitter.emit(Op::PushScope)?;
                self.open(Block::Scope { end: "endgeneration" })
            }
            "break" => self.leave_loop(true),
            "continue" => self.leave_loop(false),
            "include" | "import" | "from" | "extends" | "block" | "autoescape" | "do" | "trans"
            | "debug" | "print" => {
                Err(self.emitter.error(format!("the tag `{name}` is not supported")))
            }
            _ => match self.blocks.pop() {
                Some(block) if block.end() == name => self.close(block),
                _ => Err(self.emitter.error(format!("unknown or misplaced tag `{name}`"))),
            },
        }
    }

    fn open(&mut self, block: Block) -> ParseResult<()> {
        if self.blocks.len() >= BLOCK_DEPTH_MAX {
            let why = format!("blocks are nested more than {BLOCK_DEPTH_MAX} deep");
            return Err(self.emitter.error(why));
        }
        self.blocks.push(block);
        Ok(())
    }

    fn close(&mut self, block: Block) -> ParseResult<()> {
        match block {
            Block::If { otherwise, ends } => {
                ends.into_iter().chain(otherwise).for_each(|jump| self.emitter.land(jump));
            }
            Block::For { next, breaks } => {
                self.end_loop(next, breaks)?;
            }
            Block::Else { end } => self.emitter.land(end),
            Block::Set { target, filters } => {
                self.end_capture(filters)?;
                self.store(&target)?;
            }
            Block::Filter { filters } => {
                self.end_capture(filters)?;
                self.emitter.emit(Op::Print)?;
            }
            Block::Macro { over } => {
                self.emitter.emit(Op::Return)?;
                self.emitter.land(over);
                // The end tag may repeat the name.
                if matches!(self.emitter.token, Token::Name(_)) {
                    self.emitter.advance()?;
                }
            }
            Block::Call { over } => {
                self.emitter.emit(Op::Return)?;
                self.emitter.land(over);
            }
            Block::Scope { .. } => {
                self.emitter.emit(Op::PopScope)?;
            }
        }
        Ok(())
    }

    fn else_if(&mut self) -> ParseResult<()> {
        let Some(Block::If { otherwise: Some(otherwise), mut ends }) =
            self.blocks.pop_if(|top| matches!(top, Block::If { otherwise: Some(_), .. }))
        else {
            return Err(self.emitter.error("`elif` without `if`"));
        };
        ends.push(self.emitter.emit(Op::Jump(0))?);
        self.emitter.land(otherwise);
        parse_expression(&mut self.emitter, AllowedConstructs { tuple: true, conditional: false })?;
        let otherwise = Some(self.emitter.emit(Op::JumpIfFalse(0))?);
        self.open(Block::If { otherwise, ends })
    }

    fn otherwise(&mut self) -> ParseResult<()> {
        match self.blocks.pop() {
            Some(Block::If { otherwise: Some(otherwise), mut ends }) => {
                ends.push(self.emitter.emit(Op::Jump(0))?);
                self.emitter.land(otherwise);
                self.open(Block::If { otherwise: None, ends })
            }
            Some(Block::For { next, breaks }) => {
                let end = self.end_loop(next, breaks)?;
                self.open(Block::Else { end })
            }
            _ => Err(self.emitter.error("`else` without `if` or `for`")),
        }
    }

    /// Ends a loop. Returns the jump that is taken if the loop had items.
    fn end_loop(&mut self, next: usize, breaks: Vec<usize>) -> ParseResult<usize> {
        self.emitter.jump_to(next)?;
        self.emitter.land(next);
        breaks.into_iter().for_each(|jump| self.emitter.land(jump));
        self.emitter.emit(Op::EndLoop(1))
    }

    fn for_loop(&mut self) -> ParseResult<()> {
        let target = self.loop_target()?;
        if !self.emitter.skip_name("in")? {
            return Err(self.emitter.expected("`in`"));
        }
        parse_expression(&mut self.emitter, AllowedConstructs { tuple: true, conditional: false })?;
        if self.emitter.skip_name("if")? {
            self.emitter.emit(Op::IterateToChoose)?;
            let next = self.emitter.emit(Op::Next(0))?;
            self.store(&target)?;
            parse_expression(&mut self.emitter, ONE)?;
            self.emitter.emit(Op::Choose)?;
            self.emitter.jump_to(next)?;
            self.emitter.land(next);
            self.emitter.emit(Op::EndChoice)?;
        }
        if self.emitter.is_name("recursive") {
            return Err(self.emitter.error("recursive loops are not supported"));
        }
        self.emitter.emit(Op::Iterate)?;
        let next = self.emitter.emit(Op::Next(0))?;
        self.store(&target)?;
        self.open(Block::For { next, breaks: vec![] })
    }

    /// Parses one or several names, with optional brackets.
    fn loop_target(&mut self) -> ParseResult<Target> {
        let bracket = self.emitter.skip_symbol("(")?;
        let first = self.name()?;
        let target = self.more_names(first)?;
        if bracket {
            self.emitter.expect_symbol(")")?;
        }
        Ok(target)
    }

    fn name(&mut self) -> ParseResult<u32> {
        let name = self.emitter.expect_name()?;
        if matches!(name, "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(self.emitter.error(format!("cannot assign to `{name}`")));
        }
        Ok(self.emitter.name(name))
    }

    fn more_names(&mut self, first: u32) -> ParseResult<Target> {
        if !self.emitter.is_symbol(",") {
            return Ok(Target::Name(first));
        }
        let mut names = vec![first];
        while self.emitter.skip_symbol(",")? {
            if !matches!(self.emitter.token, Token::Name(_)) || self.emitter.is_name("in") {
                break;
            }
            names.push(self.name()?);
        }
        Ok(Target::Names(names))
    }

    fn set(&mut self) -> ParseResult<()> {
        let first = self.name()?;
        let target = if self.emitter.skip_symbol(".")? {
            let attribute = self.emitter.expect_name()?;
            Target::Attribute(first, self.emitter.name(attribute))
        } else {
            self.more_names(first)?
        };
        if self.emitter.skip_symbol("=")? {
            parse_expression(&mut self.emitter, ANY)?;
            return self.store(&target);
        }
        let filters = if self.emitter.skip_symbol("|")? {
            self.filters()?
        } else {
            let here = self.emitter.here();
            self.emitter.take_from(here)?
        };
        self.capture()?;
        self.open(Block::Set { target, filters })
    }

    fn store(&mut self, target: &Target) -> ParseResult<()> {
        match target {
            Target::Name(name) => {
                self.emitter.emit(Op::Store(*name))?;
            }
            Target::Attribute(namespace, name) => {
                self.emitter.emit(Op::StoreAttribute(*namespace, *name))?;
            }
            Target::Names(names) => {
                // A template has fewer names than bytes.
                self.emitter.emit(Op::Unpack(names.len() as u32))?;
                for name in names {
                    self.emitter.emit(Op::Store(*name))?;
                }
            }
        }
        Ok(())
    }

    /// Parses filters for a value that is complete at the end of the block.
    fn filters(&mut self) -> ParseResult<MovedCode> {
        let start = self.emitter.here();
        parse_filters(&mut self.emitter)?;
        self.emitter.take_from(start)
    }

    fn capture(&mut self) -> ParseResult<()> {
        self.emitter.emit(Op::PushScope)?;
        self.emitter.emit(Op::Capture)?;
        Ok(())
    }

    fn end_capture(&mut self, filters: MovedCode) -> ParseResult<()> {
        self.emitter.emit(Op::EndCapture)?;
        self.emitter.put_back(filters)?;
        self.emitter.emit(Op::PopScope)?;
        Ok(())
    }

    fn with(&mut self) -> ParseResult<()> {
        let mut names = vec![];
        while !matches!(self.emitter.token, Token::BlockEnd) {
            if !names.is_empty() {
                self.emitter.expect_symbol(",")?;
            }
            names.push(self.name()?);
            self.emitter.expect_symbol("=")?;
            parse_expression(&mut self.emitter, ONE)?;
        }
        self.emitter.emit(Op::PushScope)?;
        for name in names.into_iter().rev() {
            self.emitter.emit(Op::Store(name))?;
        }
        self.open(Block::Scope { end: "endwith" })
    }

    fn new_macro(&mut self, name: u32) -> ParseResult<u32> {
        let macros = &mut self.emitter.program.macros;
        if macros.len() >= MACROS_MAX {
            return Err(self.emitter.error(format!("more than {MACROS_MAX} macros")));
        }
        // The number is below the limit on macros.
        let number = macros.len() as u32;
        macros.push(MacroCode { name, parameters: vec![], entry: 0 });
        Ok(number)
    }

    fn macro_block(&mut self) -> ParseResult<()> {
        let name = self.name()?;
        let number = self.new_macro(name)?;
        self.emitter.emit(Op::MakeMacro(number))?;
        self.emitter.emit(Op::Store(name))?;
        let over = self.emitter.emit(Op::Jump(0))?;
        self.enter(number);
        self.emitter.expect_symbol("(")?;
        self.parameters(number)?;
        self.open(Block::Macro { over })
    }

    fn enter(&mut self, number: u32) {
        let entry = self.emitter.here();
        if let Some(code) = self.emitter.program.macros.get_mut(number as usize) {
            code.entry = entry;
        }
    }

    /// Parses parameters up to the closing bracket. Defaults are computed at the start of the macro.
    fn parameters(&mut self, number: u32) -> ParseResult<()> {
        let mut first = true;
        while !self.emitter.skip_symbol(")")? {
            if !first {
                self.emitter.expect_symbol(",")?;
                if self.emitter.skip_symbol(")")? {
                    break;
                }
            }
            first = false;
            let name = self.name()?;
            if let Some(code) = self.emitter.program.macros.get_mut(number as usize) {
                if code.parameters.contains(&name) {
                    return Err(self.emitter.error("two parameters have one name"));
                }
                code.parameters.push(name);
            }
            if self.emitter.skip_symbol("=")? {
                let given = self.emitter.emit(Op::JumpIfGiven(name, 0))?;
                parse_expression(&mut self.emitter, ONE)?;
                self.emitter.emit(Op::Store(name))?;
                self.emitter.land(given);
            }
        }
        Ok(())
    }

    /// Compiles the block to a macro that the call receives as `caller`.
    fn call_block(&mut self) -> ParseResult<()> {
        let caller = self.emitter.name("caller");
        let number = self.new_macro(caller)?;
        if self.emitter.skip_symbol("(")? {
            let start = self.emitter.here();
            self.parameters(number)?;
            if self.emitter.here() != start {
                return Err(self.emitter.error("defaults of a call block are not supported"));
            }
        }
        parse_expression(&mut self.emitter, ONE)?;
        let last = self.emitter.here() - 1;
        let call = self.emitter.program.code.get(last).copied();
        let (Some(Op::Call(shape)) | Some(Op::Method(_, shape))) = call else {
            return Err(self.emitter.error("a call block wants a call"));
        };
        self.emitter.take_from(last)?;
        self.emitter.emit(Op::MakeMacro(number))?;
        let mut names = self.emitter.program.argument_names[shape.names as usize].clone();
        names.push(caller);
        let shape = self.emitter.shape(shape.count as usize + 1, &names)?;
        self.emitter.emit(match call {
            Some(Op::Method(name, _)) => Op::Method(name, shape),
            _ => Op::Call(shape),
        })?;
        self.emitter.emit(Op::Print)?;
        let over = self.emitter.emit(Op::Jump(0))?;
        self.enter(number);
        self.open(Block::Call { over })
    }

    /// Compiles `break` and `continue`, which also end the blocks inside the loop.
    fn leave_loop(&mut self, for_good: bool) -> ParseResult<()> {
        let mut inner = vec![];
        let mut found = None;
        for block in self.blocks.iter().rev() {
            match block {
                Block::For { next, .. } => {
                    found = Some(*next);
                    break;
                }
                Block::Macro { .. } | Block::Call { .. } => break,
                Block::Set { .. } | Block::Filter { .. } => {
                    inner.extend([Op::DropCapture, Op::PopScope]);
                }
                Block::Scope { .. } => inner.push(Op::PopScope),
                Block::If { .. } | Block::Else { .. } => {}
            }
        }
        let Some(next) = found else {
            return Err(self.emitter.error("`break` or `continue` outside of a loop"));
        };
        for op in inner {
            self.emitter.emit(op)?;
        }
        if !for_good {
            return self.emitter.jump_to(next);
        }
        let jump = self.emitter.emit(Op::Jump(0))?;
        let innermost = self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::For { breaks, .. } => Some(breaks),
            _ => None,
        });
        innermost.into_iter().for_each(|breaks| breaks.push(jump));
        Ok(())
    }
}
