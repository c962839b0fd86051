//! House rules that rustc, clippy and cargo-deny cannot check.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

use std::fs;
use std::path::{Path, PathBuf};

use lists::{FEATURE_FILES, FORBIDDEN, UNSAFE_FILES};

#[path = "tidy/lists.rs"]
mod lists;

/// Maximum number of lines per source file.
const FILE_LINES_MAX: usize = 600;

/// Maximum number of lines per crate below `engine/`, without tests.
const CRATE_LINES_MAX: usize = 13_000;

struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(directory: &Path, extensions: &[&str], out: &mut Vec<Source>) {
    let mut entries: Vec<_> = fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | "data" | "corpus" | "artifacts") {
                collect(&path, extensions, out);
            }
        } else if extensions.iter().any(|e| path.extension().is_some_and(|x| x == *e)) {
            let relative = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            out.push(Source { path: relative, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

fn sources(extensions: &[&str]) -> Vec<Source> {
    let mut out = Vec::new();
    collect(&root(), extensions, &mut out);
    assert!(!out.is_empty(), "found no sources under {}", root().display());
    out
}

/// Returns the lines that `check` reports. An empty list is a pass.
fn faults(extensions: &[&str], check: impl Fn(&Source, &str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources(extensions) {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(fault) = check(&source, line) {
                found.push(format!("{}:{}: {fault}", source.path, number + 1));
            }
        }
    }
    found
}

fn expect_none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn is_test(path: &str) -> bool {
    let folders = ["tests/", "benches/", "engine/testkit/"];
    path.ends_with("tests.rs") || folders.iter().any(|folder| path.contains(folder))
}

#[test]
fn files_are_short() {
    let mut found = Vec::new();
    for source in sources(&["rs", "wgsl", "cu"]) {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            found.push(format!("{}: {lines} lines, at most {FILE_LINES_MAX}", source.path));
        }
    }
    expect_none(found);
}

#[test]
fn crates_of_the_engine_are_small() {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("engine")).unwrap() {
        let folder = entry.unwrap().path();
        let mut files = Vec::new();
        collect(&folder.join("src"), &["rs"], &mut files);
        let counted = files.iter().filter(|file| !is_test(&file.path));
        let lines: usize = counted.map(|file| file.text.lines().count()).sum();
        if lines > CRATE_LINES_MAX {
            found.push(format!("{}: {lines} lines, at most {CRATE_LINES_MAX}", folder.display()));
        }
    }
    expect_none(found);
}

#[test]
fn unsafe_lives_in_listed_files() {
    let mut found = faults(&["rs"], |source, line| {
        let opens = line.contains("(unsafe_code") && !is_comment(line);
        (opens && source.path != "tests/tidy.rs" && !UNSAFE_FILES.contains(&source.path.as_str()))
            .then(|| "allows unsafe code, but is not in tests/tidy.rs UNSAFE_FILES".into())
    });
    for file in UNSAFE_FILES {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        if !text.contains("(unsafe_code") && !text.contains("unsafe_code,") {
            found.push(format!("{file}: listed as unsafe, but has no unsafe code"));
        }
    }
    expect_none(found);
}

/// The standard library's adapters have no target features, so that a vector instruction in a closure of theirs may stay
/// a function that is called, through memory.
#[test]
fn vector_instructions_are_not_in_closures_of_adapters() {
    let adapted = |line: &str| {
        let of_array = [".map(|", ".fold(", ".for_each(|", "from_fn(|"];
        of_array.iter().any(|adapter| line.split(adapter).skip(1).any(|rest| rest.contains("_mm")))
    };
    assert!(adapted("let halves = [a, b].map(|x| _mm256_srli_epi16::<4>(x));"));
    expect_none(faults(&["rs"], |source, line| {
        (source.path != "tests/tidy.rs" && adapted(line))
            .then(|| "a vector instruction in a closure; use a loop".into())
    }));
}

#[test]
fn crates_do_not_name_what_they_must_not_know() {
    expect_none(faults(&["rs"], |source, line| {
        if is_comment(line) || is_test(&source.path) {
            return None;
        }
        let word = FORBIDDEN
            .iter()
            .filter(|(prefix, _)| source.path.starts_with(prefix))
            .flat_map(|(_, words)| words.iter())
            .find(|word| line.contains(**word))?;
        Some(format!("names `{word}`"))
    }));
}

#[test]
fn dependencies_run_one_way() {
    let allowed: &[(&str, &[&str])] = &[
        ("formats/nest/Cargo.toml", &[]),
        ("formats/import/Cargo.toml", &["formats"]),
        ("engine/core/Cargo.toml", &["formats", "import"]),
        ("engine/threads/Cargo.toml", &["core"]),
        ("engine/math/Cargo.toml", &["formats", "import"]),
        ("engine/cpu/Cargo.toml", &["formats", "import", "math", "core", "threads"]),
        ("engine/levels/Cargo.toml", &["formats", "core"]),
        ("engine/experts/Cargo.toml", &["formats", "import", "core", "cpu", "levels"]),
        ("engine/template/Cargo.toml", &[]),
        ("engine/text/Cargo.toml", &["template"]),
        (
            "engine/runtime/Cargo.toml",
            &["formats", "import", "math", "core", "cpu", "levels", "experts", "text"],
        ),
        ("engine/guide/Cargo.toml", &["text", "runtime"]),
        (
            "engine/convert/Cargo.toml",
            &["formats", "import", "core", "cpu", "levels", "experts", "runtime"],
        ),
        ("engine/ranks/Cargo.toml", &["formats", "import", "core", "cpu", "runtime"]),
        ("engine/plan/Cargo.toml", &["formats", "import", "core", "experts"]),
        ("engine/gpu/Cargo.toml", &["formats", "import", "core", "cpu"]),
        (
            "engine/testkit/Cargo.toml",
            &[
                "formats", "import", "core", "cpu", "levels", "experts", "runtime", "convert",
                "text", "ranks",
            ],
        ),
        ("shaders/Cargo.toml", &["formats", "import", "core", "gpu"]),
        ("kernels/Cargo.toml", &["formats", "import", "core", "gpu"]),
        (
            "Cargo.toml",
            &[
                "formats", "import", "core", "cpu", "levels", "experts", "text", "runtime",
                "convert", "guide", "gpu", "ranks", "wgpu", "cuda", "threads",
            ],
        ),
        ("apps/hub/Cargo.toml", &["formats", "import", "convert"]),
        ("apps/server/Cargo.toml", &[""]),
        ("apps/c/Cargo.toml", &[""]),
        ("apps/python/Cargo.toml", &["", "hub"]),
        ("apps/mobile/Cargo.toml", &[""]),
        ("apps/web/Cargo.toml", &[""]),
        ("apps/desktop/Cargo.toml", &["", "plan"]),
        ("apps/cli/Cargo.toml", &["", "hub", "plan", "server"]),
    ];
    let mut found = Vec::new();
    for (manifest, names) in allowed {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        // The workspace table names all crates, so reading starts after it.
        let lines = text.lines().skip_while(|line| *line != "[package]");
        // Dev-dependencies may be on a higher layer.
        let lines = lines.take_while(|line| *line != "[dev-dependencies]");
        for line in lines.filter(|line| line.starts_with("nestling")) {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            let name = name.trim_start_matches("nestling").trim_start_matches('-');
            if !names.contains(&name) {
                found.push(format!("{manifest}: depends on nestling-{name}"));
            }
        }
    }
    expect_none(found);
}

#[test]
fn features_and_environment_stay_at_the_edge() {
    let libraries = [
        "formats/",
        "engine/",
        "shaders/src/",
        "kernels/src/",
        "apps/c/src/",
        "apps/hub/src/",
        "apps/mobile/src/",
        "apps/python/src/",
        "apps/server/src/",
        "apps/web/src/",
    ];
    expect_none(faults(&["rs"], |source, line| {
        let path = source.path.as_str();
        if is_comment(line) || is_test(path) || !libraries.iter().any(|p| path.starts_with(p)) {
            return None;
        }
        if line.contains("env::var") {
            return Some("reads the environment; only programs do".into());
        }
        let names_feature = line.contains("feature = \"") && !line.contains("target_feature");
        (names_feature && !FEATURE_FILES.contains(&path))
            .then(|| "names a cargo feature; only the facade does".into())
    }));
}

#[test]
fn words_that_nobody_wants_later() {
    // The words are split so that this file does not match.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK")];
    let mut found = faults(&["rs", "wgsl", "cu", "py", "sh", "toml", "md"], |_, line| {
        let word = words.iter().find(|w| line.contains(**w))?;
        Some(format!("`{word}`: file an issue instead"))
    });
    found.extend(
        sources(&["rs"])
            .iter()
            .filter(|s| s.path.ends_with("/utils.rs") || s.path.ends_with("/helpers.rs"))
            .map(|s| format!("{}: name the file after what it holds", s.path)),
    );
    expect_none(found);
}

#[test]
fn nothing_needs_a_folder_outside_the_repository() {
    let shared = concat!("../sha", "red/");
    expect_none(faults(&["rs", "py", "toml", "md", "sh", "yml"], |_, line| {
        let rest = line.split(shared).nth(1)?;
        (!rest.starts_with("demo-model"))
            .then(|| "names a folder that a clone does not have".into())
    }));
}

#[test]
fn every_kernel_has_a_parity_case_and_a_bench_row() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let kernels = read("engine/cpu/src/kernels.rs");
    let parity = ["kernels", "nested", "scaled"];
    let parity = parity.map(|module| read(&format!("engine/cpu/src/{module}/tests.rs"))).concat();
    let benches = read("benches/benches/kernels.rs");
    let names: Vec<&str> = kernels
        .split("    pub fn ")
        .skip(1)
        .filter_map(|text| text.split_once('('))
        .filter(|(name, rest)| {
            let told = ["name", "packs_from"].contains(name);
            rest.trim_start().starts_with("&self") && !told
        })
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() > 5, "found only {names:?}");
    let mut found = Vec::new();
    for name in names {
        for (what, text) in [("parity case", &parity), ("bench row", &benches)] {
            if !text.contains(&format!("kernels.{name}(")) {
                found.push(format!("kernel `{name}` has no {what}"));
            }
        }
    }
    expect_none(found);
}

