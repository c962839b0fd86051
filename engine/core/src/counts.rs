//! Who holds which of a fixed number of places: the count behind pages and recurrent states.

/// Counts the holders of every place of one pool.
#[derive(Debug)]
pub struct HolderCounts {
    holders: Vec<u32>, // [places]
    free: Vec<u32>,
}

impl HolderCounts {
    /// So many free places.
    pub fn new(places: u32) -> Self {
        Self { holders: vec![0; places as usize], free: (0..places).rev().collect() }
    }

    /// Places that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Places of the pool.
    pub fn places(&self) -> usize {
        self.holders.len()
    }

    /// Takes a free place, if there is one.
    pub fn take(&mut self) -> Option<u32> {
        let place = self.free.pop()?;
        self.set(place, 1);
        Some(place)
    }

    /// Adds a holder to a place that is in use.
    pub fn retain(&mut self, place: u32) {
        self.set(place, self.holders(place) + 1);
    }

    /// Removes a holder; the last one frees the place.
    pub fn release(&mut self, place: u32) {
        match self.holders(place) {
            0 => {}
            1 => {
                self.set(place, 0);
                self.free.push(place);
            }
            more => self.set(place, more - 1),
        }
    }

    /// How many hold the place.
    pub fn holders(&self, place: u32) -> u32 {
        self.holders[place as usize]
    }

    fn set(&mut self, place: u32, count: u32) {
        if let Some(holders) = self.holders.get_mut(place as usize) {
            *holders = count;
        }
    }
}
