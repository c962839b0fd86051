//! Weights for several frequency memories, fitted by least squares to predict the uses of recent steps.

/// Number of memories, which differ in length.
pub(super) const MEMORIES: usize = 4;

/// Tokens after which an observation counts half.
const HALF_LIFE: f64 = 512.0;

/// Minimum weight of memories shorter than the first; smaller ones may be due to chance.
const DOUBT: f64 = 0.02;

/// Rounds of coordinate descent. Few suffice: the equations are few and change little between steps.
const ROUNDS: usize = 8;

/// Non-negative weights of the memories in an estimate.
#[derive(Clone, Debug)]
pub(super) struct Blend {
    shares: [f64; MEMORIES],
    /// Sums of products of the memories' rates, and of these with the observed rates.
    products: [[f64; MEMORIES]; MEMORIES],
    outcomes: [f64; MEMORIES],
}

impl Blend {
    /// Creates weights that count like observations with squared rates of `weight`.
    pub fn new(shares: [f64; MEMORIES], weight: f64) -> Self {
        let mut products = [[0.0; MEMORIES]; MEMORIES];
        for (at, row) in products.iter_mut().enumerate() {
            row[at] = weight.max(1e-9);
        }
        Self { shares, products, outcomes: shares.map(|share| share * weight.max(1e-9)) }
    }

    /// Adds an observation: the memories predicted `rates`, and `rate` was observed.
    pub fn observe(&mut self, rates: [f64; MEMORIES], rate: f64) {
        for (row, a) in self.products.iter_mut().zip(rates) {
            row.iter_mut().zip(rates).for_each(|(sum, b)| *sum += a * b);
        }
        self.outcomes.iter_mut().zip(rates).for_each(|(sum, a)| *sum += a * rate);
    }

    /// Decays earlier observations by `tokens` tokens.
    pub fn fade(&mut self, tokens: f64) {
        let kept = libm::exp2(-tokens / HALF_LIFE);
        self.products.iter_mut().flatten().for_each(|sum| *sum *= kept);
        self.outcomes.iter_mut().for_each(|sum| *sum *= kept);
    }

    /// Fits the weights to the observations.
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

    /// Returns the weighted estimate.
    pub fn of(&self, rates: [f64; MEMORIES]) -> f64 {
        rates.iter().zip(self.shares).map(|(rate, share)| rate * share).sum()
    }
}
