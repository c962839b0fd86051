//! Ceilings on prose that only fall: openings of doc comments, names of types, lengths of documents and sentences.
//!
//! A count below its ceiling fails too, so that the ceiling is lowered in the same change. CONTRIBUTING.md has the style.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::path::{Path, PathBuf};

/// First words that leave out the noun or the verb of a doc comment.
const OPENINGS: &[&str] = &[
    "What",
    "Who",
    "Whose",
    "Whom",
    "Whoever",
    "Whatever",
    "Where",
    "Why",
    "Whether",
    "Which",
    "How",
    "Those",
    "That",
    "Such",
    "So many",
    "As many",
    "Nothing",
    "Something",
    "Its",
    "Theirs",
    "Of",
    "Most",
    "At most",
    "Not",
    "No",
    "Only",
];

/// Maximum number of doc comments that open with one of [`OPENINGS`].
const OPENINGS_MAX: usize = 24;

/// Type names that are participles or empty nouns. They say nothing of the type.
const VAGUE_NAMES: &str = "\
    Allowed Arrived Asked Begun Bell Brought Built Cached Changed Checked Computed Done Drawn Each \
    Edited Ended Entered Examined Finished Fitted Followed Form Found Gathered Given Going Gone Growing \
    Hashed Heard Hears Held Holds Home Joined Judging Keep Kept Known Late Left Lent Lone Made Making \
    Manner Masked Missing Moved Narrowed Noted Now Obtained Older Opened Out Packed Parked Parsed Passed \
    Place Places Popped Promoted Ran Reach Read Ready Remembered Rendered Rest Room Running Said Scaled \
    Scored Seen Sent Served Shaped Shared Shelf Sorted Sound Spent Standing Starting State Stopped Taken \
    Talk Tested Timed Told Took Trouble Turned Two Unsaid Upgraded Use Wakes Wanted Way Whole Wishes \
    Work Written";

/// Maximum number of types with one of [`VAGUE_NAMES`].
const VAGUE_NAMES_MAX: usize = 0;

/// Maximum number of lines of a document.
const LINES_MAX: &[(&str, usize)] = &[
    ("README.md", 120),
    ("ARCHITECTURE.md", 300),
    ("PERF.md", 200),
    ("CHANGELOG.md", 120),
    ("CONTRIBUTING.md", 150),
    ("GLOSSARY.md", 150),
];

/// Documents whose sentences have at most [`WORDS_MAX`] words on average.
const PLAIN: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

const WORDS_MAX: f64 = 15.0;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// Returns the sources of all crates, each with its path.
fn sources() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    collect(root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// Returns the first line of each doc comment, with its line number.
fn doc_comments(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let (Some(comment), false) = (comment, is_inside) {
            found.push((number + 1, comment.trim()));
        }
        is_inside = comment.is_some();
    }
    found
}

fn opens_badly(comment: &str) -> bool {
    let is_followed = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
    OPENINGS.iter().any(|opening| comment.strip_prefix(opening).is_some_and(is_followed))
}

/// Returns the names of the types that a source defines, with their line numbers.
fn type_names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if matches!(words.next(), Some("struct" | "enum" | "trait" | "type")) {
            let name =
                words.next().and_then(|name| name.split(|c: char| !c.is_alphanumeric()).next());
            found.extend(name.map(|name| (number + 1, name)));
        }
    }
    found
}

#[track_caller]
fn expect_ceiling(what: &str, found: &[String], ceiling: usize) {
    let (count, list) = (found.len(), found.join("\n"));
    assert!(count <= ceiling, "{count} {what}, at most {ceiling} are allowed:\n{list}");
    assert!(count == ceiling, "only {count} {what}: lower the ceiling of {ceiling}");
}

#[test]
fn doc_comments_open_with_a_noun_or_a_verb() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let comments = doc_comments(&text).into_iter().filter(|(_, comment)| opens_badly(comment));
        found.extend(comments.map(|(line, comment)| format!("{path}:{line}: {comment}")));
    }
    expect_ceiling("doc comments without a noun or a verb in front", &found, OPENINGS_MAX);
}

#[test]
fn types_are_named_by_nouns() {
    let vague: Vec<&str> = VAGUE_NAMES.split_whitespace().collect();
    let mut found = Vec::new();
    for (path, text) in sources() {
        let names = type_names(&text).into_iter().filter(|(_, name)| vague.contains(name));
        found.extend(names.map(|(line, name)| format!("{path}:{line}: {name}")));
    }
    expect_ceiling("types with names that say nothing", &found, VAGUE_NAMES_MAX);
}

#[test]
fn documents_are_short() {
    for (name, lines_max) in LINES_MAX {
        let lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= *lines_max, "{name} has {lines} lines, at most {lines_max} are allowed");
    }
}

/// Returns the number of words of each sentence outside of code, tables and headings.
fn sentence_lengths(text: &str) -> Vec<usize> {
    let mut prose = String::new();
    let mut is_code = false;
    for line in text.lines().map(str::trim_start) {
        is_code ^= line.starts_with("```");
        match line.chars().next() {
            _ if is_code || line.starts_with("```") => {}
            None | Some('|' | '#' | '!') => prose.push_str(".\n"),
            Some('-') => prose.push_str(&format!(". {}\n", line.trim_start_matches('-'))),
            Some(_) => prose.push_str(&format!("{line}\n")),
        }
    }
    let is_end = |word: &str| word.ends_with(['.', '?', '!', ':']);
    let mut lengths = vec![0];
    for word in prose.split_whitespace() {
        *lengths.last_mut().unwrap() += usize::from(word.chars().any(char::is_alphanumeric));
        if is_end(word) {
            lengths.push(0);
        }
    }
    lengths.retain(|length| *length > 2);
    lengths
}

#[test]
fn sentences_are_short() {
    for name in PLAIN {
        let lengths = sentence_lengths(&fs::read_to_string(root().join(name)).unwrap());
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!(mean <= WORDS_MAX, "{name}: {mean:.1} words per sentence");
    }
}

#[test]
fn planted_prose_is_found() {
    let text = "/// What is kept.\n/// More.\nfn a() {}\n/// Whatsoever\n//! No-one\npub(crate) struct Kept<T>(T);\n";
    let comments = doc_comments(text);
    assert_eq!(comments, [(1, "What is kept."), (4, "Whatsoever")]);
    assert!(opens_badly(comments[0].1) && !opens_badly(comments[1].1) && !opens_badly("No-one"));
    assert_eq!(type_names(text), [(6, "Kept")]);
    let prose = "# A heading\nOne two three. Four five\nsix seven!\n```\nlet code = 1;\n```\n- An item here\n| a | b |\n";
    assert_eq!(sentence_lengths(prose), [3, 4, 3]);
}
