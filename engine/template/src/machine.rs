//! Virtual machine that runs a parsed template. Macro calls, loops and captured text have explicit stacks, so
//! that the nesting of a template does not use the call stack.

use std::rc::Rc;

use super::access::{attribute, item, slice};
use super::arguments::Arguments;
use super::arithmetic::{compute, negate, positive};
use super::compare::{contains, equal, order};
use super::error::Fault;
use super::filters::apply_filter;
use super::functions::{Clock, call_function, call_joiner, insert};
use super::iterate::items_of;
use super::limits::{CALL_DEPTH_MAX, CALL_WORK, INSTRUCTION_WORK, STACK_VALUES_MAX};
use super::meter::{Charge, Meter};
use super::methods::{call_method, has_method, unknown};
use super::predicates::apply_test;
use super::print::print;
use super::program::{CallShape, Comparison, Constant, Op, Program};
use super::scopes::Scopes;
use super::text::{Text, TextBuffer};
use super::value::{Items, Kind, LoopState, MacroRef, Map, Sequence, Value};

struct RunningLoop {
    state: Rc<LoopState>,
    /// Selected items, for a loop that filters.
    chosen: Option<Items>,
}

/// State to restore after a macro call.
struct Frame {
    back_to: usize,
    scopes: usize,
    loops: usize,
    captures: usize,
}

pub(crate) struct Machine<'p, 'h> {
    program: &'p Program,
    meter: &'p Meter<'h>,
    clock: Option<Clock<'h>>,
    pub(crate) scopes: Scopes,
    values: Vec<Value>,
    _values_charge: Charge,
    loops: Vec<RunningLoop>,
    frames: Vec<Frame>,
    /// Buffers that receive printed text; the first one is the output.
    captures: Vec<TextBuffer>,
    at: usize,
}

/// Returns the error for an instruction that does not match the stacks. The parser never generates one.
fn misfit() -> Fault {
    Fault::broken("the instructions of a template fit together")
}

impl<'p, 'h> Machine<'p, 'h> {
    pub(crate) fn new(
        program: &'p Program,
        meter: &'p Meter<'h>,
        clock: Option<Clock<'h>>,
    ) -> Result<Self, Fault> {
        let scopes = Scopes::new(meter, program.names.len())?;
        let _values_charge = meter.charge(3 * STACK_VALUES_MAX / 2 * size_of::<Value>())?;
        let captures = vec![TextBuffer::new(meter)?];
        let (values, loops, frames) = (vec![], vec![], vec![]);
        Ok(Self {
            program,
            meter,
            clock,
            scopes,
            values,
            _values_charge,
            loops,
            frames,
            captures,
            at: 0,
        })
    }

    /// Returns the line of the most recent instruction.
    pub(crate) fn line(&self) -> usize {
        let line = self.program.lines.get(self.at.saturating_sub(1));
        // Default: 0 means no line.
        line.map_or(0, |line| *line as usize)
    }

    /// Runs the program and returns the output.
    pub(crate) fn run(&mut self) -> Result<String, Fault> {
        while let Some(op) = self.program.code.get(self.at).copied() {
            self.at += 1;
            self.meter.work(INSTRUCTION_WORK)?;
            self.step(op)?;
        }
        let output = self.captures.pop().ok_or_else(misfit)?;
        Ok(output.into_string())
    }

    #[inline]
    fn pop(&mut self) -> Result<Value, Fault> {
        self.pop_marked().map(Value::unmarked)
    }

    /// Pops a value without removing the mark of `safe`.
    #[inline]
    fn pop_marked(&mut self) -> Result<Value, Fault> {
        self.values.pop().ok_or_else(misfit)
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.values.len() >= STACK_VALUES_MAX {
            return Err(Fault::failed("too many values at a time"));
        }
        self.values.push(value);
        Ok(())
    }

