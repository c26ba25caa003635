//! What providers send: read, verified, identified, recorded, acknowledged.
//!
//! Whoever writes here is not a caller that we know; the signature over the raw
//! bytes is all that speaks for it. So nothing is looked at before that, and an
//! id that is nobody's, another provider's, or right with a wrong signature are
//! told the same. After it, an event is an operation like any other: its key is
//! the provider's own name for it, under the tenant and project of its webhook.

mod at_once;
mod queued;
mod receipt;
mod same_bytes;

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

use self::receipt::{SAME_BYTES, answered};
use self::same_bytes::Met;
use crate::config::{Deliver, Policy};
use crate::listen::peer::Peer;
use crate::observe::access_log::{Source, Subject as Logged};
use crate::observe::metrics::RouteMetrics;
use crate::request::limits::Buffered;
use crate::request::{ClientRequest, Seen, pass};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
use crate::webhooks::event::Parcel;
use crate::webhooks::registry::{ID_PREFIX, NoSecret, Webhook, WebhooksError};

/// Where providers write to.
pub(crate) const WEBHOOKS: &str = "/api/v1/webhooks/";

/// Whom a request is for.
pub(crate) struct Addressed {
    /// None where nobody knows the provider.
    provider: Option<Provider>,
    id: String,
}

impl Addressed {
    /// A webhook by its path, if it is one's.
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

/// An event that was verified, and all that recording it takes.
struct Arriving<'a> {
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
    /// Answers a provider.
    pub(crate) async fn ingest(
        &self,
        plan: &Arc<Plan>,
        to: Addressed,
        request: Request<Incoming>,
        peer: Peer,
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        seen.policy = Some(Policy::RequiredB);
        let by_path = to.provider.ok_or_else(nobody_we_know)?;
        let name = by_path.name();
        seen.label = Some(format!("webhooks.{name}"));
        let limit = plan.config.server.body_limit;
        let arrived = ClientRequest::Streaming(request);
        let nobody = Caller::local();
        let (request, held) = self.read(plan, limit, &nobody, arrived).await?;
        let (parts, body) = request.into_parts();

        let (webhook, keys) = self.addressee(plan, &by_path, &to.id).await?;
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
        // The provider of an unknown webhook is that of the path, and a key of
        // its is there, so that a malformed header is told alike, whoever it is
        // sent to.
        let provider = webhook
            .as_ref()
            .map_or(&by_path, |webhook| &webhook.provider);
        let now = (self.clock().now().unix_ms() / 1000).cast_signed();
        let tolerance = plan.config.webhooks.tolerance;
        let verified = verify(provider, &sent, &keys, now, tolerance);
        let verified = verified.map_err(|refusal| self.unverified(name, &refusal, seen))?;
        // Whoever has guessed the decoy has guessed nothing.
        let webhook = webhook.as_deref().ok_or_else(nobody_we_know)?;

        let arriving = self.arriving(plan, webhook, peer)?;
        seen.caller = Some(arriving.caller.clone());
        seen.endpoint = Some(arriving.endpoint.clone());
        self.admit(&arriving.caller).await?;
        let events = match identify(&verified) {
            Ok(Delivery::Handshake(Handshake::Answer { content_type, body })) => {
                seen.outcome = Some("handshake");
                return Ok(answered(Some(content_type), body));
            }
            Ok(Delivery::Handshake(Handshake::Pass)) => {
                seen.outcome = Some("handshake");
                return self.pass_trial(&arriving, (&parts, body), held).await;
            }
            Ok(Delivery::Events(events)) => events,
            Err(unidentified) => {
                arriving.metrics.translation_failed(name);
                seen.reason = Some(unidentified.reason());
                return Err(Problem::new(
                    Code::TranslationFailed,
                    format!(
                        "The provider's identifier cannot be found in this request: {unidentified}."
                    ),
                ));
            }
        };
        let sent = (&parts, &body);
        match webhook.deliver {
            Deliver::Async => self.enqueue(&arriving, sent, &events, seen).await,
            Deliver::Sync => self.forward(&arriving, sent, &events, seen).await,
        }
    }

    /// The webhook with this id and what it is verified with; for one that is
    /// nobody's, or that nobody can sign for, a decoy.
    async fn addressee(
        &self,
        plan: &Plan,
        provider: &Provider,
        id: &str,
    ) -> Result<(Option<Arc<Webhook>>, Arc<[SigningKey]>), Problem> {
        let found = self
            .webhooks()
            .find(&plan.config, provider.name(), id)
            .await;
        let Some(webhook) = found.map_err(|error| away(&error))? else {
            return Ok((None, decoy(provider)));
        };
        match self.webhooks().keys(&webhook).await {
            Ok(keys) => Ok((Some(webhook), keys)),
            // It has none yet, or none any more.
            Err(WebhooksError::NoSecret {
                problem: NoSecret::Ended,
                ..
            }) => Ok((None, decoy(provider))),
            Err(error) => Err(away(&error)),
        }
    }

