//! W3C trace context: `traceparent` names the trace of a request and says whether
//! the trace is recorded.
//!
//! An unreadable header counts as absent: a new trace begins.

use std::fmt;

use data_encoding::HEXLOWER;
use http::HeaderMap;

use super::TRACEPARENT;

/// The flag of a recorded trace.
const SAMPLED: u8 = 1;
/// The known flags: recorded, and a random id.
const FLAGS: u8 = 3;
/// The length of a header of version 00.
const LENGTH: usize = 55;

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId([u8; 16]);

impl TraceId {
    pub(super) fn new(id: u128) -> Self {
        Self(id.to_be_bytes())
    }

    /// Reads 32 lower-case hexadecimal digits that are not all zero.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = digits::<16>(text)?;
        (id != [0; 16]).then_some(Self(id))
    }

    /// The trace named by a request's headers, for the log of a gateway that
    /// exports no traces.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let (context, _) = TraceContext::of(headers)?;
        Some(context.id)
    }

    /// A number from 0 to 1 that depends on the id alone.
    pub(super) fn chance(self) -> f64 {
        let [.., a, b, c, d] = self.0;
        f64::from(u32::from_be_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// The id of a span within its trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanId([u8; 8]);

impl SpanId {
    pub(super) fn new(id: u64) -> Self {
        Self(id.to_be_bytes())
    }

    fn parse(text: &str) -> Option<Self> {
        let id = digits::<8>(text)?;
        (id != [0; 8]).then_some(Self(id))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// A trace, and whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceContext {
    id: TraceId,
    flags: u8,
}

impl TraceContext {
    pub(super) fn new(id: TraceId, sampled: bool) -> Self {
        let flags = if sampled { SAMPLED } else { 0 };
        Self { id, flags }
    }

    /// The trace and the parent span named by a request's headers.
    pub(super) fn of(headers: &HeaderMap) -> Option<(Self, SpanId)> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        let line = lines.next()?;
        if lines.next().is_some() {
            // A repeated header is ambiguous and counts as absent.
            return None;
        }
        Self::parse(line.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<(Self, SpanId)> {
        let (head, rest) = text.split_at_checked(LENGTH)?;
        let mut parts = head.split('-');
        let [version] = digits::<1>(parts.next()?)?;
        let id = TraceId::parse(parts.next()?)?;
        let parent = SpanId::parse(parts.next()?)?;
        let [flags] = digits::<1>(parts.next()?)?;
        // Later versions may append more after a hyphen.
        let good = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let flags = flags & FLAGS;
        (good && parts.next().is_none()).then_some((Self { id, flags }, parent))
    }

    pub(super) fn id(self) -> TraceId {
        self.id
    }

    pub(super) fn flags(self) -> u8 {
        self.flags
    }

    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The header that names a span of this trace as the parent.
    pub(super) fn to_header(self, parent: SpanId) -> String {
        format!("00-{}-{parent}-{:02x}", self.id, self.flags)
    }
}

fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;

    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_str(line).expect("a header's value");
            headers.append(TRACEPARENT, line);
        }
        headers
    }

    #[rstest]
    #[case::recorded("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", 1)]
    #[case::not_recorded("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", 0)]
    #[case::random_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", 3)]
    #[case::unknown_flags("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fd", 1)]
    #[case::a_later_version("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", 1)]
    #[case::that_says_more("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", 1)]
    fn a_readable_header_is_joined(#[case] line: &str, #[case] flags: u8) {
        let (context, parent) = TraceContext::of(&headers(&[line])).expect("a context");
        assert_eq!(context.id().to_string(), ID);
        assert_eq!(parent.to_string(), "00f067aa0ba902b7");
        assert_eq!(context.flags(), flags);
        let said = format!("00-{ID}-00f067aa0ba902b7-{flags:02x}");
        assert_eq!(context.to_header(parent), said);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::words("hello")]
    #[case::upper_case("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01")]
    #[case::no_trace("00-00000000000000000000000000000000-00f067aa0ba902b7-01")]
    #[case::no_parent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01")]
    #[case::version_ff("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    #[case::too_much("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")]
    #[case::too_much_later("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x")]
    #[case::too_little("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0")]
    #[case::shifted("00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01")]
    #[case::other_marks("00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01")]
    fn an_unreadable_header_is_ignored(#[case] line: &str) {
        assert_eq!(TraceContext::of(&headers(&[line])), None);
    }

    #[test]
    fn a_repeated_header_is_ignored() {
        let line = format!("00-{ID}-00f067aa0ba902b7-01");
        assert_eq!(TraceContext::of(&headers(&[&line, &line])), None);
    }

    #[test]
    fn the_sampling_chance_depends_on_the_id_alone() {
        assert_eq!(TraceId::new(1 << 64).chance(), 0.0);
        assert!(TraceId::new(u128::MAX).chance() < 1.0);
        assert!(TraceId::new(u128::MAX).chance() > 0.99);
    }
}
