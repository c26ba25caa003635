//! Forwarding a request that is not protected.

use http::{Request, Response};
use onceward_http::body::Body;
use onceward_http::problem::Problem;

use super::read::{ClientRequest, Unprotected, UnprotectedParts, WhyUnprotected};
use crate::listen::peer::Peer;
use crate::observe::report::{Report, Reported};
use crate::observe::traces::Link;
use crate::upstream::forward::ForwardContext;

/// The upstream's answer to an unprotected request.
pub(super) struct Passed {
    pub(super) response: Response<Body>,
    why: WhyUnprotected,
}

impl Reported for Passed {
    fn add_to<'a>(&self, report: Report<'a>) -> Report<'a> {
        match self.why {
            WhyUnprotected::Handler => report.handler_answered(self.response.headers()),
            WhyUnprotected::Policy | WhyUnprotected::NoKey => report,
        }
    }
}

pub(super) async fn pass(
    request: Unprotected,
    peer: Peer,
    link: Option<Link>,
) -> Result<Passed, Problem> {
    let UnprotectedParts {
        routed,
        caller,
        by,
        request,
        why,
    } = request.into_parts();
    let context = ForwardContext {
        peer,
        route: routed.route().clone(),
        caller: caller.into_inner(),
        by,
        key: None,
        attempt: 1,
        link,
    };
    let forwarder = &context.route.forwarder;
    let response = match request {
        ClientRequest::Streaming(head, body) => {
            let request = Request::from_parts(*head, body);
            Box::pin(forwarder.forward_streaming(request, &context)).await?
        }
        ClientRequest::Whole(whole) => {
            // Its bytes stay counted while they are sent.
            let _buffered = whole.buffered;
            let request = Request::from_parts(*whole.head, whole.body);
            Box::pin(forwarder.forward_buffered(request, &context)).await?
        }
    };
    Ok(Passed { response, why })
}
