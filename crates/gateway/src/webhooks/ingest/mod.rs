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
use http::{Method, Request, Response};
use hyper::body::Incoming;
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_http::body::Body;
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};
use onceward_http::run::Outcome;
use onceward_webhooks::{
    Delivery, Event, EventBody, Handshake, Provider, Refusal, SigningKey, identify, verify,
};
use tokio::sync::oneshot;

use self::acknowledgement::{SAME_BYTES, response};
use self::same_bytes::SameBytesCheck;
use crate::config::{Deliver, Policy};
use crate::listen::peer::Peer;
use crate::observe::access_log::{Source, Subject as Logged};
use crate::observe::metrics::RouteMetrics;
use crate::request::limits::Buffered;
use crate::request::{ClientRequest, Seen, pass};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
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
    plan: &'a Arc<Plan>,
    webhook: &'a Webhook,
    route: &'a Arc<PlannedRoute>,
    class: Arc<Class>,
    caller: Caller,
    endpoint: Endpoint,
    peer: Peer,
    metrics: Arc<RouteMetrics>,
}

impl Runtime {
    /// Answers a provider's request.
    pub(crate) async fn ingest(
        &self,
        plan: &Arc<Plan>,
        to: WebhookPath,
        request: Request<Incoming>,
        peer: Peer,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        seen.policy = Some(Policy::RequiredB);
        let by_path = to.provider.ok_or_else(unauthenticated)?;
        let name = by_path.name();
        seen.label = Some(format!("webhooks.{name}"));
        let limit = plan.config.server.body_limit;
        let arrived = ClientRequest::Streaming(request);
        // The tenant is not known before the signature is verified.
        let unknown = Caller::local();
        let (request, held) = self.read(plan, limit, &unknown, arrived).await?;
        let (parts, body) = request.into_parts();

        let (webhook, keys) = self.find_webhook(plan, &by_path, &to.id).await?;
        let url = plan.config.server.public_url.as_deref().unwrap_or_default();
        let target = parts
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let url = format!("{url}{target}");
        let sent = onceward_webhooks::Parts {
            url: &url,
            headers: &parts.headers,
            body: &body,
        };
        // An unknown webhook is verified with the path's provider and a decoy
        // key, so that a malformed header gets the same answer as at any other.
        let provider = webhook
            .as_ref()
            .map_or(&by_path, |webhook| &webhook.provider);
        let now = (self.clock().now().unix_ms() / 1000).cast_signed();
        let tolerance = plan.config.webhooks.tolerance;
        let verified = verify(provider, &sent, &keys, now, tolerance);
        let verified = verified.map_err(|refusal| self.refuse(name, &refusal, seen))?;
        // A signature by the decoy key opens nothing.
        let webhook = webhook.as_deref().ok_or_else(unauthenticated)?;

        let context = self.context(plan, webhook, peer)?;
        seen.caller = Some(context.caller.clone());
        seen.endpoint = Some(context.endpoint.clone());
        self.admit(&context.caller).await?;
        let events = match identify(&verified) {
            Ok(Delivery::Handshake(Handshake::Answer { content_type, body })) => {
                seen.outcome = Some("handshake");
                return Ok(response(Some(content_type), body));
            }
            Ok(Delivery::Handshake(Handshake::Pass)) => {
                seen.outcome = Some("handshake");
                return self.pass_handshake(&context, (&parts, body), held).await;
            }
            Ok(Delivery::Events(events)) => events,
            Err(unidentified) => {
                context.metrics.translation_failed(name);
                seen.reason = Some(unidentified.reason());
                return Err(Problem::new(
                    Code::TranslationFailed,
                    format!("The request has no provider event id: {unidentified}."),
                ));
            }
        };
        let sent = (&parts, &body);
        match webhook.deliver {
            Deliver::Async => self.enqueue(&context, sent, &events, seen).await,
            Deliver::Sync => self.forward(&context, sent, &events, seen).await,
        }
    }

