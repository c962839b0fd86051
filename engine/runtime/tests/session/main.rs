//! Sessions and the step loop, on a fake model with known outputs.

#[cfg(test)]
mod chats;
#[cfg(test)]
mod constraint_starts;
#[cfg(test)]
mod constraints;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod handles;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod options;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod prefixes;
#[cfg(test)]
mod recurrent;
#[cfg(test)]
mod rows;
#[cfg(all(test, shuttle))]
mod schedules;
#[cfg(test)]
mod service;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod stalls;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod stored_pages;
