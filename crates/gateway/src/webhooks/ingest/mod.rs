//! Requests of providers: read, verified, identified, recorded, acknowledged.
//!
//! A provider is not a known caller; only the signature over the raw bytes
//! authenticates it. Nothing of the request is examined before that, and an
//! unknown webhook, another provider's, and a wrong signature get the same
//! answer. After verification an event is an operation like any other: its key
//! is the provider's own id for it, under the webhook's tenant and project.

mod acknowledgement;
mod queue;
mod same_bytes;
mod sync;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_http::body::Body;
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};
use onceward_http::run::Outcome;
use onceward_webhooks::{
    Delivery, Event, EventBody, Handshake, Provider, Refusal, SigningKey, Tolerance, Unidentified,
    identify, verify,
};
use tokio::sync::oneshot;

use self::acknowledgement::{SAME_BYTES, response};
use self::same_bytes::SameBytesCheck;
use crate::config::{Deliver, Policy};
use crate::listen::peer::Peer;
use crate::observe::access_log::{KeyedRequest, LoggedSource};
use crate::observe::metrics::RouteMetrics;
use crate::observe::report::{Answered, Cause, Refused, Report, Unanswerable};
use crate::observe::traces::TraceId;
use crate::request::admit::{AdmittedCaller, admit_caller};
use crate::request::limits::Buffered;
use crate::request::read::{ClientRequest, WholeRequest, read_body};
use crate::request::screen::Screened;
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
use crate::webhooks::delivery::forwarder::EventForwarder;
use crate::webhooks::queued_event::QueuedEvent;
use crate::webhooks::registry::{ID_PREFIX, NoSecret, Webhook, WebhooksError};

/// The path prefix of every webhook.
pub(crate) const WEBHOOKS: &str = "/api/v1/webhooks/";

/// The webhook that a request's path names.
pub(crate) struct WebhookPath {
    /// None if there is no such provider.
    provider: Option<Provider>,
    id: String,
}

impl WebhookPath {
    /// Parses the path, if it is a webhook's.
    pub(crate) fn parse(plan: &Plan, method: &Method, path: &str) -> Option<Self> {
        let (provider, id) = path.strip_prefix(WEBHOOKS)?.split_once('/')?;
        if method != Method::POST || !id.starts_with(ID_PREFIX) || id.contains('/') {
            return None;
        }
        Some(Self {
            provider: plan.config.webhooks.provider(provider),
            id: id.to_owned(),
        })
    }
}

/// A verified request's webhook, and everything that recording its events needs.
struct IngestContext<'a> {
    runtime: &'a Runtime,
    plan: &'a Arc<Plan>,
    webhook: &'a Webhook,
    route: &'a Arc<PlannedRoute>,
    class: Arc<Class>,
    caller: AdmittedCaller,
    endpoint: Endpoint,
    peer: Peer,
    metrics: Arc<RouteMetrics>,
    trace: Option<TraceId>,
}

/// The results of a request's events.
struct Ingested {
    /// The outcome that the access log has for them, if it has one.
    outcome: Option<&'static str>,
    id: Option<OperationId>,
    response: Result<Response<Body>, Refused>,
}

