//! One log entry for each request that has a key or was refused, with the fields
//! that CONTRACT names.
//!
//! A key is logged as a keyed hash unless the configuration says otherwise. The
//! hash is the same for the same key, so that its requests can be found
//! together. Values that clients choose (names, paths) are escaped and cut:
//! they must not forge entries, move a terminal's cursor or fill a disk.

use std::borrow::Cow;
use std::fmt::Write;

use onceward_core::caller::Caller;
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_http::problem::Code;
use onceward_http::rules::KeySource;
use onceward_http::run::Outcome;

use crate::config::{LoggedKeys, Policy};
use crate::observe::traces::TraceId;
use crate::secrets::gateway_key::GatewayKey;

/// The most bytes of a field before an ellipsis. A namespaced key fits.
const FIELD_BYTES_MAX: usize = 1024;

/// Writes the access log.
pub(crate) struct AccessLog {
    secret: GatewayKey,
    keys: LoggedKeys,
}

/// Where a key came from, as the log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedSource {
    /// The `Idempotency-Key` header.
    Header,
    /// The path of a recovery request.
    Path,
    /// Parts of the request, where the client sent no key.
    Derived,
    /// A provider's id of its event.
    Provider,
}

impl LoggedSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Path => "path",
            Self::Derived => "derived",
            Self::Provider => "provider",
        }
    }
}

impl From<KeySource> for LoggedSource {
    fn from(source: KeySource) -> Self {
        match source {
            KeySource::Header => Self::Header,
            KeySource::Derived { .. } => Self::Derived,
            KeySource::Provider => Self::Provider,
        }
    }
}

/// A request with a key, before it runs: the fields of its entry.
#[derive(Clone, Copy)]
pub(crate) struct KeyedRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) key: &'a Key,
    pub(crate) source: LoggedSource,
    pub(crate) policy: Option<Policy>,
    pub(crate) trace: Option<TraceId>,
}

/// A request that was refused before any claim. Facts that are not known or not
/// valid are left out.
#[derive(Clone, Copy)]
pub(crate) struct RefusedRequest<'a> {
    /// The code of the problem that answered it.
    pub(crate) code: Code,
    /// The reason, more precise than the code.
    pub(crate) reason: Option<&'static str>,
    pub(crate) caller: Option<&'a Caller>,
    pub(crate) endpoint: Option<&'a Endpoint>,
    /// The actual or expected source of its key.
    pub(crate) source: Option<LoggedSource>,
    pub(crate) policy: Option<Policy>,
    pub(crate) trace: Option<TraceId>,
}

impl RefusedRequest<'_> {
    /// A refusal without further facts.
    pub(crate) fn new(code: Code) -> Self {
        Self {
            code,
            reason: None,
            caller: None,
            endpoint: None,
            source: None,
            policy: None,
            trace: None,
        }
    }
}

/// The entry of a running request. Dropping it before [`end`](Self::end) writes the
/// outcome `client-gone`: the client disconnected before its answer.
pub(crate) struct AccessEntry {
    caller: Caller,
    endpoint: Endpoint,
    key: String,
    source: LoggedSource,
    policy: Option<Policy>,
    trace: Option<TraceId>,
    written: bool,
}

impl AccessEntry {
    /// Writes the entry with the request's outcome.
    pub(crate) fn end(mut self, outcome: Outcome, id: Option<OperationId>) {
        let is_replay = matches!(outcome, Outcome::Replayed(_));
        self.write(outcome.as_str(), is_replay, id);
    }

    /// Writes nothing.
    pub(crate) fn discard(mut self) {
        self.written = true;
    }

    fn write(&mut self, outcome: &'static str, hit: bool, id: Option<OperationId>) {
        self.written = true;
        let operation_id = id.map(|id| id.to_string());
        let trace_id = self.trace.map(|trace| trace.to_string());
        tracing::info!(
            target: "onceward::access",
            idempotency_case = self.policy.map(Policy::case),
            idempotency_key_namespaced = &*plain(&self.key),
            idempotency_source = self.source.as_str(),
            idempotency_policy = self.policy.map(Policy::as_str),
            idempotency_outcome = outcome,
            restate_invocation_id = Option::<&str>::None,
            restate_cache_hit = hit,
            tenant = &*plain(self.caller.tenant()),
            project = &*plain(self.caller.project()),
            endpoint = &*plain(self.endpoint.as_str()),
            operation_id,
            trace_id,
        );
    }
}

