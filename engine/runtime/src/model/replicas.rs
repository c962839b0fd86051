//! Replicas of experts that move between steps.

use nestling_core::backend::{Backend, FeedForward};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::placement::{MovableReplicas, Placement};
use nestling_core::replicas::Replicas;
use nestling_experts::expert::expert_biases;
use nestling_import::FeedForward as FeedForwardConfig;

use super::runner::Runner;
use super::weights::Loader;

impl<B: Backend> Loader<'_, B> {
    /// Loads whole experts of a layer.
    fn replicas(
        &mut self,
        layer: u32,
        experts: &[u32],
    ) -> Result<Vec<FeedForward<B>>, EngineError> {
        let config = self.source.config();
        // Default: a layer without experts has no replicas.
        let Some(FeedForwardConfig::Moe { moe_intermediate_size: inner, .. }) =
            config.layers.get(layer as usize).map(|layer| layer.feed_forward)
        else {
            return Ok(Vec::new());
        };
        let hidden = config.hidden_size;
        let biases = expert_biases(self.source, layer)?;
        let groups = self.source.experts(layer, experts, self.threads, &CancelToken::new())?;
        let load = |(group, expert): (_, &u32)| {
            let biases = biases.as_ref().map(|biases| biases.of(*expert));
            self.feed_forward(group, hidden, inner, biases)
        };
        groups.into_iter().zip(experts).map(load).collect()
    }
}

impl<B: Backend> MovableReplicas for Runner<B> {
    fn placement(&self) -> &Placement {
        self.experts.placement()
    }

    fn prepare(&mut self, replicas: &Replicas) -> Result<(), EngineError> {
        self.prepared = None;
        let (activations, threads) = (self.options.activations, self.options.load_threads);
        let mut loader = Loader::new(&mut self.backend, &*self.source, activations, threads);
        let mut loaded = Vec::new();
        for (layer, missing) in self.experts.placement().missing(replicas)? {
            let experts = loader.replicas(layer, &missing)?;
            loaded.extend(missing.into_iter().zip(experts).map(|(number, of)| (layer, number, of)));
        }
        self.prepared = Some((replicas.clone(), loaded));
        Ok(())
    }

    fn finish(&mut self, is_agreed: bool) {
        if let Some((replicas, loaded)) = self.prepared.take()
            && is_agreed
        {
            self.experts.set_replicas(replicas, loaded);
        }
    }
}