/// Encoder method that starts each kernel of the GPU backend.
const SHADERS: &[(&str, &str)] = &[
    ("add_gated", "add_gated"),
    ("argmax", "argmax_into"),
    ("argmax_merge", "argmax_into"),
    ("attend", "attend"),
    ("attend_merge", "attend"),
    ("clear", "clear"),
    ("delta_gate", "delta_net"),
    ("delta_mix", "delta_net"),
    ("delta_rule", "delta_net"),
    ("embed", "embed"),
    ("expert_blocks", "routed_experts"),
    ("experts_sum", "experts_sum"),
    ("gate", "gate"),
    ("gated", "ffn"),
    ("gated_quantize", "ffn"),
    ("gather_rows", "gather_rows"),
    ("heads_rest", "matmul_heads"),
    ("kv_store", "rope"),
    ("mamba2_conv", "mamba2"),
    ("mamba2_norm", "mamba2"),
    ("mamba2_scan", "mamba2"),
    ("matmul_float", "matmul"),
    ("matmul_nested", "matmul"),
    ("matmul_nested_rows", "matmul"),
    ("matmul_scaled", "matmul"),
    ("norm_part", "rope"),
    ("quantize", "matmul"),
    ("rms_norm", "rms_norm"),
    ("rope", "rope"),
    ("route", "route"),
    ("scale", "scale"),
    ("short_conv", "short_conv"),
    ("softcap", "softcap"),
];

