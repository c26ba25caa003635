//! The walk: seven steps, each shown, explained and checked.

use std::io::IsTerminal;

use super::client::{Answer, Payment, send, send_and_hang_up};
use super::stage::Stage;

const FIRST: Payment = Payment {
    path: "/payments",
    key: "order-1001",
    amount: 4200,
};

/// What a step must have come to.
struct Want {
    what: &'static str,
    holds: bool,
}

fn want(what: &'static str, holds: bool) -> Want {
    Want { what, holds }
}

/// Shows steps and counts those that went wrong.
struct Guide {
    number: u32,
    wrong: u32,
    colours: bool,
}

/// Walks through all steps; tells how many were not as they should be.
pub(super) async fn walk(stage: &mut Stage) -> anyhow::Result<u32> {
    let mut guide = Guide {
        number: 0,
        wrong: 0,
        colours: std::io::stdout().is_terminal(),
    };
    println!(
        "A payments service, and Onceward in front of it at http://{}.",
        stage.address()
    );
    let first = first_payment(&mut guide, stage).await?;
    same_again(&mut guide, stage, &first).await?;
    fifty_at_once(&mut guide, stage).await?;
    another_amount(&mut guide, stage).await?;
    client_hangs_up(&mut guide, stage).await?;
    gateway_killed(&mut guide, stage, &first).await?;
    upstream_dies(&mut guide, stage).await?;
    guide.end();
    Ok(guide.wrong)
}

async fn first_payment(guide: &mut Guide, stage: &Stage) -> anyhow::Result<Answer> {
    guide.title("A first payment");
    let answer = guide.ask(stage, FIRST).await?;
    guide.sum_up(
        stage,
        "The request was recorded on disk, forwarded once, and its reply was on disk before you saw it.",
        &[
            want("201", answer.status == 201),
            want("not a replay", !answer.is_replay()),
            want("one payment", stage.payments() == 1),
        ],
    );
    Ok(answer)
}

async fn same_again(guide: &mut Guide, stage: &Stage, first: &Answer) -> anyhow::Result<()> {
    guide.title("The same again, as a client does that lost the answer");
    let answer = guide.ask(stage, FIRST).await?;
    guide.sum_up(
        stage,
        "The stored reply came back, byte for byte. The service was not asked.",
        &[
            want("a replay", answer.is_replay()),
            want("the same status", answer.status == first.status),
            want("the same body", answer.body == first.body),
            want("no second payment", stage.payments() == 1),
        ],
    );
    Ok(())
}

async fn fifty_at_once(guide: &mut Guide, stage: &Stage) -> anyhow::Result<()> {
    guide.title("Fifty at once with one key");
    let payment = Payment {
        key: "order-1002",
        ..FIRST
    };
    let before = stage.payments();
    guide.request(payment, "50 times, at once");
    let at = stage.address();
    let asked: Vec<_> = (0..50).map(|_| tokio::spawn(send(at, payment))).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await??);
    }
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    let good = answers.iter().filter(|answer| answer.status == 201).count();
    let same = answers.iter().all(|answer| answer.body == answers[0].body);
    guide.line(&format!("← {good} times 201, {replays} of them replays"));
    guide.sum_up(
        stage,
        "One of them ran; the others waited for it and got its reply.",
        &[
            want("50 times 201", good == 50),
            want("49 replays", replays == 49),
            want("one and the same body", same),
            want("one payment more", stage.payments() == before + 1),
        ],
    );
    Ok(())
}

async fn another_amount(guide: &mut Guide, stage: &Stage) -> anyhow::Result<()> {
    guide.title("The same key with another amount");
    let before = stage.payments();
    let payment = Payment {
        amount: 9900,
        ..FIRST
    };
    let answer = guide.ask(stage, payment).await?;
    guide.sum_up(
        stage,
        "A key stands for one request. Another one under it is a mistake of the client, and is told so.",
        &[
            want("422", answer.status == 422),
            want("key-reused", answer.code() == "key-reused"),
            want("no payment", stage.payments() == before),
        ],
    );
    Ok(())
}

