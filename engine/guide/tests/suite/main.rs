//! A suite of schemas, answered by a model that does not know them.

#[cfg(test)]
mod schemas;
