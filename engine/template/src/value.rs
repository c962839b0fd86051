//! Values of expressions. Only namespaces are mutable, and a namespace cannot contain namespaces. There are
//! therefore no cycles, and the nesting depth of each value is known.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::error::Fault;
use super::limits::{ALLOCATION_WORK, ITEM_WORK, VALUE_DEPTH_MAX};
use super::meter::{Charge, Meter};
use super::text::Text;

/// Overhead of an allocation in bytes, without its items.
const OVERHEAD: usize = 96;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    /// A number beyond `i64`, which only JSON input can contain. It can be printed and compared.
    Unsigned(u64),
    Float(f64),
    Text(Text),
    /// Text that `safe` has marked: text added to it is escaped. The mark survives only from the filter to
    /// `+` and `{{ }}`; all other operations treat it as plain text.
    Markup(Text),
    Sequence(Rc<Sequence>),
    Map(Rc<Map>),
    Namespace(Rc<Namespace>),
    Macro(MacroRef),
    Loop(Rc<LoopState>),
    Function(Function),
    /// A method that is accessed but not called, as in `x.items is defined`.
    Method(Rc<Bound>),
    Joiner(Rc<Joiner>),
    Cycler(Rc<Cycler>),
}

impl Value {
    pub(crate) fn text(meter: &Meter<'_>, text: &str) -> Result<Self, Fault> {
        Text::copy(meter, text).map(Self::Text)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Markup(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// Returns an integer; `True` is 1, as in Python.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i64::from(*truth)),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Unsigned(number) => Some(*number as f64),
            value => value.as_int().map(|number| number as f64),
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(truth) => *truth,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) | Self::Markup(text) => text.len() > 0,
            Self::Sequence(sequence) => {
                matches!(sequence.kind, Kind::Generator) || !sequence.items.is_empty()
            }
            Self::Map(map) => !map.entries.is_empty(),
            Self::Loop(state) => !state.items.items.is_empty(),
            _ => true,
        }
    }

    /// Removes the mark of `safe`.
    pub(crate) fn unmarked(self) -> Self {
        match self {
            Self::Markup(text) => Self::Text(text),
            value => value,
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    /// Returns the name of the type for errors.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "an undefined value",
            Self::None => "None",
            Self::Bool(_) => "a truth value",
            Self::Int(_) | Self::Unsigned(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) | Self::Markup(_) => "a text",
            Self::Sequence(sequence) => sequence.kind.name(),
            Self::Map(_) => "a dict",
            Self::Namespace(_) => "a namespace",
            Self::Macro(_) => "a macro",
            Self::Loop(_) => "a loop",
            Self::Function(_) => "a function",
            Self::Method(_) => "a method",
            Self::Joiner(_) => "a joiner",
            Self::Cycler(_) => "a cycler",
        }
    }

    pub(crate) fn type_name_of(sequence: &Sequence) -> &'static str {
        sequence.kind.name()
    }

    fn depth(&self) -> u16 {
        match self {
            Self::Sequence(sequence) => sequence.depth,
            Self::Map(map) => map.depth,
            Self::Loop(state) => state.items.depth + 1,
            Self::Method(bound) => bound.depth,
            Self::Cycler(cycler) => cycler.items.depth + 1,
            Self::Joiner(joiner) => joiner.separator.depth() + 1,
            Self::Namespace(_) => 1,
            _ => 0,
        }
    }

    /// Returns whether a namespace is reachable from the value.
    fn has_namespace(&self) -> bool {
        match self {
            Self::Namespace(_) => true,
            Self::Sequence(sequence) => sequence.has_namespace,
            Self::Map(map) => map.has_namespace,
            Self::Loop(state) => state.items.has_namespace,
            Self::Method(bound) => bound.value.has_namespace(),
            Self::Cycler(cycler) => cycler.items.has_namespace,
            Self::Joiner(joiner) => joiner.separator.has_namespace(),
            _ => false,
        }
    }
}

/// Kind of a sequence, as visible to templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    List,
    Tuple,
    Range,
    /// Keys view of a map.
    Keys,
    Values,
    Items,
    /// Result of filters such as `map`: true, without a length, and can be iterated once.
    Generator,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::List => "a list",
            Self::Tuple => "a tuple",
            Self::Range => "a range",
            Self::Keys | Self::Values | Self::Items => "a view of a dict",
            Self::Generator => "a generator",
        }
    }

    /// Returns whether items are accessible by index.
    pub(crate) fn is_indexed(self) -> bool {
        matches!(self, Self::List | Self::Tuple | Self::Range)
    }
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) kind: Kind,
    pub(crate) items: Vec<Value>,
    /// Set once a generator was iterated.
    used: Cell<bool>,
    depth: u16,
    has_namespace: bool,
    _charge: Charge,
}

