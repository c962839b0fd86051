//! Predictions of a model's behaviour on a machine, before it runs there.
//!
//! ```
//! use nestling_experts::config_of;
//! use nestling_formats::Level;
//! use nestling_formats::store::Store;
//! use nestling_plan::plan::{DEFAULT_SKEW, Demand, DiskSpeed, LevelMix, MachineSpeed, forecast};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
//! let store = Store::open(path)?;
//! let demand = Demand::of_store(store.index(), &config_of(&store)?, Level::L4, DEFAULT_SKEW);
//! let disk = vec![DiskSpeed { read_bytes: 64 << 10, bytes_per_s: 1e9 }];
//! let machine = MachineSpeed { memory_bytes_per_s: 20e9, disk };
//!
//! let whole = forecast(&demand, LevelMix::fixed(Level::L4), &machine, demand.expert_bytes());
//! let streamed = forecast(&demand, LevelMix::fixed(Level::L4), &machine, 1 << 20);
//! assert!(whole.is_whole() && !streamed.is_whole());
//! assert!(whole.tokens_per_s > streamed.tokens_per_s);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | question | items |
//! |---|---|
//! | speed for a budget of memory | [`plan::forecast()`], [`plan::Demand`], [`plan::Forecast`] |
//! | memory or level for a speed | [`plan::bytes_for`], [`plan::mean_level_for`] |
//! | memory, messages and speed of several ranks | [`ranks::RankedModel`], [`ranks::Fabric`] |
//! | effect of a cache policy on a routing trace | [`simulate::simulate`], [`simulate::SimulationOptions`] |
//! | waiting times of many requests | [`service`] |
//! | speed of a model that is not at hand | [`synthetic::write_synthetic_store`] |
//!
//! The simulations drive the engine's own residency and scheduler. Programs and benchmarks use this crate; the
//! engine does not.

pub mod plan;
pub mod ranks;
pub mod service;
pub mod simulate;
pub mod synthetic;
