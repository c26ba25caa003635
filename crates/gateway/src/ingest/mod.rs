//! What providers send: read, verified, identified, recorded, acknowledged.
//!
//! Whoever writes here is not a caller that we know; the signature over the raw
//! bytes is all that speaks for it. So nothing is looked at before that, and an
//! id that is nobody's, another provider's, or right with a wrong signature are
//! told the same. After it, an event is an operation like any other: its key is
//! the provider's own name for it, under the tenant and project of its webhook.

mod receipt;

use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures_util::future::join_all;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use onceward_core::caller::Caller;
use onceward_core::class::{AfterLoss, Class, InFlight, Terms};
use onceward_core::engine::{Entry, Lead};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::identity::{Endpoint, Identity, KeySpace};
use onceward_core::key::Key;
use onceward_core::record::{Answer, Settlement};
use onceward_core::store::{Claim, Enqueued, Queue};
use onceward_http::body::Body;
use onceward_http::fields;
use onceward_http::problem::{Code, Problem};
use onceward_http::rules::KeySource;
use onceward_http::run::{
    Call, Ended, Outcome, Protection, Reconciled, by_key_alone, run, unavailable,
};
use onceward_webhooks::{
    Binding, Delivery, Event, EventBody, Handshake, Provider, Refusal, SigningKey, identify, verify,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use self::receipt::{Receipt, SAME_BYTES, acknowledged, answered, told_at_once};
use crate::access::{Source, Subject as Logged};
use crate::config::{Deliver, Policy, SameBytes};
use crate::courier::rules;
use crate::gate::Buffered;
use crate::metrics::RouteMetrics;
use crate::parcel::Parcel;
use crate::peer::Peer;
use crate::pipeline::{Arrived, Pipeline, Seen, pass};
use crate::plan::{Plan, Planned};
use crate::webhooks::{ID_PREFIX, NoSecret, Webhook, WebhooksError};

/// Where providers write to.
pub(crate) const WEBHOOKS: &str = "/api/v1/webhooks/";

/// How many events of one request are recorded at once.
const AT_ONCE_MAX: usize = 16;

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
    route: &'a Arc<Planned>,
    class: Arc<Class>,
    caller: Caller,
    endpoint: Endpoint,
    peer: Peer,
    metrics: Arc<RouteMetrics>,
}

impl Pipeline {
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
        let arrived = Arrived::Streaming(request);
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
        let now = (self.clock.now().unix_ms() / 1000).cast_signed();
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
        let found = self.webhooks.find(&plan.config, provider.name(), id).await;
        let Some(webhook) = found.map_err(|error| away(&error))? else {
            return Ok((None, decoy(provider)));
        };
        match self.webhooks.keys(&webhook).await {
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
        let id = format!("trial_{:016x}", self.protection.engine.chance());
        let request = carriage.sign(parcel.into_request(), &id).await;
        let request = request.map_err(|error| away(&error))?;
        pass(Arrived::Whole(request, held), carriage.passage()).await
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
        let class = self.class_named(plan, &plan.config.webhooks.class)?;
        let caller = webhook.caller.clone();
        let label = format!("webhooks.{name}");
        Ok(Arriving {
            plan,
            webhook,
            route,
            metrics: self.metrics.of(&caller, &label, &class.name),
            // Each webhook for itself: who may send to one cannot use up the
            // names of events that come to another.
            endpoint: Endpoint::new(&format!("{label}.{}", webhook.id)),
            class,
            caller,
            peer,
        })
    }

    /// Records events to be delivered later, all of them before any is
    /// acknowledged.
    async fn enqueue(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let mut receipts = Vec::with_capacity(events.len());
        for some in events.chunks(AT_ONCE_MAX) {
            let receiving = some
                .iter()
                .map(|event| self.receive(arriving, sent, event, seen));
            receipts.extend(join_all(receiving).await);
        }
        self.bell.notify_one();
        // What could not be recorded is sent again; what could be is known then.
        let receipts = receipts.into_iter().collect::<Result<Vec<_>, _>>();
        let receipts = receipts.inspect_err(|problem| {
            seen.outcome = Some(problem.code().as_str());
        })?;
        if let Some(first) = receipts.first() {
            (seen.outcome, seen.id) = (Some(first.outcome.as_str()), first.id);
        }
        let ack = arriving.webhook.provider.acknowledgement();
        Ok(acknowledged(&ack, &receipts))
    }

    /// Records one event, or learns what became of it.
    async fn receive(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        seen: &Seen,
    ) -> Result<Receipt, Problem> {
        let key = key_of(event)?;
        arriving.metrics.key_present(Policy::RequiredB.case());
        let line = self.access.begin(arriving.logged(&key, seen));
        let receipt = self.meet_and_record(arriving, sent, event, key).await;
        let (outcome, id) = match &receipt {
            Ok(receipt) => (receipt.outcome, receipt.id),
            Err(problem) => (Outcome::Refused(problem.code()), None),
        };
        arriving.metrics.ended(outcome);
        self.access.end(line, outcome, id);
        receipt
    }