/// Builder of a sequence. Items are charged when they are added.
pub(crate) struct Items {
    items: Vec<Value>,
    charge: Charge,
    depth: u16,
    has_namespace: bool,
}

impl Items {
    pub(crate) fn new(meter: &Meter<'_>) -> Result<Self, Fault> {
        Self::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Meter<'_>, count: usize) -> Result<Self, Fault> {
        let bytes = count.checked_mul(size_of::<Value>()).ok_or(Fault::Memory)?;
        let charge = meter.charge(bytes.checked_add(OVERHEAD).ok_or(Fault::Memory)?)?;
        meter.work(ALLOCATION_WORK)?;
        Ok(Self { items: Vec::with_capacity(count), charge, depth: 0, has_namespace: false })
    }

    pub(crate) fn push(&mut self, meter: &Meter<'_>, value: Value) -> Result<(), Fault> {
        meter.work(ITEM_WORK)?;
        if self.items.len() == self.items.capacity() {
            let (old, new) = (self.items.capacity(), (2 * self.items.capacity()).max(4));
            self.charge.add(new * size_of::<Value>())?;
            self.items.reserve_exact(new - old);
            self.charge.give_back(old * size_of::<Value>());
            meter.walk(old)?;
        }
        self.depth = self.depth.max(value.depth());
        self.has_namespace |= value.has_namespace();
        self.items.push(value);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn as_slice(&self) -> &[Value] {
        &self.items
    }

    pub(crate) fn finish(self, kind: Kind) -> Result<Rc<Sequence>, Fault> {
        let Self { items, charge, depth, has_namespace } = self;
        let depth = nested_in(depth)?;
        let used = Cell::new(false);
        Ok(Rc::new(Sequence { kind, items, used, depth, has_namespace, _charge: charge }))
    }

    pub(crate) fn into_value(self, kind: Kind) -> Result<Value, Fault> {
        self.finish(kind).map(Value::Sequence)
    }
}

/// Returns the depth of a container whose values are nested to `depth`.
fn nested_in(depth: u16) -> Result<u16, Fault> {
    if depth >= VALUE_DEPTH_MAX {
        return Err(Fault::failed(format!(
            "lists and dicts are nested more than {VALUE_DEPTH_MAX} deep"
        )));
    }
    Ok(depth + 1)
}

impl Sequence {
    pub(crate) fn of(
        meter: &Meter<'_>,
        kind: Kind,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<Rc<Self>, Fault> {
        let values = values.into_iter();
        let mut items = Items::with_capacity(meter, values.size_hint().0)?;
        for value in values {
            items.push(meter, value)?;
        }
        items.finish(kind)
    }

    /// Returns whether a generator was already used up, and marks it as used.
    pub(crate) fn use_up(&self) -> bool {
        self.kind == Kind::Generator && self.used.replace(true)
    }
}

/// Keys with values, in insertion order.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) entries: Vec<(Value, Value)>,
    depth: u16,
    has_namespace: bool,
    _charge: Charge,
}

/// Builder of a map with reserved capacity.
pub(crate) struct Entries {
    entries: Vec<(Value, Value)>,
    charge: Charge,
    depth: u16,
    has_namespace: bool,
}

impl Entries {
    pub(crate) fn with_capacity(meter: &Meter<'_>, count: usize) -> Result<Self, Fault> {
        let bytes = count.checked_mul(size_of::<(Value, Value)>()).ok_or(Fault::Memory)?;
        let charge = meter.charge(bytes.saturating_add(OVERHEAD))?;
        meter.work(ALLOCATION_WORK + ITEM_WORK * count as u64)?;
        let entries = Vec::with_capacity(count);
        Ok(Self { entries, charge, depth: 0, has_namespace: false })
    }

    /// Adds an entry with a new key, within the capacity.
    pub(crate) fn push(&mut self, key: Value, value: Value) {
        self.depth = value.depth().max(key.depth()).max(self.depth);
        self.has_namespace |= value.has_namespace() || key.has_namespace();
        self.entries.push((key, value));
    }

    pub(crate) fn finish(self) -> Result<Rc<Map>, Fault> {
        let Self { entries, charge, depth, has_namespace } = self;
        let depth = nested_in(depth)?;
        Ok(Rc::new(Map { entries, depth, has_namespace, _charge: charge }))
    }
}

impl Map {
    /// Creates a map from entries with different keys.
    pub(crate) fn of(
        meter: &Meter<'_>,
        entries: impl ExactSizeIterator<Item = (Value, Value)>,
    ) -> Result<Rc<Self>, Fault> {
        let mut made = Entries::with_capacity(meter, entries.len())?;
        entries.for_each(|(key, value)| made.push(key, value));
        made.finish()
    }

