//! A suite of schemas, with a model that knows nothing of them.

#[cfg(test)]
mod schemas;
