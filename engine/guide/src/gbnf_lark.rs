//! Grammars in GBNF, written in the grammar engine's dialect of Lark.

use std::fmt::Write;

use crate::error::GuideError;
use crate::gbnf::{GbnfGrammar, GbnfNode};
use crate::gbnf_terminals::divided_nodes;
use crate::grammar::{CheckedGrammar, literal};
use crate::limits::GBNF_NESTING_MAX;

/// Translates a grammar in GBNF. Returns a form with long terminals, which is fast, and one with a terminal for each
/// character, for grammars whose long terminals cannot be compiled.
///
/// # Errors
/// Fails like [`GbnfGrammar::parse`], and with [`GuideError::Limit`] if rules are nested too deeply.
pub(crate) fn gbnf_grammars(text: &str) -> Result<[CheckedGrammar; 2], GuideError> {
    let grammar = GbnfGrammar::parse(text)?;
    let divided = [divided_nodes(&grammar), vec![true; grammar.nodes.len()]];
    let [fast, slow] = divided.map(|divided| lark_of(&grammar, &divided));
    Ok([fast?, slow?].map(|lark| CheckedGrammar::assembled(lark, "the grammar")))
}

/// Writes a grammar in Lark's syntax. `divided` holds for each node whether its parts are separate terminals.
///
/// Rules are named `r` and a number, and terminals `T` and a number. So names of the grammar cannot collide.
///
/// # Errors
/// Fails with [`GuideError::Limit`] if rules are nested too deeply.
fn lark_of(grammar: &GbnfGrammar, divided: &[bool]) -> Result<String, GuideError> {
    let mut writer = LarkWriter {
        grammar,
        divided,
        is_known: vec![[false; 2]; grammar.nodes.len()],
        uses: Vec::new(),
        lark: String::new(),
    };
    let mut nesting = NestingCheck::default();
    let root = grammar.rules[grammar.root];
    let start = writer.named(root, false);
    writer.lark = format!("start: {start}\n");
    nesting.enter(std::mem::take(&mut writer.uses))?;
    // Definitions are visited in the order in which the grammar engine compiles them.
    while let Some((node, in_terminal)) = nesting.next() {
        if !std::mem::replace(&mut writer.is_known[node][usize::from(in_terminal)], true) {
            writer.define(node, in_terminal);
            nesting.enter(std::mem::take(&mut writer.uses))?;
        }
    }
    Ok(writer.lark)
}

/// A node, and whether it is part of a terminal.
type LarkName = (usize, bool);

/// Walk through definitions, depth first.
#[derive(Default)]
struct NestingCheck {
    /// Unvisited uses in each of the definitions that enclose the current one, in reverse order.
    open: Vec<Vec<LarkName>>,
}

impl NestingCheck {
    fn enter(&mut self, mut uses: Vec<LarkName>) -> Result<(), GuideError> {
        uses.reverse();
        self.open.push(uses);
        GuideError::check("nesting of rules", self.open.len(), GBNF_NESTING_MAX)
    }

    fn next(&mut self) -> Option<LarkName> {
        loop {
            match self.open.last_mut()?.pop() {
                Some(name) => return Some(name),
                None => self.open.pop(),
            };
        }
    }
}

struct LarkWriter<'a> {
    grammar: &'a GbnfGrammar,
    divided: &'a [bool],
    /// Flags of each node: defined as a rule, defined as a terminal.
    is_known: Vec<[bool; 2]>,
    /// Names that the current definition uses.
    uses: Vec<LarkName>,
    lark: String,
}

