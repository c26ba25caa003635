//! The fourth step: whether a tenant may send more requests now.

use std::ops::Deref;

use onceward_core::caller::Caller;
use onceward_http::problem::{Code, Problem};

use super::authenticate::Authenticated;
use super::read::ClientRequest;
use super::route::Routed;
use crate::config::KnownBy;
use crate::observe::metrics::Limit;
use crate::observe::report::{Cause, Refused, Report, Reported};
use crate::runtime::Runtime;

/// A caller within its tenant's rate. Only [`admit_caller`] makes one.
pub(crate) struct AdmittedCaller(Caller);

impl Deref for AdmittedCaller {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.0
    }
}

impl AdmittedCaller {
    /// The same sender with its identity on another route.
    pub(super) fn with_identity(&self, caller: Caller) -> Self {
        Self(caller)
    }

    pub(crate) fn into_inner(self) -> Caller {
        self.0
    }
}

/// A request whose caller is known, allowed and within its rate. Only [`admit`]
/// makes one.
pub(super) struct Admitted {
    routed: Routed,
    caller: AdmittedCaller,
    by: Option<KnownBy>,
    request: ClientRequest,
}

impl Admitted {
    pub(super) fn into_parts(self) -> (Routed, AdmittedCaller, Option<KnownBy>, ClientRequest) {
        (self.routed, self.caller, self.by, self.request)
    }
}

impl Reported for Admitted {
    fn add_to<'a>(&self, report: Report<'a>) -> Report<'a> {
        report
            .sent_by(&self.caller, &self.routed.class().name)
            .on_span(&self.caller)
    }
}

pub(super) async fn admit(
    runtime: &Runtime,
    authenticated: Authenticated,
) -> Result<Admitted, Refused> {
    let (routed, caller, by, request) = authenticated.into_parts();
    Ok(Admitted {
        caller: admit_caller(runtime, caller).await?,
        routed,
        by,
        request,
    })
}

/// Admits a caller that is within its tenant's rate. For webhooks and recovery,
/// which authenticate in their own ways; other requests go through [`admit`].
pub(crate) async fn admit_caller(
    runtime: &Runtime,
    caller: Caller,
) -> Result<AdmittedCaller, Refused> {
    match runtime.limiter().admit(caller.tenant()).await {
        Ok(()) => Ok(AdmittedCaller(caller)),
        Err(limit) => Err(refuse_over_limit(&caller, limit)),
    }
}

/// The refusal of a request that would exceed a limit.
pub(crate) fn refuse_over_limit(caller: &Caller, limit: Limit) -> Refused {
    let detail = match limit {
        Limit::Requests => "This tenant sends requests faster than its limit.",
        Limit::InFlight => "Too many operations are running.",
        Limit::BufferedBytes => "Too many request bodies are being received.",
    };
    let detail = format!("{detail} Nothing was forwarded and nothing is stored under the key.");
    let problem = Problem::new(Code::TooManyRequests, detail).with_retry_after(1);
    Refused::new(problem, Cause::Limit(caller.clone(), limit))
}
