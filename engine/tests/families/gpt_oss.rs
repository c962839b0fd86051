//! gpt-oss: what MXFP4 weights become.

use nestling_engine::convert::ConvertOptions;
use nestling_engine::weights::MatrixWeights;
use nestling_formats::store::GroupId;
use nestling_formats::{Checkpoint, ExpertFormat, Level, MatrixId, MatrixKind};

use super::harness;

/// Every expert's weights at level 4 of the store are those of the checkpoint, bit for bit but for
/// the sign of zero, and nothing above level 4 is stored of them.
#[test]
fn mxfp4_weights_are_exact_at_level_4() {
    let checkpoint = Checkpoint::open(harness::directory("gpt-oss")).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.expert_format, ExpertFormat::Mxfp4);
    let (_folder, store) = harness::store("gpt-oss", &ConvertOptions::default());
    assert_eq!(store.level(), Level::L4);
    let source = harness::owned(&store, None);
    for layer in 0..config.num_hidden_layers as u32 {
        for expert in 0..5 {
            let matrices = source.matrices(&GroupId::expert_of(layer, expert)).unwrap();
            for (kind, matrix) in matrices.list {
                let id = MatrixId { kind, layer: Some(layer), expert: Some(expert) };
                let expected = checkpoint.read_matrix(id).unwrap();
                let MatrixWeights::Nested(matrix) = matrix else { panic!("{id:?} is not nested") };
                let view = matrix.view().unwrap();
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
    // Attention and tables keep all planes.
    let dense = source.matrices(&GroupId::Dense { layer: 0 }).unwrap();
    let query = dense.list.iter().find(|(kind, _)| *kind == MatrixKind::Query).unwrap();
    let MatrixWeights::Nested(query) = &query.1 else { panic!("queries are nested") };
    assert_eq!(query.view().unwrap().level(), Level::L8);
}