    /// Pops `count` values.
    fn take(&mut self, count: usize) -> Result<Vec<Value>, Fault> {
        let start = self.values.len().checked_sub(count).ok_or_else(misfit)?;
        let mut values = self.values.split_off(start);
        for value in &mut values {
            if matches!(value, Value::Markup(_)) {
                *value = std::mem::replace(value, Value::None).unmarked();
            }
        }
        Ok(values)
    }

    fn jump(&mut self, by: i32) {
        // The number of instructions fits in both types.
        self.at = (self.at as i64 - 1 + i64::from(by)).max(0) as usize;
    }

    fn out(&mut self) -> Result<&mut TextBuffer, Fault> {
        self.captures.last_mut().ok_or_else(misfit)
    }

    #[inline]
    fn step(&mut self, op: Op) -> Result<(), Fault> {
        match op {
            Op::Raw(number) => self.raw(number),
            Op::Print => {
                let (value, meter) = (self.pop()?, self.meter);
                print(meter, &value, self.out()?)
            }
            Op::Constant(number) => {
                let value = match self.program.constants.get(number as usize) {
                    Some(Constant::Text(text)) => Value::Text(Text::literal(text)),
                    Some(Constant::Float(number)) => Value::Float(*number),
                    None => return Err(misfit()),
                };
                self.push(value)
            }
            Op::Int(number) => self.push(Value::Int(number)),
            Op::Bool(truth) => self.push(Value::Bool(truth)),
            Op::None => self.push(Value::None),
            Op::Undefined => self.push(Value::Undefined),
            Op::Load(name) => {
                let value = self.load(name)?;
                self.push(value)
            }
            Op::Store(name) => {
                let value = self.pop_marked()?;
                self.scopes.set(name, value)
            }
            Op::StoreAttribute(namespace, name) => self.store_attribute(namespace, name),
            Op::Attribute(name) => {
                let value = self.pop()?;
                let found = attribute(self.meter, &value, self.program.name(name))?;
                self.push(found)
            }
            Op::Item => {
                let (key, value) = (self.pop()?, self.pop()?);
                let found = item(self.meter, &value, &key)?;
                self.push(found)
            }
            Op::Slice => {
                let (step, stop, start) = (self.pop()?, self.pop()?, self.pop()?);
                let value = self.pop()?;
                let found = slice(self.meter, &value, [&start, &stop, &step])?;
                self.push(found)
            }
            Op::Jump(_)
            | Op::JumpIfFalse(_)
            | Op::JumpIfFalseOrPop(_)
            | Op::JumpIfTrueOrPop(_)
            | Op::JumpIfGiven(..) => self.branch(op),
            Op::Iterate
            | Op::IterateToChoose
            | Op::Next(_)
            | Op::Choose
            | Op::EndChoice
            | Op::EndLoop(_) => self.loop_step(op),
            Op::Call(shape) => self.call(shape),
            Op::Method(name, shape) => self.method(name, shape),
            Op::Filter(name, shape) => self.apply(name, shape, false),
            Op::Test(name, shape) => self.apply(name, shape, true),
            Op::PushScope
            | Op::PopScope
            | Op::Capture
            | Op::EndCapture
            | Op::DropCapture
            | Op::Return
            | Op::MakeMacro(_) => self.block_step(op),
            op => self.operate(op),
        }
    }

    fn raw(&mut self, number: u32) -> Result<(), Fault> {
        let Some(Constant::Text(text)) = self.program.constants.get(number as usize) else {
            return Err(misfit());
        };
        let meter = self.meter;
        self.out()?.push(meter, text)
    }

    fn name(&self, number: u32) -> Result<Text, Fault> {
        let name = self.program.names.get(number as usize).ok_or_else(misfit)?;
        Ok(Text::literal(&name.text))
    }

    fn load(&self, number: u32) -> Result<Value, Fault> {
        let name = self.program.names.get(number as usize).ok_or_else(misfit)?;
        if let Some(value) = self.scopes.get(self.meter, number, name.is_loop)? {
            return Ok(value);
        }
        Ok(name.function.map_or(Value::Undefined, Value::Function))
    }