impl LarkWriter<'_> {
    /// Returns whether the parts of a node are written where the node is used.
    fn is_open(&self, node: usize, in_terminal: bool) -> bool {
        in_terminal || self.divided[node]
    }

    fn named(&mut self, node: usize, in_terminal: bool) -> String {
        let is_terminal = in_terminal || !self.divided[node];
        self.uses.push((node, is_terminal));
        name(node, is_terminal)
    }

    fn define(&mut self, node: usize, is_terminal: bool) {
        let text = match &self.grammar.nodes[node] {
            GbnfNode::Choice(nodes) => {
                let choices: Vec<_> =
                    nodes.iter().map(|node| self.sequence(*node, is_terminal)).collect();
                choices.join(" | ")
            }
            _ => self.sequence(node, is_terminal),
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.lark, "{}: {text}", name(node, is_terminal));
    }

    fn sequence(&mut self, node: usize, in_terminal: bool) -> String {
        match &self.grammar.nodes[node] {
            GbnfNode::Sequence(nodes) if !nodes.is_empty() && self.is_open(node, in_terminal) => {
                let items: Vec<_> =
                    nodes.iter().map(|node| self.item(*node, in_terminal)).collect();
                items.join(" ")
            }
            _ => self.item(node, in_terminal),
        }
    }

    fn item(&mut self, node: usize, in_terminal: bool) -> String {
        let is_open = self.is_open(node, in_terminal);
        match &self.grammar.nodes[node] {
            GbnfNode::Text(text) if is_open && !in_terminal => {
                let letters: Vec<_> = text.iter().map(|c| literal(&c.to_string())).collect();
                letters.join(" ")
            }
            GbnfNode::Repeat(_, _, Some(0)) => literal(""),
            GbnfNode::Repeat(inner, minimum, maximum) if is_open => {
                let atom = self.atom(*inner, in_terminal);
                match (minimum, maximum) {
                    _ if atom == literal("") => atom,
                    (0, None) => atom + "*",
                    (1, None) => atom + "+",
                    (0, Some(1)) => atom + "?",
                    (1, Some(1)) => atom,
                    (minimum, None) => format!("{atom}{{{minimum},}}"),
                    (minimum, Some(maximum)) => format!("{atom}{{{minimum},{maximum}}}"),
                }
            }
            _ => self.atom(node, in_terminal),
        }
    }

    /// Returns an item that a repetition can follow.
    fn atom(&mut self, node: usize, in_terminal: bool) -> String {
        match &self.grammar.nodes[node] {
            GbnfNode::Text(text) if in_terminal || !self.divided[node] || text.len() == 1 => {
                literal(&text.iter().collect::<String>())
            }
            GbnfNode::Class(ranges) => {
                let range = |(first, last): &(u32, u32)| format!(r"\x{{{first:X}}}-\x{{{last:X}}}");
                format!("/[{}]/", ranges.iter().map(range).collect::<String>())
            }
            GbnfNode::Sequence(nodes) if nodes.is_empty() => literal(""),
            GbnfNode::Rule(rule) => self.named(self.grammar.rules[*rule], in_terminal),
            _ => self.named(node, in_terminal),
        }
    }
}

fn name(node: usize, is_terminal: bool) -> String {
    format!("{}{node}", if is_terminal { 'T' } else { 'r' })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(gbnf: &str) -> String {
        let grammar = GbnfGrammar::parse(gbnf).unwrap();
        lark_of(&grammar, &divided_nodes(&grammar)).unwrap()
    }

    /// Returns whether a rule has a class, which is then a terminal of one character.
    fn has_characters(gbnf: &str) -> bool {
        lark(gbnf).lines().any(|line| line.starts_with('r') && line.contains("/["))
    }

    #[test]
    fn parts_without_recursion_are_terminals_where_greed_is_sound() {
        assert!(lark("root ::= [a-z]* \"b\" x\nx ::= \"c\"*").starts_with("start: T"));
        let of = |rule: &str| format!("root ::= x | \"(\" root \")\"\nx ::= {rule}");
        for rule in
            ["\"\\\"\" ([^\"\\\\] | \"\\\\\" .)* \"\\\"\"", "[a-z]+ [0-9]*", "[a-z]{1,9} | \"if\""]
        {
            assert!(!has_characters(&of(rule)), "{rule}");
        }
        // A terminal could end in the middle of a text that another rule continues.
        for rule in ["[a-z]+ root?", "\"a\" root | [a-z]+", ".*"] {
            assert!(has_characters(&of(rule)), "{rule}");
        }
    }

    #[test]
    fn characters_that_the_dialect_lacks_are_escaped() {
        let found = lark("root ::= \"\\x7f\\n\\\"/\" [/\\]]");
        assert!(
            found.contains(r#""\u007f\n\"/""#) && found.contains(r"/[\x{2F}-\x{2F}\x{5D}"),
            "{found}"
        );
    }
}
