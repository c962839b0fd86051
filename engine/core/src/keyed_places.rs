//! Places of a pool that are found again by what was computed in them: the cache behind pages and recurrent
//! states.
//!
//! A place that is kept under a key has the cache as one of its holders. When nobody else holds it, it is idle: it
//! keeps its contents until a place is wanted and no empty one is left. Idle places go in the order in which
//! they were last held. Of several that are released at once, as the pages of a sequence, those that are worth nothing
//! without the others are released first.

use std::collections::HashMap;

use crate::counts::HolderCounts;

/// What was computed in a place: a hash over all that its contents depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey(pub [u8; 32]);

/// No place.
const NONE: u32 = u32::MAX;

/// What the cache knows of a place.
#[derive(Clone, Copy, Debug)]
struct Kept {
    key: Option<PrefixKey>,
    /// Number of the call that kept it: no other has it.
    since: u64,
    /// Neighbours among the idle places, `NONE` at the ends and for places that are not idle.
    before: u32,
    after: u32,
}

/// Counts the holders of every place of one pool, and keeps some under keys.
#[derive(Debug)]
pub(crate) struct KeyedPlaces {
    counts: HolderCounts,
    kept: Vec<Kept>, // [places]
    by_key: HashMap<PrefixKey, u32>,
    /// Idle places, oldest first.
    oldest: u32,
    newest: u32,
    idle: usize,
    /// Places that were kept so far.
    keeps: u64,
}

/// A place that is kept. As long as one of these is what its key finds, its contents are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPlace<T> {
    /// The place.
    pub place: T,
    since: u64,
}

impl<T> KeptPlace<T> {
    /// The same, by another name of the place.
    pub(crate) fn map<U>(self, name: impl FnOnce(T) -> U) -> KeptPlace<U> {
        KeptPlace { place: name(self.place), since: self.since }
    }
}

impl KeyedPlaces {
    /// So many empty places. Nothing asks for memory later.
    pub fn new(places: u32) -> Self {
        let kept = Kept { key: None, since: 0, before: NONE, after: NONE };
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

    /// Places that can be taken: empty and idle ones.
    pub fn free(&self) -> usize {
        self.counts.free() + self.idle
    }

    /// Idle places: those that the cache alone holds.
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Places of the pool.
    pub fn places(&self) -> usize {
        self.counts.places()
    }

    /// How many hold the place, the cache included.
    pub fn holders(&self, place: u32) -> u32 {
        self.counts.holders(place)
    }

    /// Takes an empty place, else the one that was idle for longest, whose contents are lost.
    pub fn take(&mut self) -> Option<u32> {
        if self.counts.free() == 0 && self.oldest != NONE {
            self.forget(self.oldest);
        }
        self.counts.take()
    }

    /// Adds a holder to a place that is in use or kept.
    pub fn retain(&mut self, place: u32) {
        if self.is_idle(place) {
            self.unlink(place);
        }
        self.counts.retain(place);
    }

    /// Removes a holder. The last one empties the place, unless it is kept.
    pub fn release(&mut self, place: u32) {
        self.counts.release(place);
        if self.is_idle(place) {
            self.link(place);
        }
    }

    /// Keeps a place that somebody holds under a key. False, and nothing changes, where another place is kept under
    /// it, or this one under another.
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

    /// The place that is kept under a key.
    pub fn find(&self, key: &PrefixKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// [`Self::find`], told from every other time that something was kept.
    pub fn find_kept(&self, key: &PrefixKey) -> Option<KeptPlace<u32>> {
        let place = self.find(key)?;
        Some(KeptPlace { place, since: self.kept.get(place as usize)?.since })
    }

    /// The key that a place is kept under.
    pub fn key(&self, place: u32) -> Option<PrefixKey> {
        self.kept.get(place as usize).and_then(|kept| kept.key)
    }

    /// Keeps a place no longer.
    pub fn forget(&mut self, place: u32) {
        // Default: what is not kept is forgotten already.
        let Some(key) = self.key(place) else { return };
        if self.is_idle(place) {
            self.unlink(place);
        }
        self.by_key.remove(&key);
        self.kept[place as usize].key = None;
        self.counts.release(place);
    }

    /// Whether the cache alone holds a place.
    fn is_idle(&self, place: u32) -> bool {
        self.key(place).is_some() && self.counts.holders(place) == 1
    }

    /// Adds a place behind the newest idle one.
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
        let Kept { before, after, .. } = self.kept[place as usize];
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

    /// Random calls against a list of what is held and kept, oldest idle place first.
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
