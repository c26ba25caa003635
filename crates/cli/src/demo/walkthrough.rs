//! The seven steps of the demo, each shown, explained and checked.

use std::io::IsTerminal;

use super::client::{Payment, PaymentResponse, send, send_and_disconnect};
use super::environment::Environment;
use crate::output;

const FIRST: Payment = Payment {
    path: "/payments",
    key: "order-1001",
    amount: 4200,
};

/// The gateway's own headers, shown with each response.
const SHOWN_HEADERS: [&str; 3] = [
    "idempotent-replayed",
    "idempotency-status",
    "x-operation-id",
];

// Codes of the terminal's text attributes.
const BOLD: &str = "1";
const CYAN: &str = "36";
const GREEN: &str = "32";
const RED: &str = "31";

/// What must be true after a step.
struct Expectation {
    what: &'static str,
    holds: bool,
}

fn expect(what: &'static str, holds: bool) -> Expectation {
    Expectation { what, holds }
}

/// Shows the steps and counts those that failed.
struct Presenter {
    step: u32,
    failed: u32,
    colours: bool,
}

/// Runs all steps. Returns how many failed.
pub(super) async fn run(environment: &mut Environment) -> anyhow::Result<u32> {
    let mut presenter = Presenter {
        step: 0,
        failed: 0,
        colours: std::io::stdout().is_terminal(),
    };
    output::print(&format!(
        "A sample payments service, with Onceward in front of it at http://{}.\n",
        environment.address()
    ))?;
    let first = first_payment(&mut presenter, environment).await?;
    same_request_again(&mut presenter, environment, &first).await?;
    fifty_concurrent_requests(&mut presenter, environment).await?;
    different_amount(&mut presenter, environment).await?;
    client_disconnects(&mut presenter, environment).await?;
    gateway_killed(&mut presenter, environment, &first).await?;
    upstream_crashes(&mut presenter, environment).await?;
    presenter.finish()?;
    Ok(presenter.failed)
}

async fn first_payment(
    presenter: &mut Presenter,
    environment: &Environment,
) -> anyhow::Result<PaymentResponse> {
    presenter.title("A first payment")?;
    let response = presenter.send(environment, FIRST).await?;
    presenter.conclude(
        environment,
        "The request was recorded on disk and forwarded once. The reply was on disk before the client got it.",
        &[
            expect("201", response.status == 201),
            expect("not a replay", !response.is_replay()),
            expect("one payment", environment.payments() == 1),
        ],
    )?;
    Ok(response)
}

async fn same_request_again(
    presenter: &mut Presenter,
    environment: &Environment,
    first: &PaymentResponse,
) -> anyhow::Result<()> {
    presenter.title("The same request again, as from a client that lost the response")?;
    let response = presenter.send(environment, FIRST).await?;
    presenter.conclude(
        environment,
        "The stored reply came back, byte for byte. The service was not called.",
        &[
            expect("a replay", response.is_replay()),
            expect("the same status", response.status == first.status),
            expect("the same body", response.body == first.body),
            expect("no second payment", environment.payments() == 1),
        ],
    )?;
    Ok(())
}

async fn fifty_concurrent_requests(
    presenter: &mut Presenter,
    environment: &Environment,
) -> anyhow::Result<()> {
    presenter.title("Fifty concurrent requests with one key")?;
    let payment = Payment {
        key: "order-1002",
        ..FIRST
    };
    let before = environment.payments();
    presenter.request(payment, "50 times, concurrently")?;
    let at = environment.address();
    let requests: Vec<_> = (0..50).map(|_| tokio::spawn(send(at, payment))).collect();
    let mut responses = Vec::new();
    for request in requests {
        responses.push(request.await??);
    }
    let replays = responses
        .iter()
        .filter(|response| response.is_replay())
        .count();
    let created = responses
        .iter()
        .filter(|response| response.status == 201)
        .count();
    let same = responses
        .iter()
        .all(|response| response.body == responses[0].body);
    presenter.line(&format!("← {created} times 201, {replays} of them replays"))?;
    presenter.conclude(
        environment,
        "One request ran; the others waited for it and got its reply.",
        &[
            expect("50 times 201", created == 50),
            expect("49 replays", replays == 49),
            expect("the same body every time", same),
            expect("one more payment", environment.payments() == before + 1),
        ],
    )?;
    Ok(())
}

async fn different_amount(
    presenter: &mut Presenter,
    environment: &Environment,
) -> anyhow::Result<()> {
    presenter.title("The same key with a different amount")?;
    let before = environment.payments();
    let payment = Payment {
        amount: 9900,
        ..FIRST
    };
    let response = presenter.send(environment, payment).await?;
    presenter.conclude(
        environment,
        "A key belongs to one request. A different request with the same key is a client error.",
        &[
            expect("422", response.status == 422),
            expect("key-reused", response.code() == "key-reused"),
            expect("no payment", environment.payments() == before),
        ],
    )?;
    Ok(())
}

