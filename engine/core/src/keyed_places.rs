//! A pool of places with a lookup by key of their contents: the prefix cache of pages and recurrent states.
//!
//! A place kept under a key counts the cache as one of its holders. Without other holders it is idle: its
//! contents remain until a place is needed and none is empty. Idle places are evicted in the order in which
//! they were last held. When several are released at once, such as the pages of a sequence, the ones that
//! depend on the others are released first.

use std::collections::HashMap;

use crate::counts::HolderCounts;

/// Key of a place's contents: a hash of everything they depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey(pub [u8; 32]);

/// Null index of the list.
const NONE: u32 = u32::MAX;

/// Cache state of a place.
#[derive(Clone, Copy, Debug)]
struct PlaceEntry {
    key: Option<PrefixKey>,
    /// Number of the `keep` call, unique for each.
    since: u64,
    /// Neighbours in the list of idle places; `NONE` at the ends and for places that are not idle.
    before: u32,
    after: u32,
}

/// Reference counts of the places of a pool, some of which are cached under keys.
#[derive(Debug)]
pub(crate) struct KeyedPlaces {
    counts: HolderCounts,
    kept: Vec<PlaceEntry>, // [places]
    by_key: HashMap<PrefixKey, u32>,
    /// Ends of the list of idle places, oldest first.
    oldest: u32,
    newest: u32,
    idle: usize,
    /// Number of `keep` calls so far.
    keeps: u64,
}

/// A cached place. While its key finds an equal value, the contents are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPlace<T> {
    /// Place in the pool.
    pub place: T,
    since: u64,
}

impl<T> KeptPlace<T> {
    pub(crate) fn map<U>(self, name: impl FnOnce(T) -> U) -> KeptPlace<U> {
        KeptPlace { place: name(self.place), since: self.since }
    }
}

impl KeyedPlaces {
    /// Creates a pool of empty places. All memory is allocated here.
    pub fn new(places: u32) -> Self {
        let kept = PlaceEntry { key: None, since: 0, before: NONE, after: NONE };
        Self {
            counts: HolderCounts::new(places),
            kept: vec![kept; places as usize],
            by_key: HashMap::with_capacity(places as usize),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            keeps: 0,
        }
    }

    /// Returns the number of available places: empty and idle ones.
    pub fn free(&self) -> usize {
        self.counts.free() + self.idle
    }

    /// Returns the number of idle places, which only the cache holds.
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Returns the total number of places.
    pub fn places(&self) -> usize {
        self.counts.places()
    }

    /// Returns the number of holders of a place, including the cache.
    pub fn holders(&self, place: u32) -> u32 {
        self.counts.holders(place)
    }

    /// Takes an empty place. If there is none, evicts the place that has been idle for longest.
    pub fn take(&mut self) -> Option<u32> {
        if self.counts.free() == 0 && self.oldest != NONE {
            self.forget(self.oldest);
        }
        self.counts.take()
    }

    /// Adds a holder to a place that is in use or cached.
    pub fn retain(&mut self, place: u32) {
        if self.is_idle(place) {
            self.unlink(place);
        }
        self.counts.retain(place);
    }

    /// Removes a holder. The last one empties the place, unless it is cached.
    pub fn release(&mut self, place: u32) {
        self.counts.release(place);
        if self.is_idle(place) {
            self.link(place);
        }
    }

    /// Caches a place in use under a key. Returns false without a change if the key is taken, the place has
    /// another key, or nobody holds the place.
    pub fn keep(&mut self, place: u32, key: PrefixKey) -> bool {
        let is_free = self.key(place).is_none() && !self.by_key.contains_key(&key);
        if !is_free || self.counts.holders(place) == 0 {
            return false;
        }
        self.keeps += 1;
        let kept = &mut self.kept[place as usize];
        (kept.key, kept.since) = (Some(key), self.keeps);
        self.by_key.insert(key, place);
        self.counts.retain(place);
        true
    }

