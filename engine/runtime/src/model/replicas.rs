//! Replicas of experts that move between steps.

use nestling_core::backend::{Backend, FeedForward};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::replicas::{MovableReplicas, Replicas, UseCounts};
use nestling_core::weights::ActivationMode;
use nestling_experts::expert::expert_biases;
use nestling_import::{FeedForward as FeedForwardConfig, ModelConfig};

use super::divided::check_division;
use super::runner::{Runner, RunnerOptions};
use super::weights::Loader;

/// Replicas that were loaded and are not in force yet.
struct Prepared<B: Backend> {
    replicas: Replicas,
    /// Experts with their layers and numbers.
    loaded: Vec<(u32, u32, FeedForward<B>)>,
}

/// State of the exchange of replicas after the model was opened.
pub(super) struct ReplicaMoves<B: Backend> {
    activations: ActivationMode,
    /// Number of threads that read weights.
    threads: usize,
    prepared: Option<Prepared<B>>,
}

impl<B: Backend> ReplicaMoves<B> {
    pub fn new(options: &RunnerOptions) -> Self {
        let (activations, threads) = (options.activations, options.load_threads);
        Self { activations, threads, prepared: None }
    }
}

/// Refuses streamed experts if they are sliced over ranks or have replicas.
///
/// # Errors
/// Fails with [`EngineError::SlicesStreamed`] or [`EngineError::ReplicasStreamed`].
pub(super) fn check_residence(
    options: &RunnerOptions,
    share: RankShare,
    config: &ModelConfig,
) -> Result<(), EngineError> {
    let streaming = options.streaming.as_ref();
    check_division(options.expert_division, share, streaming, config)?;
    let replicas = options.expert_replicas;
    if replicas == 0 || !share.is_divided() || streaming.is_none() {
        return Ok(());
    }
    Err(EngineError::ReplicasStreamed { replicas })
}

impl<B: Backend> Loader<'_, B> {
    /// Loads whole experts of a layer.
    fn replicas(
        &mut self,
        layer: u32,
        experts: &[u32],
    ) -> Result<Vec<FeedForward<B>>, EngineError> {
        let config = self.source.config();
        let of_layer = config.layers.get(layer as usize).map(|layer| layer.feed_forward);
        let Some(FeedForwardConfig::Moe { num_experts, moe_intermediate_size, .. }) = of_layer
        else {
            return Err(refused(layer, "a layer with experts", "none"));
        };
        if let Some(expert) = experts.iter().find(|expert| **expert as usize >= num_experts) {
            return Err(refused(layer, &format!("experts below {num_experts}"), expert));
        }
        let (hidden, inner) = (config.hidden_size, moe_intermediate_size);
        let biases = expert_biases(self.source, layer)?;
        let groups = self.source.experts(layer, experts, self.threads, &CancelToken::new())?;
        let load = |(group, expert): (_, &u32)| {
            let biases = biases.as_ref().map(|biases| biases.of(*expert));
            self.feed_forward(group, hidden, inner, biases)
        };
        groups.into_iter().zip(experts).map(load).collect()
    }
}

fn refused(layer: u32, expected: &str, found: impl std::fmt::Display) -> EngineError {
    EngineError::mismatch(format!("replicas of layer {layer}"), expected, found)
}

impl<B: Backend> MovableReplicas for Runner<B> {
    fn current(&self) -> &Replicas {
        self.experts.placement().replicas()
    }

    fn count_max(&self) -> usize {
        self.experts.placement().replicas_max()
    }

    fn take_uses(&self) -> Vec<Vec<u64>> {
        // Default: only rank 0 counts uses.
        self.experts.placement().uses().map(UseCounts::take).unwrap_or_default()
    }

    fn prepare(&mut self, replicas: &Replicas) -> Result<(), EngineError> {
        self.replica_moves.prepared = None;
        let placement = self.experts.placement();
        let mut loaded = Vec::new();
        let ReplicaMoves { activations, threads, .. } = self.replica_moves;
        let mut loader = Loader::new(&mut self.backend, &*self.source, activations, threads);
        for (layer, experts) in (0..).zip(replicas.layers()) {
            let (limit, found) = (placement.replicas_max() as u64, experts.len() as u64);
            if found > limit {
                return Err(EngineError::Limit { what: "replicas of a layer", limit, found });
            }
            if found > 0 && placement.is_sliced(layer) {
                return Err(refused(layer, "whole experts", "sliced ones"));
            }
            let missing = experts.iter().copied();
            let missing: Vec<u32> =
                missing.filter(|expert| !placement.holds(layer, *expert)).collect();
            if missing.is_empty() {
                continue;
            }
            let experts = loader.replicas(layer, &missing)?;
            loaded.extend(missing.into_iter().zip(experts).map(|(number, of)| (layer, number, of)));
        }
        self.replica_moves.prepared = Some(Prepared { replicas: replicas.clone(), loaded });
        Ok(())
    }

    fn finish(&mut self, is_agreed: bool) {
        if let Some(Prepared { replicas, loaded }) = self.replica_moves.prepared.take()
            && is_agreed
        {
            self.experts.set_replicas(replicas, loaded);
        }
    }
}
