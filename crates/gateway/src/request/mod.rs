//! The life of a request, top to bottom.
//!
//! [`answer`] is the straight line. Each step takes what the step before
//! returned, so a skipped step does not compile. Identify, claim, forward and
//! record are one function that the gateway shares with the tower layer
//! (`onceward_http::run`); [`protect`](protect::protect) calls it.
//!
//! Metrics, traces and the access log stand around the line. A step does not
//! know them: what it learned is in the value that it returns, and the
//! [`Report`] takes it from there.

pub(crate) mod admit;
mod authenticate;
mod cors;
mod idempotency_key;
pub(crate) mod limits;
mod operation;
mod pass;
mod protect;
pub(crate) mod read;
mod recover;
mod respond;
mod route;
pub(crate) mod route_table;
pub(crate) mod screen;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use onceward_http::body::Body;

use self::admit::admit;
use self::authenticate::authenticate;
use self::operation::recover_operation;
use self::pass::pass;
use self::protect::protect;
use self::read::{Ready, read};
use self::recover::recover;
use self::respond::{RequestSite, respond};
use self::route::{Destination, route};
use self::screen::screen;
use crate::listen::Serve;
use crate::listen::peer::Peer;
use crate::observe::report::{Answered, Report, Unanswerable};
use crate::pages::{self, Published};
use crate::runtime::Runtime;
use crate::runtime::plan::Plan;
use crate::webhooks::ingest::ingest;

impl Serve for Runtime {
    async fn serve(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        // The request keeps this plan until it ends.
        let plan = self.plan();
        let site = RequestSite::of(&plan, &request, &peer);
        let report = Report::begin(self, &request);
        let answered = answer(self, &plan, request, peer, report).await;
        respond(&plan, &site, answered)
    }
}

/// Takes a request from its first check to its answer.
async fn answer<'a>(
    runtime: &'a Runtime,
    plan: &Arc<Plan>,
    request: Request<Incoming>,
    peer: Peer,
    report: Report<'a>,
) -> Result<Answered<'a>, Unanswerable<'a>> {
    let (screened, report) = report.carry(screen(request, &peer))?;
    let (destination, report) = report.after(route(runtime, plan, &screened))?;
    // Boxed, here and in the steps: rare paths would otherwise enlarge the future
    // of every request.
    let routed = match destination {
        Destination::Upstream(routed) => routed,
        Destination::Page(page) => {
            // Made for each request, because classes change at run time.
            let published = Published::new(&plan.config, &runtime.classes().all());
            let response = pages::answer(page, screened.headers(), &published);
            return Ok(report.answered(response));
        }
        Destination::Preflight(cors, method) => {
            let response = cors::respond_to_preflight(cors, &method, screened.headers());
            return Ok(report.answered(response));
        }
        Destination::Recovery(asked) => {
            return Box::pin(recover(runtime, plan, asked, &screened, report)).await;
        }
        Destination::Operation(asked) => {
            return Box::pin(recover_operation(runtime, plan, asked, &screened, report)).await;
        }
        Destination::Webhook(address) => {
            return Box::pin(ingest(runtime, plan, address, screened, peer, report)).await;
        }
    };
    let (authenticated, report) =
        report.carry(authenticate(runtime, plan, routed, screened).await)?;
    // Before the body is read or anything is looked up: a refusal leaves no trace.
    let (admitted, report) = report.after(admit(runtime, authenticated).await)?;
    let (ready, report) = report.after(read(runtime, plan, admitted).await)?;
    match ready {
        Ready::Unprotected(request) => {
            let passed = pass(request, peer, report.link()).await;
            let (passed, report) = report.after(passed)?;
            Ok(report.answered(passed.response))
        }
        Ready::Protected(request) => {
            // Identify, claim, forward, record.
            let ended = protect(runtime, request, peer, report.link()).await;
            let (ended, report) = report.after(ended)?;
            report.concluded(ended.response)
        }
    }
}
