//! Grammars in llama.cpp's format, against texts and against a simple matcher.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nestling_guide::{Guide, GuideError};
use nestling_runtime::{ConstraintCache, ConstraintContext, ConstraintSource, TokenMask};
use nestling_text::{OutputFormat, Tokenizer};
use proptest::prelude::*;

use super::walker::*;

/// A tokenizer whose form in the grammar engine is cached.
struct Reader {
    tokenizer: Tokenizer,
    cache: ConstraintCache,
}

impl Reader {
    fn new() -> Self {
        Self { tokenizer: tokenizer(&["<|end|>"], &[]), cache: ConstraintCache::default() }
    }

    /// Returns whether a text is a whole answer. Each byte is checked against the mask.
    fn accepts(&self, guide: &Guide, text: &str) -> bool {
        let (format, size) = (OutputFormat::plain(), self.tokenizer.vocab_size());
        let context = ConstraintContext::new(Some(&self.tokenizer), size, &format, &self.cache);
        let mut constraint = guide.constraint(&context).unwrap();
        constraint.start(None).unwrap();
        for byte in text.bytes() {
            if constraint.is_done().unwrap() {
                return false;
            }
            let mut mask = TokenMask::none(size);
            constraint.mask(&mut mask).unwrap();
            if !mask.allows(u32::from(byte)) {
                return false;
            }
            constraint.accept(u32::from(byte)).unwrap();
        }
        constraint.may_end().unwrap()
    }
}

#[track_caller]
fn check(grammar: &str, accepted: &[&str], rejected: &[&str]) {
    let reader = Reader::new();
    let guide = Guide::gbnf(grammar).unwrap_or_else(|error| panic!("{grammar}: {error}"));
    for (texts, wanted) in [(accepted, true), (rejected, false)] {
        for text in texts {
            assert_eq!(reader.accepts(&guide, text), wanted, "{grammar}\n{text:?}");
        }
    }
}