    fn store_attribute(&mut self, namespace: u32, name: u32) -> Result<(), Fault> {
        let value = self.pop()?;
        match self.load(namespace)? {
            Value::Namespace(namespace) => namespace.set(self.meter, self.name(name)?, value),
            other => {
                let of = other.type_name();
                Err(Fault::failed(format!("attributes of {of} cannot be assigned")))
            }
        }
    }

    fn operate(&mut self, op: Op) -> Result<(), Fault> {
        let value = match op {
            Op::Not => Value::Bool(!self.pop()?.is_true()),
            Op::Negate => negate(&self.pop()?)?,
            Op::Positive => positive(&self.pop()?)?,
            Op::Arithmetic(operation) => {
                let (right, left) = (self.pop_marked()?, self.pop_marked()?);
                compute(self.meter, operation, left, &right)?
            }
            Op::Compare(comparison) => {
                let (right, left) = (self.pop()?, self.pop()?);
                Value::Bool(self.compare(comparison, &left, &right)?)
            }
            Op::CompareChain(comparison, by) => {
                let (right, left) = (self.pop()?, self.pop()?);
                if self.compare(comparison, &left, &right)? {
                    right
                } else {
                    self.jump(by);
                    Value::Bool(false)
                }
            }
            Op::List(count) => {
                let values = self.take(count as usize)?;
                Value::Sequence(Sequence::of(self.meter, Kind::List, values)?)
            }
            Op::Tuple(count) => {
                let values = self.take(count as usize)?;
                Value::Sequence(Sequence::of(self.meter, Kind::Tuple, values)?)
            }
            Op::Dict(count) => self.dict(count as usize)?,
            Op::Unpack(count) => return self.unpack(count as usize),
            _ => return Err(misfit()),
        };
        self.push(value)
    }