#[test]
fn every_shader_has_a_bench_row() {
    let benches = fs::read_to_string(root().join("benches/benches/shaders.rs")).unwrap();
    let mut shaders = Vec::new();
    collect(&root().join("shaders/wgsl"), &["wgsl"], &mut shaders);
    let stem = |source: &Source| {
        let name = source.path.strip_prefix("shaders/wgsl/")?.strip_suffix(".wgsl")?;
        (!name.contains('/')).then(|| name.to_owned())
    };
    let names: Vec<String> = shaders.iter().filter_map(stem).collect();
    assert!(names.len() > 5, "found only {names:?}");
    let mut found = Vec::new();
    for name in &names {
        let Some((_, method)) = SHADERS.iter().find(|(shader, _)| shader == name) else {
            found.push(format!("shader `{name}` is not in tests/tidy.rs SHADERS"));
            continue;
        };
        let receiver = if *method == "routed_experts" { "table" } else { "encoder" };
        let call = format!("{receiver}.{method}(");
        if !benches.contains(&call) {
            found.push(format!("shader `{name}` has no bench row with `{call}`"));
        }
    }
    let gone = SHADERS.iter().filter(|(shader, _)| !names.iter().any(|name| name == shader));
    found.extend(gone.map(|(shader, _)| format!("shader `{shader}` is listed, but not there")));
    expect_none(found);
}