    /// The webhook with this id and its keys. For an unknown webhook, or one
    /// without a valid secret: decoy keys.
    async fn find_webhook(
        &self,
        plan: &Plan,
        provider: &Provider,
        id: &str,
    ) -> Result<(Option<Arc<Webhook>>, Arc<[SigningKey]>), Problem> {
        let found = self
            .webhooks()
            .find(&plan.config, provider.name(), id)
            .await;
        let Some(webhook) = found.map_err(|error| lookup_failed(&error))? else {
            return Ok((None, decoy_keys(provider)));
        };
        match self.webhooks().keys(&webhook).await {
            Ok(keys) => Ok((Some(webhook), keys)),
            // It has no secret yet, or none that is still valid.
            Err(WebhooksError::NoSecret {
                problem: NoSecret::Ended,
                ..
            }) => Ok((None, decoy_keys(provider))),
            Err(error) => Err(lookup_failed(&error)),
        }
    }

    /// Forwards a provider's handshake, signed and not recorded; the upstream's
    /// answer is the answer.
    async fn pass_handshake(
        &self,
        context: &IngestContext<'_>,
        sent: (&Parts, Bytes),
        held: Buffered,
    ) -> Result<Response<Body>, Problem> {
        let event = context.queued_event_of(sent, &SameBytesCheck::New(None));
        let forwarder = self.event_forwarder(context.plan, context.route, &event, &context.caller);
        // Always a new id: an upstream that remembers ids must not drop it.
        let id = format!("trial_{:016x}", self.engine().chance());
        let request = forwarder.sign(event.into_request(), &id).await;
        let request = request.map_err(|error| lookup_failed(&error))?;
        pass(ClientRequest::Whole(request, held), forwarder.context()).await
    }

    fn context<'a>(
        &self,
        plan: &'a Arc<Plan>,
        webhook: &'a Webhook,
        peer: Peer,
    ) -> Result<IngestContext<'a>, Problem> {
        let name = webhook.provider.name();
        let route = plan.event_routes.get(&webhook.upstream);
        // The registry resolves only configured upstreams.
        let route = route.ok_or_else(|| {
            Problem::new(
                Code::UpstreamUnreachable,
                "The webhook's upstream is not configured.",
            )
        })?;
        let class = self.class(plan, &plan.config.webhooks.class)?;
        let caller = webhook.caller.clone();
        let label = format!("webhooks.{name}");
        Ok(IngestContext {
            plan,
            webhook,
            route,
            metrics: self.metrics().of(&caller, &label, &class.name),
            // Per webhook: a sender to one webhook cannot use up the event ids
            // of another.
            endpoint: Endpoint::new(&format!("{label}.{}", webhook.id)),
            class,
            caller,
            peer,
        })
    }

    /// Does the work for one event, counts it and logs it under its key.
    async fn count_and_log<T>(
        &self,
        context: &IngestContext<'_>,
        key: &Key,
        seen: &Seen,
        work: impl Future<Output = Result<T, Problem>>,
        outcome_of: impl Fn(&T) -> (Outcome, Option<OperationId>),
    ) -> Result<T, Problem> {
        context.metrics.key_present(Policy::RequiredB.case());
        let line = self.access_log().begin(context.log_subject(key, seen));
        let done = work.await;
        let (outcome, id) = match &done {
            Ok(done) => outcome_of(done),
            Err(problem) => (Outcome::Refused(problem.code()), None),
        };
        context.metrics.ended(outcome);
        self.access_log().end(line, outcome, id);
        done
    }

    /// Does work to its end even if the provider hangs up: the bytes of a recorded
    /// event must be remembered.
    async fn run_detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        self.engine().spawn(async move {
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

    fn refuse(&self, provider: &str, refusal: &Refusal, seen: &mut Seen) -> Problem {
        self.metrics().webhook_refused(provider, refusal.reason());
        seen.reason = Some(refusal.reason());
        match refusal.is_shape() {
            true => Problem::new(
                Code::BadRequest,
                format!("The request is not in the form that this provider sends: {refusal}."),
            ),
            false => unauthenticated(),
        }
    }
}

impl IngestContext<'_> {
    fn identity(&self, key: Key) -> Identity {
        Identity {
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            key,
            space: KeySpace::Endpoint,
        }
    }

    fn log_subject<'a>(&'a self, key: &'a Key, seen: &Seen) -> Logged<'a> {
        Logged {
            caller: &self.caller,
            endpoint: &self.endpoint,
            key,
            source: Source::Provider,
            policy: Some(Policy::RequiredB),
            trace: seen.trace_id(),
        }
    }

    /// The event as it goes to the upstream. One of a batch has an envelope of its
    /// own.
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

/// Keys for an unknown webhook, so that a request to it is verified like any
/// other. They open nothing.
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
