//! Randomness as a parameter: seeded by the system in production, by a number
//! in tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of distinct, well-spread numbers. They name things; they are not secrets.
// On cache lines of its own: every request draws, on all cores, and what stands beside
// it would be read anew each time.
#[derive(Debug)]
#[repr(align(128))]
pub struct Entropy {
    seed: u64,
    drawn: AtomicU64,
}

impl Entropy {
    /// Seeded by the operating system.
    #[expect(
        clippy::disallowed_methods,
        reason = "the randomness that is handed in"
    )]
    pub fn system() -> std::io::Result<Self> {
        Ok(Self::seeded(getrandom::u64()?))
    }

    /// The same numbers for the same seed.
    pub const fn seeded(seed: u64) -> Self {
        Self {
            seed,
            drawn: AtomicU64::new(0),
        }
    }

    /// The next number.
    pub fn next_u64(&self) -> u64 {
        let [number] = self.next();
        number
    }

    /// The next numbers, at once: SplitMix64, a bijection of the count of draws, so
    /// no number comes twice from one source.
    pub fn next<const N: usize>(&self) -> [u64; N] {
        let first = self.drawn.fetch_add(N as u64, Ordering::Relaxed);
        std::array::from_fn(|at| {
            let draw = first.wrapping_add(at as u64);
            let mut z = self
                .seed
                .wrapping_add(draw.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }

    /// Two numbers as one.
    pub fn next_u128(&self) -> u128 {
        let [high, low] = self.next();
        (u128::from(high) << 64) | u128::from(low)
    }
}
