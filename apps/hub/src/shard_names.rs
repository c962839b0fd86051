//! Names of the files of a store in shards.

use nestling_import::limits::MAX_SHARDS;

/// Name of a file of a store in shards, such as `model-00001-of-00003.nest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    /// Number of the shard, from 1.
    pub number: u32,
    /// Number of shards.
    pub total: u32,
    /// Name without the numbers, such as `model.nest`. It may have folders.
    base: String,
}

impl ShardName {
    /// Parses a name or path. Returns `None` for a single file.
    pub fn parse(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".nest")?;
        let (stem, total) = stem.rsplit_once("-of-")?;
        let (base, number) = stem.rsplit_once('-')?;
        let digits = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
        let (number, total) = (digits(number)?, digits(total)?);
        ((1..=total).contains(&number) && total as usize <= MAX_SHARDS).then(|| Self {
            number,
            total,
            base: format!("{base}.nest"),
        })
    }

    /// Adds text to the name before the numbers.
    pub fn renamed(&self, text: &str) -> Self {
        // Default: every name ends so.
        let stem = self.base.strip_suffix(".nest").unwrap_or(&self.base);
        Self { base: format!("{stem}-{text}.nest"), ..self.clone() }
    }

    /// Returns the name of another shard of the same store, numbered from 1.
    pub fn sibling(&self, number: u32) -> String {
        // Default: every name ends so.
        let stem = self.base.strip_suffix(".nest").unwrap_or(&self.base);
        format!("{stem}-{number:05}-of-{:05}.nest", self.total)
    }
}

/// Returns the number of files of a store, by the name of its first.
pub fn shards_of(first: &str) -> u32 {
    // Default: other names are those of single files.
    ShardName::parse(first).map_or(1, |name| name.total)
}