    fn dict(&mut self, count: usize) -> Result<Value, Fault> {
        let values = self.take(2 * count)?;
        let mut entries = Vec::with_capacity(count);
        let mut values = values.into_iter();
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            insert(self.meter, &mut entries, key, value)?;
        }
        Ok(Value::Map(Map::of(self.meter, entries.into_iter())?))
    }

    fn compare(&self, by: Comparison, left: &Value, right: &Value) -> Result<bool, Fault> {
        let ordered = || order(self.meter, left, right);
        Ok(match by {
            Comparison::Equal => equal(self.meter, left, right)?,
            Comparison::NotEqual => !equal(self.meter, left, right)?,
            Comparison::Less => ordered()?.is_some_and(|order| order.is_lt()),
            Comparison::LessOrEqual => ordered()?.is_some_and(|order| order.is_le()),
            Comparison::Greater => ordered()?.is_some_and(|order| order.is_gt()),
            Comparison::GreaterOrEqual => ordered()?.is_some_and(|order| order.is_ge()),
            Comparison::In => contains(self.meter, right, left)?,
            Comparison::NotIn => !contains(self.meter, right, left)?,
        })
    }

    fn unpack(&mut self, count: usize) -> Result<(), Fault> {
        let value = self.pop()?;
        let items = items_of(self.meter, &value)?;
        if items.items.len() != count {
            let found = items.items.len();
            return Err(Fault::failed(format!("{found} values for {count} names")));
        }
        for value in items.items.iter().rev() {
            self.push(value.clone())?;
        }
        Ok(())
    }

    fn branch(&mut self, op: Op) -> Result<(), Fault> {
        let by = match op {
            Op::Jump(by) => Some(by),
            Op::JumpIfFalse(by) => (!self.pop()?.is_true()).then_some(by),
            Op::JumpIfFalseOrPop(by) | Op::JumpIfTrueOrPop(by) => {
                let stays = self.values.last().ok_or_else(misfit)?.is_true()
                    == matches!(op, Op::JumpIfTrueOrPop(_));
                if !stays {
                    self.pop()?;
                }
                stays.then_some(by)
            }
            Op::JumpIfGiven(name, by) => self.scopes.is_set(name).then_some(by),
            _ => return Err(misfit()),
        };
        if let Some(by) = by {
            self.jump(by);
        }
        Ok(())
    }

    fn loop_step(&mut self, op: Op) -> Result<(), Fault> {
        match op {
            Op::Iterate | Op::IterateToChoose => {
                let value = self.pop()?;
                let items = items_of(self.meter, &value)?;
                let chooses = matches!(op, Op::IterateToChoose);
                let around = self.loops.len() - self.frames.last().map_or(0, |frame| frame.loops);
                let state = LoopState::new(self.meter, items, around)?;
                self.scopes.push((!chooses).then(|| Rc::clone(&state)))?;
                let chosen = if chooses { Some(Items::new(self.meter)?) } else { None };
                self.loops.push(RunningLoop { state, chosen });
            }
            Op::Next(by) => {
                self.scopes.clear();
                let state = &self.loops.last().ok_or_else(misfit)?.state;
                let next = state.begun.get();
                match state.items.items.get(next).cloned() {
                    Some(item) => {
                        state.begun.set(next + 1);
                        self.push(item)?;
                    }
                    None => self.jump(by),
                }
            }
            Op::Choose => {
                let value = self.pop()?;
                let running = self.loops.last_mut().ok_or_else(misfit)?;
                if value.is_true() {
                    let place = running.state.begun.get().checked_sub(1).ok_or_else(misfit)?;
                    let item = running.state.items.items.get(place).ok_or_else(misfit)?;
                    let chosen = running.chosen.as_mut().ok_or_else(misfit)?;
                    chosen.push(self.meter, item.clone())?;
                }
            }
            Op::EndChoice => {
                let running = self.loops.pop().ok_or_else(misfit)?;
                self.scopes.pop();
                let chosen = running.chosen.ok_or_else(misfit)?;
                self.push(chosen.into_value(Kind::List)?)?;
            }
            Op::EndLoop(by) => {
                let running = self.loops.pop().ok_or_else(misfit)?;
                self.scopes.pop();
                if !running.state.items.items.is_empty() {
                    self.jump(by);
                }
            }
            _ => return Err(misfit()),
        }
        Ok(())
    }

    fn block_step(&mut self, op: Op) -> Result<(), Fault> {
        match op {
            Op::PushScope => self.scopes.push(None),
            Op::PopScope => {
                self.scopes.pop();
                Ok(())
            }
            Op::Capture => {
                self.captures.push(TextBuffer::new(self.meter)?);
                Ok(())
            }
            Op::EndCapture => {
                let text = self.captures.pop().ok_or_else(misfit)?.finish();
                self.push(Value::Text(text))
            }
            Op::DropCapture => self.captures.pop().map(|_| ()).ok_or_else(misfit),
            Op::MakeMacro(index) => self.push(Value::Macro(self.scopes.here(index))),
            Op::Return => {
                let frame = self.frames.pop().ok_or_else(misfit)?;
                self.scopes.pop_to(frame.scopes);
                self.loops.truncate(frame.loops);
                let text = self.captures.pop().ok_or_else(misfit)?.finish();
                self.captures.truncate(frame.captures);
                self.at = frame.back_to;
                self.push(Value::Text(text))
            }
            _ => Err(misfit()),
        }
    }

    /// Calls `run` with the arguments of a call, which are on the stack above their callee.
    fn with_arguments<T>(
        &mut self,
        shape: CallShape,
        run: impl FnOnce(&mut Self, Value, Arguments<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if shape.count == 0 {
            let callee = self.pop()?;
            return run(self, callee, Arguments::positional(&[]));
        }
        if (shape.count, shape.names) == (1, 0) {
            let values = [self.pop()?];
            let callee = self.pop()?;
            return run(self, callee, Arguments::positional(&values));
        }
        let values = self.take(shape.count as usize)?;
        let callee = self.pop()?;
        let numbers = self.program.argument_names.get(shape.names as usize).ok_or_else(misfit)?;
        let names: Vec<&str> = numbers.iter().map(|number| self.program.name(*number)).collect();
        let split = values.len().checked_sub(names.len()).ok_or_else(misfit)?;
        let (positional, named) = values.split_at(split);
        run(self, callee, Arguments { positional, named, names: &names })
    }

    fn apply(&mut self, name: u32, shape: CallShape, is_test: bool) -> Result<(), Fault> {
        let result = self.with_arguments(shape, |machine, value, arguments| {
            let name = machine.program.name(name);
            match is_test {
                true => apply_test(machine.meter, name, &value, arguments).map(Value::Bool),
                false => apply_filter(machine.meter, name, &value, arguments),
            }
        })?;
        self.push(result)
    }

    fn method(&mut self, name: u32, shape: CallShape) -> Result<(), Fault> {
        self.with_arguments(shape, |machine, value, arguments| {
            let key = machine.program.name(name);
            if has_method(&value, key) {
                let result = call_method(machine.meter, &value, key, arguments)?;
                return machine.push(result);
            }
            let callee = match &value {
                Value::Map(_) | Value::Namespace(_) => attribute(machine.meter, &value, key)?,
                _ => Value::Undefined,
            };
            match callee {
                Value::Undefined => Err(unknown(&value, key)),
                callee => machine.invoke(callee, arguments),
            }
        })
    }

    fn call(&mut self, shape: CallShape) -> Result<(), Fault> {
        self.with_arguments(shape, Self::invoke)
    }

    fn invoke(&mut self, callee: Value, arguments: Arguments<'_>) -> Result<(), Fault> {
        let result = match callee {
            Value::Macro(called) => return self.enter(called, arguments),
            Value::Function(function) => {
                call_function(self.meter, self.clock, function, arguments)?
            }
            Value::Method(bound) => {
                call_method(self.meter, &bound.value, bound.name.as_str(), arguments)?
            }
            Value::Joiner(joiner) => call_joiner(self.meter, &joiner)?,
            other => {
                return Err(Fault::failed(format!("{} cannot be called", other.type_name())));
            }
        };
        self.push(result)
    }

    /// Enters a macro. Its text becomes the value of the call.
    fn enter(&mut self, called: MacroRef, arguments: Arguments<'_>) -> Result<(), Fault> {
        if self.frames.len() >= CALL_DEPTH_MAX {
            return Err(Fault::failed(format!(
                "macros call each other more than {CALL_DEPTH_MAX} deep"
            )));
        }
        self.meter.work(CALL_WORK)?;
        let code = self.program.macros.get(called.index as usize).ok_or_else(misfit)?;
        let frame = Frame {
            back_to: self.at,
            scopes: self.scopes.len(),
            loops: self.loops.len(),
            captures: self.captures.len(),
        };
        if arguments.positional.len() > code.parameters.len() {
            let name = self.program.name(code.name);
            return Err(Fault::failed(format!("too many arguments for the macro `{name}`")));
        }
        self.scopes.push_for(called)?;
        for (parameter, value) in code.parameters.iter().zip(arguments.positional) {
            self.scopes.set(*parameter, value.clone())?;
        }
        for (name, value) in arguments.names.iter().zip(arguments.named) {
            let parameter = code
                .parameters
                .iter()
                .skip(arguments.positional.len())
                .find(|parameter| self.program.name(**parameter) == *name)
                .copied();
            let number = match parameter {
                Some(number) => Some(number),
                None if *name == "caller" => self.program.name_numbers.get("caller").copied(),
                None => None,
            };
            let number = number.ok_or_else(|| {
                Fault::failed(format!("the macro has no free parameter `{name}`"))
            })?;
            self.scopes.set(number, value.clone())?;
        }
        self.frames.push(frame);
        self.captures.push(TextBuffer::new(self.meter)?);
        self.at = code.entry;
        Ok(())
    }
}
