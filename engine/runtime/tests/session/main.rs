//! Sessions and the step loop, on a model whose every answer is known.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod handles;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod recurrent;
#[cfg(test)]
mod stalls;
#[cfg(test)]
mod steps;
