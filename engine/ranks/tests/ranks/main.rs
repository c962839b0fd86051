//! Models over several ranks: the bits of one, shares of memory and traffic, and faults.

#[cfg(test)]
mod bits;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod group;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod heads;
#[cfg(test)]
mod opened;
#[cfg(test)]
mod planned;
#[cfg(test)]
mod recovered;
#[cfg(test)]
mod replicated;
#[cfg(test)]
mod sampled;
#[cfg(test)]
mod sliced;
#[cfg(test)]
mod wide;
