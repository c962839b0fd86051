//! Index of stored pages, in order of last use.

use std::collections::{BTreeMap, HashMap};

use super::files::PageFile;
use super::record::PageName;

/// Sizes of stored pages by name, in order of last use.
#[derive(Debug, Default)]
pub(super) struct StoredIndex {
    entries: HashMap<PageName, Entry>,
    /// Names by time of last use, oldest first. The keys are values of `uses`.
    by_use: BTreeMap<u64, PageName>,
    bytes: u64,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl StoredIndex {
    /// Creates the index of the listed files, ordered by their time of last use.
    pub fn of_files(mut files: Vec<PageFile>) -> Self {
        files.sort_by_key(|file| file.used);
        let mut index = Self::default();
        files.iter().for_each(|file| index.insert(file.name, file.bytes));
        index
    }

    pub fn pages(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn contains(&self, name: &PageName) -> bool {
        self.entries.contains_key(name)
    }

    /// Inserts or replaces a page as the most recently used.
    pub fn insert(&mut self, name: PageName, bytes: u64) {
        self.remove(&name);
        self.uses += 1;
        self.entries.insert(name, Entry { bytes, used: self.uses });
        self.by_use.insert(self.uses, name);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Marks a page as most recently used. Returns false if it is missing.
    pub fn touch(&mut self, name: &PageName) -> bool {
        // Default: a missing page cannot be used.
        let Some(Entry { bytes, .. }) = self.entries.get(name).copied() else { return false };
        self.insert(*name, bytes);
        true
    }

    pub fn remove(&mut self, name: &PageName) {
        if let Some(entry) = self.entries.remove(name) {
            self.by_use.remove(&entry.used);
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
    }

    /// Removes the least recently used page if adding `bytes` bytes would exceed `bytes_max`.
    pub fn pop_oldest(&mut self, bytes: u64, bytes_max: u64) -> Option<PageName> {
        let name = *self.by_use.values().next()?;
        if self.bytes.saturating_add(bytes) <= bytes_max {
            return None;
        }
        self.remove(&name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{PageFile, StoredIndex};
    use crate::page_store::record::{PageName, StoredKind};
    use nestling_core::kv_cache::PrefixKey;
    use std::time::{Duration, SystemTime};

    #[test]
    fn what_was_unused_for_longest_goes_first() {
        let names = [0, 1, 2].map(|key| PageName::new(StoredKind::Page, &PrefixKey([key; 32])));
        let file = |index: usize, seconds| PageFile {
            name: names[index],
            bytes: 10,
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        };
        let mut index = StoredIndex::of_files(vec![file(0, 9), file(1, 3), file(2, 5)]);
        assert_eq!((index.pages(), index.bytes()), (3, 30));
        assert_eq!(index.pop_oldest(10, 40), None);
        assert!(index.touch(&names[1]));
        assert_eq!(index.pop_oldest(10, 39), Some(names[2]));
        assert!(!index.touch(&names[2]));
        index.insert(names[0], 4);
        assert_eq!((index.pages(), index.bytes()), (2, 14));
        assert_eq!(index.pop_oldest(u64::MAX, u64::MAX - 1), Some(names[1]));
        assert_eq!(index.pop_oldest(1, 0), Some(names[0]));
        assert_eq!((index.pop_oldest(1, 0), index.bytes()), (None, 0));
    }
}
