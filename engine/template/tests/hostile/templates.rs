//! Hostile templates by family: depth, chains, growth, passes over long text.

#![expect(clippy::too_many_lines, reason = "lists of templates")]

/// Prefixes that create a long text or a loop with many iterations.
const BIG: &str = "{% set b = 'x' * 8000000 %}";
const MANY: &str = "{% for i in range(99999) %}";
const END: &str = "{% endfor %}";

fn deep(templates: &mut Vec<(String, String)>) {
    let mut add = |name: &str, source: String| templates.push((name.into(), source));
    for count in [5_000, 300_000] {
        let n = |text: &str| text.repeat(count / text.len());
        let wrap = |open: &str, middle: &str, close: &str| {
            let count = count / (open.len() + close.len());
            format!("{{{{ {}{middle}{} }}}}", open.repeat(count), close.repeat(count))
        };
        add(&format!("minus {count}"), format!("{{{{ {}1 }}}}", n("-")));
        add(&format!("minus with spaces {count}"), format!("{{{{ {}1 }}}}", n("- ")));
        add(&format!("not {count}"), format!("{{{{ {}1 }}}}", n("not ")));
        add(&format!("plus chain {count}"), format!("{{{{ {}1 }}}}", n("1+")));
        add(&format!("tilde chain {count}"), format!("{{{{ {}1 }}}}", n("1~")));
        add(&format!("power chain {count}"), format!("{{{{ {}1 }}}}", n("1**")));
        add(&format!("and chain {count}"), format!("{{{{ {}1 }}}}", n("1 and ")));
        add(&format!("or chain {count}"), format!("{{{{ {}0 }}}}", n("0 or ")));
        add(&format!("compare chain {count}"), format!("{{{{ {}1 }}}}", n("1<=")));
        add(&format!("in chain {count}"), format!("{{{{ {}[] }}}}", n("1 in ")));
        add(&format!("attributes {count}"), format!("{{{{ a{} }}}}", n(".a")));
        add(&format!("subscripts {count}"), format!("{{{{ a{} }}}}", n("[0]")));
        add(&format!("calls {count}"), format!("{{{{ a{} }}}}", n("()")));
        add(&format!("filters {count}"), format!("{{{{ 'a'{} }}}}", n("|upper")));
        add(&format!("tests {count}"), format!("{{{{ 1 {} }}}}", n("is defined and 1 ")));
        add(&format!("conditionals {count}"), format!("{{{{ {}1 }}}}", n("1 if 1 else ")));
        add(&format!("half conditionals {count}"), format!("{{{{ 1{} }}}}", n(" if 1")));
        add(&format!("groups {count}"), wrap("(", "1", ")"));
        add(&format!("lists {count}"), wrap("[", "1", "]"));
        add(&format!("dicts {count}"), wrap("{1:", "1", "}"));
        add(&format!("nested subscripts {count}"), wrap("a[", "0", "]"));
        add(&format!("nested calls {count}"), wrap("range(", "1", ")"));
        add(&format!("nested slices {count}"), wrap("a[0:", "1", "]"));
        add(&format!("nested conditionals {count}"), wrap("(1 if ", "1", " else 2)"));
        add(&format!("moved conditionals {count}"), wrap("(", "1", " if 1 else 2)"));
        add(&format!("elif {count}"), format!("{{% if 0 %}}{}{{% endif %}}", n("{% elif 0 %}")));
        let blocks = |open: &str, close: &str| open.repeat(count / 20) + &close.repeat(count / 20);
        add(&format!("ifs {count}"), blocks("{% if 1 %}", "{% endif %}"));
        add(&format!("fors {count}"), blocks("{% for x in [1] %}", "{% endfor %}"));
        add(&format!("sets {count}"), blocks("{% set x %}", "{% endset %}"));
        add(&format!("macros {count}"), blocks("{% macro f() %}", "{% endmacro %}"));
        add(&format!("unclosed {count}"), n("{{ ("));
        add(
            &format!("names {count}"),
            (0..count / 12).map(|i| format!("{{{{ n{i} }}}}")).collect(),
        );
        add(&format!("texts {count}"), format!("{{{{ {} }}}}", n("'a' ")));
        add(&format!("list items {count}"), format!("{{{{ [{}] }}}}", n("1,")));
        add(&format!("dict items {count}"), {
            let items: String = (0..count / 8).map(|i| format!("{i}:1,")).collect();
            format!("{{{{ {{{items}}} }}}}")
        });
        add(&format!("arguments {count}"), format!("{{{{ range({}1) }}}}", n("1,")));
        add(&format!("comments {count}"), n("{# #}"));
        add(&format!("raws {count}"), n("{% raw %}{% endraw %}"));
        add(&format!("open raws {count}"), format!("{{% raw %}}{}", n("{% ")));
    }
}

