//! Grammars in GBNF, llama.cpp's format: parsing and checks.
//!
//! The syntax is that of llama.cpp's `grammars/README.md` and `src/llama-grammar.cpp`. A parsed grammar is a
//! graph of [`GbnfNode`]s, in which a rule is a choice that references point to.

use std::collections::HashMap;

use crate::error::GuideError;
use crate::limits::{DEPTH_MAX, GBNF_RULES_MAX, GRAMMAR_BYTES_MAX, REPEAT_MAX};

/// Name of the start rule.
const ROOT: &str = "root";

/// Inclusive ranges of code points, sorted and disjoint.
pub(crate) type CharRanges = Vec<(u32, u32)>;

/// Last code point.
const LAST: u32 = char::MAX as u32;
/// Code points that are no characters, and that no class matches.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// A part of a grammar. Numbers are indexes of [`GbnfGrammar::nodes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GbnfNode {
    /// One character each.
    Text(Vec<char>),
    Class(CharRanges),
    /// Reference to a rule, an index of [`GbnfGrammar::rules`].
    Rule(usize),
    Sequence(Vec<usize>),
    Choice(Vec<usize>),
    /// A node, with a minimum and a maximum count.
    Repeat(usize, u64, Option<u64>),
}

/// A parsed grammar in which all references are defined.
#[derive(Debug)]
pub(crate) struct GbnfGrammar {
    /// Nodes. Children are stored before their parents.
    pub nodes: Vec<GbnfNode>,
    /// Choice of each rule, an index of `nodes`.
    pub rules: Vec<usize>,
    /// Index of the start rule.
    pub root: usize,
}

impl GbnfGrammar {
    /// Parses a grammar.
    ///
    /// # Errors
    /// Fails with [`GuideError::Limit`], [`GuideError::Invalid`] for a syntax error, an undefined, repeated or
    /// endless rule or an absent start rule, and [`GuideError::Unsupported`] for references to tokens.
    pub fn parse(text: &str) -> Result<Self, GuideError> {
        GuideError::check("bytes of a grammar", text.len(), GRAMMAR_BYTES_MAX)?;
        let mut parser = GbnfParser {
            rest: text,
            line: 1,
            nodes: Vec::new(),
            depths: Vec::new(),
            rules: Vec::new(),
            names: HashMap::new(),
        };
        parser.spaces(true);
        while !parser.rest.is_empty() {
            parser.rule()?;
        }
        parser.finish()
    }

    /// Returns a rule that derives no finite text, if there is one.
    fn endless_rule(&self) -> Option<usize> {
        let mut ends = vec![false; self.nodes.len()];
        loop {
            let mut has_changed = false;
            for (index, node) in self.nodes.iter().enumerate() {
                let is_ended = match node {
                    GbnfNode::Text(_) | GbnfNode::Class(_) | GbnfNode::Repeat(_, 0, _) => true,
                    GbnfNode::Rule(rule) => ends[self.rules[*rule]],
                    GbnfNode::Sequence(nodes) => nodes.iter().all(|node| ends[*node]),
                    GbnfNode::Choice(nodes) => nodes.iter().any(|node| ends[*node]),
                    GbnfNode::Repeat(node, ..) => ends[*node],
                };
                has_changed |= is_ended != ends[index];
                ends[index] = is_ended;
            }
            if !has_changed {
                return self.rules.iter().position(|choice| !ends[*choice]);
            }
        }
    }
}

/// Returns whether a text is a grammar in GBNF: some line starts with a name and `::=`, which no Lark grammar has.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start_matches([' ', '\t', '\u{feff}']);
        let rest = line.trim_start_matches(is_name);
        rest.len() < line.len() && rest.trim_start_matches([' ', '\t']).starts_with("::=")
    })
}

struct GbnfRule<'a> {
    name: &'a str,
    /// Line of the definition or of the first reference.
    line: usize,
    choice: Option<usize>,
}

