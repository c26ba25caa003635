//! `onceward webhooks`: creating, listing and deleting webhooks, rotating their secrets, and
//! delivering a stored event again.

mod secrets;
mod show;

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;

use crate::admin::table::cell;
use crate::admin::{AdminArgs, Client, Role, path, query};
use crate::operations::{new_state, operation_path};
use secrets::SecretArgs;

const WEBHOOKS: &str = "/admin/v1/webhooks";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a webhook and print its URL.
    Create(CreateWebhook),
    /// List the webhooks, the oldest first, without their secrets.
    List(ListWebhooks),
    /// Change where a webhook's events go; queued events follow.
    Update(UpdateWebhook),
    /// Give a webhook a new secret; the old ones stay valid for a while.
    Rotate(RotateWebhook),
    /// Delete a webhook: requests to its URL are refused from then on.
    Delete {
        /// Webhook id, wh_…
        #[arg(value_name = "WEBHOOK")]
        id: String,
        /// The reason for the change, recorded in the audit log.
        #[arg(
            long,
            value_name = "REASON",
            default_value = "deleted on the command line"
        )]
        why: String,
    },
    /// Deliver a stored event again, under a new fence.
    Redeliver {
        /// Operation id of the event, op_…
        #[arg(value_name = "OPERATION")]
        id: String,
        /// The reason for the change, recorded in the audit log.
        #[arg(long, value_name = "REASON")]
        why: String,
    },
}

#[derive(clap::Args)]
struct CreateWebhook {
    /// Tenant that the events belong to.
    #[arg(long, value_name = "TENANT")]
    tenant: String,
    /// Project that the events belong to.
    #[arg(long, value_name = "PROJECT")]
    project: String,
    /// Provider: stripe, github, twilio, twilio-events, standard-webhooks, svix, slack, shopify, square, adyen, postmark, or a name from the configuration.
    #[arg(long, value_name = "NAME")]
    provider: String,
    /// Upstream that receives the events. Default: from the configuration.
    #[arg(long, value_name = "UPSTREAM")]
    upstream: Option<String>,
    /// Path at the upstream. Default: from the configuration.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    secrets: SecretArgs,
    /// Deliver events after acknowledging them (async) or within the provider's request (sync). Default: async, but sync for twilio.
    #[arg(long, value_name = "MODE", value_parser = ["async", "sync"])]
    deliver: Option<String>,
    /// Signature scheme, for a provider with several: sha1 or sha256 (twilio), webhooks or events (shopify), payments or platform (adyen).
    #[arg(long, value_name = "SCHEME")]
    scheme: Option<String>,
    /// Whether to deliver or refuse the same bytes under a second id, for providers that do not sign the id. Default: from the configuration.
    #[arg(long, value_name = "ACTION", value_parser = ["deliver", "refuse"])]
    same_bytes: Option<String>,
    /// The reason for the change, recorded in the audit log.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "created on the command line"
    )]
    why: String,
}

#[derive(clap::Args)]
struct ListWebhooks {
    /// Only webhooks of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only webhooks of this project.
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Only webhooks of this provider.
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Maximum number of webhooks to list, up to 1000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Cursor from the previous page.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

#[derive(clap::Args)]
struct UpdateWebhook {
    /// Webhook id, wh_…
    #[arg(value_name = "WEBHOOK")]
    id: String,
    /// Upstream that receives the events. Default: unchanged.
    #[arg(long, value_name = "UPSTREAM", required_unless_present = "path")]
    upstream: Option<String>,
    /// Path at the upstream. Default: unchanged.
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The reason for the change, recorded in the audit log.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "updated on the command line"
    )]
    why: String,
}

#[derive(clap::Args)]
struct RotateWebhook {
    /// Webhook id, wh_…
    #[arg(value_name = "WEBHOOK")]
    id: String,
    #[command(flatten)]
    secrets: SecretArgs,
    /// How long the old secrets stay valid: 24h, or 0s to end them now. Default: from the configuration.
    #[arg(long, value_name = "TIME")]
    overlap: Option<String>,
    /// The reason for the change, recorded in the audit log.
    #[arg(
        long,
        value_name = "REASON",
        default_value = "rotated on the command line"
    )]
    why: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.admin)?;
    match args.command {
        Command::Create(webhook) => create(&client, webhook).await,
        Command::List(args) => list(&client, args).await,
        Command::Update(args) => update(&client, &args).await,
        Command::Rotate(args) => rotate(&client, &args).await,
        Command::Delete { id, why } => {
            let url = path("/admin/v1/webhooks/", &id, "/delete");
            let body = json!({ "why": why });
            let result = client.post(Role::Admin, &url, &body).await?;
            client.report(&result, |answer| {
                format!("{} is deleted.\n", cell(&answer["webhook_id"]))
            })
        }
        Command::Redeliver { id, why } => {
            let url = operation_path(&id, "/redeliver");
            let body = json!({ "why": why });
            let result = client.post(Role::Operate, &url, &body).await?;
            client.report(&result, new_state)
        }
    }
}

async fn create(client: &Client, webhook: CreateWebhook) -> anyhow::Result<ExitCode> {
    let body = json!({
        "tenant": webhook.tenant,
        "project": webhook.project,
        "provider": webhook.provider,
        "secrets": webhook.secrets.read()?,
        "generate": webhook.secrets.generate,
        "scheme": webhook.scheme,
        "upstream": webhook.upstream,
        "path": webhook.path,
        "deliver": webhook.deliver,
        "same_bytes": webhook.same_bytes,
        "why": webhook.why,
    });
    let result = client.post(Role::Admin, WEBHOOKS, &body).await?;
    client.report_with_notes(&result, show::created)
}

async fn list(client: &Client, args: ListWebhooks) -> anyhow::Result<ExitCode> {
    let parameters = [
        ("tenant", args.tenant),
        ("project", args.project),
        ("provider", args.provider),
        ("limit", Some(args.limit.to_string())),
        ("after", args.after),
    ];
    let url = query(WEBHOOKS, &parameters);
    let result = client.get(Role::Read, &url).await?;
    client.report(&result, |page| show::listing(page, Timestamp::now()))
}

async fn update(client: &Client, args: &UpdateWebhook) -> anyhow::Result<ExitCode> {
    let body = json!({ "upstream": args.upstream, "path": args.path, "why": args.why });
    let url = path("/admin/v1/webhooks/", &args.id, "/update");
    let result = client.post(Role::Admin, &url, &body).await?;
    client.report(&result, |webhook| {
        format!(
            "Events of {} go to {}{}.\n",
            cell(&webhook["webhook_id"]),
            cell(&webhook["upstream"]),
            cell(&webhook["path"])
        )
    })
}

async fn rotate(client: &Client, args: &RotateWebhook) -> anyhow::Result<ExitCode> {
    let secret = match args.secrets.read()?.as_deref() {
        None => None,
        Some([one]) => Some(one.clone()),
        Some(_) => bail!("give one secret, the new one"),
    };
    if secret.is_none() && !args.secrets.generate {
        bail!("give the new secret with --secret - or --secret-file, or use --generate");
    }
    let body = json!({
        "secret": secret,
        "generate": args.secrets.generate,
        "overlap": args.overlap,
        "why": args.why,
    });
    let url = path("/admin/v1/webhooks/", &args.id, "/rotate");
    let result = client.post(Role::Admin, &url, &body).await?;
    client.report_with_notes(&result, show::rotated)
}