fn cycles(templates: &mut Vec<(String, String)>) {
    let start = "{% set n = namespace() %}";
    let stored = [
        ("itself", "n"),
        ("in a list", "[n]"),
        ("in a dict", "{'a': n}"),
        ("in a tuple", "(n,)"),
        ("its method", "{'a': n}.items"),
        ("a loop", "namespace(b=n)"),
    ];
    for (name, value) in stored {
        for show in
            ["{{ n }}", "{{ n|tojson }}", "{{ n == n }}", "{{ n.a ~ n.a }}", "{{ [n]|string }}"]
        {
            let source = format!("{start}{{% set n.a = {value} %}}{show}");
            templates.push((format!("cycle {name} {show}"), source));
        }
    }
    let uses = [
        "{{ s }}",
        "{{ s|tojson }}",
        "{{ s == s }}",
        "{{ s|string|length }}",
        "{{ s in [s] }}",
        "{{ s < s }}",
        "{{ s|sort }}",
        "{{ s ~ s }}",
        "{{ {'a': s} }}",
        "{{ s|unique|list }}",
        "{{ s * 3 }}",
        "{{ [s]|join }}",
        "{{ s|min }}",
    ];
    for (index, show) in uses.iter().enumerate() {
        // `s` is kept in a namespace, because assignments inside a loop do not outlive it.
        let grow = |step: &str, count: usize| {
            let set = format!("{{% set n = namespace(s=[1]) %}}{{% for i in range({count}) %}}");
            format!("{set}{{% set n.s = {step} %}}{{% endfor %}}{{% set s = n.s %}}{show}")
        };
        templates.push((format!("nested twice {index}"), grow("[n.s, n.s]", 40)));
        templates.push((format!("nested dicts {index}"), grow("{'a': n.s, 'b': n.s}", 150)));
        templates.push((format!("nested deep {index}"), grow("[n.s]", 90_000)));
    }
}

fn growth(templates: &mut Vec<(String, String)>) {
    let steps = [
        ("tilde", "'x'", "n.s ~ n.s"),
        ("plus", "'x'", "n.s + n.s"),
        ("lists", "[1]", "n.s + n.s"),
        ("times", "'x'", "n.s * 9"),
        ("list times", "[1]", "n.s * 9"),
        ("join", "'xx'", "n.s|join(n.s)"),
        ("replace", "'xx'", "n.s|replace('x', n.s)"),
        ("method replace", "'xx'", "n.s.replace('x', n.s)"),
        ("json", "'\"'", "n.s|tojson"),
        ("repr", "'\\\\'", "[n.s]|string"),
        ("escape", "'&'", "n.s|escape|string"),
        ("indent", "'a\\nb'", "n.s|indent(99)"),
        ("center", "'a'", "n.s.center(99999999)"),
        ("format", "'{0}{0}'", "n.s.format(n.s)"),
        ("one more", "'x'", "n.s + 'x'"),
        ("list one more", "[1]", "n.s + [1]"),
        ("tuples", "(1,)", "n.s + n.s"),
        ("integers", "9", "n.s * n.s"),
        ("powers", "9", "n.s ** 9"),
        ("floats", "9.5", "n.s * n.s"),
    ];
    for (name, first, step) in steps {
        let source = format!(
            "{{% set n = namespace(s={first}) %}}{MANY}{{% set n.s = {step} %}}{END}{{{{ n.s|length }}}}"
        );
        templates.push((format!("growing {name}"), source));
    }
    let once = [
        "{{ 'x' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ ([1] * 99999999)|list }}",
        "{{ [1]|batch(999999999, 'x')|list }}",
        "{{ range(9)|slice(999999999)|list }}",
        "{{ range(9)|slice(999999999, 1)|list }}",
        "{{ range(99999999999) }}",
        "{{ range(0, 99999999999, 1)|list }}",
        "{{ range(9223372036854775807, -9223372036854775808, -1) }}",
        "{{ 'a'.ljust(99999999999) }}",
        "{{ 'a'.zfill(99999999999) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ 'x\n' * 999999 | indent(999999) }}",
        "{{ 9 ** 999999999 }}",
        "{{ 9.9 ** 999999999 }}",
        "{{ 1 | round(999999999) }}",
        "{{ 1.5 | round(-999999999) }}",
        "{{ [[1] * 999999] * 999999 }}",
        "{{ ['x' * 9999999] * 9999999 }}",
        "{{ (['x' * 9999999] * 999)|join }}",
        "{{ (['x' * 9999999] * 999) }}",
        "{{ ['x' * 9999999] * 16 | tojson }}",
        "{{ ([('x' * 9999999)] * 16) | tojson }}",
        "{{ [[[]]] | tojson(indent=999999999) }}",
        "{{ ([[]] * 99999) | tojson(indent='x' * 9999) }}",
        "{{ 'x' * 9999999 ~ 'y' * 9999999 ~ 'z' * 9999999 }}",
        "{{ ('a,' * 4000000).split(',') }}",
        "{{ ('a ' * 4000000).split() | length }}",
        "{{ ('\n' * 8000000).splitlines() | length }}",
        "{{ 'x' * 8000000 | list | length }}",
        "{{ ('x' * 8000000) | list | length }}",
        "{{ ('x' * 8000000)[::-1] | length }}",
        "{{ ('x' * 8000000) | reverse | length }}",
        "{{ ('x' * 8000000) | map('upper') | list }}",
        "{{ ('ß' * 7000000) | upper | length }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0.0 }}",
    ];
    for source in once {
        templates.push((source.into(), source.into()));
    }
}

