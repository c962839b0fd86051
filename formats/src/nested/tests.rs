use half::f16;

use super::*;
use crate::{Level, Plane};

/// Every prefix, in both layouts, from exactly the planes that it needs.
#[test]
fn planes_hold_the_codes() {
    let (rows, cols) = (21, 70);
    let codec = fit::initial_codec(9830);
    let weights: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 - 504.0).collect();
    let options = QuantizeOptions::default();
    let matrix = quantize_matrix(&weights, rows, cols, &codec, None, &options).unwrap();
    for layout in [Layout::Tile16, Layout::RowMajor] {
        let packed: Vec<Vec<u8>> = Plane::ALL
            .into_iter()
            .map(|plane| {
                let mut out = vec![0; plane_bytes(layout, rows, cols, plane).unwrap()];
                pack_plane(&matrix, layout, plane, &mut out).unwrap();
                out
            })
            .collect();
        let mut merged = vec![0; merged_bytes(layout, rows, cols).unwrap()];
        merge_p3_p4(layout, &packed[1], &packed[2], &mut merged).unwrap();
        for level in Level::ALL {
            let get = |index: usize| (index <= level.index()).then(|| packed[index].as_slice());
            let apart = NestedPlanes {
                p2: &packed[0],
                p3: get(1),
                p4: get(2),
                p34: None,
                p6: get(3),
                p8: get(4),
            };
            let joined = NestedPlanes { p3: None, p4: None, p34: Some(&merged), ..apart };
            for planes in [apart, joined].into_iter().take(1 + usize::from(level >= Level::L4)) {
                let view = NestedView::new(rows, cols, layout, &codec, planes).unwrap();
                view.check().unwrap();
                assert_eq!(view.level(), level);
                for row in 0..rows {
                    let mut codes = vec![0; cols];
                    view.unpack_row_codes(level, row, &mut codes).unwrap();
                    let mask = !0u8 << (8 - level.bits());
                    let expected: Vec<u8> =
                        matrix.codes[row * 96..][..cols].iter().map(|code| code & mask).collect();
                    assert_eq!(codes, expected);
                    assert_eq!(view.row_scale(row), matrix.row_scales[row]);
                    for group in 0..3 {
                        assert_eq!(view.step(row, group), matrix.steps[row * 3 + group]);
                    }
                }
                assert_eq!(view.row_scale(rows), f16::ZERO);
            }
        }
    }
}
