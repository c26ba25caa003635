//! Row-level security: a user sees and changes its own rows and no others; the
//! sweep takes any row that is over, and nothing else.

use std::sync::Arc;

use onceward_core::clock::{ManualClock, Timestamp};
use onceward_core::record::{Answer, Settlement};
use onceward_core::store::{Added, Claim, Collection, Inspect as _, Registry as _, Store as _};
use onceward_servers::Postgres;
use onceward_stores::Settings;
use onceward_stores::postgres::migrate::Options;
use onceward_stores::postgres::{PostgresStore, Time};

use super::{USER, applied, catalog, connect, error_of, refused, row_security, table};
use crate::fixture::{ask, reply, retry};

const ROLE: &str = "app";

/// A server with the tables, and a role that sees its users' own rows only.
async fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql("postgres", &format!("CREATE ROLE {ROLE} LOGIN"));
    applied(&postgres.url(), &row_security(ROLE, USER)).await;
    postgres
}

/// The URL for a user of the application.
fn url_of(postgres: &Postgres, user: &str) -> String {
    let url = postgres.url_of(ROLE, "postgres");
    format!("{url}?options=-c%20app.user_id%3D{user}")
}

async fn store(url: &str, time: Time) -> PostgresStore {
    let store = PostgresStore::open_with_time(&Settings::at(url), time).await;
    store.unwrap_or_else(|error| panic!("the store opens: {error}"))
}

/// A time so far in the past that everything recorded then has expired.
fn long_ago() -> Time {
    let then = Timestamp::from_unix_ms(1_600_000_000_000);
    Time::Given(Arc::new(ManualClock::new(then)))
}

/// Runs the operation of this number to its end.
async fn complete(store: &PostgresStore, number: u64) {
    let claim = store.claim(&ask(number)).await.expect("the store answers");
    let Claim::Granted(grant) = claim else {
        panic!("not granted: {claim:?}");
    };
    let word = Settlement::Completed(Answer::Kept(reply(number)));
    let settled = store.settle(&grant.digest, grant.fence, word).await;
    assert!(settled.expect("the store answers").is_recorded());
}

async fn is_replayed(store: &PostgresStore, number: u64) -> bool {
    let claim = store.claim(&retry(&ask(number))).await;
    matches!(claim.expect("the store answers"), Claim::Finished(record)
        if record.answer == Some(Answer::Kept(reply(number))))
}

#[tokio::test]
async fn users_use_one_key_independently() {
    let postgres = server().await;
    let alice = store(&url_of(&postgres, "alice"), Time::Server).await;
    let bob = store(&url_of(&postgres, "bob"), Time::Server).await;
    let owner = store(&postgres.url(), Time::Server).await;
    complete(&alice, 1).await;
    assert!(is_replayed(&alice, 1).await);
    assert!(
        bob.get(&ask(1).digest)
            .await
            .expect("the store answers")
            .is_none()
    );
    assert!(
        bob.find(ask(1).id)
            .await
            .expect("the store answers")
            .is_none()
    );
    complete(&bob, 1).await;
    complete(&owner, 1).await;
    assert!(is_replayed(&bob, 1).await);
    let rows = "SELECT owner, count(*) FROM idempotency_record GROUP BY owner ORDER BY owner";
    assert_eq!(postgres.sql("postgres", rows), "|1\nalice|1\nbob|1");

    let put = alice
        .add(Collection::Classes, "financial", "hers".into())
        .await;
    assert_eq!(put.expect("the store answers"), Added::Done);
    let read = bob.read(Collection::Classes, "financial").await;
    assert_eq!(read.expect("the store answers"), None);
    let put = bob
        .add(Collection::Classes, "financial", "his".into())
        .await;
    assert_eq!(put.expect("the store answers"), Added::Done);
}

