//! Numbers that are the same on every machine, shaped like what caches hold and like what breaks them.

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// N(0, 1), by Box and Muller.
    pub fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn gaussians(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.gaussian() as f32).collect()
    }

    /// Softmax of Gaussian logits per head, (heads, tokens); the last of several heads has mixed signs, because
    /// nothing says that weights are probabilities.
    pub fn weights(&mut self, heads: usize, tokens: usize) -> Vec<f32> {
        let mut weights = Vec::new();
        for head in 0..heads {
            let raw: Vec<f64> = (0..tokens).map(|_| (1.5 * self.gaussian()).exp()).collect();
            let sum: f64 = raw.iter().sum();
            let mixed = heads > 1 && head + 1 == heads;
            weights.extend(raw.iter().map(|w| {
                let sign = if mixed && self.unit() < 0.5 { -1.0 } else { 1.0 };
                (sign * w / sum) as f32
            }));
        }
        weights
    }
}

/// What a page is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Gaussian,
    /// Cubes of Gaussians.
    HeavyTailed,
    /// One channel a thousand times the others, as some keys have.
    HugeChannel,
    /// Every third channel is constant over the page.
    ConstantChannels,
    /// Around 1e-6, where binary16 scales are subnormal.
    Tiny,
    /// Around 1e4, towards the end of binary16.
    Large,
    Zeros,
    /// Every other token is zero.
    ZeroTokens,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Gaussian,
        Kind::HeavyTailed,
        Kind::HugeChannel,
        Kind::ConstantChannels,
        Kind::Tiny,
        Kind::Large,
        Kind::Zeros,
        Kind::ZeroTokens,
    ];

    /// Rows, (tokens, dim).
    pub fn rows(self, tokens: usize, dim: usize, random: &mut Random) -> Vec<f32> {
        let huge = random.word() as usize % dim;
        let constants = random.gaussians(dim);
        let mut number = |t: usize, c: usize| {
            let x = random.gaussian();
            match self {
                Kind::Gaussian => x,
                Kind::HeavyTailed => x * x * x,
                Kind::HugeChannel if c == huge => 1000.0 * x,
                Kind::HugeChannel => x,
                Kind::ConstantChannels if c.is_multiple_of(3) => f64::from(constants[c]),
                Kind::ConstantChannels => x,
                Kind::Tiny => 1e-6 * x,
                // Even a stretching basis keeps this below 65504.
                Kind::Large => 5e3 * x.clamp(-3.0, 3.0),
                Kind::Zeros => 0.0,
                Kind::ZeroTokens if t.is_multiple_of(2) => 0.0,
                Kind::ZeroTokens => x,
            }
        };
        (0..tokens * dim).map(|n| number(n / dim, n % dim) as f32).collect()
    }
}
