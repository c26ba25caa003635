//! `onceward migrate`: the tables of the PostgreSQL store, applied to a database or printed for the
//! user's own migration tool. Both use the same SQL.

use std::process::ExitCode;

use clap::Subcommand;
use onceward_stores::postgres::Table;
use onceward_stores::postgres::migrate::{
    self, Applied, LATEST, Options, Resource, RowSecurity, Version,
};
use serde_json::{Value, json};

use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create or upgrade the tables in a database; repeated and concurrent runs are safe.
    Apply {
        /// URL of the database: postgres://user:password@host:5432/database
        #[arg(
            long,
            value_name = "URL",
            env = "ONCEWARD__STORE__URL",
            hide_env_values = true
        )]
        store: String,
        #[command(flatten)]
        table: TableArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print the SQL for your own migration tool.
    Print {
        #[command(flatten)]
        table: TableArgs,
    },
}

/// The options of the tables.
#[derive(clap::Args)]
struct TableArgs {
    /// Name of the table, with its schema if that is not in the search path.
    #[arg(long, value_name = "NAME", default_value = "idempotency_record")]
    table: String,
    /// Number of hash partitions of a new table.
    #[arg(long, value_name = "NUMBER")]
    partitions: Option<u32>,
    /// Row-level security: role that the application connects as.
    #[arg(long, value_name = "ROLE", requires = "rls_user")]
    rls_role: Option<String>,
    /// Row-level security: SQL expression for the user, such as current_setting('app.user_id', true)
    #[arg(long, value_name = "EXPRESSION", requires = "rls_role")]
    rls_user: Option<String>,
    /// Table that operations may refer to: project=tenant.projects(id); repeatable. `print` also
    /// needs the column's type: project=tenant.projects(id):uuid
    #[arg(long = "resource", value_name = "NAME=TABLE(COLUMN)")]
    resources: Vec<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Apply { store, table, json } => {
            let applied = migrate::apply(&store, &options(&table)?).await?;
            output::print(&match json {
                true => format!("{}\n", as_json(&applied)),
                false => as_text(&applied),
            })?;
        }
        Command::Print { table } => output::print(&migrate::print(&options(&table)?)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &TableArgs) -> anyhow::Result<Options> {
    let rls = match (&args.rls_role, &args.rls_user) {
        (Some(role), Some(user)) => Some(RowSecurity::new(role, user)?),
        _ => None,
    };
    let resources = args.resources.iter().map(|text| text.parse::<Resource>());
    let mut options = Options::for_table(Table::parse(&args.table)?);
    options.partitions = args.partitions;
    options.rls = rls;
    options.resources = resources.collect::<Result<_, _>>()?;
    Ok(options)
}

fn as_text(applied: &Applied) -> String {
    let Applied {
        database, table, ..
    } = applied;
    match number(applied.before) {
        None => format!("Created {table} in database {database}: version {LATEST}.\n"),
        Some(LATEST) => {
            format!("{table} in database {database} already has version {LATEST}.\n")
        }
        Some(before) => {
            format!("Upgraded {table} in database {database} from version {before} to {LATEST}.\n")
        }
    }
}

fn as_json(applied: &Applied) -> Value {
    json!({
        "database": applied.database,
        "table": applied.table.to_string(),
        "before": number(applied.before),
        "version": LATEST,
    })
}

/// The number of the version, if the table exists.
fn number(version: Version) -> Option<u32> {
    match version {
        Version::Behind(number) | Version::Newer(number) => Some(number),
        Version::Current => Some(LATEST),
        _ => None,
    }
}