/// Answers a provider's request: the life of a webhook, top to bottom.
pub(crate) async fn ingest<'a>(
    runtime: &'a Runtime,
    plan: &Arc<Plan>,
    path: WebhookPath,
    request: Screened,
    peer: Peer,
    report: Report<'a>,
) -> Result<Answered<'a>, Unanswerable<'a>> {
    let (by_path, report) = report.carry(path.provider.ok_or_else(unauthenticated))?;
    let name = by_path.name();
    let report = report.labelled(format!("webhooks.{name}"));
    let (head, body) = request.into_parts();
    let request = ClientRequest::Streaming(head, body);
    // The tenant is not known before the signature is verified.
    let (unknown, limit) = (Caller::local(), plan.config.server.body_limit);
    let read = read_body(runtime, plan, limit, &unknown, request).await;
    let (request, report) = report.carry(read)?;
    let found = find_webhook(runtime, plan, &by_path, &path.id).await;
    let ((webhook, keys), report) = report.carry(found)?;
    let signed = SignedRequest {
        url: public_url(plan, &request.head),
        request,
        by_path,
        webhook,
    };
    let now = (runtime.clock().now().unix_ms() / 1000).cast_signed();
    let tolerance = plan.config.webhooks.tolerance;
    let bytes = signed.request.body.len();
    let verifying = move || (signed.verify_and_identify(&keys, now, tolerance), signed);
    let (verified, signed) = runtime.protection().body_work.run(bytes, verifying).await;
    let SignedRequest {
        request,
        by_path,
        webhook,
        ..
    } = signed;
    let WholeRequest {
        head: parts,
        body,
        buffered,
    } = request;
    let name = by_path.name();
    let (identified, report) = report.carry(verified.map_err(|error| refuse(name, &error)))?;
    // The decoy key grants no access.
    let (webhook, report) = report.carry(webhook.as_deref().ok_or_else(unauthenticated))?;

    let (route, report) = report.carry(event_route(plan, webhook))?;
    let (class, report) = report.carry(runtime.class(plan, &plan.config.webhooks.class))?;
    // Per webhook: a sender to one webhook cannot use up the event ids of
    // another.
    let endpoint = Endpoint::new(&format!("webhooks.{name}.{}", webhook.id));
    let report = report
        .at_endpoint(&endpoint, Some(Policy::RequiredB))
        .sent_by(&webhook.caller, &class.name);
    let admitted = admit_caller(runtime, webhook.caller.clone()).await;
    let (caller, report) = report.carry(admitted)?;
    let label = format!("webhooks.{name}");
    let context = IngestContext {
        metrics: runtime.metrics().of(&caller, &label, &class.name),
        trace: report.trace_id(),
        runtime,
        plan,
        webhook,
        route,
        class,
        caller,
        endpoint,
        peer,
    };
    // A tenant over its rate is told that first.
    let identified = identified.map_err(|error| refuse_unidentified(name, &error));
    let (delivery, report) = report.carry(identified)?;
    let events = match delivery {
        Delivery::Handshake(Handshake::Answer { content_type, body }) => {
            let report = report.logged("handshake", None);
            return Ok(report.answered(response(Some(content_type), body)));
        }
        Delivery::Handshake(Handshake::Pass) => {
            let report = report.logged("handshake", None);
            return report.concluded(context.pass_handshake((&parts, body), buffered).await);
        }
        Delivery::Events(events) => events,
    };
    let sent = (&*parts, &body);
    let ingested = match webhook.deliver {
        Deliver::Async => context.enqueue(sent, &events).await,
        Deliver::Sync => context.forward(sent, &events).await,
    };
    let report = match ingested.outcome {
        Some(outcome) => report.logged(outcome, ingested.id),
        None => report,
    };
    match ingested.response {
        Ok(response) => Ok(report.answered(response)),
        Err(refused) => Err(report.refused(refused)),
    }
}

/// A provider's request whose signature is to be verified.
struct SignedRequest {
    request: WholeRequest,
    url: String,
    by_path: Provider,
    webhook: Option<Arc<Webhook>>,
}

impl SignedRequest {
    /// Verifies the signature, and then identifies what the request delivers: both read
    /// the whole body, which may be large.
    fn verify_and_identify(
        &self,
        keys: &[SigningKey],
        now: i64,
        tolerance: Tolerance,
    ) -> Result<Result<Delivery, Unidentified>, Refusal> {
        // An unknown webhook is verified with the path's provider and a decoy
        // key, so that a malformed header gets the same answer as at any other.
        let provider = (self.webhook.as_ref()).map_or(&self.by_path, |webhook| &webhook.provider);
        let sent = onceward_webhooks::Parts {
            url: &self.url,
            headers: &self.request.head.headers,
            body: &self.request.body,
        };
        let verified = verify(provider, &sent, keys, now, tolerance)?;
        Ok(identify(&verified))
    }
}