    async fn meet_and_record(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<Receipt, Problem> {
        let met = match self.meet(arriving, event).await? {
            Met::Before => return Ok(Receipt::same_bytes()),
            met => met,
        };
        let identity = arriving.identity(key);
        identity.check_name().map_err(Problem::invalid_key)?;
        let recording = Recording {
            protection: self.protection.clone(),
            queue: self.queue.clone(),
            class: arriving.class.clone(),
            identity,
            request: arriving.parcel(sent, event, &met).to_bytes(),
        };
        let same_bytes = matches!(met, Met::InOtherName);
        let remembers = matches!(met, Met::First(Some(_)));
        let record = async move {
            let recorded = recording.record().await;
            met.remember(recorded.is_ok()).await;
            recorded
        };
        let mut receipt = match remembers {
            true => self.outliving(record).await??,
            false => record.await?,
        };
        receipt.same_bytes = same_bytes;
        Ok(receipt)
    }

    /// Does work to its end, whether or not the provider waits for it: one that
    /// hangs up must not make the bytes of what is on record forgotten.
    async fn outliving<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (tell, told) = oneshot::channel();
        self.protection.engine.spawn(async move {
            // A provider that has gone needs no answer.
            let _ = tell.send(work.await);
        });
        told.await.map_err(|_| {
            // Without a word it was given up, as the gateway stops.
            Problem::new(
                Code::OutcomeUnknown,
                "The gateway stopped before an answer came: the event may have arrived.",
            )
            .with_status(StatusCode::GATEWAY_TIMEOUT)
        })
    }

    /// Whether these bytes came before under another id. Asked only where the
    /// id is not signed: whoever has caught one delivery can send it again under
    /// as many ids as they like. They are remembered when the event itself is on
    /// record, so that no bytes are known whose event is not.
    async fn meet(&self, arriving: &Arriving<'_>, event: &Event) -> Result<Met, Problem> {
        let Binding::Unsigned { bytes } = &event.binding else {
            return Ok(Met::First(None));
        };
        let key = Key::parse(&HEXLOWER.encode(bytes)).map_err(Problem::invalid_key)?;
        let identity = Identity {
            endpoint: Endpoint::new(&format!("{} bytes", arriving.endpoint)),
            ..arriving.identity(key)
        };
        let asked = Fingerprint {
            digest: Sha256::digest(&event.key).into(),
            ..by_key_alone()
        };
        let terms = Terms {
            // Whoever dies over it has remembered nothing.
            after_loss: AfterLoss::Free,
            ..arriving.class.terms()
        };
        let (engine, digest) = (&self.protection.engine, identity.digest());
        let entered = engine.enter(identity, asked, terms).await;
        match entered.map_err(|error| unavailable(&error))? {
            // Who goes before it is said has remembered nothing either.
            Entry::Lead(lead) => Ok(Met::First(Some(lead.joined()))),
            Entry::Mismatch => {
                let rule = arriving.webhook.same_bytes;
                if rule == SameBytes::Refuse {
                    let mark = engine.look(&digest).await;
                    let mark = mark.map_err(|error| unavailable(&error))?;
                    if mark.is_none_or(|mark| mark.completed_at.is_none()) {
                        return Err(not_yet());
                    }
                }
                let provider = arriving.webhook.provider.name();
                self.metrics.same_bytes(provider, rule);
                Ok(match rule {
                    SameBytes::Deliver => Met::InOtherName,
                    SameBytes::Refuse => Met::Before,
                })
            }
            // The same id: whether it is a duplicate, its own record tells.
            _ => Ok(Met::First(None)),
        }
    }

    /// Forwards events within the request, one after the other; the answer is
    /// the upstream's to the last, or to the first that it did not take.
    async fn forward(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        events: &[Event],
        seen: &mut Seen,
    ) -> Result<Response<Body>, Problem> {
        let ack = arriving.webhook.provider.acknowledgement();
        let mut last = acknowledged(&ack, &[]);
        for event in events {
            let ended = self.forward_one(arriving, sent, event, seen).await?;
            (seen.outcome, seen.id) = (Some(ended.outcome.as_str()), ended.id);
            last = told_at_once(ended, &ack)?;
            if !last.status().is_success() {
                break;
            }
        }
        Ok(last)
    }

    async fn forward_one(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        seen: &Seen,
    ) -> Result<Ended, Problem> {
        let key = key_of(event)?;
        arriving.metrics.key_present(Policy::RequiredB.case());
        let line = self.access.begin(arriving.logged(&key, seen));
        let ended = self.meet_and_run(arriving, sent, event, key).await;
        let ended = ended.unwrap_or_else(|problem| Ended {
            outcome: Outcome::Refused(problem.code()),
            id: None,
            answer: Err(problem),
        });
        arriving.metrics.ended(ended.outcome);
        self.access.end(line, ended.outcome, ended.id);
        Ok(ended)
    }