async fn client_disconnects(
    presenter: &mut Presenter,
    environment: &Environment,
) -> anyhow::Result<()> {
    presenter.title("A client that disconnects while the service is still working")?;
    let before = environment.payments();
    let payment = Payment {
        path: "/payments/slow",
        key: "order-1003",
        ..FIRST
    };
    presenter.request(payment, "and the client disconnects after 300 ms")?;
    send_and_disconnect(environment.address(), payment).await;
    presenter.line("✂ no response")?;
    let response = presenter.send(environment, payment).await?;
    presenter.conclude(
        environment,
        "The operation continued without the client. The retry waited for it and got the reply.",
        &[
            expect("201", response.status == 201),
            expect("a replay", response.is_replay()),
            expect("one more payment", environment.payments() == before + 1),
        ],
    )?;
    Ok(())
}

async fn gateway_killed(
    presenter: &mut Presenter,
    environment: &mut Environment,
    first: &PaymentResponse,
) -> anyhow::Result<()> {
    presenter.title("The gateway is killed (SIGKILL) and restarted")?;
    let before = environment.payments();
    let startup = environment.kill_and_restart().await?;
    presenter.line(&format!(
        "☠ killed; serving again {} ms after the restart",
        startup.as_millis()
    ))?;
    let response = presenter.send(environment, FIRST).await?;
    presenter.conclude(
        environment,
        "Acknowledged replies are on disk: the reply to the first payment is still there.",
        &[
            expect("a replay", response.is_replay()),
            expect("the same body", response.body == first.body),
            expect("no payment", environment.payments() == before),
        ],
    )?;
    Ok(())
}

async fn upstream_crashes(
    presenter: &mut Presenter,
    environment: &Environment,
) -> anyhow::Result<()> {
    presenter.title("A service that crashes after the payment, before it responds")?;
    let before = environment.payments();
    let payment = Payment {
        path: "/payments/crash",
        key: "order-1004",
        ..FIRST
    };
    let first = presenter.send(environment, payment).await?;
    let retry = presenter.send(environment, payment).await?;
    presenter.conclude(
        environment,
        "The operation may have run. The gateway cannot know, so it reports the outcome as unknown and does not run it again.",
        &[
            expect("504 first", first.status == 504),
            expect("409 on the retry", retry.status == 409),
            expect("outcome-unknown both times", first.code() == "outcome-unknown" && retry.code() == "outcome-unknown"),
            expect("one payment, not two", environment.payments() == before + 1),
        ],
    )?;
    Ok(())
}

impl Presenter {
    fn title(&mut self, title: &str) -> anyhow::Result<()> {
        self.step += 1;
        let text = format!("{}. {title}", self.step);
        output::print(&format!("\n{}\n", self.paint(BOLD, &text)))
    }

    fn request(&self, payment: Payment, how: &str) -> anyhow::Result<()> {
        let Payment { path, key, .. } = payment;
        let body = payment.body();
        self.line(&format!(
            "→ POST {path}   Idempotency-Key: {key}   {body}   {how}"
        ))
    }

    fn line(&self, text: &str) -> anyhow::Result<()> {
        output::print(&format!("   {}\n", text.trim_end()))
    }

    /// Sends a payment and shows it with its response.
    async fn send(
        &self,
        environment: &Environment,
        payment: Payment,
    ) -> anyhow::Result<PaymentResponse> {
        self.request(payment, "")?;
        let response = send(environment.address(), payment).await?;
        let headers: Vec<_> = SHOWN_HEADERS
            .into_iter()
            .filter(|name| !response.header(name).is_empty())
            .map(|name| format!("{name}: {}", response.header(name)))
            .collect();
        self.line(&format!("← {}   {}", response.status, headers.join("   ")))?;
        self.line(&format!("  {}", summary(&response)))?;
        Ok(response)
    }

    /// Explains a step and checks it.
    fn conclude(
        &mut self,
        environment: &Environment,
        explanation: &str,
        expectations: &[Expectation],
    ) -> anyhow::Result<()> {
        self.line(&format!("payments made: {}", environment.payments()))?;
        self.line(&self.paint(CYAN, explanation))?;
        let missed: Vec<_> = expectations
            .iter()
            .filter(|expected| !expected.holds)
            .map(|expected| expected.what)
            .collect();
        if missed.is_empty() {
            return self.line(&self.paint(GREEN, "✓ as expected"));
        }
        self.failed += 1;
        let text = format!("✗ expected {}", missed.join(", "));
        self.line(&self.paint(RED, &text))
    }

    fn finish(&self) -> anyhow::Result<()> {
        let text = match self.failed {
            0 => self.paint(GREEN, "All steps went as expected."),
            failed => self.paint(RED, &format!("{failed} steps did not go as expected.")),
        };
        output::print(&format!("\n{text}\n"))
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// What of a body fits on a line: the code and title of a problem, or all of it.
fn summary(response: &PaymentResponse) -> String {
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap_or_default();
    match (body["code"].as_str(), body["title"].as_str()) {
        (Some(code), Some(title)) => format!("{code}: {title}"),
        _ => response.body.clone(),
    }
}
