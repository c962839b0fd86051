//! Recurrence of heads with a state of fixed size: gated DeltaNet and Mamba-2. Heads are independent, and the rows
//! of a run pass through a head's state in order.

use super::head_shape::HeadShape;
use super::scratch::{HeadRun, RecurrentScratch};
use crate::conv_rows::ConvRows;
use crate::delta_net::StateHead;
use crate::states::CpuStates;
use crate::team::Team;
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;

impl HeadShape {
    /// Passes the rows of all runs through the states, and writes the states. `inputs` are the rows that were
    /// convolved, from their first channel on.
    pub fn pass(
        &self,
        team: &Team,
        scratch: &mut RecurrentScratch,
        inputs: &[f32], // [T, stride]
        stride: usize,
        states: &mut CpuStates,
    ) -> Result<(), EngineError> {
        self.take_states(scratch, inputs, stride, states)?;
        // Default: there may be no runs.
        let depth = scratch.runs.iter().map(|run| run.depth + 1).max().unwrap_or(0);
        for depth in 0..depth {
            self.pass_heads(team, scratch, depth, states);
        }
        for (run, values) in scratch.runs.iter().zip(scratch.taken.drain(..)) {
            states.put(run.to, values);
        }
        Ok(())
    }

    /// Takes out the states to be written, with updated windows. States at a sequence's start are zeroed.
    fn take_states(
        &self,
        scratch: &mut RecurrentScratch,
        inputs: &[f32],
        stride: usize,
        states: &mut CpuStates,
    ) -> Result<(), EngineError> {
        let RecurrentScratch { runs, windows, zeros, taken, .. } = scratch;
        let (channels, window) = (self.channels, self.window);
        let rows = ConvRows { channels, window, rows: inputs, stride, zeros };
        for run in runs.iter() {
            rows.window_after(run, states, windows);
            let mut values = states.take(run.to)?;
            let (window, matrices) = values.split_at_mut(windows.len());
            window.copy_from_slice(windows);
            if run.depth == 0 && run.from.is_none() {
                matrices.fill(0.0);
            }
            taken.push(values);
        }
        Ok(())
    }

    /// Processes the heads of all runs at a depth, which is the number of earlier runs of the same sequence.
    fn pass_heads(
        &self,
        team: &Team,
        scratch: &mut RecurrentScratch,
        depth: usize,
        states: &CpuStates,
    ) {
        let RecurrentScratch { runs, mixed, factors, gathered, taken, parts: spare, .. } = scratch;
        let Self { heads, key_dim, value_dim, channels, columns, .. } = *self;
        let first = self.window * channels;
        let mut parts: Vec<HeadRun> = recycle(std::mem::take(spare));
        let (mut multiplications, mut before) = (0, None);
        let mut gathered = gathered.as_mut_slice();
        for (run, values) in runs.iter().zip(taken) {
            let rest = std::mem::take(&mut gathered);
            let (out, rest) = rest.split_at_mut(run.rows.len() * self.width());
            gathered = rest;
            if run.depth != depth {
                before = Some(&values[first..]);
                continue;
            }
            let from: Option<&[f32]> = match (run.depth, run.from) {
                (0, None) => None,
                (0, Some(_)) if run.is_in_place() => None,
                (0, Some(from)) => states.get(from).ok().map(|state| &state[first..]),
                _ => before,
            };
            let size = key_dim * value_dim;
            let outs = out.chunks_exact_mut(run.rows.len() * value_dim);
            let states = values[first..].chunks_exact_mut(size);
            parts.extend(states.zip(outs).enumerate().map(|(head, (state, out))| HeadRun {
                first_row: run.rows.start,
                head,
                from: from.map(|from| &from[head * size..][..size]),
                state,
                out,
            }));
            multiplications += 3 * run.rows.len() * heads * size;
            before = None;
        }
        let (mixed, factors) = (&*mixed, &*factors);
        team.for_each_mut(&mut parts, multiplications, &|_, part| {
            let shared = part.head * self.shared_heads / heads * key_dim;
            let [query, key, value] = columns;
            let head = StateHead {
                rule: self.rule,
                rows: &mixed[part.first_row * channels..],
                stride: channels,
                columns: [query + shared, key + shared, value + part.head * value_dim],
                key_head_dim: key_dim,
                value_head_dim: value_dim,
                factors: &factors[part.first_row * heads..],
                heads: (heads, part.head),
            };
            team.kernels.pass_rows(head, part.from, part.state, part.out);
        });
        *spare = recycle(parts);
    }
}
