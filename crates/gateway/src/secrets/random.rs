//! Random bytes for secrets, from the operating system. The one place that
//! takes them; a seeded source would make secrets that can be guessed.

/// Fresh random bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "the one source of secrets; names come from a handed-in Entropy"
)]
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
