//! Terminals of grammars in GBNF.
//!
//! GBNF has no lexer: its rules derive characters. The grammar engine has one, which is greedy: a terminal ends
//! where no terminal that is allowed at its start can continue (llguidance, `docs/syntax.md`). Terminals of one
//! character are always sound, because no character of UTF-8 is the start of another one, but slow: a mask then
//! takes work for each character of each token. Therefore parts without recursion become one terminal each where
//! greed cannot change the language.
//!
//! # Method
//!
//! Each character and class is a position. A transition between two positions belongs to the node that joins
//! them: a text, a sequence or a repetition. It is inside a terminal if its node is part of one, else between two.
//! The pairs of positions that one text can reach are enumerated; a rule is assumed to return to all its uses,
//! so that there are pairs too many but none too few. If two transitions from such a pair accept a common
//! character, a greedy lexer needs both inside a terminal, or both between two. So the nodes of the two are tied:
//! if one cannot be part of a terminal, the other one is divided as well. Nodes with recursion are divided first.

use std::collections::HashSet;

use crate::gbnf::{CharRanges, GbnfGrammar, GbnfNode};
use crate::limits::{
    LEXED_EDGES_MAX, LEXED_NODES_MAX, LEXED_PAIRS_MAX, LEXED_POSITIONS_MAX, LEXED_UPDATES_MAX,
    TERMINAL_CHARS_MAX,
};

/// Returns for each node whether it is divided, so that its parts are separate terminals.
pub(crate) fn divided_nodes(grammar: &GbnfGrammar) -> Vec<bool> {
    let parents = parents(grammar);
    let irregular = irregular_nodes(grammar, &parents);
    if !irregular[grammar.rules[grammar.root]] {
        // The whole grammar is one terminal.
        return irregular;
    }
    match Positions::new(grammar, &parents).and_then(|positions| positions.ties(grammar)) {
        Some(ties) => spread(irregular, &parents, &ties),
        None => vec![true; grammar.nodes.len()],
    }
}

/// Calls a function for each child of a node; the child of a reference is its rule.
fn each_child(grammar: &GbnfGrammar, node: &GbnfNode, mut call: impl FnMut(usize)) {
    match node {
        GbnfNode::Text(_) | GbnfNode::Class(_) => {}
        GbnfNode::Rule(rule) => call(grammar.rules[*rule]),
        GbnfNode::Sequence(nodes) | GbnfNode::Choice(nodes) => nodes.iter().copied().for_each(call),
        GbnfNode::Repeat(node, ..) => call(*node),
    }
}

/// Returns the parents of each node, with repetitions.
fn parents(grammar: &GbnfGrammar) -> Vec<Vec<usize>> {
    let mut parents = vec![Vec::new(); grammar.nodes.len()];
    for (index, node) in grammar.nodes.iter().enumerate() {
        each_child(grammar, node, |child| parents[child].push(index));
    }
    parents
}

