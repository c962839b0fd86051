//! Recurrent states: a layer's summary of all tokens before a position, of constant size.
//!
//! Unlike a KV cache, a state cannot be truncated, since it holds its past in one sum. A state is therefore
//! never changed once it is written. A step reads the state before its first row and writes other states, and
//! a sequence keeps a few earlier ones. To go back, a sequence takes the newest kept state that is old enough
//! and computes the tokens from there again, with the same bits. Forks share kept states, and a failed step
//! leaves the state that it read.

use nestling_import::{LayerConfig, ModelConfig, TokenMixer};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::keyed_places::{KeptPlace, KeyedPlaces, PrefixKey};
use crate::kv_cache::PAGE_POSITIONS;

/// Maximum number of checkpoints per sequence: states of earlier positions, kept for going back.
pub const CHECKPOINTS_MAX: usize = 2;

/// Maximum number of states per sequence during a step: checkpoints, the state read and the state written.
pub const STATES_PER_SEQUENCE: usize = CHECKPOINTS_MAX + 2;

/// Minimum distance in tokens of a checkpoint from the end of a prompt. The end of a chat template that
/// requests an answer often differs from the next turn's prompt.
const CHECKPOINT_DISTANCE: usize = 16;

/// Index of a state in the pool: the state of all recurrent layers of a model after some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateId(pub u32);

/// Shape of one layer's recurrent states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Number of floats per state.
    pub floats: usize,
    /// Maximum number of states in the pool.
    pub states: usize,
}

impl StateShape {
    /// Returns the shape for a layer, or `None` if it is not recurrent.
    pub fn of_layer(layer: &LayerConfig, states: usize) -> Option<Self> {
        match &layer.mixer {
            TokenMixer::Attention(_) | TokenMixer::Latent(_) => None,
            TokenMixer::DeltaNet(shape) => Some(Self { floats: shape.state_floats(), states }),
            TokenMixer::ShortConv(shape) => Some(Self { floats: shape.state_floats(), states }),
            TokenMixer::Mamba2(shape) => Some(Self { floats: shape.state_floats(), states }),
        }
    }

    /// Returns the size in bytes of one state over all layers; 0 for a model without recurrent layers.
    pub fn model_state_bytes(config: &ModelConfig) -> usize {
        let shapes = config.layers.iter().filter_map(|layer| Self::of_layer(layer, 1));
        shapes.map(|shape| shape.state_bytes()).sum()
    }

    /// Returns the size of one state in bytes.
    pub fn state_bytes(&self) -> usize {
        4 * self.floats
    }
}

/// A state that a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateWrite {
    /// Number of positions of the sequence before the state.
    pub length: usize,
    /// State to write.
    pub state: StateId,
}

/// The states of one sequence in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateTrack {
    /// State before the sequence's first row; `None` at the start of the sequence.
    pub from: Option<StateId>,
    /// States to write, by ascending length; the last one follows the last row. It may be the state that is
    /// read, which is then lost if the step fails. Empty for models without recurrent layers.
    pub to: Vec<StateWrite>,
}

impl StateTrack {
    /// Creates a track with one state that rows `first..end` update in place, for sequences that are never
    /// forked or truncated.
    pub fn in_place(state: StateId, first: usize, end: usize) -> Self {
        Self { from: (first > 0).then_some(state), to: vec![StateWrite { length: end, state }] }
    }
}

/// Returns the checkpoint position of a prompt of `tokens` tokens: at the end of a page, so that pages and
/// state match. Returns `None` for short prompts.
pub fn checkpoint_of(tokens: usize) -> Option<usize> {
    let latest = tokens.checked_sub(CHECKPOINT_DISTANCE)?;
    Some(latest / PAGE_POSITIONS * PAGE_POSITIONS).filter(|length| *length > 0)
}

/// Reference counts of the states of a pool, with a prefix cache of checkpoints.
#[derive(Debug)]
pub struct StateAllocator {
    counts: KeyedPlaces,
}

impl StateAllocator {
    /// Creates an allocator of free states; 0 for a model without recurrent layers.
    pub fn new(states: u32) -> Self {
        Self { counts: KeyedPlaces::new(states) }
    }

    /// Returns the number of available states: free ones, and ones that only the prefix cache holds.
    pub fn free_states(&self) -> usize {
        self.counts.free()
    }

    /// Returns the total number of states.
    pub fn states(&self) -> usize {
        self.counts.places()
    }

    /// Returns the state cached under a key.
    pub fn find(&self, key: &PrefixKey) -> Option<StateId> {
        self.counts.find(key).map(StateId)
    }

    /// Returns [`Self::find`] in a form that reveals whether the state stayed cached between two calls.
    pub fn find_kept(&self, key: &PrefixKey) -> Option<KeptPlace<StateId>> {
        self.counts.find_kept(key).map(|kept| kept.map(StateId))
    }