    /// Returns the value of a text key.
    pub(crate) fn get(&self, meter: &Meter<'_>, key: &str) -> Result<Option<&Value>, Fault> {
        meter.work(2 * self.entries.len() as u64)?;
        for (name, value) in &self.entries {
            if let Value::Text(name) = name
                && name.len() == key.len()
            {
                meter.work(key.len() as u64 / 8)?;
                if name.as_str() == key {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}

/// Variables that outlive a block.
#[derive(Debug)]
pub(crate) struct Namespace {
    entries: RefCell<Vec<(Text, Value)>>,
    charge: RefCell<Charge>,
}

impl Namespace {
    pub(crate) fn new(meter: &Meter<'_>) -> Result<Rc<Self>, Fault> {
        let charge = RefCell::new(meter.charge(OVERHEAD)?);
        Ok(Rc::new(Self { entries: RefCell::default(), charge }))
    }

    pub(crate) fn get(&self, meter: &Meter<'_>, name: &str) -> Result<Option<Value>, Fault> {
        let entries = self.entries.borrow();
        meter.work(4 * entries.len() as u64)?;
        let found = entries.iter().find(|(key, _)| key.as_str() == name);
        Ok(found.map(|(_, value)| value.clone()))
    }

    pub(crate) fn set(&self, meter: &Meter<'_>, name: Text, value: Value) -> Result<(), Fault> {
        if value.has_namespace() {
            return Err(Fault::failed("a namespace cannot hold a namespace"));
        }
        if name.as_str().starts_with('_') {
            return Err(Fault::failed("names in a namespace cannot begin with an underscore"));
        }
        let mut entries = self.entries.borrow_mut();
        meter.work(4 * entries.len() as u64)?;
        match entries.iter_mut().find(|(key, _)| key.as_str() == name.as_str()) {
            Some((_, place)) => *place = value,
            None => {
                // A growing vector has up to three times the capacity.
                self.charge.borrow_mut().add(3 * size_of::<(Text, Value)>())?;
                entries.push((name, value));
            }
        }
        Ok(())
    }
}

/// A macro of the template and the scope in which it was created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MacroRef {
    pub(crate) index: u32,
    pub(crate) scope: u32,
    pub(crate) serial: u32,
}

#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) items: Rc<Sequence>,
    /// Number of items started, which is the number of the current item from 1.
    pub(crate) begun: Cell<usize>,
    /// Number of enclosing loops.
    pub(crate) depth0: usize,
    /// Latest argument of `loop.changed`.
    pub(crate) last: RefCell<Option<Value>>,
    _charge: Charge,
}

impl LoopState {
    pub(crate) fn new(
        meter: &Meter<'_>,
        items: Rc<Sequence>,
        depth0: usize,
    ) -> Result<Rc<Self>, Fault> {
        nested_in(items.depth)?;
        let _charge = meter.charge(OVERHEAD)?;
        let (begun, last) = (Cell::new(0), RefCell::new(None));
        Ok(Rc::new(Self { items, begun, depth0, last, _charge }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
    Joiner,
    Cycler,
}

/// A value with the name of its method.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) value: Value,
    pub(crate) name: Text,
    depth: u16,
    _charge: Charge,
}

impl Bound {
    pub(crate) fn new(meter: &Meter<'_>, value: Value, name: Text) -> Result<Rc<Self>, Fault> {
        let depth = nested_in(value.depth())?;
        let _charge = meter.charge(OVERHEAD)?;
        Ok(Rc::new(Self { value, name, depth, _charge }))
    }
}

/// State of `joiner(', ')`: empty on the first call, then the separator.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(crate) separator: Value,
    pub(crate) used: Cell<bool>,
    _charge: Charge,
}

impl Joiner {
    pub(crate) fn new(meter: &Meter<'_>, separator: Value) -> Result<Rc<Self>, Fault> {
        nested_in(separator.depth())?;
        let _charge = meter.charge(OVERHEAD)?;
        Ok(Rc::new(Self { separator, used: Cell::new(false), _charge }))
    }
}

/// State of `cycler(...)`, which returns its items in turn.
#[derive(Debug)]
pub(crate) struct Cycler {
    pub(crate) items: Rc<Sequence>,
    pub(crate) next: Cell<usize>,
    _charge: Charge,
}

impl Cycler {
    pub(crate) fn new(meter: &Meter<'_>, items: Rc<Sequence>) -> Result<Rc<Self>, Fault> {
        nested_in(items.depth)?;
        let _charge = meter.charge(OVERHEAD)?;
        Ok(Rc::new(Self { items, next: Cell::new(0), _charge }))
    }

    pub(crate) fn current(&self) -> Result<Value, Fault> {
        let item = self.items.items.get(self.next.get());
        item.cloned().ok_or_else(|| Fault::broken("a cycler has items"))
    }
}
