//! Forwards one event to its upstream: the provider's request, with the
//! gateway's headers and the gateway's signature.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use onceward_core::caller::Caller;
use onceward_core::class::Class;
use onceward_http::body::Body;
use onceward_http::rules::Rules;
use onceward_http::run::{Granted, Unanswered};
use onceward_webhooks::sign;

use crate::callers::WallClock;
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};
use crate::upstream::forward::ForwardContext;
use crate::webhooks::queued_event::QueuedEvent;
use crate::webhooks::registry::{WebhookRegistry, WebhooksError};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The rules for an upstream's answer to an event. No attempt gets more time
/// than the lease of the present class.
pub(crate) fn rules(route: &PlannedRoute, class: &Class) -> Arc<Rules> {
    if route.timeout <= class.lease {
        return route.rules.clone();
    }
    let rules = Rules::clone(&route.rules);
    Arc::new(rules.with(|rules| rules.upstream_timeout = class.lease))
}

/// Forwards one event to its upstream.
#[derive(Clone)]
pub(crate) struct EventForwarder {
    webhooks: Arc<WebhookRegistry>,
    clock: WallClock,
    plan: Arc<Plan>,
    context: ForwardContext,
}

impl EventForwarder {
    pub(crate) fn new(
        runtime: &Runtime,
        plan: &Arc<Plan>,
        route: &Arc<PlannedRoute>,
        event: &QueuedEvent,
        caller: &Caller,
    ) -> Self {
        Self {
            webhooks: runtime.webhooks().clone(),
            clock: runtime.clock().clone(),
            plan: plan.clone(),
            context: ForwardContext {
                peer: event.peer.clone(),
                route: route.clone(),
                caller: caller.clone(),
                by: None,
                key: None,
                attempt: 1,
                link: None,
            },
        }
    }

    pub(crate) fn on_attempt(mut self, attempt: u32) -> Self {
        self.context.attempt = attempt;
        self
    }

    pub(crate) fn context(&self) -> &ForwardContext {
        &self.context
    }

    /// Sends the event once, under its grant.
    pub(crate) async fn send(
        self,
        mut request: Request<Bytes>,
        granted: Option<Granted>,
    ) -> Result<Response<Body>, Unanswered> {
        if let Some(granted) = &granted {
            let signed = self.sign(request, &granted.id.to_string()).await;
            request = signed.map_err(|error| Unanswered::NotSent(Box::new(error)))?;
        }
        let forwarder = &self.context.route.forwarder;
        forwarder
            .forward_protected(request, granted, &self.context)
            .await
    }

    /// Signs a request with the upstream's signing secret: the provider's own
    /// signature has gone stale by the time of a late delivery.
    pub(crate) async fn sign(
        &self,
        mut request: Request<Bytes>,
        id: &str,
    ) -> Result<Request<Bytes>, WebhooksError> {
        let upstream = &self.context.route.route.upstream;
        let key = self.webhooks.signing_key(&self.plan.config, upstream);
        let key = key.await?;
        let now = (self.clock.now().unix_ms() / 1000).cast_signed();
        let signature = sign(&key, id, now, request.body());
        let headers = request.headers_mut();
        for (name, value) in [
            (WEBHOOK_ID, id),
            (WEBHOOK_TIMESTAMP, &now.to_string()),
            (WEBHOOK_SIGNATURE, &signature),
        ] {
            // Ids, numbers and base64 are visible ASCII.
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
        Ok(request)
    }
}
