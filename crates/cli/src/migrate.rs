//! `onceward migrate`: the tables of the PostgreSQL store, applied to a database
//! or printed for the user's own migration tool. It is the same SQL.

use std::process::ExitCode;

use clap::Subcommand;
use onceward_stores::postgres::Table;
use onceward_stores::postgres::migrate::{
    self, Applied, LATEST, Options, Resource, RowSecurity, Version,
};
use serde_json::{Value, json};

use crate::schema::print;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes what is missing in a database. Run twice, or by two at once, it is done once.
    Apply {
        /// The database: postgres://user:password@host:5432/database
        #[arg(
            long,
            value_name = "URL",
            env = "ONCEWARD__STORE__URL",
            hide_env_values = true
        )]
        store: String,
        #[command(flatten)]
        wanted: Wanted,
        /// For programs: one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Prints the SQL for your own migration tool.
    Print {
        #[command(flatten)]
        wanted: Wanted,
    },
}

/// What the tables are to be like.
#[derive(clap::Args)]
struct Wanted {
    /// The table, with its schema if that is not the one of the search path.
    #[arg(long, value_name = "NAME", default_value = "idempotency_record")]
    table: String,
    /// Spreads a new table over so many, by the keys' digests.
    #[arg(long, value_name = "NUMBER")]
    partitions: Option<u32>,
    /// Row-level security: the role that an application connects as.
    #[arg(long, value_name = "ROLE", requires = "rls_user")]
    rls_role: Option<String>,
    /// Row-level security: SQL that tells the user, current_setting('app.user_id', true)
    #[arg(long, value_name = "EXPRESSION", requires = "rls_role")]
    rls_user: Option<String>,
    /// What an operation may refer to: project=tenant.projects(id). Repeat it for more; `print`
    /// needs the type as well: project=tenant.projects(id):uuid
    #[arg(long = "resource", value_name = "NAME=TABLE(COLUMN)")]
    resources: Vec<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Apply {
            store,
            wanted,
            json,
        } => {
            let applied = migrate::apply(&store, &options(&wanted)?).await?;
            print(&match json {
                true => format!("{}\n", for_programs(&applied)),
                false => for_people(&applied),
            })?;
        }
        Command::Print { wanted } => print(&migrate::print(&options(&wanted)?)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn options(wanted: &Wanted) -> anyhow::Result<Options> {
    let rls = match (&wanted.rls_role, &wanted.rls_user) {
        (Some(role), Some(user)) => Some(RowSecurity::new(role, user)?),
        _ => None,
    };
    let resources = wanted.resources.iter().map(|text| text.parse::<Resource>());
    Ok(Options {
        table: Table::parse(&wanted.table)?,
        partitions: wanted.partitions,
        rls,
        resources: resources.collect::<Result<_, _>>()?,
    })
}

fn for_people(applied: &Applied) -> String {
    let Applied {
        database, table, ..
    } = applied;
    match number(applied.before) {
        None => format!("Made {table} in database {database}: version {LATEST}.\n"),
        Some(LATEST) => {
            format!("{table} in database {database} has version {LATEST} already.\n")
        }
        Some(before) => {
            format!("Brought {table} in database {database} from version {before} to {LATEST}.\n")
        }
    }
}

fn for_programs(applied: &Applied) -> Value {
    json!({
        "database": applied.database,
        "table": applied.table.to_string(),
        "before": number(applied.before),
        "version": LATEST,
    })
}

/// The version's number, where there was one.
fn number(version: Version) -> Option<u32> {
    match version {
        Version::Behind(number) | Version::Newer(number) => Some(number),
        Version::Current => Some(LATEST),
        Version::Missing | Version::Foreign | Version::Hidden => None,
    }
}