fn passes(templates: &mut Vec<(String, String)>) {
    let operations = [
        "b|length",
        "b|trim",
        "b.strip()",
        "b.strip('yz')",
        "b.strip(b)",
        "b.lstrip('x')",
        "b.find('y')",
        "b.rfind('y')",
        "b.count('x')",
        "b.count('y')",
        "b|tojson",
        "b|upper",
        "b|lower",
        "b|title",
        "b.split('y')",
        "b.split('x')",
        "b.split()",
        "b == b ~ ''",
        "b == b[1:] ~ 'x'",
        "b < b ~ 'x'",
        "'y' in b",
        "b in b",
        "b[1:]",
        "b[-1]",
        "b[::2]",
        "b|replace('y', 'z')",
        "b.replace('x', '')",
        "b|first",
        "b|last",
        "b|wordcount",
        "b|escape",
        "b|string ~ b",
        "b.startswith(b)",
        "b.isalnum()",
        "b.partition('y')",
        "b.splitlines()",
        "b|list",
        "b|int",
        "b|float",
        "b is lower",
        "b.title()",
        "b.zfill(9000000)",
        "b.removeprefix(b)",
        "b|indent",
        "b|sort",
        "b|unique|list",
        "b.format(1)",
        "{b: 1}[b]",
        "[b].index(b)",
        "b|batch(2)|list",
        "b|join('y')",
        "b|max",
        "b|groupby(0)",
        "(b, b) == (b, b)",
    ];
    for operation in operations {
        let source = format!("{BIG}{MANY}{{% set c = {operation} %}}{END}");
        templates.push((format!("passes {operation}"), source));
    }
    let lists = "{% set l = range(99999)|list %}{% set m = l|map('string')|list %}";
    for operation in [
        "l|sort",
        "l|unique|list",
        "l == l + []",
        "99999 in l",
        "l.index(99998)",
        "l.count(1)",
        "l|sum",
        "l|min",
        "l|reverse|list",
        "l|map('string')|list",
        "m|join",
        "l|select('odd')|list",
        "l|batch(3)|list",
        "l|groupby('x')",
        "l[1:]",
        "l + l",
        "l|tojson",
        "l|string",
        "m|sort",
        "dict(l|zip(l))",
        "l|map('map', 'map', 'map', 'map', 'upper')|list",
        "m|map('length')|sum",
        "l|slice(50000)|list",
        "m|map('upper')|unique|list",
        "dict([[1, 2]] * 99999)",
        "l|last",
        "l is iterable",
        "l|dictsort",
        "l|rejectattr('x')|list",
    ] {
        let source = format!("{lists}{MANY}{{% set c = {operation} %}}{END}");
        templates.push((format!("lists {operation}"), source));
    }
}

