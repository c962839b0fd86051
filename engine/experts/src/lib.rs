//! Experts that do not fit into memory: sources, residency, and the level of each use.
//!
//! Planes are read ([`reads`]), cached and evicted under a budget ([`residency`]), and handed to a step
//! ([`expert`]). `nestling-levels` chooses levels.
//!
//! ```
//! use std::sync::Arc;
//! use nestling_experts::reads::{ReadClass, ReadMethod, ReadOptions, ReadRequest, Reads};
//! use nestling_formats::Plane;
//! use nestling_formats::store::{GroupId, Store};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
//! let store = Arc::new(Store::open(path)?);
//! let expert = store.group(&GroupId::expert_of(0, 7)).ok_or("no such expert")?;
//! let extent = store.extent(expert, Plane::P2).ok_or("plane P2 is absent")?.clone();
//!
//! let options = ReadOptions { method: ReadMethod::Inline, ..ReadOptions::default() };
//! let reads = Reads::open(Arc::clone(&store), &options)?;
//! reads.submit(ReadRequest { tag: 1, extent, class: ReadClass::Urgent });
//! let done = reads.try_next().ok_or("no completed read")?;
//! assert_eq!(done.tag, 1);
//! assert!(done.result.is_ok()); // verified bytes of the plane
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | subject | items |
//! |---|---|
//! | reads | [`reads::Reads`], [`reads::ReadOptions`], [`reads::ReadRequest`], [`reads::ReadDone`] |
//! | cache and eviction | [`residency`] |
//! | experts of a step | [`expert`] |
//! | configuration of a store | [`config_of`] |
//! | timeline of reads and steps | [`record`] |

pub mod expert;
pub mod reads;
pub mod record;
pub mod residency;
mod store_config;

pub use store_config::config_of;
