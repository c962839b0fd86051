//! Compiles programs in C and C++, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn model() -> PathBuf {
    root().join("../../models/nestling-storyteller.nest")
}

/// A model of random weights, opened in no time.
pub fn tiny() -> PathBuf {
    root().join("../../engine/runtime/tests/data/tiny-qwen3-moe")
}

/// A dense model of random weights.
pub fn dense() -> PathBuf {
    root().join("../../engine/runtime/tests/data/families/llama")
}

/// Writes a random model with a longer context and a template that knows tools.
pub fn with_tools(model: &Path, folder: &Path) {
    for entry in std::fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let edit = |file: &str, field: &str, value: serde_json::Value| {
        let path = folder.join(file);
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[field] = value;
        std::fs::write(path, json.to_string()).unwrap();
    };
    edit("config.json", "max_position_embeddings", 4096.into());
    edit("tokenizer_config.json", "chat_template", TEMPLATE.into());
}

const TEMPLATE: &str = "\
{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n\
Answer with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\n{% endif %}\
{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}\
<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Returns the folder of the library.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Flags for AddressSanitizer, which also finds leaks, and for undefined behaviour as an error.
pub const CHECKED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];

/// Compiles a program of this crate, warnings as errors, and returns where it is.
pub fn compiled(folder: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let is_c = source.ends_with(".c");
    let compiler = if is_c { "cc" } else { "c++" };
    let program = folder.join(source.replace(['.', '/'], "-"));
    let library = library();
    let done = Command::new(compiler)
        .arg(if is_c { "-std=c11" } else { "-std=c++17" })
        .args(["-D_POSIX_C_SOURCE=200809L", "-g", "-O1", "-pthread"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"])
        .args(flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg("-I")
        .arg(root().join("examples"))
        .arg(root().join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg("-lnestling_c")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
    program
}

/// Runs a command and returns its output.
pub fn run(command: &mut Command) -> String {
    // A driver of Vulkan that is unloaded again leaves memory behind, which is no fault of the library's.
    let command = command.env("VK_DRIVER_FILES", "none").env("VK_ICD_FILENAMES", "none");
    let done = command.output().unwrap();
    let (out, errors) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {:?}\n{out}\n{errors}", done.status);
    out.into_owned()
}
