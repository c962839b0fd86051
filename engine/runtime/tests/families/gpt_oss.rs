//! gpt-oss: conversion of MXFP4 weights.

use nestling_core::weights::MatrixWeights;
use nestling_formats::store::{Group, GroupId};
use nestling_formats::{FloatKind, Level, MatrixId, MatrixKind};
use nestling_import::{Checkpoint, ExpertFormat, ModelShape};
use nestling_runtime::{MemoryPlan, ModelOptions, PlannedResidence, Residence};

use super::harness;

/// Expert weights at level 4 of the store equal the checkpoint's, except for the sign of zero.
///
/// The store has no planes of them above level 4.
#[test]
fn mxfp4_weights_are_exact_at_level_4() {
    let checkpoint = Checkpoint::open(harness::directory("gpt-oss")).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.expert_format, ExpertFormat::Mxfp4);
    let (_folder, store) = harness::default_store("gpt-oss");
    assert_eq!(store.level(), Level::L4);
    let source = harness::owned(&store, None);
    for layer in 0..config.num_hidden_layers as u32 {
        for expert in 0..5 {
            let matrices = source.matrices(&GroupId::expert_of(layer, expert)).unwrap();
            for (kind, matrix) in matrices.list {
                let id = MatrixId { kind, layer: Some(layer), expert: Some(expert) };
                let expected = checkpoint.read_matrix(id).unwrap();
                let MatrixWeights::Nested(matrix) = matrix else { panic!("{id:?} is not nested") };
                let view = matrix.view();
                assert_eq!(view.level(), Level::L4);
                let mut row = vec![0.0; view.cols()];
                for (index, expected) in expected.chunks(view.cols()).enumerate() {
                    view.dequantize_row(Level::L4, index, &mut row).unwrap();
                    for (found, expected) in row.iter().zip(expected) {
                        assert_eq!(found.to_bits(), (expected + 0.0).to_bits(), "{id:?}");
                    }
                }
            }
        }
    }
    // Attention matrices and embeddings keep all planes.
    let dense = source.matrices(&GroupId::Dense { layer: 0 }).unwrap();
    let query = dense.list.iter().find(|(kind, _)| *kind == MatrixKind::Query).unwrap();
    let MatrixWeights::Nested(query) = &query.1 else { panic!("queries are nested") };
    assert_eq!(query.view().level(), Level::L8);
}

/// Memory of float tensors: 32-bit floats, except routers, which keep their stored type.
///
/// With streamed experts, each resident expert has a second copy of its biases, and the embedding takes 11
/// bytes per row.
#[test]
fn the_memory_plan_counts_floats_as_they_are_held() {
    let checkpoint = Checkpoint::open(harness::directory("gpt-oss")).unwrap();
    let config = checkpoint.config();
    let (_folder, store) = harness::default_store("gpt-oss");
    let plan = |residence| {
        let options = ModelOptions { residence, ..ModelOptions::default() };
        MemoryPlan::of_store(&store, config, &options, None, None).unwrap()
    };
    let (resident, streamed) = (plan(Residence::Owned), plan(Residence::Streamed));
    assert_eq!(streamed.residence, PlannedResidence::Streamed);

    let elements = |wanted: &dyn Fn(FloatKind) -> bool| -> u64 {
        let floats = ModelShape::new(config).floats;
        floats.iter().filter(|float| wanted(float.id.kind)).map(|f| f.elements() as u64).sum()
    };
    let groups = || store.groups().iter();
    let stored_tensors = groups().flat_map(|group| &group.tensors);
    let stored_floats: u64 = stored_tensors
        .filter(|tensor| tensor.kind != FloatKind::Router)
        .map(|tensor| (tensor.dtype.bytes() * tensor.shape.iter().product::<usize>()) as u64)
        .sum();
    let held_floats = 4 * elements(&|kind| kind != FloatKind::Router);
    assert!(held_floats > stored_floats, "the checkpoint is in bfloat16");
    let weights = groups().filter(|group| !matches!(group.id, GroupId::Asset { .. }));
    let extents = |group: &Group| group.extents.iter().flatten().copied().collect::<Vec<_>>();
    let stored: u64 = weights
        .flat_map(extents)
        .map(|extent| store.index().extents()[extent as usize].length)
        .sum();
    assert_eq!(resident.weight_bytes, stored - stored_floats + held_floats);

    let biases = 4 * elements(&FloatKind::is_of_experts);
    assert!(biases > 0);
    let embedding = store.group(&GroupId::Embedding).unwrap();
    let lengths = extents(embedding).into_iter();
    let lengths = lengths.map(|extent| store.index().extents()[extent as usize].length);
    let rows = 11 * config.vocab_size as u64;
    let both = streamed.weight_bytes + streamed.expert_bytes_total + lengths.sum::<u64>();
    assert_eq!(both, resident.weight_bytes + biases + rows);
}