/// Limits, only ever lowered: defaults without a `// Default:`, tuple parameters, constants for absent values.
const CEILINGS: &[(&str, [usize; 3])] = &[
    ("apps", [0, 0, 41]),
    ("engine", [0, 0, 142]),
    ("formats", [0, 0, 66]),
    ("kernels", [0, 0, 9]),
    ("shaders", [0, 0, 5]),
    ("src", [0, 0, 1]),
];

/// Defaults that are always an error without a reason.
const DEFAULTS: &[&str] =
    &["unwrap_or_default()", "unwrap_or(0)", "else { return }", "else { return; }"];

/// Constants that stand for an absent value.
const CONSTANTS: &[&str] = &[
    "map_or(0",
    "map_or(1",
    "map_or(true",
    "unwrap_or(0.0)",
    "unwrap_or(1)",
    "unwrap_or(1.0)",
    "unwrap_or(false)",
    "unwrap_or(true)",
    "unwrap_or(u32::MAX)",
    "unwrap_or(u64::MAX)",
    "unwrap_or(usize::MAX)",
    "else { return 0",
    "else { return false",
    "else { return true",
];

/// Returns the text of a file before the tests at its end.
fn without_tests(text: &str) -> &str {
    let mut end = text.len();
    for (at, _) in text.match_indices("#[cfg(test)]\nmod ") {
        let line = text[at..].lines().nth(1).unwrap_or_default();
        if line.ends_with('{') {
            end = end.min(at);
        }
    }
    &text[..end]
}

/// Returns the line numbers, from 1, of defaults of a kind that have no reason.
fn silent_defaults(text: &str, defaults: &[&str]) -> Vec<usize> {
    let lines: Vec<&str> = without_tests(text).lines().collect();
    let is_default = |at: usize| {
        let line = lines[at];
        let is_return = defaults.contains(&"else { return }");
        let returns = lines.get(at + 1).is_some_and(|next| is_return && next.trim() == "return;");
        !is_comment(line)
            && (defaults.iter().any(|default| line.contains(default))
                || line.trim_end().ends_with("else {") && returns)
    };
    // The reason is on the line itself or above the statement.
    let has_reason = |at: usize| {
        let ends = |line: &&&str| line.is_empty() || line.ends_with([';', '{', '}']);
        let above = lines[..at].iter().rev().take_while(|line| is_comment(line) || !ends(line));
        above.chain([&lines[at]]).any(|line| line.contains("// Default:"))
    };
    (0..lines.len()).filter(|at| is_default(*at) && !has_reason(*at)).map(|at| at + 1).collect()
}

/// Returns true if a parameter is a tuple pattern or has a tuple type.
fn is_tuple(parameter: &str) -> bool {
    let parameter = parameter.trim();
    if parameter.starts_with('(') || parameter.starts_with("mut (") {
        return true;
    }
    let of_type = parameter.split_once(':').map_or("", |(_, of_type)| of_type.trim());
    let of_type = of_type.trim_start_matches('&').trim_start_matches("mut ");
    of_type.starts_with('(') && !of_type.starts_with("(dyn ") && !of_type.starts_with("(impl ")
}

/// Returns the names of functions with a tuple parameter.
fn tuple_parameters(text: &str) -> Vec<String> {
    let code: Vec<&str> = without_tests(text).lines().filter(|line| !is_comment(line)).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[at + 3..];
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(length);
        let Some(parameters) = parameters(rest).filter(|_| starts_word && !name.is_empty()) else {
            continue;
        };
        let tuples = parameters.iter().filter(|one| is_tuple(one));
        found.extend(tuples.map(|_| name.to_owned()));
    }
    found
}

