//! Templates of random fragments: each gives text or an error within the limits and never panics.

use nestling_template::{RenderLimits, RenderOptions, Template, TemplateErrorKind};
use proptest::prelude::*;
use serde_json::json;

const PIECES: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    " -%}",
    "{%+ ",
    "{# ",
    " #}",
    "for m in messages",
    "for k, v in x.items()",
    "endfor",
    "if ",
    "else",
    "elif x",
    "endif",
    "set x = ",
    "set x",
    "endset",
    "messages",
    ".content",
    ".role",
    "[0]",
    "[::-1]",
    "[-9:9:0]",
    "[1:",
    "]",
    "|tojson",
    "|tojson(indent=2)",
    "|join(",
    "|length",
    "|map(attribute='role')",
    "(",
    ")",
    "{",
    "}",
    ":",
    ",",
    "'",
    "\"",
    "a",
    "x",
    " ~ ",
    " + ",
    " - ",
    "* 9",
    "// 0",
    "% 0",
    "** 99",
    " < ",
    " == ",
    " in ",
    "1e308",
    "none",
    "not ",
    " and ",
    " or ",
    " is defined",
    " is string",
    " if ",
    " else ",
    "namespace(a=1)",
    "ns.a",
    "macro f(a, b=1)",
    "endmacro",
    "f(1)",
    "loop.index",
    "loop.last",
    "break",
    "continue",
    "call f()",
    "endcall",
    "caller()",
    "filter upper",
    "endfilter",
    "with y = 1",
    "endwith",
    "strftime_now('%Y')",
    "raw",
    "endraw",
    "generation",
    "endgeneration",
    "\n",
    "é",
    "%",
    "range(3)",
    ".split('')",
    ".strip('a')",
    ".replace('', 'b')",
    "|indent(-1)",
    "|batch(0)",
    "|slice(0)",
    "|round(-400)",
    "dict(a=1)",
    "include 'a'",
    "|sort",
    "|unique",
    "|groupby('role')",
    "|select('odd')",
    "|safe",
    "|escape",
    ".format(1)",
    "|dictsort",
    "|string",
    "|list",
    "[1, 2]",
    "{'a': 1}",
    "(1,)",
];

fn render(source: &str) -> Result<String, TemplateErrorKind> {
    let variables = json!({
        "messages": [{"role": "user", "content": "a é b"}, {"role": "assistant", "content": null}],
        "x": {"k": [1, 2.5, true, null, 18446744073709551615u64]},
        "ns": 5,
    });
    let limits =
        RenderLimits { memory_bytes: 4 << 20, work: 10_000_000, ..RenderLimits::default() };
    let date = |format: &str| Ok(format.to_owned());
    let options = RenderOptions { limits, strftime_now: Some(&date), ..Default::default() };
    let variables = variables.as_object().cloned().unwrap_or_default();
    let template = Template::parse(source).map_err(|error| error.kind)?;
    template.render(&variables, &options).map_err(|error| error.kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_pieces(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..28)) {
        if let Err(TemplateErrorKind::Failed(why)) = render(&pieces.concat()) {
            prop_assert!(!why.starts_with("internal"), "{why}");
        }
    }

    #[test]
    fn random_expressions(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..16)) {
        if let Err(TemplateErrorKind::Failed(why)) = render(&format!("{{{{ {} }}}}", pieces.concat())) {
            prop_assert!(!why.starts_with("internal"), "{why}");
        }
    }

    /// Integers and texts give the same results as in minijinja.
    #[test]
    fn expressions_as_in_minijinja(
        first in -99i64..99,
        rest in prop::collection::vec((prop::sample::select(vec![
            " + ", " - ", " * ", " // ", " % ", " ~ ", " == ", " < ", " >= ", " and ", " or ", " in [1, 2] or ",
        ]), 1i64..99), 0..6),
    ) {
        let terms: String = rest.iter().map(|(operator, term)| format!("{operator}{term}")).collect();
        let source = format!("{{{{ {first}{terms} }}}}");
        let theirs = minijinja::Environment::new().render_str(&source, ());
        if let (Ok(ours), Ok(theirs)) = (render(&source), theirs) {
            prop_assert_eq!(ours.to_lowercase(), theirs.to_lowercase(), "{}", source);
        }
    }
}
