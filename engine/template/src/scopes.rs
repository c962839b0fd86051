//! Variables: globals of the template, and variables of loops, macros and blocks.

use std::rc::Rc;

use super::error::Fault;
use super::meter::{Charge, Meter};
use super::value::{LoopState, MacroRef, Value};

/// Parent of outermost scopes.
const ROOT: u32 = u32::MAX;

struct Scope {
    /// Index of the enclosing scope, where lookup continues.
    parent: u32,
    /// Serial number, unique within a rendering.
    serial: u32,
    variables: Vec<(u32, Value)>,
    loop_state: Option<Rc<LoopState>>,
}

pub(crate) struct Scopes {
    /// Global variables, indexed by name number.
    globals: Vec<Option<Value>>,
    scopes: Vec<Scope>,
    /// Emptied lists of variables, for reuse.
    spare: Vec<Vec<(u32, Value)>>,
    serial: u32,
    charge: Charge,
}

/// Charge per variable. A growing vector has up to three times the capacity.
const VARIABLE_BYTES: usize = 3 * size_of::<(u32, Value)>();
/// Charge per scope.
const SCOPE_BYTES: usize = 3 * size_of::<Scope>();

impl Scopes {
    pub(crate) fn new(meter: &Meter<'_>, names: usize) -> Result<Self, Fault> {
        let charge = meter.charge(names.saturating_mul(size_of::<Option<Value>>()))?;
        let mut globals = Vec::with_capacity(names);
        globals.resize_with(names, || None);
        Ok(Self { globals, scopes: vec![], spare: vec![], serial: 0, charge })
    }

    pub(crate) fn len(&self) -> usize {
        self.scopes.len()
    }

    fn top(&self) -> u32 {
        // The number of scopes is limited by the nesting of blocks and calls.
        match self.scopes.len() {
            0 => ROOT,
            count => (count - 1) as u32,
        }
    }

    /// Creates a reference to a macro in the current scope.
    pub(crate) fn here(&self, index: u32) -> MacroRef {
        let serial = self.scopes.last().map_or(0, |scope| scope.serial);
        MacroRef { index, scope: self.top(), serial }
    }

    pub(crate) fn push(&mut self, loop_state: Option<Rc<LoopState>>) -> Result<(), Fault> {
        self.push_in(self.top(), loop_state)
    }

    /// Opens the scope of a macro call. If the block around the macro has ended, its variables are
    /// unavailable.
    pub(crate) fn push_for(&mut self, called: MacroRef) -> Result<(), Fault> {
        let scope = self.scopes.get(called.scope as usize);
        let lives = scope.is_some_and(|scope| scope.serial == called.serial);
        self.push_in(if lives { called.scope } else { ROOT }, None)
    }

    fn push_in(&mut self, parent: u32, loop_state: Option<Rc<LoopState>>) -> Result<(), Fault> {
        self.charge.add(SCOPE_BYTES)?;
        self.serial = self.serial.wrapping_add(1);
        // Default: a new list if there is none to reuse.
        let variables = self.spare.pop().unwrap_or_default();
        self.scopes.push(Scope { parent, serial: self.serial, variables, loop_state });
        Ok(())
    }

    pub(crate) fn pop(&mut self) {
        if let Some(mut scope) = self.scopes.pop() {
            self.charge.give_back(SCOPE_BYTES + scope.variables.len() * VARIABLE_BYTES);
            scope.variables.clear();
            if self.spare.len() < 16 && scope.variables.capacity() <= 64 {
                self.spare.push(scope.variables);
            }
        }
    }

    pub(crate) fn pop_to(&mut self, count: usize) {
        while self.scopes.len() > count {
            self.pop();
        }
    }

    pub(crate) fn clear(&mut self) {
        if let Some(scope) = self.scopes.last_mut() {
            self.charge.give_back(scope.variables.len() * VARIABLE_BYTES);
            scope.variables.clear();
        }
    }

    pub(crate) fn set_global(&mut self, name: u32, value: Value) {
        if let Some(place) = self.globals.get_mut(name as usize) {
            *place = Some(value);
        }
    }

    pub(crate) fn set(&mut self, name: u32, value: Value) -> Result<(), Fault> {
        let Some(scope) = self.scopes.last_mut() else {
            self.set_global(name, value);
            return Ok(());
        };
        match scope.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, place)) => *place = value,
            None => {
                self.charge.add(VARIABLE_BYTES)?;
                scope.variables.push((name, value));
            }
        }
        Ok(())
    }

    pub(crate) fn is_set(&self, name: u32) -> bool {
        let scope = self.scopes.last();
        scope.is_some_and(|scope| scope.variables.iter().any(|(known, _)| *known == name))
    }

    /// Looks up a variable from the innermost scope outwards.
    pub(crate) fn get(
        &self,
        meter: &Meter<'_>,
        name: u32,
        is_loop: bool,
    ) -> Result<Option<Value>, Fault> {
        let mut next = self.top();
        let mut looked_at = 0;
        while let Some(scope) = self.scopes.get(next as usize) {
            looked_at += scope.variables.len() + 1;
            if let Some((_, value)) = scope.variables.iter().find(|(known, _)| *known == name) {
                meter.work(looked_at as u64)?;
                return Ok(Some(value.clone()));
            }
            if let (true, Some(state)) = (is_loop, &scope.loop_state) {
                return Ok(Some(Value::Loop(Rc::clone(state))));
            }
            next = scope.parent;
        }
        meter.work(looked_at as u64)?;
        Ok(self.globals.get(name as usize).cloned().flatten())
    }
}