    /// Takes an available state, or returns `None` if there is none.
    pub fn allocate(&mut self) -> Option<StateId> {
        self.counts.take().map(StateId)
    }

    /// Adds a holder to a state that is in use or was found in the cache.
    pub fn retain(&mut self, state: StateId) {
        self.counts.retain(state.0);
    }

    /// Removes a holder; the last one frees the state.
    pub fn release(&mut self, state: StateId) {
        self.counts.release(state.0);
    }

    /// Caches a state in use under a key. Returns false if the key is taken.
    pub fn keep(&mut self, state: StateId, key: PrefixKey) -> bool {
        self.counts.keep(state.0, key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptState {
    length: usize,
    state: StateId,
    checkpoint: bool,
}

/// States of one sequence: checkpoints, the one before the last step, and the newest.
///
/// A table does not know its allocator: call [`StateTable::truncate`] before dropping it.
#[derive(Debug, Default)]
pub struct StateTable {
    kept: Vec<KeptState>, // ascending lengths
}

impl StateTable {
    /// Returns the number of positions before the newest state.
    pub fn length(&self) -> usize {
        self.kept.last().map_or(0, |kept| kept.length)
    }

    /// Returns the newest state.
    pub fn newest(&self) -> Option<StateId> {
        self.kept.last().map(|kept| kept.state)
    }

    /// Returns the number of kept states.
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Allocates the states for a step that advances to `end` positions. This includes a checkpoint within
    /// the step if a state is available. The state that the step reads is kept until the next call.
    ///
    /// # Errors
    /// [`EngineError::OutOfStates`] if no state is available. Older states and checkpoints may have been
    /// released; the newest state stays.
    pub fn extend(
        &mut self,
        end: usize,
        checkpoint: Option<usize>,
        allocator: &mut StateAllocator,
    ) -> Result<StateTrack, EngineError> {
        let start = self.length();
        let checkpoint = checkpoint.filter(|length| (start + 1..=end).contains(length));
        let newest = self.kept.len().saturating_sub(1);
        self.release_if(allocator, |index, kept| index < newest && !kept.checkpoint);
        if checkpoint.is_some() {
            self.drop_checkpoints(CHECKPOINTS_MAX - 1, allocator);
        }
        if allocator.free_states() == 0 {
            self.drop_checkpoints(0, allocator);
        }
        let out_of_states = EngineError::OutOfStates { states: allocator.states() };
        let last = allocator.counts.take().map(StateId).ok_or(out_of_states)?;
        let mut track = StateTrack { from: self.newest(), to: Vec::with_capacity(2) };
        if let Some(length) = checkpoint.filter(|length| *length < end)
            && let Some(state) = allocator.counts.take().map(StateId)
        {
            track.to.push(StateWrite { length, state });
            self.kept.push(KeptState { length, state, checkpoint: true });
        }
        track.to.push(StateWrite { length: end, state: last });
        let checkpoint = checkpoint == Some(end);
        self.kept.push(KeptState { length: end, state: last, checkpoint });
        Ok(track)
    }

    /// Releases the oldest checkpoints in excess of `most`; the newest state stays.
    fn drop_checkpoints(&mut self, most: usize, allocator: &mut StateAllocator) {
        let checkpoints = self.kept.iter().filter(|kept| kept.checkpoint).count();
        let newest = self.kept.len().saturating_sub(1);
        let mut surplus = checkpoints.saturating_sub(most);
        self.release_if(allocator, |index, kept| {
            let release = kept.checkpoint && index < newest && surplus > 0;
            surplus -= usize::from(release);
            release
        });
    }

    /// Releases the states after more than `length` positions.
    pub fn truncate(&mut self, length: usize, allocator: &mut StateAllocator) {
        self.release_if(allocator, |_, kept| kept.length > length);
    }

    /// Caches the checkpoint after `length` positions under a key, if there is one.
    pub fn keep(&self, length: usize, key: PrefixKey, allocator: &mut StateAllocator) {
        for kept in self.kept.iter().filter(|kept| kept.checkpoint && kept.length == length) {
            allocator.counts.keep(kept.state.0, key);
        }
    }

    /// Removes the checkpoints from the cache.
    pub fn forget_kept(&self, allocator: &mut StateAllocator) {
        self.kept.iter().for_each(|kept| allocator.counts.forget(kept.state.0));
    }

    /// Continues from a cached state after more positions than the newest.
    pub fn adopt(&mut self, length: usize, state: StateId, allocator: &mut StateAllocator) {
        allocator.counts.retain(state.0);
        self.drop_checkpoints(CHECKPOINTS_MAX - 1, allocator);
        self.kept.push(KeptState { length, state, checkpoint: true });
    }

    /// Creates a second table of the same states.
    pub fn fork(&self, allocator: &mut StateAllocator) -> Self {
        for kept in &self.kept {
            allocator.counts.retain(kept.state.0);
        }
        Self { kept: self.kept.clone() }
    }

    /// Releases all states but the newest.
    pub fn forget_older(&mut self, allocator: &mut StateAllocator) {
        let newest = self.kept.len().saturating_sub(1);
        self.release_if(allocator, |index, _| index < newest);
    }

    fn release_if(
        &mut self,
        allocator: &mut StateAllocator,
        mut release: impl FnMut(usize, &KeptState) -> bool,
    ) {
        let mut index = 0;
        self.kept.retain(|kept| {
            let released = release(index, kept);
            index += 1;
            if released {
                allocator.counts.release(kept.state.0);
            }
            !released
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_gets_a_checkpoint_before_its_end() {
        let lengths = [0, 79, 80, 143, 144, 1000].map(checkpoint_of);
        assert_eq!(lengths, [None, None, Some(64), Some(64), Some(128), Some(960)]);
    }

    #[test]
    fn a_step_reads_one_state_and_writes_another() {
        let mut allocator = StateAllocator::new(STATES_PER_SEQUENCE as u32);
        let mut table = StateTable::default();
        let first = table.extend(100, checkpoint_of(100), &mut allocator).unwrap();
        assert_eq!(first.from, None);
        assert_eq!(first.to.iter().map(|to| to.length).collect::<Vec<_>>(), [64, 100]);
        let mut before = table.newest();
        for length in 101..110 {
            let track = table.extend(length, checkpoint_of(length), &mut allocator).unwrap();
            assert_eq!((track.from, track.to.len()), (before, 1));
            assert!(track.to.iter().all(|to| Some(to.state) != before));
            before = table.newest();
        }
        assert_eq!(table.count(), 3, "the checkpoint, what the last step read, what it wrote");
        table.truncate(107, &mut allocator);
        assert_eq!(table.length(), 64);
        table.truncate(63, &mut allocator);
        assert_eq!((table.length(), allocator.free_states()), (0, STATES_PER_SEQUENCE));
    }

    #[test]
    fn a_step_that_failed_is_taken_back() {
        let mut allocator = StateAllocator::new(4);
        let mut table = StateTable::default();
        table.extend(7, None, &mut allocator).unwrap();
        let before = table.newest();
        table.extend(8, None, &mut allocator).unwrap();
        table.truncate(7, &mut allocator);
        assert_eq!((table.newest(), table.length()), (before, 7));
    }

    #[test]
    fn no_more_checkpoints_are_kept_than_agreed() {
        let mut allocator = StateAllocator::new(STATES_PER_SEQUENCE as u32);
        let mut table = StateTable::default();
        for prompt in [200, 400, 600, 800] {
            table.extend(prompt, checkpoint_of(prompt), &mut allocator).unwrap();
            table.extend(prompt + 1, checkpoint_of(prompt + 1), &mut allocator).unwrap();
        }
        table.truncate(799, &mut allocator);
        assert_eq!(table.length(), 768);
        table.truncate(767, &mut allocator);
        assert_eq!(table.length(), 576);
        table.truncate(575, &mut allocator);
        assert_eq!((table.length(), table.count()), (0, 0));
    }

    #[test]
    fn two_states_are_enough_to_go_on() {
        let mut allocator = StateAllocator::new(2);
        let mut table = StateTable::default();
        for end in [100, 200, 300, 301, 302] {
            let track = table.extend(end, checkpoint_of(end), &mut allocator).unwrap();
            assert_eq!(track.to.last().map(|to| to.length), Some(end));
        }
        let mut other = StateTable::default();
        let refused = other.extend(5, None, &mut allocator);
        assert!(matches!(refused, Err(EngineError::OutOfStates { states: 2 })));
    }

    #[test]
    fn forks_share_what_is_kept() {
        let mut allocator = StateAllocator::new(6);
        let mut first = StateTable::default();
        first.extend(100, checkpoint_of(100), &mut allocator).unwrap();
        let mut second = first.fork(&mut allocator);
        assert_eq!(allocator.free_states(), 4);
        let ends = [&mut first, &mut second].map(|table| {
            let track = table.extend(101, None, &mut allocator).unwrap();
            (track.from, track.to[0].state)
        });
        assert_eq!(ends[0].0, ends[1].0);
        assert_ne!(ends[0].1, ends[1].1);
        second.forget_older(&mut allocator);
        first.truncate(0, &mut allocator);
        assert_eq!((second.count(), allocator.free_states()), (1, 5));
    }
}
