//! How much to trust each of several memories: the shares with which they would have predicted the
//! uses of the last steps best, by least squares.

/// Memories of different length.
pub(super) const MEMORIES: usize = 4;

/// Tokens after which an observation counts half.
const HALF_LIFE: f64 = 512.0;

/// What the share of a memory shorter than the first must exceed to count: less may be chance.
const DOUBT: f64 = 0.02;

/// Rounds of coordinate descent: the equations are few, and change little from step to step.
const ROUNDS: usize = 8;

/// Shares of memories in an estimate, none of them negative.
#[derive(Clone, Debug)]
pub(super) struct Blend {
    shares: [f64; MEMORIES],
    /// Sums of products of what the memories said, and of that with what came.
    products: [[f64; MEMORIES]; MEMORIES],
    outcomes: [f64; MEMORIES],
}

impl Blend {
    /// Begins with these shares, held as firmly as observations of the squared rates `weight`.
    pub fn new(shares: [f64; MEMORIES], weight: f64) -> Self {
        let mut products = [[0.0; MEMORIES]; MEMORIES];
        for (at, row) in products.iter_mut().enumerate() {
            row[at] = weight.max(1e-9);
        }
        Self { shares, products, outcomes: shares.map(|share| share * weight.max(1e-9)) }
    }

    /// The memories said `rates`, and `rate` came.
    pub fn observe(&mut self, rates: [f64; MEMORIES], rate: f64) {
        for (row, a) in self.products.iter_mut().zip(rates) {
            row.iter_mut().zip(rates).for_each(|(sum, b)| *sum += a * b);
        }
        self.outcomes.iter_mut().zip(rates).for_each(|(sum, a)| *sum += a * rate);
    }

    /// `tokens` went by: what was observed before them counts less.
    pub fn fade(&mut self, tokens: f64) {
        let kept = libm::exp2(-tokens / HALF_LIFE);
        self.products.iter_mut().flatten().for_each(|sum| *sum *= kept);
        self.outcomes.iter_mut().for_each(|sum| *sum *= kept);
    }

    /// Adapts the shares to what was observed.
    pub fn solve(&mut self) {
        for _ in 0..ROUNDS {
            for at in 0..MEMORIES {
                let row = self.products[at];
                let others: f64 = row.iter().zip(self.shares).map(|(a, share)| a * share).sum();
                let rest = self.outcomes[at] - (others - row[at] * self.shares[at]);
                if row[at] > 0.0 {
                    let doubt = if at == 0 { 0.0 } else { DOUBT };
                    self.shares[at] = (rest / row[at] - doubt).max(0.0);
                }
            }
        }
    }

    /// The estimate.
    pub fn of(&self, rates: [f64; MEMORIES]) -> f64 {
        rates.iter().zip(self.shares).map(|(rate, share)| rate * share).sum()
    }
}
