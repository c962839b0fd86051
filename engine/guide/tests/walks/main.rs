//! Constraints without a model: a walker chooses among the allowed tokens.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod gbnf;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod library_limits;
#[cfg(test)]
mod narrowed;
#[cfg(test)]
mod walker;
