//! Checkpoints of the families' test data with more heads, so that several ranks have some.

use std::path::{Path, PathBuf};

use nestling_testkit::runners::data;
use serde_json::{Map, Value, json};

/// Query heads, key heads and elements of a head.
pub const HEADS: [usize; 3] = [16, 8, 16];

/// Writes a family's checkpoint with [`HEADS`] to a folder. Matrices of attention have elements of the original in another
/// order.
pub fn wide(family: &str, folder: &Path) -> PathBuf {
    let from = data("families").join(family);
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let old = ["num_attention_heads", "num_key_value_heads", "head_dim"]
        .map(|key| config[key].as_u64().unwrap() as usize);
    let [queries, keys, dim] = HEADS;
    config["num_attention_heads"] = json!(queries);
    config["num_key_value_heads"] = json!(keys);
    config["head_dim"] = json!(dim);
    if let Some(each) = config.get_mut("num_attention_heads_per_layer") {
        each.as_array_mut().unwrap().iter_mut().for_each(|heads| *heads = json!(queries));
    }
    let to = folder.join(family);
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        let out = to.join(path.file_name().unwrap());
        let bytes = std::fs::read(&path).unwrap();
        let bytes = match path.extension().and_then(|name| name.to_str()) {
            Some("safetensors") => widened(&bytes, old),
            _ => bytes,
        };
        std::fs::write(out, bytes).unwrap();
    }
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

/// Returns the shape of a tensor with the new heads, if they change it.
fn shape(name: &str, shape: &[usize], [queries, keys, dim]: [usize; 3]) -> Option<Vec<usize>> {
    let (_, part) = name.split_once("self_attn.")?;
    let layer_queries = |rows: usize| rows / dim.max(1);
    let [new_queries, new_keys, new_dim] = HEADS;
    let mut new = shape.to_vec();
    match part {
        // A family may keep queries and gates in one matrix, or have another number of heads in some layers.
        "q_proj.weight" | "q_proj.bias" => {
            let parts = if layer_queries(shape[0]) >= 2 * queries { 2 } else { 1 };
            new[0] = parts * new_queries * new_dim;
        }
        "k_proj.weight" | "k_proj.bias" | "v_proj.weight" | "v_proj.bias" => {
            assert_eq!(shape[0], keys * dim);
            new[0] = new_keys * new_dim;
        }
        "o_proj.weight" => new[1] = new_queries * new_dim,
        "sinks" | "g_proj.weight" => new[0] = new_queries,
        "q_norm.weight" | "k_norm.weight" => new[0] = new_dim,
        _ => return None,
    }
    Some(new)
}

fn widened(file: &[u8], heads: [usize; 3]) -> Vec<u8> {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, bodies) = rest.split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let (mut out, mut body) = (Map::new(), Vec::new());
    for (name, tensor) in header {
        if name == "__metadata__" {
            out.insert(name, tensor);
            continue;
        }
        let numbers = |value: &Value| -> Vec<usize> {
            value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let (old, places) = (numbers(&tensor["shape"]), numbers(&tensor["data_offsets"]));
        let bytes = &bodies[places[0]..places[1]];
        let first = body.len();
        let new = match shape(&name, &old, heads) {
            None => {
                body.extend_from_slice(bytes);
                old
            }
            Some(new) => {
                assert_eq!(tensor["dtype"], "BF16", "{name}");
                let elements: Vec<&[u8]> = bytes.chunks_exact(2).collect();
                let count = elements.len();
                let from = |at: usize| elements[(at * 7919 + at / count * 31) % count];
                (0..new.iter().product()).for_each(|at| body.extend_from_slice(from(at)));
                new
            }
        };
        let place = [first, body.len()];
        let tensor = json!({"dtype": tensor["dtype"], "shape": new, "data_offsets": place});
        out.insert(name, tensor);
    }
    let header = Value::Object(out).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&body);
    file
}
