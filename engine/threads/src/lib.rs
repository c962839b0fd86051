//! Threads that compute a step together, and what the machine gives them: cores, bandwidth, memory.
//!
//! ```
//! use nestling_threads::bandwidth::read_bandwidth;
//! use nestling_threads::threads::ThreadPool;
//!
//! let pool = ThreadPool::new(2);
//! pool.run(10, &|part| assert!(part < 10));
//! # let _ = read_bandwidth;
//! ```

mod affinity;
pub mod bandwidth;
pub mod system_memory;
pub mod thread_count;
pub mod threads;

pub use affinity::ThreadPlacement;