#[tokio::test]
async fn rows_of_others_can_neither_be_seen_nor_changed_nor_made() {
    let postgres = server().await;
    complete(&store(&url_of(&postgres, "alice"), Time::Server).await, 1).await;
    complete(&store(&postgres.url(), Time::Server).await, 2).await;
    let rows = |sql: &str| {
        let script = format!("SET ROLE {ROLE}; SET app.user_id = 'bob'; {sql}");
        postgres.sql("postgres", &script)
    };
    // A row to compare with.
    complete(&store(&url_of(&postgres, "bob"), Time::Server).await, 3).await;
    for table in ["idempotency_record", "idempotency_record_document"] {
        let owners = rows(&format!("SELECT DISTINCT owner FROM {table}"));
        assert!(["bob", ""].contains(&owners.as_str()), "{table}: {owners}");
    }
    let changed = "WITH changed AS (UPDATE idempotency_record SET status = 1 RETURNING owner) \
                   SELECT owner FROM changed";
    assert_eq!(rows(changed), "bob");
    let deleted =
        "WITH gone AS (DELETE FROM idempotency_record RETURNING owner) SELECT owner FROM gone";
    assert_eq!(rows(deleted), "bob");
    let left = "SELECT owner, status FROM idempotency_record ORDER BY owner";
    assert_eq!(postgres.sql("postgres", left), "|201\nalice|201");

    let bob = connect(&url_of(&postgres, "bob")).await;
    let policy = "ERROR: new row violates row-level security policy for table \"idempotency_record_document\"";
    for owner in ["alice", ""] {
        let insert = format!(
            "INSERT INTO idempotency_record_document VALUES ('n', '{owner}', 's', 'name', '')"
        );
        assert_eq!(error_of(&bob, &insert).await, policy);
    }
    let mine = "INSERT INTO idempotency_record_document (namespace, sheet, name, document) VALUES ('n', 's', 'name', '')";
    bob.batch_execute(mine).await.expect("it is his own");
    let away = "UPDATE idempotency_record_document SET owner = 'alice'";
    assert_eq!(error_of(&bob, away).await, policy);
    for forbidden in [
        "SELECT FROM idempotency_record_view",
        "TRUNCATE idempotency_record",
        "INSERT INTO idempotency_record_migration VALUES (9)",
        "SELECT setval('idempotency_record_fence', 1)",
    ] {
        let error = error_of(&bob, forbidden).await;
        assert!(error.contains("permission denied"), "{forbidden}: {error}");
    }
}

#[tokio::test]
async fn without_a_user_nothing_is_seen_or_written() {
    let postgres = server().await;
    complete(&store(&postgres.url(), Time::Server).await, 1).await;
    complete(&store(&url_of(&postgres, "alice"), Time::Server).await, 2).await;
    let nobody = connect(&postgres.url_of(ROLE, "postgres")).await;
    let emptied = connect(&postgres.url_of(ROLE, "postgres")).await;
    // A setting of a transaction that is over is the empty text, not NULL.
    emptied
        .batch_execute("BEGIN; SET LOCAL app.user_id = 'alice'; COMMIT")
        .await
        .expect("anybody may set it");
    for client in [nobody, emptied] {
        let seen = client.query("SELECT FROM idempotency_record", &[]).await;
        assert_eq!(seen.expect("it may ask").len(), 0);
        let insert = "INSERT INTO idempotency_record_document (namespace, sheet, name, document) VALUES ('n', 's', 'n', '')";
        let error = error_of(&client, insert).await;
        assert!(
            error.contains("violates row-level security policy"),
            "{error}"
        );
    }
    let store = store(&postgres.url_of(ROLE, "postgres"), Time::Server).await;
    store
        .claim(&ask(1))
        .await
        .expect_err("nobody claims nothing");
    let rows = postgres.sql("postgres", "SELECT count(*) FROM idempotency_record");
    assert_eq!(rows, "2");
}