async fn client_hangs_up(guide: &mut Guide, stage: &Stage) -> anyhow::Result<()> {
    guide.title("A client that hangs up while the service still works");
    let before = stage.payments();
    let payment = Payment {
        path: "/payments/slow",
        key: "order-1003",
        ..FIRST
    };
    guide.request(payment, "and the client hangs up after 300 ms");
    send_and_hang_up(stage.address(), payment).await;
    guide.line("✂ no answer");
    let answer = guide.ask(stage, payment).await?;
    guide.sum_up(
        stage,
        "The work went on without the client. Its retry waited for the end and got the reply.",
        &[
            want("201", answer.status == 201),
            want("a replay", answer.is_replay()),
            want("one payment more", stage.payments() == before + 1),
        ],
    );
    Ok(())
}

async fn gateway_killed(
    guide: &mut Guide,
    stage: &mut Stage,
    first: &Answer,
) -> anyhow::Result<()> {
    guide.title("The gateway killed (SIGKILL) and started again");
    let before = stage.payments();
    let took = stage.kill_and_restart().await?;
    guide.line(&format!(
        "☠ killed; serving again after {} ms",
        took.as_millis()
    ));
    let answer = guide.ask(stage, FIRST).await?;
    guide.sum_up(
        stage,
        "What was acknowledged was on disk: the first payment's reply is still there.",
        &[
            want("a replay", answer.is_replay()),
            want("the same body", answer.body == first.body),
            want("no payment", stage.payments() == before),
        ],
    );
    Ok(())
}

async fn upstream_dies(guide: &mut Guide, stage: &Stage) -> anyhow::Result<()> {
    guide.title("A service that dies half-way: the payment is made, the answer never comes");
    let before = stage.payments();
    let payment = Payment {
        path: "/payments/crash",
        key: "order-1004",
        ..FIRST
    };
    let lost = guide.ask(stage, payment).await?;
    let again = guide.ask(stage, payment).await?;
    guide.sum_up(
        stage,
        "It may have run, and nobody can know from outside. So it is called unknown, and is not repeated.",
        &[
            want("504 first", lost.status == 504),
            want("409 on the retry", again.status == 409),
            want("outcome-unknown both times", lost.code() == "outcome-unknown" && again.code() == "outcome-unknown"),
            want("one payment, not two", stage.payments() == before + 1),
        ],
    );
    Ok(())
}

impl Guide {
    fn title(&mut self, title: &str) {
        self.number += 1;
        let text = format!("{}. {title}", self.number);
        println!("\n{}", self.paint("1", &text));
    }

    fn request(&self, payment: Payment, how: &str) {
        let Payment { path, key, .. } = payment;
        let body = payment.body();
        self.line(&format!(
            "→ POST {path}   Idempotency-Key: {key}   {body}   {how}"
        ));
    }

    fn line(&self, text: &str) {
        println!("   {}", text.trim_end());
    }

    /// Sends a payment, shown with its answer.
    async fn ask(&self, stage: &Stage, payment: Payment) -> anyhow::Result<Answer> {
        self.request(payment, "");
        let answer = send(stage.address(), payment).await?;
        let ours = [
            "idempotent-replayed",
            "idempotency-status",
            "x-operation-id",
        ];
        let ours: Vec<_> = ours
            .into_iter()
            .filter(|name| !answer.header(name).is_empty())
            .map(|name| format!("{name}: {}", answer.header(name)))
            .collect();
        self.line(&format!("← {}   {}", answer.status, ours.join("   ")));
        self.line(&format!("  {}", shown(&answer)));
        Ok(answer)
    }

    fn sum_up(&mut self, stage: &Stage, sentence: &str, wants: &[Want]) {
        self.line(&format!("payments really made: {}", stage.payments()));
        println!("   {}", self.paint("36", sentence));
        let missed: Vec<_> = wants.iter().filter(|w| !w.holds).map(|w| w.what).collect();
        if missed.is_empty() {
            println!("   {}", self.paint("32", "✓ as it should be"));
        } else {
            self.wrong += 1;
            let text = format!("✗ not as it should be: wanted {}", missed.join(", "));
            println!("   {}", self.paint("31", &text));
        }
    }

    fn end(&self) {
        match self.wrong {
            0 => println!(
                "\n{}",
                self.paint("32", "All steps were as they should be.")
            ),
            wrong => println!(
                "\n{}",
                self.paint("31", &format!("{wrong} steps were not as they should be."))
            ),
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// What of a body fits on a line: a problem's code and title, or all of it.
fn shown(answer: &Answer) -> String {
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
    match (body["code"].as_str(), body["title"].as_str()) {
        (Some(code), Some(title)) => format!("{code}: {title}"),
        _ => answer.body.clone(),
    }
}
