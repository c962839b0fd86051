//! Tests of whole models: against external references, and against themselves.

#[cfg(test)]
mod allocation;
#[cfg(test)]
mod build;
#[cfg(test)]
mod bundled;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod dual;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod invariance;
#[cfg(test)]
mod judge;
#[cfg(test)]
mod mapped;
#[cfg(test)]
mod rotation;
#[cfg(test)]
mod scaled;
#[cfg(test)]
mod stores;
#[cfg(test)]
mod streamed;
