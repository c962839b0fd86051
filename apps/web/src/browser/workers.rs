//! Workers of the browser that compute together, and the rings between them.

use std::sync::Arc;

use nestling::engine::group::{Group, RankShare};
use send_wrapper::SendWrapper;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use web_time::Duration;

use crate::error::TabError;
use crate::rings::{RingGroup, Rings};
use crate::workers::{TIMEOUT, Workers};

#[wasm_bindgen]
extern "C" {
    /// `Team` of `team.js`.
    pub type Team;

    #[wasm_bindgen(method)]
    fn count(this: &Team) -> u32;

    #[wasm_bindgen(method, catch)]
    fn start(this: &Team, bytes: f64) -> Result<SharedRings, JsValue>;

    #[wasm_bindgen(method)]
    fn dismiss(this: &Team);

    /// `Rings` of `rings.js`.
    pub type SharedRings;

    #[wasm_bindgen(method)]
    fn write(this: &SharedRings, to: u32, bytes: &[u8]) -> u32;

    #[wasm_bindgen(method)]
    fn read(this: &SharedRings, from: u32, out: &mut [u8]) -> u32;

    #[wasm_bindgen(method)]
    fn changes(this: &SharedRings) -> u32;

    #[wasm_bindgen(method)]
    fn wait(this: &SharedRings, seen: i32, milliseconds: f64) -> bool;

    #[wasm_bindgen(method)]
    fn beat(this: &SharedRings);

    #[wasm_bindgen(method)]
    fn beats(this: &SharedRings, rank: u32) -> u32;

    #[wasm_bindgen(method)]
    fn end(this: &SharedRings);

    #[wasm_bindgen(method, js_name = hasEnded)]
    fn has_ended(this: &SharedRings, rank: u32) -> bool;

    #[wasm_bindgen(method)]
    fn lose(this: &SharedRings, rank: u32);

    #[wasm_bindgen(method)]
    fn lost(this: &SharedRings) -> i32;
}

/// Rings of this worker, which alone uses them.
struct OwnRings(SendWrapper<SharedRings>);

impl Rings for OwnRings {
    fn write(&self, to: usize, bytes: &[u8]) -> usize {
        self.0.write(to as u32, bytes) as usize
    }

    fn read(&self, from: usize, out: &mut [u8]) -> usize {
        self.0.read(from as u32, out) as usize
    }

    fn changes(&self) -> u32 {
        self.0.changes()
    }

    fn wait(&self, seen: u32, timeout: Duration) -> bool {
        // The words of the memory have signs.
        self.0.wait(seen.cast_signed(), 1000.0 * timeout.as_secs_f64())
    }

    fn beat(&self) {
        self.0.beat();
    }

    fn beats(&self, rank: usize) -> u32 {
        self.0.beats(rank as u32)
    }

    fn end(&self) {
        self.0.end();
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.0.has_ended(rank as u32)
    }

    fn lose(&self, rank: usize) {
        self.0.lose(rank as u32);
    }

    fn lost(&self) -> Option<usize> {
        usize::try_from(self.0.lost()).ok()
    }
}

/// Returns the group of the calling worker.
pub fn group_of(rings: SharedRings, rank: usize, ranks: usize) -> Arc<dyn Group> {
    let rings = Box::new(OwnRings(SendWrapper::new(rings)));
    Arc::new(RingGroup::new(RankShare { rank, ranks }, rings, TIMEOUT))
}

/// Further workers of this worker's tab. They end when they are dropped.
pub struct FurtherWorkers(SendWrapper<Team>);

impl FurtherWorkers {
    pub fn new(team: Team) -> Self {
        Self(SendWrapper::new(team))
    }
}

impl Drop for FurtherWorkers {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}

impl Workers for FurtherWorkers {
    fn count(&self) -> usize {
        self.0.count() as usize
    }

    fn start(&mut self, bytes: u64) -> Result<Arc<dyn Group>, TabError> {
        let rings = self.0.start(bytes as f64).map_err(|error| TabError::Invalid {
            what: "workers",
            reason: super::http::describe(&error),
        })?;
        Ok(group_of(rings, 0, self.count()))
    }
}
