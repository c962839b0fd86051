//! One model over several ranks, with the bits of one.
//!
//! Each rank is a [`ModelRunner`](nestling_core::ModelRunner) on a backend that was connected to a
//! [`Group`](nestling_core::group::Group). It holds a share of the weights and takes part in every step. Rank 0
//! is wrapped by [`LeadRunner`]: it receives batches, tells the other ranks, and returns the result. The others run
//! [`follow`] until rank 0 closes.
//!
//! ```text
//!  rank 0: LeadRunner ── command ──► ranks 1..: follow
//!            │                          │
//!          Runner ◄──── exchange ────► Runner        in each layer
//!            │                          │
//!            └────────── report ◄───────┘            at the end of a step
//! ```
//!
//! A rank whose step fails takes part in the next exchange with its failure, so that all ranks leave a step at the
//! same exchange, and the group stays usable. A rank that ends or is silent is lost, and so is the group. If the ranks are
//! threads of [`open_on_threads`], rank 0 starts a replacement, gives it the pages and states, and computes the interrupted
//! step again.
//!
//! ```
//! use std::thread;
//! use std::time::Duration;
//! use nestling_core::group::Group;
//! use nestling_ranks::QueueGroup;
//!
//! let group = QueueGroup::of_threads(3, Duration::from_secs(10));
//! let sums: Vec<u8> = thread::scope(|scope| {
//!     let sum = |rank: QueueGroup| {
//!         let mut parts = Vec::new();
//!         rank.all_gather(&[rank.share().rank as u8], &mut parts).map(|()| parts.concat().iter().sum())
//!     };
//!     let ranks: Vec<_> = group.into_iter().map(|rank| scope.spawn(move || sum(rank))).collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
//! });
//! assert_eq!(sums, [3, 3, 3]);
//! ```

mod command;
mod follow;
mod lead;
mod mover;
#[cfg(feature = "mpi")]
pub mod mpi;
mod open;
mod options;
mod processes;
mod queue_group;
mod rank_memory;
mod rank_thread;
mod recovery;
mod renewable_group;
mod runners;
mod workers;
mod written;

pub use follow::follow;
pub use lead::LeadRunner;
pub use open::{RankBackends, open_on_backends, open_on_threads};
pub use options::{RANKS_MAX, RankOptions};
pub use processes::{agree_on_devices, open_on_processes, open_process_on};
pub use queue_group::QueueGroup;
pub use rank_thread::FollowerThread;
pub use runners::{OpenRunner, lead_on_threads};
pub use workers::open_on_workers;