#[tokio::test]
async fn a_users_sweep_takes_all_that_is_over_and_nothing_that_is_not() {
    let postgres = server().await;
    for user in ["alice", "bob"] {
        let url = url_of(&postgres, user);
        complete(&store(&url, long_ago()).await, 1).await;
        complete(&store(&url, Time::Server).await, 2).await;
    }
    complete(&store(&postgres.url(), long_ago()).await, 1).await;
    let left = || {
        let rows = "SELECT owner, key_value FROM idempotency_record ORDER BY owner, key_value";
        postgres.sql("postgres", rows)
    };
    let future = Timestamp::from_unix_ms(4_000_000_000_000);
    let future = Time::Given(Arc::new(ManualClock::new(future)));
    let carol = store(&url_of(&postgres, "carol"), future).await;
    assert_eq!(carol.sweep(100).await.expect("it sweeps"), 3);
    assert_eq!(left(), "alice|key-2\nbob|key-2");
    assert_eq!(carol.sweep(100).await.expect("it sweeps"), 0);

    // A row with impossible numbers does not stop a sweep.
    let absurd = "UPDATE idempotency_record SET sweep_ms = 1, expires_ms = 9223372036854775807, \
                  remember_ms = 9223372036854775807 WHERE key_value = 'key-2'";
    let alice = connect(&url_of(&postgres, "alice")).await;
    alice.batch_execute(absurd).await.expect("it is her row");
    assert_eq!(carol.sweep(100).await.expect("it sweeps"), 1);
    assert_eq!(left(), "alice|key-2\nbob|key-2");

    let client = connect(&url_of(&postgres, "carol")).await;
    let far = "SELECT idempotency_record_sweep('edge', 9223372036854775807, 1000)";
    client.batch_execute(far).await.expect("it may ask");
    assert_eq!(left(), "alice|key-2\nbob|key-2");
}

#[tokio::test]
async fn the_view_shows_a_user_its_own_even_where_it_may_look() {
    let postgres = server().await;
    complete(&store(&url_of(&postgres, "alice"), Time::Server).await, 1).await;
    complete(&store(&postgres.url(), Time::Server).await, 2).await;
    postgres.sql(
        "postgres",
        &format!("GRANT SELECT ON idempotency_record_view TO {ROLE}"),
    );
    let seen = |before: &str| {
        let rows = "SELECT owner, key_value, state FROM idempotency_record_view ORDER BY owner";
        postgres.sql("postgres", &format!("{before} {rows}"))
    };
    assert_eq!(seen(""), "|key-2|completed\nalice|key-1|completed");
    let role = format!("SET ROLE {ROLE};");
    assert_eq!(
        seen(&format!("{role} SET app.user_id = 'alice';")),
        "alice|key-1|completed"
    );
    assert_eq!(seen(&format!("{role} SET app.user_id = 'bob';")), "");
    assert_eq!(seen(&role), "");
}

#[tokio::test]
async fn no_search_path_makes_a_user_another() {
    let postgres = server().await;
    complete(&store(&postgres.url(), Time::Server).await, 1).await;
    // Functions of the user's own, before those of the system.
    postgres.sql(
        "postgres",
        &format!(
            "CREATE SCHEMA trick AUTHORIZATION {ROLE}; SET ROLE {ROLE}; \
             CREATE FUNCTION trick.row_security_active(regclass) RETURNS boolean LANGUAGE sql AS 'SELECT false'; \
             CREATE FUNCTION trick.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT '''''"
        ),
    );
    let bob = connect(&url_of(&postgres, "bob")).await;
    let sql =
        "SET search_path = trick, public, pg_catalog; SELECT public.idempotency_record_owner()";
    bob.batch_execute(sql).await.expect("anybody may");
    let row = bob
        .query_one("SELECT public.idempotency_record_owner()", &[])
        .await;
    assert_eq!(row.expect("a row").get::<_, String>(0), "bob");
    let seen = bob
        .query("SELECT FROM public.idempotency_record", &[])
        .await;
    assert_eq!(seen.expect("it may ask").len(), 0);
}

#[tokio::test]
async fn expression_and_role_can_be_changed_later() {
    let postgres = server().await;
    complete(&store(&url_of(&postgres, "alice"), Time::Server).await, 1).await;
    let made = catalog(&postgres, "postgres", "public");
    applied(&postgres.url(), &row_security(ROLE, USER)).await;
    assert_eq!(catalog(&postgres, "postgres", "public"), made);

    // By the name of the role that connected, for a second application.
    postgres.sql("postgres", "CREATE ROLE alice LOGIN");
    applied(&postgres.url(), &row_security("alice", "session_user")).await;
    let alice = store(&postgres.url_of("alice", "postgres"), Time::Server).await;
    assert!(is_replayed(&alice, 1).await);
    let other = store(&url_of(&postgres, "alice"), Time::Server).await;
    assert!(!is_replayed(&other, 1).await, "it is {ROLE} now");
    // A migration without the options of row-level security does not change it.
    let before = catalog(&postgres, "postgres", "public");
    applied(&postgres.url(), &Options::default()).await;
    assert_eq!(catalog(&postgres, "postgres", "public"), before);
}

