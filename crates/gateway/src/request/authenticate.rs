//! The third step: the caller of a request, and whether it may use the route.
//!
//! Every request is authenticated, retries and recovery included: a caller that
//! has lost its access reads no earlier reply either.

use http::HeaderMap;
use onceward_core::caller::Caller;

use super::idempotency_key;
use super::read::{ClientRequest, read_body};
use super::route::Routed;
use super::screen::Screened;
use crate::callers::{self, AuthError, Authentication, VerifiedCaller};
use crate::config::{Access, KnownBy};
use crate::observe::report::{Cause, Refused};
use crate::runtime::Runtime;
use crate::runtime::plan::{Plan, PlannedRoute};

/// A request whose caller is known and allowed, or whose route needs none. Only
/// [`authenticate`] makes one.
pub(super) struct Authenticated {
    routed: Routed,
    caller: Caller,
    /// How the caller is known; `None` on an open route.
    by: Option<KnownBy>,
    request: ClientRequest,
}

impl Authenticated {
    pub(super) fn into_parts(self) -> (Routed, Caller, Option<KnownBy>, ClientRequest) {
        (self.routed, self.caller, self.by, self.request)
    }
}

pub(super) async fn authenticate(
    runtime: &Runtime,
    plan: &Plan,
    routed: Routed,
    request: Screened,
) -> Result<Authenticated, Refused> {
    let (head, body) = request.into_parts();
    let credential = check_credential(plan, routed.route(), &head.headers).await?;
    let request = ClientRequest::Streaming(head, body);
    let (known, request) = match credential {
        None => {
            return Ok(Authenticated {
                routed,
                caller: Caller::local(),
                by: None,
                request,
            });
        }
        Some(Authentication::Verified(known)) => (known, request),
        // The scheduler's signature covers the body.
        Some(Authentication::Signed(signed)) => {
            let limit = routed.route().body_limit;
            let unknown = Caller::local();
            // Boxed: this path is rare.
            let reading = Box::pin(read_body(runtime, plan, limit, &unknown, request));
            let request = reading.await?;
            let (endpoint, bytes) = (routed.endpoint().clone(), request.body.len());
            let verifying = move || {
                let key = idempotency_key::signed_text(&request.head.headers);
                let known = signed.verify(endpoint.as_str(), key, &request.body);
                (known, request)
            };
            let body_work = &runtime.protection().body_work;
            let (known, request) = body_work.run(bytes, verifying).await;
            let known = known.map_err(|error| refuse(&error, Some(KnownBy::Scheduler)))?;
            (known, ClientRequest::Whole(request))
        }
    };
    Ok(Authenticated {
        caller: authorise(&known, routed.route())?,
        by: Some(known.by()),
        routed,
        request,
    })
}

/// Checks the credential of a request; `None` where the route requires none.
pub(super) async fn check_credential(
    plan: &Plan,
    route: &PlannedRoute,
    headers: &HeaderMap,
) -> Result<Option<Authentication>, Refused> {
    if !plan.config.auth.knows_callers() || route.route.access == Access::Anyone {
        return Ok(None);
    }
    let presented = plan.callers.authenticate(headers).await;
    presented
        .map(Some)
        .map_err(|error| refuse(&error, callers::credential_kind(headers)))
}

/// The identity of a verified caller on a route, if the route is open to it.
pub(super) fn authorise(known: &VerifiedCaller, route: &PlannedRoute) -> Result<Caller, Refused> {
    known
        .may(&route.route.access)
        .and_then(|()| known.caller(route.route.scope))
        .map_err(|error| refuse(&error, Some(known.by())))
}

pub(super) fn refuse(error: &AuthError, by: Option<KnownBy>) -> Refused {
    Refused::new(error.problem(), Cause::Caller(by))
}