    async fn meet_and_run(
        &self,
        arriving: &Arriving<'_>,
        sent: (&Parts, &Bytes),
        event: &Event,
        key: Key,
    ) -> Result<Ended, Problem> {
        // Before its bytes are met: who has no place remembers nothing.
        let running = self.gate.begin(arriving.caller.tenant());
        let running = running.map_err(|limit| self.limited(&arriving.caller, limit))?;
        let met = match self.meet(arriving, event).await? {
            Met::Before => {
                let ack = arriving.webhook.provider.acknowledgement();
                let receipt = Receipt::same_bytes();
                return Ok(Ended {
                    outcome: receipt.outcome,
                    id: None,
                    answer: Ok(acknowledged(&ack, &[receipt])),
                });
            }
            met => met,
        };
        let parcel = arriving.parcel(sent, event, &met);
        let carriage = self.carriage(arriving.plan, arriving.route, &parcel, &arriving.caller);
        let call = Call {
            caller: arriving.caller.clone(),
            endpoint: arriving.endpoint.clone(),
            key,
            source: KeySource::Provider,
            // The provider itself tries again, and does not wait for others.
            class: Arc::new(Class {
                in_flight: InFlight::Reject,
                max_attempts: 1,
                ..Class::clone(&arriving.class)
            }),
            rules: rules(arriving.route, &arriving.class),
            held: Some(Box::new(running)),
            request: parcel.into_request(),
        };
        let forward = move |request, granted| {
            let carriage = carriage.clone();
            async move { carriage.send(request, granted).await }
        };
        let protection = self.protection.clone();
        self.outliving(async move {
            let ended = Box::pin(run(&protection, call, forward)).await;
            met.remember(is_on_record(ended.outcome)).await;
            ended
        })
        .await
    }

    fn unverified(&self, provider: &str, refusal: &Refusal, seen: &mut Seen) -> Problem {
        self.metrics.webhook_refused(provider, refusal.reason());
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

/// An event about to be recorded with its request.
struct Recording {
    protection: Arc<Protection>,
    queue: Arc<dyn Queue>,
    class: Arc<Class>,
    identity: Identity,
    request: Bytes,
}

impl Recording {
    async fn record(&self) -> Result<Receipt, Problem> {
        fail::fail_point!("before-enqueue", |_| std::process::abort());
        let mut enqueued = self.enqueue().await?;
        fail::fail_point!("after-enqueue", |_| std::process::abort());
        if let Enqueued::Known(Claim::Unknown(record)) = &enqueued
            && self.protection.reconcile(record, &self.class).await == Reconciled::Settled
        {
            enqueued = self.enqueue().await?;
        }
        Ok(Receipt::of(&enqueued))
    }

    async fn enqueue(&self) -> Result<Enqueued, Problem> {
        let (identity, request) = (self.identity.clone(), self.request.clone());
        let (engine, terms) = (&self.protection.engine, self.class.terms());
        let enqueued = engine.enqueue(&*self.queue, identity, by_key_alone(), terms, request);
        enqueued.await.map_err(|error| unavailable(&error))
    }
}

/// How an event is met.
enum Met {
    /// For the first time, or under the same id as before. Where its bytes are
    /// to be remembered, this is the right to do it.
    First(Option<Lead>),
    /// Its bytes came before under another id; it is delivered, and marked.
    InOtherName,
    /// The same, and that is not wanted again.
    Before,
}

impl Met {
    /// Remembers the bytes of an event that is on record; of one that is not
    /// nothing is remembered.
    async fn remember(self, on_record: bool) {
        let Self::First(Some(lead)) = self else {
            return;
        };
        let status = StatusCode::NO_CONTENT.as_u16();
        let seen = Settlement::Completed(Answer::NotKept { status });
        match on_record {
            // What the store does not take now is written later.
            true => drop(lead.finish(seen, None).await),
            false => drop(lead.release(None).await),
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

/// Whether what became of an event is kept, so that it does not run again by
/// itself.
fn is_on_record(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Ran(_)
            | Outcome::RanNotKept
            | Outcome::Replayed(_)
            | Outcome::NotRecorded
            | Outcome::Lost
    )
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

/// The same bytes are being recorded under another id; whether they were will be
/// seen.
fn not_yet() -> Problem {
    Problem::new(
        Code::InProgress,
        "The same bytes are being recorded under another id. Send the event again.",
    )
    .with_status(StatusCode::SERVICE_UNAVAILABLE)
    .retry_after(1)
}

/// Whoever knows the webhook or its secrets does not answer.
fn away(error: &WebhooksError) -> Problem {
    tracing::error!(%error, "a webhook cannot be looked up");
    Problem::new(
        Code::AuthUnavailable,
        "The webhook cannot be looked up at the moment. Send the event again.",
    )
    .retry_after(5)
}