/// The gateway's public URL with the received path and query.
fn public_url(plan: &Plan, head: &Parts) -> String {
    let url = plan.config.server.public_url.as_deref().unwrap_or_default();
    let target = head.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    format!("{url}{target}")
}

/// The webhook with this id and its keys. For an unknown webhook, or one
/// without a valid secret: decoy keys.
async fn find_webhook(
    runtime: &Runtime,
    plan: &Plan,
    provider: &Provider,
    id: &str,
) -> Result<(Option<Arc<Webhook>>, Arc<[SigningKey]>), Problem> {
    let found = runtime
        .webhooks()
        .find(&plan.config, provider.name(), id)
        .await;
    let Some(webhook) = found.map_err(|error| lookup_failed(&error))? else {
        return Ok((None, decoy_keys(provider)));
    };
    match runtime.webhooks().keys(&webhook).await {
        Ok(keys) => Ok((Some(webhook), keys)),
        // It has no secret yet, or none that is still valid.
        Err(WebhooksError::NoSecret {
            problem: NoSecret::Ended,
            ..
        }) => Ok((None, decoy_keys(provider))),
        Err(error) => Err(lookup_failed(&error)),
    }
}

impl IngestContext<'_> {
    /// Forwards a provider's handshake, signed and not recorded; the upstream's
    /// answer is the answer.
    async fn pass_handshake(
        &self,
        sent: (&Parts, Bytes),
        _buffered: Buffered,
    ) -> Result<Response<Body>, Problem> {
        let event = self.queued_event_of(sent, &SameBytesCheck::New(None));
        let forwarder =
            EventForwarder::new(self.runtime, self.plan, self.route, &event, &self.caller);
        // Always a new id: an upstream that remembers ids must not drop it.
        let id = format!("trial_{:016x}", self.runtime.engine().chance());
        let request = forwarder.sign(event.into_request(), &id).await;
        let request = request.map_err(|error| lookup_failed(&error))?;
        let context = forwarder.context();
        Box::pin(context.route.forwarder.forward_buffered(request, context)).await
    }

    /// Does the work for one event, counts it and logs it under its key.
    async fn count_and_log<T>(
        &self,
        key: &Key,
        work: impl Future<Output = Result<T, Refused>>,
        outcome_of: impl Fn(&T) -> (Outcome, Option<OperationId>),
    ) -> Result<T, Refused> {
        self.metrics.key_present(Policy::RequiredB);
        let entry = self.runtime.access_log().begin(self.log_request(key));
        let done = work.await;
        let (outcome, id) = match &done {
            Ok(done) => outcome_of(done),
            Err(refused) => (Outcome::Refused(refused.code()), None),
        };
        self.metrics.ended(outcome);
        if let Some(entry) = entry {
            entry.end(outcome, id);
        }
        done
    }

    /// Does work to its end even if the provider hangs up: the bytes of a recorded
    /// event must be remembered.
    async fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        self.runtime.engine().spawn(async move {
            // A provider that hung up needs no answer.
            let _ = reply.send(work.await);
        });
        answer.await.map_err(|_| {
            // The task was abandoned because the gateway stops.
            Problem::no_answer_to(
                "The gateway stopped before the upstream answered: the event may have arrived.",
            )
        })
    }

    fn identity(&self, key: Key) -> Identity {
        Identity {
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            key,
            space: KeySpace::Endpoint,
        }
    }

    fn log_request<'a>(&'a self, key: &'a Key) -> KeyedRequest<'a> {
        KeyedRequest {
            caller: &self.caller,
            endpoint: &self.endpoint,
            key,
            source: LoggedSource::Provider,
            policy: Some(Policy::RequiredB),
            trace: self.trace,
        }
    }

    /// The event as it goes to the upstream. An event of a batch has its own
    /// envelope.
    fn queued_event(
        &self,
        (parts, body): (&Parts, &Bytes),
        event: &Event,
        check: &SameBytesCheck,
    ) -> QueuedEvent {
        let body = match &event.body {
            EventBody::Whole => body.clone(),
            EventBody::Part(part) => part.clone().into(),
        };
        self.queued_event_of((parts, body), check)
    }

    fn queued_event_of(
        &self,
        (parts, body): (&Parts, Bytes),
        check: &SameBytesCheck,
    ) -> QueuedEvent {
        let mut headers = parts.headers.clone();
        // Removed before the gateway adds headers that `Connection` might name.
        fields::strip_hop_by_hop(&mut headers);
        headers.remove(SAME_BYTES);
        if matches!(check, SameBytesCheck::Repeated) {
            headers.insert(SAME_BYTES, HeaderValue::from_static("true"));
        }
        if matches!(self.webhook.provider, Provider::Postmark) {
            // The password is for the gateway, and must not be stored or forwarded.
            headers.remove(header::AUTHORIZATION);
        }
        // HTTP/2 has the host in the request target, which is not stored.
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::try_from(authority.as_str())
        {
            headers.entry(header::HOST).or_insert(host);
        }
        QueuedEvent {
            upstream: self.webhook.upstream.to_string(),
            path: self.webhook.path.clone(),
            peer: self.peer.clone(),
            headers,
            body,
        }
    }
}

