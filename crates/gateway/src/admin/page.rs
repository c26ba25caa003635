//! Pages of a list: how many at most, and where the next one begins.

use super::problem::Problem;

/// How many a page has where nobody says.
pub(super) const DEFAULT: usize = 100;
/// The largest page.
pub(super) const MAX: usize = 1_000;

/// A page of what lies in memory, in its order.
pub(super) struct Page<'a, T> {
    pub(super) found: Vec<&'a T>,
    /// The last of them, if there are more.
    pub(super) next: Option<String>,
}

/// Those that are wanted, after the one of this name.
pub(super) fn page<'a, T>(
    all: &'a [T],
    name: impl Fn(&T) -> &str,
    wanted: impl Fn(&T) -> bool,
    limit: Option<usize>,
    after: Option<&str>,
) -> Result<Page<'a, T>, Problem> {
    let limit = limited(limit, DEFAULT, MAX)?;
    let begin = match after {
        None => 0,
        Some(after) => {
            let last = all.iter().position(|one| name(one) == after);
            last.ok_or_else(|| Problem::bad("`after` is the `next` of a page before."))? + 1
        }
    };
    let mut rest = all[begin..].iter().filter(|one| wanted(one));
    let found: Vec<_> = rest.by_ref().take(limit).collect();
    let last = found.last().map(|one| name(one).to_owned());
    let next = last.filter(|_| rest.next().is_some());
    Ok(Page { found, next })
}

/// How many at most, as asked for.
pub(super) fn limited(asked: Option<usize>, default: usize, max: usize) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(default);
    match (1..=max).contains(&limit) {
        true => Ok(limit),
        false => Err(Problem::bad(format!("`limit` is from 1 to {max}."))),
    }
}