/// Returns for each node whether it cannot be part of a terminal: it has recursion or too many characters.
fn irregular_nodes(grammar: &GbnfGrammar, parents: &[Vec<usize>]) -> Vec<bool> {
    let nodes = &grammar.nodes;
    let mut irregular = vec![true; nodes.len()];
    let mut lengths = vec![0_u64; nodes.len()];
    let mut pending = vec![0_usize; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        each_child(grammar, node, |_| pending[index] += 1);
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|index| pending[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        let mut length = match &nodes[index] {
            GbnfNode::Text(text) => text.len() as u64,
            _ => 1,
        };
        each_child(grammar, &nodes[index], |child| length = length.saturating_add(lengths[child]));
        if let GbnfNode::Repeat(_, minimum, maximum) = nodes[index] {
            // Default: a repetition without a maximum has the states of its minimum.
            length = length.saturating_mul(maximum.unwrap_or(minimum).max(1));
        }
        if length > TERMINAL_CHARS_MAX {
            continue;
        }
        (irregular[index], lengths[index]) = (false, length);
        for parent in &parents[index] {
            pending[*parent] -= 1;
            if pending[*parent] == 0 {
                ready.push(*parent);
            }
        }
    }
    irregular
}

/// Divides the nodes that contain a divided node or are tied to one.
fn spread(mut divided: Vec<bool>, parents: &[Vec<usize>], ties: &HashSet<(u32, u32)>) -> Vec<bool> {
    let mut tied = vec![Vec::new(); divided.len()];
    for (a, b) in ties {
        tied[*a as usize].push(*b as usize);
        tied[*b as usize].push(*a as usize);
    }
    let mut open: Vec<usize> = (0..divided.len()).filter(|index| divided[*index]).collect();
    while let Some(index) = open.pop() {
        for next in parents[index].iter().chain(&tied[index]) {
            if !std::mem::replace(&mut divided[*next], true) {
                open.push(*next);
            }
        }
    }
    divided
}

/// Sets of numbers below a bound, one for each node.
struct NodeSets {
    words: usize,
    bits: Vec<u64>,
}

impl NodeSets {
    fn new(sets: usize, bound: usize) -> Self {
        let words = bound.div_ceil(64);
        Self { words, bits: vec![0; sets * words] }
    }

    /// Adds a number to a set. Returns whether the set lacked it.
    fn insert(&mut self, set: usize, number: usize) -> bool {
        let word = &mut self.bits[set * self.words + number / 64];
        let had = *word;
        *word |= 1 << (number % 64);
        *word != had
    }

    /// Adds the numbers of one set to another one. Returns whether it had less.
    fn add(&mut self, to: usize, from: usize) -> bool {
        let mut had_less = false;
        for word in 0..self.words {
            let (from, to) = (from * self.words + word, to * self.words + word);
            let joined = self.bits[to] | self.bits[from];
            had_less |= joined != self.bits[to];
            self.bits[to] = joined;
        }
        had_less
    }

    fn numbers(&self, set: usize) -> Vec<usize> {
        let words = &self.bits[set * self.words..(set + 1) * self.words];
        let is_in = |number: &usize| words[number / 64] >> (number % 64) & 1 == 1;
        (0..self.words * 64).filter(is_in).collect()
    }
}

/// Positions of a grammar.
struct Positions {
    characters: Vec<CharRanges>,
    /// First position of each text and class.
    starts: Vec<usize>,
    may_be_empty: Vec<bool>,
    /// Positions that may come first and last in each node.
    first: NodeSets,
    last: NodeSets,
}

/// A transition: the next position, and the node that it belongs to.
type PositionEdge = (u32, u32);

impl Positions {
    /// Returns `None` for grammars over the limits.
    fn new(grammar: &GbnfGrammar, parents: &[Vec<usize>]) -> Option<Self> {
        let nodes = grammar.nodes.len();
        let mut characters: Vec<CharRanges> = Vec::new();
        let mut starts = vec![0; nodes];
        for (index, node) in grammar.nodes.iter().enumerate() {
            starts[index] = characters.len();
            match node {
                GbnfNode::Text(text) => {
                    let one = |c: &char| vec![(u32::from(*c), u32::from(*c))];
                    characters.extend(text.iter().map(one));
                }
                GbnfNode::Class(ranges) => characters.push(ranges.clone()),
                _ => {}
            }
        }
        if nodes > LEXED_NODES_MAX || characters.len() > LEXED_POSITIONS_MAX {
            return None;
        }
        let sets = || NodeSets::new(nodes, characters.len());
        let (first, last, may_be_empty) = (sets(), sets(), vec![false; nodes]);
        let mut positions = Self { characters, starts, may_be_empty, first, last };
        // Children are stored before their parents, and visited first.
        let mut open: Vec<usize> = (0..nodes).rev().collect();
        let mut is_open = vec![true; nodes];
        let mut updates = 0;
        while let Some(node) = open.pop() {
            is_open[node] = false;
            updates += 1;
            if updates > LEXED_UPDATES_MAX {
                return None;
            }
            if positions.update(grammar, node) {
                let parents = parents[node].iter().copied();
                open.extend(
                    parents.filter(|parent| !std::mem::replace(&mut is_open[*parent], true)),
                );
            }
        }
        Some(positions)
    }

    /// Updates the sets of a node from those of its children. Returns whether they have changed.
    fn update(&mut self, grammar: &GbnfGrammar, index: usize) -> bool {
        let start = self.starts[index];
        let (mut changed, mut is_empty) = (false, false);
        match &grammar.nodes[index] {
            GbnfNode::Text(text) => {
                changed = self.first.insert(index, start);
                changed |= self.last.insert(index, start + text.len() - 1);
            }
            GbnfNode::Class(_) => {
                changed = self.first.insert(index, start) | self.last.insert(index, start);
            }
            GbnfNode::Repeat(_, _, Some(0)) => is_empty = true,
            GbnfNode::Sequence(nodes) => {
                let sure = |node: &&usize| !self.may_be_empty[**node];
                let end =
                    nodes.iter().position(|node| sure(&node)).map_or(nodes.len(), |at| at + 1);
                // Default: if all items may be empty, each one may be last.
                let start = nodes.iter().rposition(|node| sure(&node)).unwrap_or(0);
                is_empty = nodes.iter().find(sure).is_none();
                for node in &nodes[..end] {
                    changed |= self.first.add(index, *node);
                }
                for node in &nodes[start..] {
                    changed |= self.last.add(index, *node);
                }
            }
            node => each_child(grammar, node, |child| {
                changed |= self.first.add(index, child) | self.last.add(index, child);
                is_empty |= self.may_be_empty[child] || matches!(node, GbnfNode::Repeat(_, 0, _));
            }),
        }
        changed | (std::mem::replace(&mut self.may_be_empty[index], is_empty) != is_empty)
    }

    /// Returns the transitions from each position, or `None` if there are too many.
    fn edges(&self, grammar: &GbnfGrammar) -> Option<Vec<Vec<PositionEdge>>> {
        let mut edges = vec![Vec::new(); self.characters.len()];
        let mut count = 0;
        let mut join = |owner: usize, from: &[usize], to: &[usize]| {
            count += from.len() * to.len() + 1;
            if count > LEXED_EDGES_MAX {
                return None;
            }
            for from in from {
                edges[*from].extend(to.iter().map(|to| (*to as u32, owner as u32)));
            }
            Some(())
        };
        for (index, node) in grammar.nodes.iter().enumerate() {
            match node {
                GbnfNode::Text(text) => {
                    let start = self.starts[index];
                    for at in start..start + text.len() - 1 {
                        join(index, &[at], &[at + 1])?;
                    }
                }
                GbnfNode::Sequence(nodes) => {
                    for (at, from) in nodes.iter().enumerate() {
                        let last = self.last.numbers(*from);
                        for to in &nodes[at + 1..] {
                            join(index, &last, &self.first.numbers(*to))?;
                            if !self.may_be_empty[*to] {
                                break;
                            }
                        }
                    }
                }
                GbnfNode::Repeat(_, _, Some(0 | 1)) => {}
                GbnfNode::Repeat(node, ..) => {
                    join(index, &self.last.numbers(*node), &self.first.numbers(*node))?;
                }
                GbnfNode::Class(_) | GbnfNode::Rule(_) | GbnfNode::Choice(_) => {}
            }
        }
        Some(edges)
    }

    /// Returns the pairs of nodes that are tied, or `None` if the analysis takes too much work.
    fn ties(&self, grammar: &GbnfGrammar) -> Option<HashSet<(u32, u32)>> {
        let edges = self.edges(grammar)?;
        let count = self.characters.len();
        let mut seen = NodeSets::new(count, count);
        let mut open = Vec::new();
        let mut visit = |a: u32, b: u32, open: &mut Vec<(u32, u32)>| {
            let (a, b) = (a.min(b), a.max(b));
            if seen.insert(a as usize, b as usize) {
                open.push((a, b));
            }
        };
        let first = self.first.numbers(grammar.rules[grammar.root]);
        let mut work = first.len() * first.len();
        let start: Vec<PositionEdge> = first.iter().map(|first| (*first as u32, 0)).collect();
        if work > LEXED_PAIRS_MAX {
            return None;
        }
        for (a, b) in self.common(&start, &start) {
            visit(a.0, b.0, &mut open);
        }
        let mut ties = HashSet::new();
        while let Some((a, b)) = open.pop() {
            let (from_a, from_b) = (&edges[a as usize], &edges[b as usize]);
            work += from_a.len() * from_b.len();
            if work > LEXED_PAIRS_MAX {
                return None;
            }
            for ((a, owner), (b, other)) in self.common(from_a, from_b) {
                visit(a, b, &mut open);
                if owner != other {
                    ties.insert((owner.min(other), owner.max(other)));
                }
            }
        }
        Some(ties)
    }

    /// Returns the pairs of transitions that accept a common character.
    fn common<'a>(
        &'a self,
        a: &'a [PositionEdge],
        b: &'a [PositionEdge],
    ) -> impl Iterator<Item = (PositionEdge, PositionEdge)> + 'a {
        let pairs = a.iter().flat_map(move |a| b.iter().map(move |b| (*a, *b)));
        pairs.filter(|(a, b)| {
            let (a, b) = (&self.characters[a.0 as usize], &self.characters[b.0 as usize]);
            overlap(a, b)
        })
    }
}

/// Returns whether sorted ranges have a common code point.
fn overlap(mut a: &[(u32, u32)], mut b: &[(u32, u32)]) -> bool {
    while let ([(a_first, a_last), a_rest @ ..], [(b_first, b_last), b_rest @ ..]) = (a, b) {
        if a_last < b_first {
            a = a_rest;
        } else if b_last < a_first {
            b = b_rest;
        } else {
            return true;
        }
    }
    false
}