    /// Returns the place cached under a key.
    pub fn find(&self, key: &PrefixKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Returns [`Self::find`] with the number of the `keep` call, which detects replaced contents.
    pub fn find_kept(&self, key: &PrefixKey) -> Option<KeptPlace<u32>> {
        let place = self.find(key)?;
        Some(KeptPlace { place, since: self.kept.get(place as usize)?.since })
    }

    /// Returns the key of a cached place.
    pub fn key(&self, place: u32) -> Option<PrefixKey> {
        self.kept.get(place as usize).and_then(|kept| kept.key)
    }

    /// Removes a place from the cache.
    pub fn forget(&mut self, place: u32) {
        // Default: a place that is not cached needs no change.
        let Some(key) = self.key(place) else { return };
        if self.is_idle(place) {
            self.unlink(place);
        }
        self.by_key.remove(&key);
        self.kept[place as usize].key = None;
        self.counts.release(place);
    }

    /// Returns true if only the cache holds a place.
    fn is_idle(&self, place: u32) -> bool {
        self.key(place).is_some() && self.counts.holders(place) == 1
    }

    /// Appends a place to the list of idle places.
    fn link(&mut self, place: u32) {
        self.kept[place as usize].before = self.newest;
        match self.newest {
            NONE => self.oldest = place,
            newest => self.kept[newest as usize].after = place,
        }
        self.newest = place;
        self.idle += 1;
    }

    fn unlink(&mut self, place: u32) {
        let PlaceEntry { before, after, .. } = self.kept[place as usize];
        match before {
            NONE => self.oldest = after,
            before => self.kept[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.kept[after as usize].before = before,
        }
        let kept = &mut self.kept[place as usize];
        (kept.before, kept.after) = (NONE, NONE);
        self.idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyedPlaces, PrefixKey};
    use std::collections::HashMap;

    fn key(number: u8) -> PrefixKey {
        PrefixKey([number; 32])
    }

    #[test]
    fn what_is_kept_again_is_told_from_before() {
        let mut places = KeyedPlaces::new(1);
        let place = places.take().unwrap();
        assert!(places.keep(place, key(0)));
        let first = places.find_kept(&key(0)).unwrap();
        assert_eq!(places.find_kept(&key(0)), Some(first));
        places.forget(place);
        assert!(places.keep(place, key(0)));
        assert_eq!(places.find(&key(0)), Some(place));
        assert_ne!(places.find_kept(&key(0)), Some(first));
    }

    #[test]
    fn what_is_idle_is_found_until_it_is_taken() {
        let mut places = KeyedPlaces::new(3);
        let all: Vec<u32> = (0..3).map(|_| places.take().unwrap()).collect();
        assert!(places.keep(all[0], key(0)) && places.keep(all[1], key(1)));
        assert!(!places.keep(all[2], key(0)) && !places.keep(all[0], key(7)));
        assert_eq!((places.free(), places.take()), (0, None));
        places.release(all[1]);
        places.release(all[0]);
        places.release(all[2]);
        assert_eq!((places.free(), places.idle()), (3, 2));
        assert_eq!(places.take(), Some(all[2]), "an empty one first");
        assert_eq!(places.find(&key(0)), Some(all[0]));
        places.retain(all[0]);
        assert_eq!((places.free(), places.holders(all[0])), (1, 2));
        assert_eq!(places.take(), Some(all[1]), "the oldest idle one");
        assert_eq!((places.find(&key(1)), places.take()), (None, None));
        places.forget(all[0]);
        assert_eq!((places.holders(all[0]), places.find(&key(0))), (1, None));
        all.into_iter().for_each(|place| places.release(place));
        assert_eq!((places.free(), places.idle()), (3, 0));
    }

    /// Compares random calls with a list of held and cached places, oldest idle place first.
    #[test]
    fn it_is_what_a_list_would_be() {
        for seed in 0..200u64 {
            let mut random = seed;
            let mut next = |below: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                (random >> 33) as usize % below
            };
            let count = 1 + next(6);
            let mut places = KeyedPlaces::new(count as u32);
            let (mut held, mut keys) = (Vec::new(), HashMap::new());
            let mut idle: Vec<u32> = Vec::new();
            for _ in 0..200 {
                match next(5) {
                    0 => {
                        let empty = count - idle.len() - distinct(&held);
                        let expected_idle = idle.first().copied();
                        match places.take() {
                            None => assert!(empty == 0 && idle.is_empty()),
                            Some(place) if empty > 0 => held.push(place),
                            Some(place) => {
                                assert_eq!(Some(place), expected_idle);
                                idle.remove(0);
                                keys.retain(|_, kept| *kept != place);
                                held.push(place);
                            }
                        }
                    }
                    1 if !held.is_empty() => {
                        let place = held.swap_remove(next(held.len()));
                        places.release(place);
                        let is_kept = keys.values().any(|kept| *kept == place);
                        if is_kept && !held.contains(&place) {
                            idle.push(place);
                        }
                    }
                    2 if !held.is_empty() => {
                        let (place, key) = (held[next(held.len())], key(next(8) as u8));
                        let is_free = !keys.contains_key(&key);
                        let is_bare = keys.values().all(|kept| *kept != place);
                        assert_eq!(places.keep(place, key), is_free && is_bare);
                        if is_free && is_bare {
                            keys.insert(key, place);
                        }
                    }
                    3 => {
                        let key = key(next(8) as u8);
                        assert_eq!(places.find(&key), keys.get(&key).copied());
                        if let Some(place) = places.find(&key) {
                            places.retain(place);
                            idle.retain(|other| *other != place);
                            held.push(place);
                        }
                    }
                    _ => {
                        let place = next(count) as u32;
                        places.forget(place);
                        keys.retain(|_, kept| *kept != place);
                        idle.retain(|other| *other != place);
                    }
                }
                assert_eq!(places.idle(), idle.len());
                assert_eq!(places.free(), count - distinct(&held));
            }
        }
    }

    fn distinct(held: &[u32]) -> usize {
        let mut held = held.to_vec();
        held.sort_unstable();
        held.dedup();
        held.len()
    }
}
