//! `nestling inspect` of a GGUF file: its tensors, and its properties as a store in place.

use super::{assets, counted_matrices, model_json, model_text};
use crate::bytes::ByteSize;
use crate::in_place::{InPlaceFile, instead};
use crate::levels::level_sizes;
use crate::words::{DENSE, counted, printable};
use nestling::formats::store::Store;
use nestling::import::ModelConfig;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

pub fn as_json(path: &Path, file: &InPlaceFile, store: &Store, config: &ModelConfig) -> Value {
    let types = file
        .types()
        .into_iter()
        .map(|(name, share)| json!({"type": name, "tensors": share.tensors, "bytes": share.bytes}));
    let files = file.checkpoint.files().map(|path| {
        let bytes = path.metadata().map(|metadata| metadata.len()).ok();
        json!({"path": path.display().to_string(), "bytes": bytes})
    });
    let levels = level_sizes(store).into_iter().map(|size| {
        json!({
            "level": size.level.bits(),
            "bytes": size.bytes,
            "bits_per_weight": size.bits_per_weight,
            "present": true,
        })
    });
    let (types, files) = (types.collect::<Vec<_>>(), files.collect::<Vec<_>>());
    json!({
        "path": path.display().to_string(),
        "format": "gguf",
        "in_place": true,
        "id": store.id().to_string(),
        "files": files,
        "bytes": file.checkpoint.weight_bytes(),
        "types": types,
        "unused_tensors": file.unused(),
        "level": store.level().bits(),
        "levels": levels.collect::<Vec<_>>(),
        "model": model_json(config),
        "groups": store.groups().len(),
        "extents": store.index().extents().len(),
        "extents_read_before": file.known,
        "assets": assets(store),
    })
}

pub fn as_text(path: &Path, file: &InPlaceFile, store: &Store, config: &ModelConfig) -> String {
    let mut out = format!("{}\n", path.display());
    let files = counted(file.checkpoint.files().count(), "file");
    let size = ByteSize(file.checkpoint.weight_bytes());
    let _ = writeln!(out, "  GGUF      {files}, {size}; it runs in place");
    let _ = writeln!(out, "  model     {}", model_text(config));
    let names: Vec<&str> = store.asset_names().collect();
    let _ = writeln!(out, "  assets    {} (out of its header)", names.join(", "));
    let unused = file.unused();
    if !unused.is_empty() {
        let names = printable(&unused.join(", "));
        let _ = writeln!(out, "  unused    {}: {names}", counted(unused.len(), "tensor"));
    }
    let _ = writeln!(out, "\n  type      tensors         size");
    for (name, share) in file.types() {
        let size = ByteSize(share.bytes).to_string();
        let _ = writeln!(out, "  {name:<8} {:>8}   {size:>10}", share.tensors);
    }
    let _ = writeln!(out, "\n  level   bits/weight   in memory");
    for size in level_sizes(store) {
        let (level, bits, bytes) = (size.level, size.bits_per_weight, ByteSize(size.bytes));
        let _ = writeln!(out, "  {level:>5}   {bits:>11.3}   {:>9}", bytes.to_string());
    }
    let read = if config.has_experts() { "experts are read whole" } else { DENSE };
    let _ = writeln!(out, "  one level: {read}; for lower ones that read less, {}", instead(path));
    let (known, all) = (file.known, store.index().extents().len());
    let _ = writeln!(
        out,
        "\n  checked   checksums of {known} of {all} extents are known from earlier reads\n\n  \
         bits/weight counts {} with scales and padding",
        counted_matrices(config)
    );
    out
}