#[tokio::test]
async fn roles_and_expressions_that_would_not_protect_are_refused() {
    let postgres = Postgres::start();
    postgres.sql(
        "postgres",
        "CREATE ROLE app LOGIN; CREATE ROLE root SUPERUSER; CREATE ROLE above BYPASSRLS; \
         CREATE ROLE maker LOGIN; CREATE ROLE member LOGIN IN ROLE maker; GRANT CREATE ON SCHEMA public TO maker",
    );
    let url = postgres.url_of("maker", "postgres");
    let unclear = |words: &str| {
        format!(
            "the expression of --rls-user is not valid: {words}; write SQL that returns the user as a text, \
             with the schemas of your own functions and tables, such as current_setting('app.user_id', true)"
        )
    };
    let cases = [
        ("nobody", USER, "there is no role nobody; create it first, or name another (--rls-role)".to_owned()),
        (
            "root",
            USER,
            "the role root is above row-level security (SUPERUSER or BYPASSRLS); use a role without these".to_owned(),
        ),
        (
            "above",
            USER,
            "the role above is above row-level security (SUPERUSER or BYPASSRLS); use a role without these".to_owned(),
        ),
        (
            "maker",
            USER,
            "the role maker owns public.idempotency_record, and row-level security does not bind owners; use another role".to_owned(),
        ),
        (
            "member",
            USER,
            "the role member owns public.idempotency_record, and row-level security does not bind owners; use another role".to_owned(),
        ),
        ("app", "current_setting(", unclear("mismatched parentheses at or near \";\"")),
        ("app", "who_am_i()", unclear("function who_am_i() does not exist")),
        ("app", "user_id", unclear("column \"user_id\" does not exist")),
    ];
    for (role, user, want) in cases {
        let error = refused(&url, &row_security(role, user)).await;
        assert_eq!(error.to_string(), want, "{role}");
        let made = postgres.sql(
            "postgres",
            "SELECT to_regclass('idempotency_record') IS NULL",
        );
        assert_eq!(made, "t", "nothing was changed");
    }
    applied(&url, &row_security("app", USER)).await;

    postgres.sql(
        "postgres",
        "CREATE SCHEMA theirs; GRANT CREATE, USAGE ON SCHEMA theirs TO maker",
    );
    let options = {
        let mut options = row_security("app", USER);
        options.table = table("theirs.once");
        options
    };
    assert_eq!(
        refused(&url, &options).await.to_string(),
        "the role app may not use the schema theirs, and this user may not grant USAGE; \
         let the schema's owner grant it"
    );
    applied(&postgres.url(), &options).await;
}

/// Schemas often grant an application all rights to the objects created in them.
#[tokio::test]
async fn default_privileges_open_no_way_around() {
    let postgres = Postgres::start();
    postgres.sql(
        "postgres",
        &format!(
            "CREATE ROLE {ROLE} LOGIN; \
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {ROLE}; \
             ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {ROLE};"
        ),
    );
    let options = {
        let mut options = row_security(ROLE, USER);
        options.partitions = Some(2);
        options
    };
    applied(&postgres.url(), &options).await;
    let alice = store(&url_of(&postgres, "alice"), Time::Server).await;
    complete(&alice, 1).await;
    let bob = connect(&url_of(&postgres, "bob")).await;
    for forbidden in [
        "SELECT FROM idempotency_record_p0",
        "SELECT FROM idempotency_record_p1",
        "DELETE FROM idempotency_record_p0",
        "DELETE FROM idempotency_record_p1",
        "INSERT INTO idempotency_record_migration (version) VALUES (99)",
        "SELECT setval('idempotency_record_fence', 1)",
        "TRUNCATE idempotency_record",
    ] {
        let refused = bob.batch_execute(forbidden).await;
        assert!(refused.is_err(), "{forbidden}");
    }
    assert!(is_replayed(&alice, 1).await);
}