impl Drop for AccessEntry {
    fn drop(&mut self) {
        if !self.written {
            self.write("client-gone", false, None);
        }
    }
}

impl AccessLog {
    pub(crate) fn new(secret: GatewayKey, keys: LoggedKeys) -> Self {
        Self { secret, keys }
    }

    /// Begins the entry of a request; `None` if the log is off.
    pub(crate) fn begin(&self, request: KeyedRequest<'_>) -> Option<AccessEntry> {
        if !is_on() {
            return None;
        }
        let identity = Identity {
            caller: request.caller.clone(),
            endpoint: request.endpoint.clone(),
            key: request.key.clone(),
            // Namespaced keys do not depend on it.
            space: KeySpace::Endpoint,
        };
        let name = identity.name().ok()?;
        Some(AccessEntry {
            key: match self.keys {
                LoggedKeys::Hashed => self.secret.hash(name.as_bytes()),
                LoggedKeys::Clear => name,
            },
            caller: identity.caller,
            endpoint: identity.endpoint,
            source: request.source,
            policy: request.policy,
            trace: request.trace,
            written: false,
        })
    }

    /// Writes the entry of a request that was refused before any claim. A
    /// refused key is not logged.
    pub(crate) fn refused(&self, refusal: RefusedRequest<'_>) {
        if !is_on() {
            return;
        }
        let trace_id = refusal.trace.map(|trace| trace.to_string());
        let tenant = refusal.caller.map(|caller| plain(caller.tenant()));
        let project = refusal.caller.map(|caller| plain(caller.project()));
        let endpoint = refusal.endpoint.map(|endpoint| plain(endpoint.as_str()));
        tracing::info!(
            target: "onceward::access",
            idempotency_case = refusal.policy.map(Policy::case),
            idempotency_source = refusal.source.map(LoggedSource::as_str),
            idempotency_policy = refusal.policy.map(Policy::as_str),
            idempotency_outcome = refusal.code.as_str(),
            reason = refusal.reason,
            tenant = tenant.as_deref(),
            project = project.as_deref(),
            endpoint = endpoint.as_deref(),
            trace_id,
        );
    }
}

/// Whether the log is on.
pub(super) fn is_on() -> bool {
    tracing::enabled!(target: "onceward::access", tracing::Level::INFO)
}

/// Escapes characters that could end a line, move a cursor or hide other text, and
/// cuts the value to the length of a field.
fn plain(text: &str) -> Cow<'_, str> {
    if text.len() <= FIELD_BYTES_MAX && !text.contains(is_unsafe_to_log) {
        return text.into();
    }
    let mut written = String::new();
    for letter in text.chars() {
        if written.len() >= FIELD_BYTES_MAX {
            written.push('…');
            break;
        }
        if is_unsafe_to_log(letter) {
            // Writing to a string cannot fail.
            let _ = write!(written, "\\u{{{:x}}}", u32::from(letter));
        } else {
            written.push(letter);
        }
    }
    written.into()
}

