//! Reference counts of a fixed number of places, used for pages and recurrent states.

/// Reference counts of the places of a pool.
#[derive(Debug)]
pub struct HolderCounts {
    holders: Vec<u32>, // [places]
    free: Vec<u32>,
}

impl HolderCounts {
    /// Creates a pool of `places` free places.
    pub fn new(places: u32) -> Self {
        Self { holders: vec![0; places as usize], free: (0..places).rev().collect() }
    }

    /// Returns the number of free places.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the total number of places.
    pub fn places(&self) -> usize {
        self.holders.len()
    }

    /// Takes a free place, or returns `None` if there is none.
    pub fn take(&mut self) -> Option<u32> {
        let place = self.free.pop()?;
        self.set(place, 1);
        Some(place)
    }

    /// Adds a holder to a place in use.
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

    /// Returns the number of holders of a place.
    pub fn holders(&self, place: u32) -> u32 {
        self.holders[place as usize]
    }

    fn set(&mut self, place: u32, count: u32) {
        if let Some(holders) = self.holders.get_mut(place as usize) {
            *holders = count;
        }
    }
}
