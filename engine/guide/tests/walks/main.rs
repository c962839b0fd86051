//! Constraints without a model: a walker chooses any of the allowed tokens.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod narrowed;
#[cfg(test)]
mod walker;