fn loops(templates: &mut Vec<(String, String)>) {
    let sources = [
        (
            "loops",
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
        ),
        ("recursive macro", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"),
        (
            "branching macro",
            "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
        ),
        (
            "two macros",
            "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
        ),
        (
            "macro in a loop",
            "{% macro f() %}{% for x in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
        ),
        (
            "caller",
            "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% call f() %}x{% endcall %}{% endcall %}",
        ),
        (
            "caller calls itself",
            "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
        ),
        ("default calls", "{% macro f(a=f()) %}{% endmacro %}{{ f() }}"),
        (
            "big macro",
            "{% macro f(n) %}{{ 'x' * 999999 }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(150) }}",
        ),
        (
            "loop over loops",
            "{% for a in range(300) %}{% for b in range(300) %}{% for c in range(300) %}{{ loop.index }}{% endfor %}{% endfor %}{% endfor %}",
        ),
        (
            "loop kept",
            "{% set n = namespace(l=[]) %}{% for a in range(99999) %}{% set n.l = [n.l, loop] %}{% endfor %}{{ n.l }}",
        ),
        (
            "methods kept",
            "{% set n = namespace(l='a') %}{% for a in range(99999) %}{% set n.l = {'a': n.l}.items %}{% endfor %}{{ n.l }}",
        ),
        (
            "cyclers kept",
            "{% set n = namespace(l=1) %}{% for a in range(99999) %}{% set n.l = cycler(n.l) %}{% endfor %}{{ n.l }}",
        ),
        (
            "joiners kept",
            "{% set n = namespace(l=1) %}{% for a in range(99999) %}{% set n.l = joiner(n.l) %}{% endfor %}{{ n.l }}",
        ),
        ("changed", "{% for a in range(99999) %}{{ loop.changed('x' * 999999) }}{% endfor %}"),
        ("chosen", "{% for a in range(99999) if a in range(99999) %}{{ a }}{% endfor %}"),
        (
            "captured",
            "{% set x %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}",
        ),
        (
            "filtered",
            "{% filter upper %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfilter %}",
        ),
        (
            "broken captures",
            "{% for a in range(99999) %}{% set x %}{{ 'x' * 9999 }}{% break %}{% endset %}{% endfor %}",
        ),
        (
            "continued captures",
            "{% for a in range(99999) %}{% set x %}{{ 'x' * 9999 }}{% continue %}{% endset %}{% endfor %}",
        ),
        (
            "many variables",
            "{% for a in range(99999) %}{% with b = a, c = a, d = a %}{{ d }}{% endwith %}{% endfor %}",
        ),
        (
            "long output",
            "{% set s = 'x' * 1000000 %}{% for i in range(90000) %}{{ s }}{% endfor %}",
        ),
        (
            "namespaces",
            "{% for i in range(99999) %}{% set n = namespace(a=range(9999)) %}{% endfor %}",
        ),
        (
            "namespaces kept",
            "{% set n = namespace(l=[]) %}{% set l = [] %}{% for i in range(99999) %}{% set n.l = n.l + [namespace()] %}{% endfor %}",
        ),
        ("refusal", "{{ raise_exception('x' * 9999999) }}"),
        ("dates", "{{ strftime_now('%Y' * 9999999) }}"),
    ];
    for (name, source) in sources {
        templates.push((name.into(), source.into()));
    }
    let wide: String = (0..20_000).map(|i| format!("{{% set n.a{i} = 1 %}}")).collect();
    templates.push((
        "wide namespace".into(),
        format!("{{% set n = namespace() %}}{wide}{{{{ n.a1 }}}}"),
    ));
    let macros: String =
        (0..20_000).map(|i| format!("{{% macro f{i}() %}}{{% endmacro %}}")).collect();
    templates.push(("many macros".into(), macros));
    let parameters: String = (0..20_000).map(|i| format!("a{i},")).collect();
    templates.push((
        "many parameters".into(),
        format!("{{% macro f({parameters}) %}}{{% endmacro %}}{{{{ f() }}}}"),
    ));
    let named: String = (0..20_000).map(|i| format!("a{i}=1,")).collect();
    templates.push(("many names".into(), format!("{{{{ dict({named}) }}}}")));
}

pub fn all() -> Vec<(String, String)> {
    let mut templates = vec![];
    deep(&mut templates);
    cycles(&mut templates);
    growth(&mut templates);
    passes(&mut templates);
    loops(&mut templates);
    templates
}
