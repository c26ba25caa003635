//! One log line for each protected request, with the fields that the contract
//! names. A key is never logged in the clear: a keyed hash stands for it, the
//! same for the same key, so that its requests can be found together.

use onceward_core::caller::Caller;
use onceward_core::identity::{Endpoint, Identity, OperationId};
use onceward_core::key::{Key, KeyError};
use onceward_http::run::{Call, Ended, Outcome};

use crate::secret::Secret;

/// Writes the lines.
pub(crate) struct Access {
    secret: Secret,
}

/// Where a key came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The `Idempotency-Key` header.
    Header,
    /// The path of a recovery request.
    Path,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Path => "path",
        }
    }
}

/// What is known of a request before it runs. Dropped unwritten, it tells that
/// the client went before the answer came.
pub(crate) struct Line {
    caller: Caller,
    endpoint: Endpoint,
    key_hash: String,
    source: Source,
    written: bool,
}

impl Line {
    fn write(&mut self, outcome: &'static str, hit: bool, id: Option<OperationId>) {
        self.written = true;
        let operation_id = id.map(|id| id.to_string());
        tracing::info!(
            target: "onceward::access",
            idempotency_case = "A",
            idempotency_key_namespaced = self.key_hash,
            idempotency_source = self.source.as_str(),
            idempotency_policy = "ACCEPTED",
            idempotency_outcome = outcome,
            restate_invocation_id = Option::<&str>::None,
            restate_cache_hit = hit,
            tenant = self.caller.tenant(),
            project = self.caller.project(),
            endpoint = self.endpoint.as_str(),
            operation_id,
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.written {
            self.write("client-gone", false, None);
        }
    }
}

impl Access {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { secret }
    }

    /// Notes what a request is; nothing if nobody listens.
    pub(crate) fn begin(&self, call: &Call) -> Option<Line> {
        self.line(&call.caller, &call.key, &call.endpoint, Source::Header)
    }

    /// Writes what a request came to.
    pub(crate) fn end(&self, line: Option<Line>, ended: &Ended) {
        if let Some(mut line) = line {
            let hit = matches!(ended.outcome, Outcome::Replayed(_));
            line.write(ended.outcome.as_str(), hit, ended.id);
        }
    }

    /// Writes what a recovery request came to.
    pub(crate) fn recovered(
        &self,
        caller: &Caller,
        key: Option<&Key>,
        endpoint: &Endpoint,
        ended: &Ended,
    ) {
        let line = key.and_then(|key| self.line(caller, key, endpoint, Source::Path));
        self.end(line, ended);
    }

    /// Writes that a key was refused. What it was is not told.
    pub(crate) fn refused_key(&self, caller: &Caller, source: Source, error: KeyError) {
        tracing::info!(
            target: "onceward::access",
            idempotency_case = "A",
            idempotency_source = source.as_str(),
            idempotency_policy = "ACCEPTED",
            idempotency_outcome = "key-invalid",
            reason = error.reason(),
            tenant = caller.tenant(),
            project = caller.project(),
        );
    }

    fn line(
        &self,
        caller: &Caller,
        key: &Key,
        endpoint: &Endpoint,
        source: Source,
    ) -> Option<Line> {
        if !tracing::enabled!(target: "onceward::access", tracing::Level::INFO) {
            return None;
        }
        let identity = Identity {
            caller: caller.clone(),
            endpoint: endpoint.clone(),
            key: key.clone(),
        };
        Some(Line {
            key_hash: self.secret.hash(identity.name().ok()?.as_bytes()),
            caller: identity.caller,
            endpoint: identity.endpoint,
            source,
            written: false,
        })
    }
}