/// The route by which events go to a webhook's upstream.
fn event_route<'a>(plan: &'a Plan, webhook: &Webhook) -> Result<&'a Arc<PlannedRoute>, Problem> {
    // The registry resolves only configured upstreams.
    plan.event_routes.get(&webhook.upstream).ok_or_else(|| {
        Problem::new(
            Code::UpstreamUnreachable,
            "The webhook's upstream is not configured.",
        )
    })
}

/// The refusal of a request that is not verified.
fn refuse(provider: &str, refusal: &Refusal) -> Refused {
    let problem = match refusal.is_shape() {
        true => Problem::new(
            Code::BadRequest,
            format!("The request is not in the form that this provider sends: {refusal}."),
        ),
        false => unauthenticated(),
    };
    let cause = Cause::Unverified {
        provider: provider.to_owned(),
        reason: refusal.reason(),
    };
    Refused::new(problem, cause)
}

/// The refusal of a verified request without an event's id.
fn refuse_unidentified(provider: &str, error: &Unidentified) -> Refused {
    let problem = Problem::new(
        Code::TranslationFailed,
        format!("The provider's event id cannot be read from this request: {error}."),
    );
    let cause = Cause::Untranslated {
        provider: provider.to_owned(),
        reason: Some(error.reason()),
    };
    Refused::new(problem, cause)
}

fn key_of(event: &Event) -> Result<Key, Problem> {
    Key::parse_wide(&event.key).map_err(Problem::invalid_key)
}

/// The one answer to every request that is not proven to be the provider's. It
/// does not reveal which webhooks exist.
fn unauthenticated() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "The webhook does not exist, or the request's signature is not valid.",
    )
}

/// Keys for an unknown webhook, so that a request to it is verified like any other.
/// They grant no access.
fn decoy_keys(provider: &Provider) -> Arc<[SigningKey]> {
    // The second is for providers whose secret is a name and a password.
    let texts = ["00000000", "nobody:00000000"];
    texts
        .iter()
        .find_map(|text| provider.key(text).ok())
        .into_iter()
        .collect()
}

/// The source of the webhook or of its secrets does not answer.
fn lookup_failed(error: &WebhooksError) -> Problem {
    tracing::error!(%error, "webhook lookup failed");
    Problem::new(
        Code::AuthUnavailable,
        "The webhook or its secrets cannot be read at the moment. Send the event again later.",
    )
    .with_retry_after(5)
}