#[test]
fn each_element_of_the_syntax_has_its_meaning() {
    type Case = (&'static str, &'static [&'static str], &'static [&'static str]);
    let cases: &[Case] = &[
        ("root ::= \"ab\"", &["ab"], &["", "a", "abc"]),
        ("root ::= \"a\" | \"b\"", &["a", "b"], &["ab", "c"]),
        ("root ::= \"a\" |\n # more\n \"b\"\n", &["a", "b"], &["ab"]),
        ("root ::= | \"a\"", &["", "a"], &["aa"]),
        ("root ::= \"a\" (\"\" | \"b\")", &["a", "ab"], &["", "b"]),
        ("root ::= \"x\" (\n\"a\" # one\n\n\"b\"\n| \"c\" )", &["xab", "xc"], &["xa", "xabc"]),
        ("root ::= [a-cx]", &["a", "c", "x"], &["d", "", "ab"]),
        ("root ::= [^a-c\\n]", &["d", "é", "日"], &["a", "\n", "dd"]),
        ("root ::= [a-]", &["a", "-"], &["b"]),
        ("root ::= [\\]\\[^]", &["]", "[", "^"], &["\\"]),
        ("root ::= [ぁ-ゟ]{2}", &["ひら"], &["ひ", "日本"]),
        ("root ::= .", &["a", "\n", "é", "🦀"], &["", "ab"]),
        ("root ::= \"\\n\\r\\t\\\\\\\"\\[\\]\"", &["\n\r\t\\\"[]"], &["n"]),
        ("root ::= \"\\x41\\u00e9\\U0001F980\"", &["Aé🦀"], &["A"]),
        ("root ::= \"\\x7f\" [\\x80-\\xff]", &["\u{7f}é"], &["\u{7f}a"]),
        ("root ::= \"ab\"*", &["", "ab", "abab"], &["a", "abb"]),
        ("root ::= [ab]+", &["a", "bab"], &["", "c"]),
        ("root ::= \"a\"?\"b\"", &["b", "ab"], &["aab"]),
        ("root ::= \"a\"{2}", &["aa"], &["a", "aaa"]),
        ("root ::= \"a\"{2,}", &["aa", "aaaaa"], &["a"]),
        ("root ::= \"a\"{,2}", &["", "a", "aa"], &["aaa"]),
        ("root ::= \"a\"{ 1 , 3 } \"b\"", &["ab", "aaab"], &["b", "aaaab"]),
        ("root ::= \"a\"{0} \"b\"{0,0} \"c\"", &["c"], &["ac", "bc"]),
        ("root ::= (\"a\"+)? \"b\"{1}", &["b", "aab"], &["a"]),
        ("root ::= \"a\"*+?", &["", "aaa"], &["b"]),
        ("root::=a-b\na-b::=aB_1 a_b\naB_1 ::= \"x\"\na_b ::= \"y\"", &["xy"], &["x"]),
        ("# only\r\nroot ::= a # x\r\n\r\na ::= \"#\"\r\n", &["#"], &["a"]),
        // Text that a greedy lexer with a terminal for each item would cut in the wrong place.
        ("root ::= [a-z]* \"b\"", &["b", "ab", "bb", "abab"], &["", "a", "ba"]),
        ("root ::= \"a\"* \"ab\"", &["ab", "aaab"], &["a", "aba"]),
        ("root ::= \"a\" \"b\" | \"ab\" \"c\"", &["ab", "abc"], &["a", "abcc"]),
        ("root ::= x | \"(\" root \")\"\nx ::= [a-z]* \"b\"", &["ab", "((bb))"], &["a", "(b"]),
        ("root ::= x | \"(\" root \")\"\nx ::= \"a\"* \"ab\"", &["ab", "(aaab)"], &["(a)"]),
        ("root ::= x | \"(\" root \")\"\nx ::= \"i\" \"f\" | [a-z]+", &["if", "(ifs)"], &["()"]),
        ("root ::= x root | x\nx ::= \"a\"+ \"b\"?", &["a", "aab", "abaab"], &["", "b", "abb"]),
        ("root ::= root root | [ab]{2}", &["ab", "abba", "aabbaa"], &["a", "aba"]),
        ("root ::= \"a\" root \"a\" | \"a\"?", &["", "a", "aa", "aaaaa"], &["b", "ab"]),
        ("root ::= w (\" \" root)?\nw ::= [^ ]+", &["a", "é b"], &["a ", "a  b"]),
        // Recursion on the left, which llama.cpp refuses.
        ("root ::= root \"+\" n | n\nn ::= [0-9]+", &["1", "12+3+4"], &["+", "1+"]),
    ];
    for (grammar, accepted, rejected) in cases {
        check(grammar, accepted, rejected);
    }
}

#[test]
fn expressions_and_lists_are_followed() {
    let sum = "root ::= (line \"\\n\")+\nline ::= term ([-+*/] ws term)* ws \"=\" ws number\n\
        term ::= name | number | \"(\" ws term ([-+*/] ws term)* \")\" ws\n\
        name ::= [a-z] [a-z0-9_]* ws\nnumber ::= [0-9]+ ws\nws ::= [ \\t]*";
    check(
        sum,
        &["x=1\n", "(a + 12)*b2 = 7\n", "((1))=2 \ny=3\n"],
        &["x=1", "=1\n", "x=y\n", "(a=1\n", "2x=1\n"],
    );
    let list = "root ::= (\"- \" item)+\nitem ::= [^\\n]+ \"\\n\"";
    check(list, &["- a\n", "- eggs, é\n- \"tea\"\n"], &["", "- \n", "-a\n", "- a"]);
}

#[test]
fn json_is_followed() {
    let json = r#"
root   ::= value
value  ::= (object | array | string | number | "true" | "false" | "null") ws
object ::= "{" ws ( pair ("," ws pair)* )? "}"
pair   ::= string ws ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]"
string ::= "\"" ( [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws     ::= | " " | "\n" [ \t]{0,20}
"#;
    check(
        json,
        &[
            "{\"name\": [1, -2.5e+3, true], \"the\":{}}",
            "\"a \\u00e9 \\\" 日本\"",
            "[[], [{\"true\":null}]]\n\t",
            "0",
        ],
        &["{\"a\":}", "[1,]", "01", "\"\\x\"", "\"\n\"", "tru", "[", "{} {}"],
    );
    let guide = Guide::gbnf(json).unwrap();
    let tokenizer = tokenizer(&["<|end|>"], &[]);
    let format = OutputFormat::plain();
    let walks = (0..60).map(|seed| walk(&guide, &tokenizer, &format, seed, 300).unwrap());
    let values = walks.filter_map(json_of).count();
    assert!(values > 20, "{values}");
}

#[test]
fn moves_of_chess_are_followed() {
    let game = "root ::= (\n  \"1. \" move \" \" move \"\\n\" # the first\n\
        ([1-9] [0-9]? \". \" move \" \" move \"\\n\")*\n)\n\
        move ::= (pawn | piece | castle) [+#]?\n\
        piece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
        pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBQR])?\ncastle ::= \"O-O\" \"-O\"?";
    check(
        game,
        &["1. e4 e5\n", "1. Nf3 d5\n2. exd5 Qxd5+\n12. O-O O-O-O#\n", "1. Nbd2 e8=Q\n"],
        &["", "2. e4 e5\n", "1. e4\n", "1. e9 e5\n", "1. e4 e5", "1. Nx e5\n"],
    );
}

#[test]
fn either_format_is_recognized() {
    let reader = Reader::new();
    for grammar in [
        "root ::= \"a\" | \"b\"",
        "# a comment\n\n  root\t::= [ab]",
        "root::=x\nx::=[ab]",
        "start: \"a\" | \"b\"",
        "start: X\nX: /[ab]/ // root ::= \"a\"",
    ] {
        let guide = Guide::grammar(grammar).unwrap();
        assert!(reader.accepts(&guide, "a") && !reader.accepts(&guide, "ab"), "{grammar}");
    }
    let error = Guide::grammar("start: \"a").unwrap_err();
    assert!(matches!(error, GuideError::NotCompiled { .. }), "{error}");
}

#[test]
fn errors_name_the_line_and_what_was_found() {
    for (grammar, words) in [
        ("", "expected a rule `root`, found none"),
        ("start ::= \"a\"", "expected a rule `root`"),
        ("root ::= a\n\na ::= missing | \"b\"", "line 3 of the grammar: rule `missing`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2 of the grammar: expected one definition"),
        ("root = \"a\"", "expected `::=` after the name of a rule, found `=`"),
        (
            "root ::= \"a\"\n| \"b\"",
            "line 2 of the grammar: expected the name of a rule, found `|`",
        ),
        ("root ::= \"a", "expected `\"` at the end of a text, found the end of the grammar"),
        ("root ::= [a", "expected `]` at the end of a class, found the end of the grammar"),
        ("root ::= [a-", "`]` at the end of a class"),
        ("root ::= []", "expected a character in brackets"),
        ("root ::= [^\\x00-\\U0010ffff]", "a class that matches a character"),
        ("root ::= [z-a]", "expected a range in order, found 0x7a to 0x61"),
        ("root ::= (\"a\"", "expected `)`, found the end of the grammar"),
        ("root ::= \"a\")", "expected the end of the rule, found `)`"),
        ("root ::= \"a\" $", "expected the end of the rule, found `$`"),
        ("root ::= \"\\q\"", "after `\\`, found `q`"),
        ("root ::= \"\\x4\"", "expected hexadecimal digits of an escape, found `\"`"),
        ("root ::= \"\\ud800\"", "expected a Unicode character, found U+D800"),
        ("root ::= \"\\Uffffffff\"", "U+FFFFFFFF"),
        ("root ::= *", "expected an item before a repetition, found `*`"),
        ("root ::= \"a\"{}", "expected a number of repetitions, found `}`"),
        ("root ::= \"a\"{,}", "expected a number of repetitions"),
        ("root ::= \"a\"{1", "expected `}` at the end of a repetition"),
        ("root ::= \"a\"{3,2}", "expected repetitions in order, found 3 to 2"),
        ("root ::= \"a\"{99999999999999999999}", "repetitions: 99999 exceeds the limit of 10000"),
        ("root ::= <think>", "line 1 of the grammar: the reference to a token `<think>`"),
        ("root ::= !<[12]> *", "`!<[12]>` is not supported"),
    ] {
        let error = Guide::gbnf(grammar).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{grammar}: {error}");
    }
}

/// Grammars that try to exhaust the stack, memory or time.
#[test]
fn hostile_grammars_are_refused_or_compiled_in_bounded_time() {
    let chain = |count: usize, body: &str| {
        let rules = (0..count)
            .map(|at| format!("a{at} ::= {}\n", body.replace('#', &(at + 1).to_string())));
        format!("root ::= a0\n{}a{count} ::= \"x\"\n", rules.collect::<String>())
    };
    let wide: Vec<_> = (0..6000).map(|at| format!("\"w{at}\"")).collect();
    let wide = wide.join("|");
    let many: String = (0..5000).map(|at| format!("a{at}::=.\n")).collect();
    let backwards: String = (0..1500).map(|at| format!("a{}::=.a{at}|root\n", at + 1)).collect();
    let names: Vec<_> = (0..1500).map(|at| format!("a{at}")).collect();
    let backwards = format!("root::={}\na0::=.\n{backwards}", names.join("|"));
    let cases = [
        (backwards, ""),
        ("\n".repeat(70_000), "bytes of a grammar"),
        (format!("root ::= {}", "(".repeat(60_000)), "depth of brackets"),
        (format!("root ::= \"a\"{}", "*".repeat(60_000)), "depth of a grammar"),
        (chain(200, "a#"), "nesting of rules"),
        (chain(200, "\"(\" a# \")\" | root"), "nesting of rules"),
        (many, "rules of a grammar"),
        (chain(120, "a#"), ""),
        (chain(60, "a# a#"), ""),
        (chain(60, "a#{100} | root"), ""),
        ("root ::= ((([a-z]{10000}){10000}){10000}){10000}".into(), ""),
        ("root ::= \"(\" root \")\" | (.* \"a\" .{60} \"b\")*".into(), ""),
        (format!("root ::= {wide}"), ""),
        (format!("root ::= ({wide}) root | \"\""), ""),
        (format!("root ::= \"(\" root \")\" | {}", "[a-z]* ".repeat(8000)), ""),
        (format!("root ::= {}", "[^a]? ".repeat(10_000)), ""),
        ("root ::= root".into(), "rule `root`: expected a text that it derives"),
        ("root ::= root | root root | \"\"".into(), ""),
        ("root ::= \"a\" root".into(), "found recursion without an end"),
        ("root ::= \"a\" | x\nx ::= x | \"b\" x".into(), "line 1 of the grammar: rule `x`"),
        ("root ::= \"\"".into(), ""),
        ("\0\u{1}root ::= \"\0\"".into(), "expected the name of a rule"),
    ];
    for (grammar, words) in cases {
        let start: String = grammar.chars().take(80).collect();
        let (begun, guide) = (Instant::now(), Guide::gbnf(&grammar));
        let taken = begun.elapsed();
        eprintln!("{taken:?} {} {start:?}", guide.is_ok());
        assert!(taken < Duration::from_secs(20), "{taken:?}: {start}");
        match guide {
            Ok(_) => assert_eq!(words, "", "{start}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(words) && error.len() < 2000, "{start}: {error}");
                assert!(!error.contains("panicked"), "{start}: {error}");
            }
        }
    }
}

/// A part of a random grammar.
#[derive(Debug, Clone)]
enum Tree {
    Text(&'static str),
    /// Characters, and whether the class is negated.
    Class(&'static str, bool),
    Any,
    Rule(usize),
    Sequence(Vec<Tree>),
    Choice(Vec<Tree>),
    Repeat(Box<Tree>, usize, Option<usize>),
}

const RULES: usize = 3;

impl Tree {
    fn gbnf(&self) -> String {
        let all = |trees: &[Self], between: &str| {
            let texts: Vec<_> = trees.iter().map(Self::gbnf).collect();
            format!("({})", texts.join(between))
        };
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Class(text, is_negated) => {
                format!("[{}{text}]", if *is_negated { "^" } else { "" })
            }
            Self::Any => ".".into(),
            Self::Rule(0) => "root".into(),
            Self::Rule(rule) => format!("rule-{rule}"),
            Self::Sequence(trees) => all(trees, " "),
            Self::Choice(trees) => all(trees, " | "),
            Self::Repeat(tree, least, None) => format!("{}{{{least},}}", tree.gbnf()),
            Self::Repeat(tree, least, Some(most)) => format!("{}{{{least},{most}}}", tree.gbnf()),
        }
    }

    /// Returns the ends of the matches that start at `at`, from the known ones of rules.
    fn ends(&self, text: &[char], at: usize, known: &[Vec<BTreeSet<usize>>]) -> BTreeSet<usize> {
        let one = |is_match: &dyn Fn(char) -> bool| {
            text.get(at).filter(|c| is_match(**c)).map(|_| at + 1).into_iter().collect()
        };
        match self {
            Self::Text(wanted) => {
                let wanted: Vec<char> = wanted.chars().collect();
                let is_match = text[at..].starts_with(&wanted);
                is_match.then_some(at + wanted.len()).into_iter().collect()
            }
            Self::Class(class, is_negated) => one(&|c| class.contains(c) != *is_negated),
            Self::Any => one(&|_| true),
            Self::Rule(rule) => known[*rule][at].clone(),
            Self::Sequence(trees) => trees.iter().fold(BTreeSet::from([at]), |ends, tree| {
                ends.iter().flat_map(|at| tree.ends(text, *at, known)).collect()
            }),
            Self::Choice(trees) => {
                trees.iter().flat_map(|tree| tree.ends(text, at, known)).collect()
            }
            Self::Repeat(tree, least, most) => {
                let (mut ends, mut all) = (BTreeSet::from([at]), BTreeSet::new());
                // More repetitions than this one only repeat the empty text.
                for count in 0..=most.unwrap_or(least + text.len()) {
                    if count >= *least {
                        all.extend(&ends);
                    }
                    ends = ends.iter().flat_map(|at| tree.ends(text, *at, known)).collect();
                }
                all
            }
        }
    }
}

/// Returns whether the first rule derives a text.
fn derives(rules: &[Tree], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut known = vec![vec![BTreeSet::new(); text.len() + 1]; rules.len()];
    loop {
        let ends = |rule: &Tree| (0..=text.len()).map(|at| rule.ends(&text, at, &known)).collect();
        let next: Vec<Vec<BTreeSet<usize>>> = rules.iter().map(ends).collect();
        if next == known {
            return known[0][0].contains(&text.len());
        }
        known = next;
    }
}

fn any_tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        3 => prop::sample::select(vec!["a", "b", "ab", "aé", "ba", ""]).prop_map(Tree::Text),
        3 => (prop::sample::select(vec!["a", "ab", "bé"]), any::<bool>())
            .prop_map(|(text, is_negated)| Tree::Class(text, is_negated)),
        1 => Just(Tree::Any),
        2 => (0..RULES).prop_map(Tree::Rule),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let repeat = (inner.clone(), 0..3_usize, prop::option::of(0..3_usize));
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Tree::Sequence),
            prop::collection::vec(inner, 1..4).prop_map(Tree::Choice),
            repeat.prop_map(|(tree, least, more)| {
                Tree::Repeat(Box::new(tree), least, more.map(|more| least + more))
            }),
        ]
    })
}

