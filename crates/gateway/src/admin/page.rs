//! Pages of a list: the page size and the cursor of the next page.

use super::problem::Problem;

/// The page size where the request names none.
pub(super) const DEFAULT: usize = 100;
/// The largest page.
pub(super) const MAX: usize = 1_000;

/// A page of a list in memory, in the list's order.
pub(super) struct ListPage<'a, T> {
    pub(super) items: Vec<&'a T>,
    /// The cursor of the next page: the name of the last item, if more follow.
    pub(super) next: Option<String>,
}

/// The items that match, after the one named `after`.
pub(super) fn paginate<'a, T>(
    all: &'a [T],
    name: impl Fn(&T) -> &str,
    matches: impl Fn(&T) -> bool,
    limit: Option<usize>,
    after: Option<&str>,
) -> Result<ListPage<'a, T>, Problem> {
    let limit = parse_limit(limit, DEFAULT, MAX)?;
    let begin = match after {
        None => 0,
        Some(after) => {
            let last = all.iter().position(|item| name(item) == after);
            last.ok_or_else(invalid_cursor)? + 1
        }
    };
    let mut rest = all[begin..].iter().filter(|item| matches(item));
    let items: Vec<_> = rest.by_ref().take(limit).collect();
    let last = items.last().map(|item| name(item).to_owned());
    let next = last.filter(|_| rest.next().is_some());
    Ok(ListPage { items, next })
}

/// The page size that a request asks for.
pub(super) fn parse_limit(
    limit: Option<usize>,
    default: usize,
    max: usize,
) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(default);
    match (1..=max).contains(&limit) {
        true => Ok(limit),
        false => Err(Problem::bad_request(format!(
            "`limit` must be from 1 to {max}."
        ))),
    }
}

pub(super) fn invalid_cursor() -> Problem {
    Problem::bad_request("`after` must be the `next` cursor of the previous page.")
}
