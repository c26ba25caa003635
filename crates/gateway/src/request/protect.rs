//! Identify, claim, forward, record: the function of `onceward_http` that runs a
//! request at most once per granted claim, with the gateway's way to forward.

use http::Request;
use onceward_core::caller::Caller;
use onceward_http::body_work::is_large;
use onceward_http::run::{Call, ProtectedResponse, identify};

use super::admit::refuse_over_limit;
use super::read::{Protected, ProtectedParts, WholeRequest};
use crate::listen::peer::Peer;
use crate::observe::report::Refused;
use crate::observe::traces::Link;
use crate::runtime::Runtime;
use crate::upstream::forward::ForwardContext;

pub(super) async fn protect(
    runtime: &Runtime,
    request: Protected,
    peer: Peer,
    link: Option<Link>,
) -> Result<ProtectedResponse, Refused> {
    let ProtectedParts {
        routed,
        caller,
        by,
        key,
        source,
        request,
    } = request.into_parts();
    let settings = (routed.class().clone(), routed.route().rules.clone());
    let sender = (Caller::clone(&caller), routed.endpoint().clone());
    let WholeRequest {
        head,
        body,
        buffered,
    } = request;
    let begin = || {
        let running = runtime.limiter().begin(caller.tenant());
        running.map_err(|limit| refuse_over_limit(&caller, limit))
    };
    let is_large = is_large(body.len());
    let call = Call::new(
        sender,
        key.clone(),
        settings,
        Request::from_parts(*head, body),
    )
    .with_source(source);
    // Hashing a large body is work that needs a slot too. It may go on after the client
    // has disconnected, so that the call holds what counts the body's bytes.
    let (call, unheld) = match is_large {
        true => (call.holding((begin()?, buffered)), None),
        false => (call, Some(buffered)),
    };
    let protection = runtime.protection();
    let identified = match identify(protection, call).await {
        Ok(identified) => identified,
        Err(problem) => return Ok(ProtectedResponse::refused(problem)),
    };
    // A replay from memory runs nothing, so that with a small body it takes no slot
    // either.
    if let Some(replayed) = identified.recall(protection) {
        return Ok(replayed);
    }
    let identified = match unheld {
        Some(buffered) => identified.holding((begin()?, buffered)),
        None => identified,
    };
    let context = ForwardContext {
        peer,
        route: routed.route().clone(),
        caller: caller.into_inner(),
        by,
        key: Some(key),
        attempt: 0,
        link,
    };
    let mut attempt = 0;
    let forward = move |request, granted| {
        attempt += 1;
        let context = ForwardContext {
            attempt,
            ..context.clone()
        };
        async move {
            let forwarder = &context.route.forwarder;
            forwarder
                .forward_protected(request, granted, &context)
                .await
        }
    };
    let running = identified.run(protection, forward);
    // Boxed: the future of a run is large, and moves with the request.
    Ok(Box::pin(running).await)
}