    /// Passes a provider's trial on, signed, and never recorded: the upstream's
    /// answer is the answer.
    async fn pass_trial(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, Bytes),
        held: Buffered,
    ) -> Result<Response<Body>, Problem> {
        let parcel = arriving.parcel_of(sent, &Met::First(None));
        let carriage = self.carriage(arriving.plan, arriving.route, &parcel, &arriving.caller);
        // Never the same: whoever remembers ids takes each for new.
        let id = format!("trial_{:016x}", self.engine().chance());
        let request = carriage.sign(parcel.into_request(), &id).await;
        let request = request.map_err(|error| away(&error))?;
        pass(ClientRequest::Whole(request, held), carriage.context()).await
    }

    fn arriving<'a>(
        &self,
        plan: &'a Arc<Plan>,
        webhook: &'a Webhook,
        peer: Peer,
    ) -> Result<Arriving<'a>, Problem> {
        let name = webhook.provider.name();
        let route = plan.event_routes.get(&webhook.upstream);
        // The registry knows only upstreams of the configuration.
        let route = route.ok_or_else(|| {
            Problem::new(
                Code::UpstreamUnreachable,
                "The webhook's upstream is not configured.",
            )
        })?;
        let class = self.class(plan, &plan.config.webhooks.class)?;
        let caller = webhook.caller.clone();
        let label = format!("webhooks.{name}");
        Ok(Arriving {
            plan,
            webhook,
            route,
            metrics: self.metrics().of(&caller, &label, &class.name),
            // Each webhook for itself: who may send to one cannot use up the
            // names of events that come to another.
            endpoint: Endpoint::new(&format!("{label}.{}", webhook.id)),
            class,
            caller,
            peer,
        })
    }

    /// Follows the work for one event: counted, and logged under its key.
    async fn follow<T>(
        &self,
        arriving: &Arriving<'_>,
        key: &Key,
        seen: &Seen,
        work: impl Future<Output = Result<T, Problem>>,
        told: impl Fn(&T) -> (Outcome, Option<OperationId>),
    ) -> Result<T, Problem> {
        arriving.metrics.key_present(Policy::RequiredB.case());
        let line = self.access_log().begin(arriving.logged(key, seen));
        let done = work.await;
        let (outcome, id) = match &done {
            Ok(done) => told(done),
            Err(problem) => (Outcome::Refused(problem.code()), None),
        };
        arriving.metrics.ended(outcome);
        self.access_log().end(line, outcome, id);
        done
    }

    /// Does work to its end, whether or not the provider waits for it: one that
    /// hangs up must not make the bytes of what is on record forgotten.
    async fn outliving<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (tell, told) = oneshot::channel();
        self.engine().spawn(async move {
            // A provider that has gone needs no answer.
            let _ = tell.send(work.await);
        });
        told.await.map_err(|_| {
            // Without a word it was given up, as the gateway stops.
            Problem::no_answer_to(
                "The gateway stopped before an answer came; the event may have been recorded.",
            )
        })
    }

    fn unverified(&self, provider: &str, refusal: &Refusal, seen: &mut Seen) -> Problem {
        self.metrics().webhook_refused(provider, refusal.reason());
        seen.reason = Some(refusal.reason());
        match refusal.is_shape() {
            true => Problem::new(
                Code::BadRequest,
                format!("The request is not what this provider sends: {refusal}."),
            ),
            false => nobody_we_know(),
        }
    }
}

impl Arriving<'_> {
    fn identity(&self, key: Key) -> Identity {
        Identity {
            caller: self.caller.clone(),
            endpoint: self.endpoint.clone(),
            key,
            space: KeySpace::Endpoint,
        }
    }

    fn logged<'a>(&'a self, key: &'a Key, seen: &Seen) -> Logged<'a> {
        Logged {
            caller: &self.caller,
            endpoint: &self.endpoint,
            key,
            source: Source::Provider,
            policy: Some(Policy::RequiredB),
            trace: seen.trace_id(),
        }
    }

    /// An event as it goes to the upstream; one of several in its own envelope.
    fn parcel(&self, (parts, body): (&Parts, &Bytes), event: &Event, met: &Met) -> Parcel {
        let body = match &event.body {
            EventBody::Whole => body.clone(),
            EventBody::Part(part) => part.clone().into(),
        };
        self.parcel_of((parts, body), met)
    }

    fn parcel_of(&self, (parts, body): (&Parts, Bytes), met: &Met) -> Parcel {
        let mut headers = parts.headers.clone();
        // What the sender's connection names goes before we say anything.
        fields::strip_hop_by_hop(&mut headers);
        headers.remove(SAME_BYTES);
        if matches!(met, Met::InOtherName) {
            headers.insert(SAME_BYTES, HeaderValue::from_static("true"));
        }
        if matches!(self.webhook.provider, Provider::Postmark) {
            // The password is for our own door, and is written down nowhere else.
            headers.remove(header::AUTHORIZATION);
        }
        // HTTP/2 has the host in its target, which is not kept.
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::try_from(authority.as_str())
        {
            headers.entry(header::HOST).or_insert(host);
        }
        Parcel {
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

/// One answer for all who cannot show that they are the provider: nobody learns
/// from it which webhooks there are.
fn nobody_we_know() -> Problem {
    Problem::new(
        Code::Unauthenticated,
        "There is no such webhook, or the request is not signed as it should be.",
    )
}

/// A key for a webhook that is nobody's: a request to it is judged as one to any
/// other. It opens nothing.
fn decoy(provider: &Provider) -> Arc<[SigningKey]> {
    // The second is for who takes a name and a password.
    let texts = ["00000000", "nobody:00000000"];
    texts
        .iter()
        .find_map(|text| provider.key(text).ok())
        .into_iter()
        .collect()
}

/// Whoever knows the webhook or its secrets does not answer.
fn away(error: &WebhooksError) -> Problem {
    tracing::error!(%error, "a webhook cannot be looked up");
    Problem::new(
        Code::AuthUnavailable,
        "The webhook cannot be looked up at the moment. Send the event again.",
    )
    .with_retry_after(5)
}
