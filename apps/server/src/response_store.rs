//! Finished responses, kept in memory within a limit of bytes. The one that was used longest ago leaves first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::access::Owner;
use crate::error::ApiError;

/// Bytes that a stored response takes besides its texts.
const OVERHEAD_BYTES: usize = 512;

/// A finished response and the items that it answers. Both are kept as JSON text, whose size is known.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    pub owner: Owner,
    /// Id of the response that this one continues.
    pub previous: Option<String>,
    /// Input items of the request, without those of earlier responses.
    pub input: String,
    pub response: String,
    /// Ids of the items of both.
    pub item_ids: Vec<String>,
}

impl StoredResponse {
    /// Returns the memory that the response takes.
    pub fn bytes(&self) -> usize {
        let ids = self.item_ids.iter().map(|id| 2 * id.len() + OVERHEAD_BYTES / 4);
        self.input.len() + self.response.len() + OVERHEAD_BYTES + ids.sum::<usize>()
    }

    /// Returns the input items.
    ///
    /// # Errors
    /// An internal error if the stored text is damaged.
    pub fn input_items(&self) -> Result<Vec<Value>, ApiError> {
        serde_json::from_str(&self.input).map_err(damaged)
    }

    /// Returns the response.
    ///
    /// # Errors
    /// An internal error if the stored text is damaged.
    pub fn to_json(&self) -> Result<Value, ApiError> {
        serde_json::from_str(&self.response).map_err(damaged)
    }

    /// Returns the output items.
    ///
    /// # Errors
    /// An internal error if the stored text is damaged.
    pub fn output_items(&self) -> Result<Vec<Value>, ApiError> {
        match self.to_json()?.get_mut("output").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Err(ApiError::internal("a stored response has no output")),
        }
    }
}

fn damaged(error: serde_json::Error) -> ApiError {
    ApiError::internal(format!("a stored response cannot be read: {error}"))
}

/// A response that a chain of responses needs and that is not stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChainError {
    /// The response with this id is not stored.
    Missing(String),
    /// The texts of the chain are longer than the limit.
    TooLong,
}

/// The stored responses of a server.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    bytes_max: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<String, Entry>,
    /// Ids in the order of their last use.
    by_use: BTreeMap<u64, String>,
    /// Response of each item.
    by_item: HashMap<String, String>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    stored: Arc<StoredResponse>,
    /// Key in `Entries::by_use`.
    used: u64,
}

impl ResponseStore {
    /// Creates a store of at most `bytes_max` bytes; 0 stores nothing.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, entries: Mutex::default() }
    }

    pub fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Each change leaves the maps consistent, so a panic elsewhere cannot matter.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of stored responses and their bytes.
    pub fn usage(&self) -> (usize, usize) {
        let entries = self.lock();
        (entries.by_id.len(), entries.bytes)
    }

    /// Stores a response, in place of those that were used longest ago if it does not fit otherwise. A response
    /// that is larger than the whole store is not kept.
    pub(crate) fn insert(&self, id: String, stored: StoredResponse) {
        let bytes = stored.bytes();
        if bytes > self.bytes_max {
            tracing::debug!("a response of {bytes} bytes is larger than the store of responses");
            return;
        }
        let mut entries = self.lock();
        entries.remove(&id);
        while entries.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = entries.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            entries.remove(&oldest);
        }
        entries.insert(id, stored, bytes);
    }

    /// Returns a response of `owner`.
    pub(crate) fn get(&self, owner: Owner, id: &str) -> Option<Arc<StoredResponse>> {
        self.lock().touch(owner, id)
    }

    /// Removes a response of `owner`. Returns false if there is none.
    pub(crate) fn remove(&self, owner: Owner, id: &str) -> bool {
        let mut entries = self.lock();
        let is_owned = entries.by_id.get(id).is_some_and(|entry| entry.stored.owner == owner);
        if is_owned {
            entries.remove(id);
        }
        is_owned
    }

    /// Returns the response with this id and all that it continues, the first one first.
    ///
    /// # Errors
    /// Fails if one of them is not stored, or if their texts have more than `bytes_max` bytes.
    pub(crate) fn chain(
        &self,
        owner: Owner,
        id: &str,
        bytes_max: usize,
    ) -> Result<Vec<Arc<StoredResponse>>, ChainError> {
        let mut entries = self.lock();
        let (mut chain, mut bytes) = (Vec::new(), 0_usize);
        let mut next = Some(id.to_owned());
        // A response continues one that was stored before it, so there are no circles.
        while let Some(id) = next {
            let stored = entries.touch(owner, &id).ok_or(ChainError::Missing(id))?;
            bytes = bytes.saturating_add(stored.bytes());
            if bytes > bytes_max {
                return Err(ChainError::TooLong);
            }
            next = stored.previous.clone();
            chain.push(stored);
        }
        chain.reverse();
        Ok(chain)
    }

    /// Returns the response of `owner` that has an item with this id.
    pub(crate) fn with_item(&self, owner: Owner, item: &str) -> Option<Arc<StoredResponse>> {
        let mut entries = self.lock();
        let id = entries.by_item.get(item)?.clone();
        entries.touch(owner, &id)
    }
}