/// Control characters, line and paragraph separators, and marks that change the
/// writing direction or are invisible.
fn is_unsafe_to_log(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use onceward_core::caller::{Subject as Sender, SubjectKind};
    use onceward_core::record::State;
    use rstest::rstest;
    use tracing::field::{Field, Visit};
    use tracing::span;
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Records each event as lines of `name=value`.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    struct Fields(Vec<String>);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.push(format!("{}={value}", field.name()));
        }

        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.push(format!("{}={value:?}", field.name()));
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields(Vec::new());
            event.record(&mut fields);
            let mut lines = self.0.lock().expect("not poisoned");
            lines.push(fields.0.join("\n"));
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    fn logged(work: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), work);
        log.0.lock().expect("not poisoned").clone()
    }

    fn caller(name: &str) -> Caller {
        let subject = Sender::new(SubjectKind::User, "u").expect("a good subject");
        Caller::trusted(name, name, subject).expect("a good caller")
    }

    fn access(keys: LoggedKeys) -> AccessLog {
        AccessLog::new(GatewayKey::new().expect("random bytes"), keys)
    }

    fn write(keys: LoggedKeys, name: &str, endpoint: &str) -> Vec<String> {
        logged(|| {
            let (caller, endpoint) = (caller(name), Endpoint::new(endpoint));
            let access = access(keys);
            let key = Key::parse("raw-key").expect("a good key");
            let entry = access.begin(KeyedRequest {
                caller: &caller,
                endpoint: &endpoint,
                key: &key,
                source: LoggedSource::Header,
                policy: Some(Policy::RequiredA),
                trace: TraceId::parse("4bf92f3577b34da6a3ce929d0e0e4736"),
            });
            let entry = entry.expect("the log is on");
            entry.end(Outcome::Replayed(State::Completed), None);
            access.refused(RefusedRequest {
                reason: Some("charset"),
                caller: Some(&caller),
                endpoint: Some(&endpoint),
                source: Some(LoggedSource::Header),
                policy: Some(Policy::Prohibited),
                ..RefusedRequest::new(Code::KeyInvalid)
            });
        })
    }

    #[test]
    fn a_line_has_the_fields_of_the_contract() {
        let lines = write(LoggedKeys::Clear, "acme", "acme");
        assert_eq!(
            lines,
            [
                "idempotency_case=A\n\
                 idempotency_key_namespaced=t-acme:acme:user:u:raw-key\n\
                 idempotency_source=header\n\
                 idempotency_policy=REQUIRED_A\n\
                 idempotency_outcome=replayed\n\
                 restate_cache_hit=true\n\
                 tenant=acme\nproject=acme\nendpoint=acme\n\
                 trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
                "idempotency_case=A\n\
                 idempotency_source=header\n\
                 idempotency_policy=PROHIBITED\n\
                 idempotency_outcome=key-invalid\n\
                 reason=charset\n\
                 tenant=acme\nproject=acme\nendpoint=acme",
            ]
        );
    }

    #[test]
    fn a_key_is_hashed_unless_configured_otherwise() {
        let lines = write(LoggedKeys::Hashed, "acme", "acme").join("\n");
        assert!(!lines.contains("raw-key"), "{lines}");
        assert!(lines.contains("idempotency_key_namespaced="), "{lines}");
    }

    #[rstest]
    #[case::two_lines("acme", "a\r\nb")]
    #[case::escape("acme", "\u{1b}[2J")]
    #[case::next_line("acme", "a\u{85}b")]
    #[case::line_separator("a\u{2028}b", "a\u{2028}b")]
    #[case::paragraph_separator("a\u{2029}b", "a\u{2029}b")]
    #[case::right_to_left("a\u{202e}b", "a\u{202e}b")]
    #[case::byte_order_mark("a\u{feff}b", "a\u{feff}b")]
    fn no_field_contains_a_line_break(#[case] name: &str, #[case] endpoint: &str) {
        for line in write(LoggedKeys::Clear, name, endpoint) {
            assert!(
                line.split('\n').all(|field| field.contains('=')),
                "{line:?}"
            );
            let unsafe_to_log = |letter: char| letter != '\n' && is_unsafe_to_log(letter);
            assert!(!line.contains(unsafe_to_log), "{line:?}");
        }
    }

    #[rstest]
    #[case::plain("payments.create", "payments.create")]
    #[case::ours("zahlung.ä", "zahlung.ä")]
    #[case::two_lines("a\r\nb", r"a\u{d}\u{a}b")]
    #[case::escape("\u{1b}[2J", r"\u{1b}[2J")]
    #[case::del("\u{7f}", r"\u{7f}")]
    #[case::next_line("a\u{85}b", r"a\u{85}b")]
    #[case::line_separator("a\u{2028}b", r"a\u{2028}b")]
    #[case::right_to_left("a\u{202e}b", r"a\u{202e}b")]
    #[case::unseen("a\u{200b}b", r"a\u{200b}b")]
    fn unsafe_characters_are_escaped(#[case] text: &str, #[case] want: &str) {
        assert_eq!(plain(text), want);
    }

    #[test]
    fn a_field_is_cut_short() {
        for letter in ["a", "ä", "\u{1b}"] {
            let cut = plain(&letter.repeat(100_000)).into_owned();
            assert!(cut.len() <= FIELD_BYTES_MAX + 16, "{}", cut.len());
            assert!(cut.ends_with('…'));
        }
    }

    #[test]
    fn a_dropped_entry_is_client_gone() {
        let lines = logged(|| {
            let caller = caller("acme");
            let entry = access(LoggedKeys::Hashed).begin(KeyedRequest {
                caller: &caller,
                endpoint: &Endpoint::new("e"),
                key: &Key::parse("k").expect("a good key"),
                source: LoggedSource::Path,
                policy: Some(Policy::Accepted),
                trace: None,
            });
            drop(entry);
        });
        assert!(lines[0].contains("idempotency_outcome=client-gone"));
    }
}
