//! Validation rules for the operands of operations.

use std::fmt::Display;

use nestling_formats::Level;

use super::{
    AttentionHeads, Backend, DeltaNet, FeedForward, HasShape, HeadMatrices, HeadNorm, HoldsLevels,
    Linear, Mamba2, PinnedExpert, RecurrentStates, Router, Shape, ShortConv, Write,
};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::kv_cache::{KvShape, KvValues};

/// Name of an operation, used in its errors.
#[derive(Clone, Copy)]
pub(super) struct Operation(pub &'static str);

impl Operation {
    fn error(
        self,
        operand: &'static str,
        expected: impl Display,
        found: impl Display,
    ) -> EngineError {
        let (expected, found) = (expected.to_string(), found.to_string());
        EngineError::Shape { operation: self.0, operand, expected, found }
    }

    /// Checks a size.
    pub fn size(
        self,
        operand: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), EngineError> {
        if expected == found { Ok(()) } else { Err(self.error(operand, expected, found)) }
    }

    /// Checks rows and columns.
    pub fn shape(
        self,
        operand: &'static str,
        expected: Shape,
        found: Shape,
    ) -> Result<(), EngineError> {
        if expected == found { Ok(()) } else { Err(self.error(operand, expected, found)) }
    }

    /// Checks an upper bound of a size.
    pub fn at_most(
        self,
        operand: &'static str,
        limit: usize,
        found: usize,
    ) -> Result<(), EngineError> {
        if found <= limit {
            return Ok(());
        }
        Err(self.error(operand, format_args!("at most {limit}"), found))
    }

    /// Checks a lower bound of a size.
    pub fn at_least(
        self,
        operand: &'static str,
        limit: usize,
        found: usize,
    ) -> Result<(), EngineError> {
        if found >= limit {
            return Ok(());
        }
        Err(self.error(operand, format_args!("at least {limit}"), found))
    }

    /// Checks that a size is a multiple of `parts`.
    pub fn multiple(
        self,
        operand: &'static str,
        parts: usize,
        found: usize,
    ) -> Result<(), EngineError> {
        if parts > 0 && found.is_multiple_of(parts) {
            return Ok(());
        }
        Err(self.error(operand, format_args!("a multiple of {parts}"), found))
    }

    /// Checks row indices.
    pub fn indices(
        self,
        operand: &'static str,
        count: usize,
        indices: &[u32],
    ) -> Result<(), EngineError> {
        match indices.iter().find(|index| **index as usize >= count) {
            Some(index) => Err(self.error(operand, format_args!("a row below {count}"), index)),
            None => Ok(()),
        }
    }

    /// Checks an output: [`Write::Set`] allows any number of rows, [`Write::Add`] requires the rows of the
    /// result.
    pub fn output(self, result: Shape, write: Write, out: Shape) -> Result<(), EngineError> {
        let rows = match write {
            Write::Set => result.rows,
            Write::Add => out.rows,
        };
        self.shape("out", result, Shape { rows, ..out })
    }

    /// Checks that a matrix holds the planes of all levels used by rows.
    pub fn levels<M: HoldsLevels>(self, matrix: &M, levels: &[Level]) -> Result<(), EngineError> {
        let used = |level: &Level| levels.contains(level);
        Level::ALL.into_iter().filter(used).try_for_each(|level| matrix.check_level(level))
    }

    /// Checks a matrix and its bias for rows of these levels.
    fn linear<B: Backend>(
        self,
        linear: &Linear<B>,
        levels: &[Level],
        inputs: usize,
    ) -> Result<(), EngineError> {
        let shape = linear.matrix.shape();
        self.size("inputs of a matrix", inputs, shape.cols)?;
        if let Some(bias) = &linear.bias {
            self.size("bias", shape.rows, bias.shape().cols)?;
        }
        let end = linear.outputs.first.saturating_add(shape.rows);
        self.at_most("last output of a matrix", linear.outputs.whole, end)?;
        self.levels(&linear.matrix, levels)
    }

    /// Checks concatenated matrices and returns the shape of their result.
    pub fn linears<B: Backend>(
        self,
        weights: &[Linear<B>],
        levels: &[Level],
        x: Shape,
    ) -> Result<Shape, EngineError> {
        self.size("levels", x.rows, levels.len())?;
        weights.iter().try_for_each(|linear| self.linear(linear, levels, x.cols))?;
        let cols = weights.iter().map(|linear| linear.outputs.whole).sum();
        Ok(Shape { rows: x.rows, cols })
    }

    /// Checks whole gate and up, and down, and returns the number of columns of the result.
    pub fn feed_forward<B: Backend>(
        self,
        weights: &FeedForward<B>,
        levels: &[Level],
        inputs: usize,
    ) -> Result<usize, EngineError> {
        let cols = self.part_of_rank(weights, levels, inputs)?;
        self.whole(weights)?;
        Ok(cols)
    }

    /// Checks that gate and up of a feed-forward part are whole.
    pub fn whole<B: Backend>(self, weights: &FeedForward<B>) -> Result<(), EngineError> {
        let up = &weights.up;
        self.size("outputs of up", up.outputs.whole, up.matrix.shape().rows)
    }

    /// Checks the rows of gate, up and down that a rank holds, and returns the number of columns of the result.
    pub fn part_of_rank<B: Backend>(
        self,
        weights: &FeedForward<B>,
        levels: &[Level],
        inputs: usize,
    ) -> Result<usize, EngineError> {
        let FeedForward { activation, gate, up, down } = weights;
        let gates = |has_gate| if has_gate { "a gate" } else { "no gate" };
        if gate.is_some() != activation.has_gate() {
            let (expected, found) = (gates(activation.has_gate()), gates(gate.is_some()));
            return Err(self.error("projections", expected, found));
        }
        self.linear(up, levels, inputs)?;
        if let Some(gate) = gate {
            self.linear(gate, levels, inputs)?;
            self.size("outputs of gate", up.matrix.shape().rows, gate.matrix.shape().rows)?;
            self.size("first output of gate", up.outputs.first, gate.outputs.first)?;
            self.size("outputs of whole gate", up.outputs.whole, gate.outputs.whole)?;
        }
        self.linear(down, levels, up.outputs.whole)?;
        Ok(down.outputs.whole)
    }

    /// Checks an expert, of which a rank may hold some rows, and its uses.
    pub fn expert<B: Backend>(
        self,
        expert: &PinnedExpert<'_, B>,
        routing: Shape,
        inputs: usize,
        outputs: usize,
    ) -> Result<(), EngineError> {
        let mut used = [false; Level::ALL.len()];
        for one in expert.uses {
            let (row, rank) = (one.row as usize, one.rank as usize);
            self.at_most("row of an expert", routing.rows.saturating_sub(1), row)?;
            self.at_most("rank of an expert", routing.cols.saturating_sub(1), rank)?;
            used[one.level.index()] = true;
        }
        for level in Level::ALL.into_iter().filter(|level| used[level.index()]) {
            let found = self.part_of_rank(&expert.weights, &[level], inputs)?;
            self.size("outputs of an expert", outputs, found)?;
        }
        Ok(())
    }

    /// Checks the matrices of all heads and returns the shape of the result.
    pub fn heads<B: Backend>(
        self,
        weights: &HeadMatrices<B>,
        levels: &[Level],
        x: Shape,
    ) -> Result<Shape, EngineError> {
        let (heads, matrix) = (weights.heads, weights.matrix.shape());
        self.size("levels", x.rows, levels.len())?;
        self.multiple("rows of the heads' matrices", heads, matrix.rows)?;
        self.multiple("columns of x", heads, x.cols)?;
        let width = x.cols / heads;
        self.at_least("columns of a head", matrix.cols, width)?;
        self.levels(&weights.matrix, levels)?;
        Ok(Shape { rows: x.rows, cols: matrix.rows + heads * (width - matrix.cols) })
    }

    /// Checks rows to be normed, rotated and, if there are pages, stored.
    pub fn rope<B: Backend>(
        self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        angles: Shape,
        qkv: Shape,
        pages: Option<&KvShape>,
    ) -> Result<(), EngineError> {
        let dim = heads.head_dim;
        self.size("rows of angles", rows.len(), angles.rows)?;
        self.size("rows of queries", rows.len(), qkv.rows)?;
        self.at_most("last rotated element", dim, heads.rope_first.saturating_add(angles.cols))?;
        let all = heads.num_attention_heads;
        let (queries, keys) = match pages {
            None => {
                self.size("columns of queries", all * dim, qkv.cols)?;
                (all, 0)
            }
            Some(pages) => {
                self.pages(heads, pages)?;
                let keys = heads.num_key_value_heads;
                let stored = match pages.values {
                    KvValues::Beside => 2 * keys * dim,
                    KvValues::KeyPrefix(_) => keys * dim,
                };
                let queries = if qkv.cols == stored { 0 } else { all };
                let expected = queries * dim + stored;
                self.size("columns of queries, keys and values", expected, qkv.cols)?;
                self.places(rows)?;
                (queries, keys)
            }
        };
        self.head_norm::<B>(&heads.query_norm, dim, queries)?;
        self.head_norm::<B>(&heads.key_norm, dim, keys)?;
        match heads.value_norm.as_ref().filter(|_| pages.is_some()) {
            Some(norm) => self.size("norm of values", dim, norm.shape().cols),
            None => Ok(()),
        }
    }

    fn head_norm<B: Backend>(
        self,
        norm: &HeadNorm<B>,
        dim: usize,
        heads: usize,
    ) -> Result<(), EngineError> {
        match norm {
            HeadNorm::PerHead(norm) | HeadNorm::PerHeadAfterRope(norm) => {
                self.at_most("norm of a head", dim, norm.shape().cols)
            }
            HeadNorm::FullWidth(norm) if heads > 0 => {
                self.size("norm of all heads", heads * dim, norm.shape().cols)
            }
            HeadNorm::FullWidth(_) | HeadNorm::Absent => Ok(()),
        }
    }

    /// Checks that pages match the heads.
    fn pages<B: Backend>(
        self,
        heads: &AttentionHeads<B>,
        pages: &KvShape,
    ) -> Result<(), EngineError> {
        self.size("key heads of the pages", heads.num_key_value_heads, pages.num_key_value_heads)?;
        self.size("elements of a stored head", heads.head_dim, pages.head_dim)
    }

    /// Checks that each row's position has a page.
    fn places(self, rows: &StepRows) -> Result<(), EngineError> {
        match (0..rows.len()).find(|row| rows.place(*row).is_none()) {
            Some(row) => Err(self.error("pages", format_args!("a page for row {row}"), "none")),
            None => Ok(()),
        }
    }

    /// Checks the rows of an attention operation and returns the shape of the result.
    pub fn attend<B: Backend>(
        self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        queries: Shape,
        pages: &KvShape,
    ) -> Result<Shape, EngineError> {
        let (all, keys, dim) =
            (heads.num_attention_heads, heads.num_key_value_heads, heads.head_dim);
        self.pages(heads, pages)?;
        self.size("rows of queries", rows.len(), queries.rows)?;
        self.at_least("columns of queries", all * dim, queries.cols)?;
        self.multiple("query heads", keys, all)?;
        if let Some(sinks) = &heads.sinks {
            self.size("sinks", all, sinks.shape().cols)?;
        }
        self.places(rows)?;
        Ok(Shape { rows: rows.len(), cols: all * pages.values.dim(dim) })
    }

    /// Checks a DeltaNet layer and returns the shape of the result.
    pub fn delta_net<B: Backend>(
        self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: Shape,
        states: &B::StatePool,
    ) -> Result<Shape, EngineError> {
        let shape = &net.shape;
        let heads = shape.num_value_heads;
        self.shape("projected", Shape { rows: rows.len(), cols: shape.inputs() }, projected)?;
        for (operand, expected, vector) in [
            ("weights of the convolution", shape.conv_kernel_dim * shape.channels(), &net.conv),
            ("decay rates", heads, &net.rate),
            ("time biases", heads, &net.time_bias),
            ("norm of heads", shape.value_head_dim, &net.norm),
            ("norm of queries", shape.key_head_dim, &net.query_norm),
            ("norm of keys", shape.key_head_dim, &net.key_norm),
        ] {
            self.size(operand, expected, vector.shape().cols)?;
        }
        self.multiple("value heads", shape.num_key_heads, heads)?;
        self.size("floats of a state", shape.state_floats(), states.state_shape().floats)?;
        Ok(Shape { rows: rows.len(), cols: shape.value_dim() })
    }

    /// Checks a gated short convolution and returns the shape of the result.
    pub fn short_conv<B: Backend>(
        self,
        conv: &ShortConv<B>,
        rows: &StepRows,
        projected: Shape,
        states: &B::StatePool,
    ) -> Result<Shape, EngineError> {
        let shape = &conv.shape;
        self.shape("projected", Shape { rows: rows.len(), cols: shape.inputs() }, projected)?;
        let weights = shape.taps * shape.channels;
        self.size("weights of the convolution", weights, conv.taps.shape().cols)?;
        if let Some(bias) = &conv.bias {
            self.size("bias of the convolution", shape.channels, bias.shape().cols)?;
        }
        self.size("floats of a state", shape.state_floats(), states.state_shape().floats)?;
        Ok(Shape { rows: rows.len(), cols: shape.channels })
    }

    /// Checks a Mamba-2 layer and returns the shape of the result.
    pub fn mamba2<B: Backend>(
        self,
        mamba2: &Mamba2<B>,
        rows: &StepRows,
        projected: Shape,
        states: &B::StatePool,
    ) -> Result<Shape, EngineError> {
        let shape = &mamba2.shape;
        self.shape("projected", Shape { rows: rows.len(), cols: shape.inputs() }, projected)?;
        for (operand, expected, vector) in [
            ("weights of the convolution", shape.conv_kernel * shape.channels(), &mamba2.conv),
            ("decay rates", shape.num_heads, &mamba2.rate),
            ("time biases", shape.num_heads, &mamba2.time_bias),
            ("factors of inputs", shape.num_heads, &mamba2.skip),
            ("norm of outputs", shape.inner(), &mamba2.norm),
        ] {
            self.size(operand, expected, vector.shape().cols)?;
        }
        if let Some(bias) = &mamba2.bias {
            self.size("bias of the convolution", shape.channels(), bias.shape().cols)?;
        }
        self.multiple("heads", shape.n_groups, shape.num_heads)?;
        self.size("floats of a state", shape.state_floats(), states.state_shape().floats)?;
        Ok(Shape { rows: rows.len(), cols: shape.inner() })
    }

    /// Checks a router.
    pub fn router<B: Backend>(self, router: &Router<B>, inputs: usize) -> Result<(), EngineError> {
        let shape = router.weights.shape();
        self.size("inputs of the router", shape.cols, inputs)?;
        for (operand, vector) in [
            ("bias of logits", &router.logit_bias),
            ("bias of the choice", &router.selection_bias),
            ("scales of experts", &router.expert_scale),
        ] {
            if let Some(vector) = vector {
                self.size(operand, shape.rows, vector.shape().cols)?;
            }
        }
        self.at_most("experts of a token", shape.rows, router.num_experts_per_tok)
    }
}
