//! Shared test models, each opened once.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nestling::engine::text::ToolStyle;
use nestling::{
    CancelToken, Device, DeviceOptions, EngineOptions, Model, ModelOptions, OpenOptions, open_with,
};
use nestling_server::{Access, Server, ServerOptions, UnknownFields};

pub const NAME: &str = "storyteller";

/// Returns the path of a repository file.
pub fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn open(path: &Path) -> Model {
    open_within(path, 1 << 30)
}

/// Opens a separate instance of the bundled model.
pub fn open_bundled(budget: u64) -> Model {
    open_within(&at("models/nestling-storyteller.nest"), budget)
}

/// Opens a separate instance of a model with random weights and tool support.
pub fn open_tools(budget: u64) -> Model {
    let folder = tempfile::tempdir().unwrap();
    make_tool_model(folder.path(), EXPERTS, TEMPLATE);
    open_within(folder.path(), budget)
}

fn open_within(path: &Path, budget: u64) -> Model {
    let options = OpenOptions {
        device: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
        engine: EngineOptions {
            memory_budget: Some(budget),
            threads: Some(2),
            ..EngineOptions::default()
        },
        model: ModelOptions::default(),
    };
    open_with(path, &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

pub fn bundled_model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| open(&at("models/nestling-storyteller.nest")))
}

/// Returns a separate server with the bundled model.
pub fn server_with(access: Access) -> Server {
    let server = Server::new(ServerOptions { access, ..ServerOptions::default() });
    server.set_model(bundled_model().clone(), NAME);
    server
}

/// Returns a separate server with the bundled model that refuses fields without effect.
pub fn strict_server() -> Server {
    let unknown_fields = UnknownFields::Refuse;
    let server = Server::new(ServerOptions { unknown_fields, ..ServerOptions::default() });
    server.set_model(bundled_model().clone(), NAME);
    server
}

/// Returns a separate server with the bundled model that refuses tools, because its template has no place for
/// them.
pub fn server_without_generic_tools() -> Server {
    let tool_style = ToolStyle::Native;
    let server = Server::new(ServerOptions { tool_style, ..ServerOptions::default() });
    server.set_model(bundled_model().clone(), NAME);
    server
}

pub fn server() -> Server {
    server_with(Access::default())
}

/// Returns a server of a random model whose template supports tools and reasoning.
pub fn tool_server() -> Server {
    static MODEL: OnceLock<Model> = OnceLock::new();
    server_of(&MODEL, EXPERTS, TEMPLATE)
}

/// Returns a server of a random dense model whose template supports tools and reasoning.
pub fn dense_server() -> Server {
    static MODEL: OnceLock<Model> = OnceLock::new();
    server_of(&MODEL, DENSE, TEMPLATE)
}

fn server_of(model: &'static OnceLock<Model>, source: &str, template: &str) -> Server {
    let model = model.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        make_tool_model(folder.path(), source, template);
        let model = open(folder.path());
        assert_eq!(model.config().router.is_none(), source == DENSE);
        model
    });
    let server = Server::new(ServerOptions::default());
    server.set_model(model.clone(), NAME);
    server
}

/// Returns a server of a random model whose answers begin with reasoning, and whose prompts repeat it.
pub fn reasoning_server() -> Server {
    static MODEL: OnceLock<Model> = OnceLock::new();
    server_of(&MODEL, EXPERTS, REASONING_TEMPLATE)
}

/// Random models of `engine/runtime/tests/data`, with experts and without.
const EXPERTS: &str = "tiny-qwen3-moe";
const DENSE: &str = "families/llama";

/// Writes a random model with a longer context and a chat template in Qwen3's style.
fn make_tool_model(folder: &Path, source: &str, template: &str) {
    let source = at("engine/runtime/tests/data").join(source);
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let edit = |file: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let path = folder.join(file);
        let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(path, json.to_string()).unwrap();
    };
    edit("config.json", &|json| json["max_position_embeddings"] = 4096.into());
    edit("tokenizer_config.json", &|json| json["chat_template"] = template.into());
}

const TEMPLATE: &str = "\
{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n\
Answer with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\n{% endif %}\
{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}\
<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

const REASONING_TEMPLATE: &str = "\
{% for m in messages %}<|im_start|>{{ m.role }}\n\
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