/// Splits the parameters of a function, given the text after its name.
fn parameters(rest: &str) -> Option<Vec<&str>> {
    let (mut depth, mut open) = (0usize, None);
    let (mut found, mut start) = (Vec::new(), 0);
    let mut before = ' ';
    for (at, c) in rest.char_indices() {
        match c {
            '(' if open.is_none() && depth == 0 => (open, start) = (Some(()), at + 1),
            ')' if open.is_some() && depth == 0 => {
                found.push(&rest[start..at]);
                return Some(found);
            }
            ',' if open.is_some() && depth == 0 => {
                found.push(&rest[start..at]);
                start = at + 1;
            }
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' => {}
            ')' | ']' | '}' | '>' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        before = c;
    }
    None
}

#[test]
fn defaults_have_reasons_and_parameters_are_no_tuples() {
    let mut counts: Vec<[Vec<String>; 3]> = vec![Default::default(); CEILINGS.len()];
    for source in sources(&["rs"]).iter().filter(|source| !is_test(&source.path)) {
        let folder = source.path.split('/').next().unwrap();
        let Some(folder) = CEILINGS.iter().position(|(name, _)| *name == folder) else { continue };
        let [defaults, tuples, constants] = &mut counts[folder];
        let at = |line: usize| format!("{}:{line}: a silent default", source.path);
        defaults.extend(silent_defaults(&source.text, DEFAULTS).into_iter().map(at));
        constants.extend(silent_defaults(&source.text, CONSTANTS).into_iter().map(at));
        let names = tuple_parameters(&source.text).into_iter();
        tuples
            .extend(names.map(|name| format!("{}: a tuple as a parameter of {name}", source.path)));
    }
    let mut found = Vec::new();
    for ((folder, ceilings), faults) in CEILINGS.iter().zip(counts) {
        for (most, faults) in ceilings.iter().zip(faults) {
            if faults.len() > *most {
                found.push(format!("{folder}: {} of these, at most {most}", faults.len()));
                found.extend(faults);
            } else if faults.len() < *most {
                found.push(format!("{folder}: lower the ceiling of {most} to {}", faults.len()));
            }
        }
    }
    expect_none(found);
}

#[test]
fn planted_defaults_and_tuples_are_found() {
    let text = "let a = b.unwrap_or_default();
// Default: an absent count is none.
let c = d.unwrap_or(0);
// unwrap_or(0)
let Some(e) = f else { return };
let Some(e) = f
else {
    return;
};
#[cfg(test)]
mod tests {
    let g = h.unwrap_or(0);
}
";
    assert_eq!(silent_defaults(text, DEFAULTS), [1, 5, 7]);
    let text = "let a = b.map_or(0, len);\n// Default: no limit.\nlet c = d.unwrap_or(u64::MAX);\n";
    assert_eq!(silent_defaults(text, CONSTANTS), [1]);
    let text = "fn plain(a: u8, f: impl Fn((u8, u8)) -> u8) {}
fn one<T: Fn(u8) -> u8>((a, b): (u8, u8), c: u8) {}
// fn said((a, b): (u8, u8)) {}
pub fn two(
    (mut a, b): (u8, u8),
    mut (c, d): (u8, u8),
) {}
fn typed(a: &(u8, u8), f: &(dyn Fn(u8) -> u8 + Sync), g: &mut (u8, u8)) {}
type F = fn((u8, u8));
";
    assert_eq!(tuple_parameters(text), ["one", "two", "two", "typed", "typed"]);
}

/// Loops that are optimized for size are not vectorized (docs/perf/041).
#[test]
fn crates_with_loops_over_weights_are_optimized_for_speed() {
    let fast =
        ["convert", "core", "cpu", "levels", "experts", "formats", "import", "runtime", "text"];
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let overrides = manifest.lines().filter_map(|line| {
        let name = line.strip_prefix("[profile.")?.strip_suffix(']')?;
        name.split_once(".package.nestling-").filter(|(profile, _)| *profile != "dev")
    });
    let overrides: Vec<_> = overrides.collect();
    assert!(overrides.contains(&("release", "server")), "the manifest has another form");
    let slow = overrides.iter().filter(|(_, package)| fast.contains(package));
    expect_none(slow.map(|(profile, package)| format!("{profile}: {package}")).collect());
}