impl Entries {
    fn insert(&mut self, id: String, stored: StoredResponse, bytes: usize) {
        self.bytes += bytes;
        self.uses += 1;
        for item in &stored.item_ids {
            self.by_item.insert(item.clone(), id.clone());
        }
        self.by_use.insert(self.uses, id.clone());
        self.by_id.insert(id, Entry { stored: Arc::new(stored), used: self.uses });
    }

    fn remove(&mut self, id: &str) {
        // Default: a response that is not stored need not be removed.
        let Some(Entry { stored, used }) = self.by_id.remove(id) else { return };
        self.by_use.remove(&used);
        self.bytes -= stored.bytes();
        for item in &stored.item_ids {
            // A later response may have an item of the same id, which its client chose.
            if self.by_item.get(item).is_some_and(|of| of == id) {
                self.by_item.remove(item);
            }
        }
    }

    fn touch(&mut self, owner: Owner, id: &str) -> Option<Arc<StoredResponse>> {
        let entry = self.by_id.get_mut(id).filter(|entry| entry.stored.owner == owner)?;
        self.uses += 1;
        if let Some(id) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.uses, id);
        }
        entry.used = self.uses;
        Some(Arc::clone(&entry.stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Owner = Owner::ANYONE;

    fn stored(previous: Option<&str>, text: usize) -> StoredResponse {
        StoredResponse {
            owner: NOBODY,
            previous: previous.map(str::to_owned),
            input: "[]".into(),
            response: format!("{{\"output\":[],\"x\":\"{}\"}}", "x".repeat(text)),
            item_ids: Vec::new(),
        }
    }

    /// Returns a store with room for three responses of 1,000 letters.
    fn store_of_three() -> ResponseStore {
        ResponseStore::new(3 * stored(None, 1000).bytes())
    }

    #[test]
    fn the_response_used_longest_ago_leaves_first() {
        let store = store_of_three();
        for id in ["a", "b", "c"] {
            store.insert(id.into(), stored(None, 1000));
        }
        assert!(store.get(NOBODY, "a").is_some());
        store.insert("d".into(), stored(None, 1000));
        let is_there = |id| store.get(NOBODY, id).is_some();
        assert_eq!(["a", "b", "c", "d"].map(is_there), [true, false, true, true]);
        store.insert("large".into(), stored(None, 10_000));
        assert!(!is_there("large") && is_there("a"), "nothing leaves for what cannot fit");
        assert_eq!(store.usage(), (3, 3 * stored(None, 1000).bytes()));
    }

    #[test]
    fn the_bytes_are_those_of_what_is_stored() {
        let store = store_of_three();
        for round in 0..100 {
            store.insert(format!("{}", round % 7), stored(None, 37 * (round % 11)));
            let entries = store.lock();
            let sum: usize = entries.by_id.values().map(|entry| entry.stored.bytes()).sum();
            assert_eq!((entries.bytes, entries.by_use.len()), (sum, entries.by_id.len()));
            assert!(sum <= store.bytes_max);
        }
        for id in 0..7 {
            store.remove(NOBODY, &id.to_string());
        }
        assert_eq!(store.usage(), (0, 0));
    }

    #[test]
    fn a_chain_ends_at_its_first_response() {
        let store = store_of_three();
        store.insert("a".into(), stored(None, 10));
        store.insert("b".into(), stored(Some("a"), 20));
        store.insert("c".into(), stored(Some("b"), 30));
        let lengths = |id| {
            let chain = store.chain(NOBODY, id, usize::MAX)?;
            Ok(chain.iter().map(|stored| stored.previous.clone()).collect::<Vec<_>>())
        };
        assert_eq!(lengths("c"), Ok(vec![None, Some("a".into()), Some("b".into())]));
        assert_eq!(store.chain(NOBODY, "c", 600).unwrap_err(), ChainError::TooLong);
        assert!(store.remove(NOBODY, "a") && !store.remove(NOBODY, "a"));
        assert_eq!(lengths("c"), Err(ChainError::Missing("a".into())));
    }

    #[test]
    fn owners_do_not_see_each_other() {
        let (store, other) = (store_of_three(), Owner::of_key([7; 32]));
        let item_ids = vec!["msg_1".into()];
        store.insert("a".into(), StoredResponse { owner: other, item_ids, ..stored(None, 10) });
        assert!(store.get(NOBODY, "a").is_none() && store.with_item(NOBODY, "msg_1").is_none());
        assert!(!store.remove(NOBODY, "a"));
        assert!(store.chain(NOBODY, "a", usize::MAX).is_err());
        assert!(store.get(other, "a").is_some() && store.with_item(other, "msg_1").is_some());
        assert!(store.remove(other, "a") && store.with_item(other, "msg_1").is_none());
    }

    #[test]
    fn a_store_without_room_keeps_nothing() {
        let store = ResponseStore::new(0);
        store.insert("a".into(), stored(None, 0));
        assert!(!store.is_on() && store.usage() == (0, 0));
    }
}
