//! The common form of the experts in a layer's table.

use nestling_formats::Level;
use nestling_import::Activation;

use super::{ProductForm, expect};
use nestling_core::EngineError;
use nestling_core::backend::ExpertShape;

/// The common form of the experts in a table. Gates and ups have one form, downs another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertForm {
    /// Activation that joins gate and up.
    pub activation: Activation,
    /// Form of gate and up matrices.
    pub gate: ProductForm,
    /// Form of down matrices.
    pub down: ProductForm,
}

/// Shapes and levels of the rows that a table's experts process.
#[derive(Clone, Copy, Debug)]
pub struct RoutedRows<'a> {
    /// Number of input rows, and their columns.
    pub x: (usize, usize),
    /// Number of rows of the routing.
    pub routed: usize,
    /// Level of each row.
    pub levels: &'a [Level],
    /// Columns of the experts' output.
    pub out_cols: usize,
}

impl ExpertForm {
    /// Returns the common form, or `None` if gate and up differ.
    pub fn of(activation: Activation, [gate, up, down]: [ProductForm; 3]) -> Option<Self> {
        (gate == up).then_some(Self { activation, gate, down })
    }

    /// Returns the form of experts that are not loaded yet, or `None` if gate and up differ.
    pub fn of_shape(shape: &ExpertShape) -> Option<Self> {
        let form = |matrix| ProductForm::of_shape(&matrix, shape.activations);
        Self::of(shape.activation, shape.matrices.map(form))
    }

    /// Returns the length and offset, in floats, of an expert's gate, up and down biases. The biases of all
    /// gates come first, then all ups, then all downs.
    pub fn biases(&self, experts: usize, expert: usize) -> [(usize, usize); 3] {
        let (inner, out) = (self.gate.rows, self.down.rows);
        [
            (inner, expert * inner),
            (inner, (experts + expert) * inner),
            (out, 2 * experts * inner + expert * out),
        ]
    }

    /// Returns the number of bias floats of `experts` experts.
    pub fn bias_floats(&self, experts: usize) -> usize {
        experts * (2 * self.gate.rows + self.down.rows)
    }

    /// Checks shapes, and calls `check_level` once for each distinct level.
    ///
    /// # Errors
    /// Returns an error if shapes do not match or a level is not resident.
    pub fn check(
        &self,
        rows: RoutedRows<'_>,
        mut check_level: impl FnMut(Level) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let RoutedRows { x: (count, cols), routed, levels, out_cols } = rows;
        expect("rows of the routing", count, routed)?;
        expect("rows of levels", count, levels.len())?;
        expect("inputs of an expert", self.gate.cols, cols)?;
        expect("outputs of an expert", self.down.rows, out_cols)?;
        expect("outputs of gate", self.gate.rows, self.down.cols)?;
        for (index, level) in levels.iter().enumerate() {
            if !levels[..index].contains(level) {
                check_level(*level)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProductKind;

    fn form() -> ExpertForm {
        let kind = ProductKind::Int8;
        let (rotated, is_tiled, is_scaled) = (false, true, false);
        let gate = ProductForm { rows: 6, cols: 4, kind, rotated, is_tiled, is_scaled };
        let down = ProductForm { rows: 4, cols: 6, ..gate };
        ExpertForm::of(Activation::Silu, [gate, gate, down]).unwrap()
    }

    #[test]
    fn gates_and_ups_are_alike() {
        let ExpertForm { activation, gate, down } = form();
        let up = ProductForm { is_tiled: false, ..gate };
        assert!(ExpertForm::of(activation, [gate, up, down]).is_none());
    }

    #[test]
    fn biases_lie_by_matrix_then_by_expert() {
        let (form, experts) = (form(), 3);
        let mut next = 0;
        for matrix in 0..3 {
            for expert in 0..experts {
                let (rows, at) = form.biases(experts, expert)[matrix];
                assert_eq!((rows, at), ([6, 6, 4][matrix], next));
                next += rows;
            }
        }
        assert_eq!(form.bias_floats(experts), next);
    }

    #[test]
    fn every_level_is_asked_for_once() {
        let levels = [Level::L4, Level::L2, Level::L4];
        let rows = RoutedRows { x: (3, 4), routed: 3, levels: &levels, out_cols: 4 };
        let mut asked = Vec::new();
        let mut check = |rows| {
            form().check(rows, |level| {
                asked.push(level);
                Ok(())
            })
        };
        check(rows).unwrap();
        assert!(check(RoutedRows { routed: 2, ..rows }).is_err());
        assert!(check(RoutedRows { x: (3, 5), ..rows }).is_err());
        assert!(check(RoutedRows { out_cols: 6, ..rows }).is_err());
        assert!(check(RoutedRows { levels: &levels[..2], ..rows }).is_err());
        assert_eq!(asked, [Level::L4, Level::L2]);
    }
}
