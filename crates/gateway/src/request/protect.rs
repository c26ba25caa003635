//! Identify, claim, forward, record: the function of `onceward_http` that runs a
//! request at most once per granted claim, with the gateway's way to forward.

use http::Request;
use onceward_http::run::{Call, ProtectedResponse, run};

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
    let running = runtime.limiter().begin(caller.tenant());
    let running = running.map_err(|limit| refuse_over_limit(&caller, limit))?;
    let context = ForwardContext {
        peer,
        route: routed.route().clone(),
        caller: caller.clone(),
        by,
        key: Some(key.clone()),
        attempt: 0,
        link,
    };
    let settings = (routed.class().clone(), routed.route().rules.clone());
    let sender = (caller.into_inner(), routed.endpoint().clone());
    let WholeRequest {
        head,
        body,
        buffered,
    } = request;
    let call = Call::new(sender, key, settings, Request::from_parts(*head, body))
        .with_source(source)
        .holding((running, buffered));
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
    // Boxed: the future of a run is large, and moves with the request.
    Ok(Box::pin(run(runtime.protection(), call, forward)).await)
}