/// All texts of up to three characters.
fn short_texts() -> Vec<String> {
    let mut texts = vec![String::new()];
    for at in 0..40 {
        let Some(text) = texts.get(at).cloned() else { break };
        if text.chars().count() < 3 {
            texts.extend(['a', 'b', 'é'].map(|c| format!("{text}{c}")));
        }
    }
    texts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn grammars_derive_what_a_simple_matcher_derives(
        rules in prop::collection::vec(any_tree(), RULES..=RULES),
        longer in prop::collection::vec("[abé]{4,7}", 8),
    ) {
        let name = |at: usize| if at == 0 { "root".into() } else { format!("rule-{at}") };
        let texts = rules.iter().enumerate().map(|(at, tree)| format!("{} ::= {}\n", name(at), tree.gbnf()));
        let grammar: String = texts.collect();
        let guide = Guide::gbnf(&grammar);
        // Random recursion often has no end.
        prop_assume!(!guide.as_ref().is_err_and(|error| error.to_string().contains("without an end")));
        prop_assert!(guide.is_ok(), "{grammar}{guide:?}");
        let (guide, reader) = (guide.unwrap(), Reader::new());
        for text in short_texts().iter().chain(&longer) {
            prop_assert_eq!(reader.accepts(&guide, text), derives(&rules, text), "{}{:?}", grammar, text);
        }
    }

    #[test]
    fn any_text_is_a_grammar_in_gbnf_or_refused(
        text in "[a-c\"\\[\\](){}|*+?.^0-9, :=\n\\\\#-]{0,60}", seed in any::<u64>(),
    ) {
        let guides = [Guide::gbnf(&text), Guide::gbnf(&format!("root ::= {text}"))];
        let tokenizer = tokenizer(&["<|end|>"], &[]);
        for guide in guides.into_iter().flatten() {
            drop(walk(&guide, &tokenizer, &OutputFormat::plain(), seed, 30));
        }
    }
}