struct GbnfParser<'a> {
    rest: &'a str,
    /// Number of the current line, from 1.
    line: usize,
    nodes: Vec<GbnfNode>,
    /// Height of each node above its leaves.
    depths: Vec<usize>,
    rules: Vec<GbnfRule<'a>>,
    names: HashMap<&'a str, usize>,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

impl<'a> GbnfParser<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.next();
        }
        is_there
    }

    /// Skips white space and comments. Line breaks end a rule, so that they are skipped only within one.
    fn spaces(&mut self, line_breaks: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\u{feff}' => {}
                '\r' | '\n' if line_breaks => {}
                '#' => {
                    let end = self.rest.find(['\r', '\n']);
                    // Default: the comment extends to the end of the grammar.
                    self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let end = self.rest.find(|c| !is_name(c));
        // Default: the name ends with the grammar.
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn place(&self) -> String {
        format!("line {} of the grammar", self.line)
    }

    fn unexpected(&self, expected: &'static str) -> GuideError {
        let found = match self.peek() {
            None => "the end of the grammar".to_owned(),
            Some('\r' | '\n') => "the end of the line".to_owned(),
            Some(c) if c.is_control() => format!("`{}`", c.escape_debug()),
            Some(c) => format!("`{c}`"),
        };
        GuideError::Invalid { what: self.place(), expected, found }
    }

    fn add(&mut self, node: GbnfNode) -> Result<usize, GuideError> {
        let height = |node: &usize| self.depths[*node] + 1;
        let depth = match &node {
            GbnfNode::Text(_) | GbnfNode::Class(_) | GbnfNode::Rule(_) => 0,
            GbnfNode::Sequence(nodes) | GbnfNode::Choice(nodes) => {
                // Default: a node without children is a leaf.
                nodes.iter().map(height).max().unwrap_or(0)
            }
            GbnfNode::Repeat(node, ..) => height(node),
        };
        GuideError::check("depth of a grammar", depth, 3 * DEPTH_MAX)?;
        self.nodes.push(node);
        self.depths.push(depth);
        Ok(self.nodes.len() - 1)
    }

    /// Returns the index of a named rule, which may be defined later.
    fn rule_of(&mut self, name: &'a str) -> Result<usize, GuideError> {
        if let Some(rule) = self.names.get(name) {
            return Ok(*rule);
        }
        GuideError::check("rules of a grammar", self.rules.len() + 1, GBNF_RULES_MAX)?;
        self.rules.push(GbnfRule { name, line: self.line, choice: None });
        self.names.insert(name, self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    fn rule(&mut self) -> Result<(), GuideError> {
        let name = self.name().ok_or_else(|| self.unexpected("the name of a rule"))?;
        let rule = self.rule_of(name)?;
        if self.rules[rule].choice.is_some() {
            let (what, found) = (self.place(), format!("another one of `{name}`"));
            return Err(GuideError::Invalid { what, expected: "one definition of a rule", found });
        }
        self.spaces(false);
        if !self.rest.starts_with("::=") {
            return Err(self.unexpected("`::=` after the name of a rule"));
        }
        self.rest = &self.rest[3..];
        self.spaces(true);
        let choice = self.alternates(0)?;
        // A rule's node is a choice, even of one alternate, so that references end at it.
        let choice = self.add(GbnfNode::Choice(choice))?;
        self.rules[rule].choice = Some(choice);
        if !self.rest.is_empty() && !self.rest.starts_with(['\r', '\n']) {
            return Err(self.unexpected("the end of the rule"));
        }
        self.spaces(true);
        Ok(())
    }

    fn alternates(&mut self, depth: usize) -> Result<Vec<usize>, GuideError> {
        GuideError::check("depth of brackets", depth, DEPTH_MAX)?;
        let mut alternates = vec![self.sequence(depth)?];
        while self.take('|') {
            self.spaces(true);
            alternates.push(self.sequence(depth)?);
        }
        Ok(alternates)
    }

    fn sequence(&mut self, depth: usize) -> Result<usize, GuideError> {
        let mut items = Vec::new();
        while let Some(c) = self.peek() {
            if let Some((minimum, maximum)) = self.repetition(depth)? {
                let item = items.pop().ok_or_else(|| {
                    let (what, found) = (self.place(), format!("`{c}`"));
                    GuideError::Invalid { what, expected: "an item before a repetition", found }
                })?;
                items.push(self.add(GbnfNode::Repeat(item, minimum, maximum))?);
            } else if let Some(item) = self.item(c, depth)? {
                items.push(item);
            } else {
                break;
            }
            self.spaces(depth > 0);
        }
        match *items {
            [item] => Ok(item),
            _ => self.add(GbnfNode::Sequence(items)),
        }
    }

    /// Reads an item that starts with `c`, or returns `None` at the end of a sequence.
    fn item(&mut self, c: char, depth: usize) -> Result<Option<usize>, GuideError> {
        let node = match c {
            '"' => self.literal()?,
            '[' => GbnfNode::Class(self.class()?),
            '.' => {
                self.next();
                GbnfNode::Class(vec![(0, LAST)])
            }
            '(' => return self.group(depth).map(Some),
            '<' | '!' => {
                // Default: the reference has no end.
                let (token, _) = self.rest.split_once('>').unwrap_or((self.rest, ""));
                let token: String = token.chars().take(40).collect();
                let reason = format!("the reference to a token `{token}>` is not supported");
                return Err(GuideError::Unsupported { place: self.place(), reason });
            }
            _ => match self.name() {
                None => return Ok(None),
                Some(name) => GbnfNode::Rule(self.rule_of(name)?),
            },
        };
        self.add(node).map(Some)
    }

    fn group(&mut self, depth: usize) -> Result<usize, GuideError> {
        self.next();
        self.spaces(true);
        let alternates = self.alternates(depth + 1)?;
        if !self.take(')') {
            return Err(self.unexpected("`)`"));
        }
        match *alternates {
            [only] => Ok(only),
            _ => self.add(GbnfNode::Choice(alternates)),
        }
    }

    fn literal(&mut self) -> Result<GbnfNode, GuideError> {
        self.next();
        let mut text = Vec::new();
        while !self.take('"') {
            text.push(self.character("`\"` at the end of a text")?);
        }
        Ok(match text.is_empty() {
            true => GbnfNode::Sequence(Vec::new()),
            false => GbnfNode::Text(text),
        })
    }

    fn class(&mut self) -> Result<CharRanges, GuideError> {
        self.next();
        let is_negated = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let first = u32::from(self.character("`]` at the end of a class")?);
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next();
                last = u32::from(self.character("`]` at the end of a class")?);
            }
            if last < first {
                let (what, found) = (self.place(), format!("{first:#x} to {last:#x}"));
                return Err(GuideError::Invalid { what, expected: "a range in order", found });
            }
            ranges.push((first, last));
        }
        let what = self.place();
        if ranges.is_empty() {
            let (expected, found) = ("a character in brackets", "none".into());
            return Err(GuideError::Invalid { what, expected, found });
        }
        if is_negated {
            ranges.push(SURROGATES);
        }
        let ranges = merged(ranges);
        let ranges = if is_negated { complement(&ranges) } else { ranges };
        match ranges.is_empty() {
            false => Ok(ranges),
            true => {
                let (expected, found) = ("a class that matches a character", "none".into());
                Err(GuideError::Invalid { what, expected, found })
            }
        }
    }

    /// Reads a character of a text or class, which may be escaped.
    fn character(&mut self, expected: &'static str) -> Result<char, GuideError> {
        let c = self.peek().ok_or_else(|| self.unexpected(expected))?;
        self.next();
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        let c = match escape {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => c,
            Some('x') => return self.hexadecimal(2),
            Some('u') => return self.hexadecimal(4),
            Some('U') => return self.hexadecimal(8),
            _ => return Err(self.unexpected("n, r, t, x, u, U, \\, \", [, ] or - after `\\`")),
        };
        self.next();
        Ok(c)
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<char, GuideError> {
        self.next();
        let mut value = 0_u32;
        for _ in 0..digits {
            let digit = self.peek().and_then(|c| c.to_digit(16));
            let digit = digit.ok_or_else(|| self.unexpected("hexadecimal digits of an escape"))?;
            value = value << 4 | digit;
            self.next();
        }
        char::from_u32(value).ok_or_else(|| {
            let (what, found) = (self.place(), format!("U+{value:04X}"));
            GuideError::Invalid { what, expected: "a Unicode character", found }
        })
    }

    /// Reads the counts of a repetition, or returns `None` if there is no repetition.
    fn repetition(&mut self, depth: usize) -> Result<Option<(u64, Option<u64>)>, GuideError> {
        let counts = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counts(depth > 0).map(Some),
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(counts))
    }

    fn counts(&mut self, line_breaks: bool) -> Result<(u64, Option<u64>), GuideError> {
        self.next();
        self.spaces(line_breaks);
        let minimum = self.count()?;
        self.spaces(line_breaks);
        let has_comma = self.take(',');
        self.spaces(line_breaks);
        let maximum = if has_comma { self.count()? } else { minimum };
        self.spaces(line_breaks);
        if minimum.is_none() && maximum.is_none() {
            return Err(self.unexpected("a number of repetitions"));
        }
        if !self.take('}') {
            return Err(self.unexpected("`}` at the end of a repetition"));
        }
        // Default: `{,n}` is `{0,n}`.
        let minimum = minimum.unwrap_or(0);
        if let Some(maximum) = maximum.filter(|maximum| *maximum < minimum) {
            let (what, found) = (self.place(), format!("{minimum} to {maximum}"));
            return Err(GuideError::Invalid { what, expected: "repetitions in order", found });
        }
        Ok((minimum, maximum))
    }

    fn count(&mut self) -> Result<Option<u64>, GuideError> {
        let mut count = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            // Default: the first digit follows no other one.
            let found = count.unwrap_or(0_u64) * 10 + u64::from(digit);
            if found > REPEAT_MAX {
                return Err(GuideError::Limit { what: "repetitions", limit: REPEAT_MAX, found });
            }
            count = Some(found);
            self.next();
        }
        Ok(count)
    }

    fn finish(self) -> Result<GbnfGrammar, GuideError> {
        let invalid = |what: String, expected: &'static str, found: &str| {
            Err(GuideError::Invalid { what, expected, found: found.to_owned() })
        };
        let Some(root) = self.names.get(ROOT).copied() else {
            return invalid("the grammar".into(), "a rule `root`", "none");
        };
        let what = |rule: &GbnfRule<'_>| {
            let name: String = rule.name.chars().take(80).collect();
            format!("line {} of the grammar: rule `{name}`", rule.line)
        };
        let mut choices = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            match rule.choice {
                Some(choice) => choices.push(choice),
                None => return invalid(what(rule), "a definition", "none"),
            }
        }
        let grammar = GbnfGrammar { nodes: self.nodes, rules: choices, root };
        match grammar.endless_rule() {
            Some(rule) => {
                let (expected, found) = ("a text that it derives", "recursion without an end");
                invalid(what(&self.rules[rule]), expected, found)
            }
            None => Ok(grammar),
        }
    }
}

/// Sorts ranges and merges the ones that touch.
fn merged(mut ranges: CharRanges) -> CharRanges {
    ranges.sort_unstable();
    let mut merged: CharRanges = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn complement(ranges: &[(u32, u32)]) -> CharRanges {
    let mut next = 0;
    let mut complement = Vec::with_capacity(ranges.len() + 1);
    for (first, last) in ranges {
        if next < *first {
            complement.push((next, first - 1));
        }
        next = last + 1;
    }
    if next <= LAST {
        complement.push((next, LAST));
    }
    complement
}
