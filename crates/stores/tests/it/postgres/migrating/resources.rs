//! References to resources, and partitions.

use onceward_servers::Postgres;
use onceward_stores::postgres::migrate::Options;

use super::{applied, catalog, connect, error_of, named, referring, refused};

/// An operation without a reference, under a digest of its own.
const INSERT: &str = "INSERT INTO idempotency_record
    (namespace, digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
     request_hash, hash_algorithm, request_sender, class, lease_ms, retention_ms, remember_ms,
     keep_expired_ms, after_loss, ttl_basis, expiry, state, fence, attempt, attempts, delivered,
     created_ms, until_ms, changed)
    SELECT 'n', sha256(n::text::bytea), ''::bytea, 't', 'p', 's', 'e', n::text, 'endpoint',
     ''::bytea, 'json1', ''::bytea, 'interactive', 1, 1, 1, 0, 'hold', 'completion', 'strict',
     'running', n, ''::bytea, 1, false, 0, 0, n
    FROM generate_series(1, 100) AS n";

/// A schema of an application.
const THEIRS: &str = "CREATE SCHEMA tenant;
    CREATE TABLE tenant.projects (id uuid PRIMARY KEY);
    CREATE TABLE tenant.\"Users\" (\"Id\" bigint PRIMARY KEY, name text);
    INSERT INTO tenant.projects VALUES ('00000000-0000-0000-0000-000000000001');
    INSERT INTO tenant.\"Users\" VALUES (7)";

/// A server with it.
fn server() -> Postgres {
    let postgres = Postgres::start();
    postgres.sql("postgres", THEIRS);
    postgres
}

const PROJECT: &str = "project=tenant.projects(id)";
const PERSON: &str = "person=tenant.\"Users\"(\"Id\")";

#[tokio::test]
async fn an_operation_refers_to_one_thing_at_most() {
    let postgres = Postgres::start();
    for partitions in [None, Some(4)] {
        let name = format!("spread_{}", partitions.unwrap_or(1));
        let url = postgres.database(&name);
        postgres.sql(&name, THEIRS);
        let options = {
            let mut options = referring(&[PROJECT]);
            options.partitions = partitions;
            options
        };
        applied(&url, &options).await;
        postgres.sql(&name, INSERT);
        // One more resource, while operations exist.
        applied(&url, &referring(&[PROJECT, PERSON])).await;
        let made = catalog(&postgres, &name, "public");
        applied(&url, &referring(&[PERSON])).await;
        assert_eq!(catalog(&postgres, &name, "public"), made);

        let client = connect(&url).await;
        let set = |to: &str| format!("UPDATE idempotency_record SET {to} WHERE key_value = '1'");
        let project = "resource_project = '00000000-0000-0000-0000-000000000001'";
        client.batch_execute(&set(project)).await.expect("one");
        let error = error_of(&client, &set("resource_person = 7")).await;
        assert!(
            error.contains("violates check constraint \"one_resource\""),
            "{error}"
        );
        let other = set("resource_person = 7, resource_project = NULL");
        client.batch_execute(&other).await.expect("another");
        let error = error_of(&client, &set("resource_person = 8")).await;
        assert!(error.contains("violates foreign key constraint"), "{error}");

        // A new operation under the same key has no reference.
        let before = "UPDATE idempotency_record SET operation_id = operation_id, state = 'released'; \
                      SELECT num_nonnulls(resource_person, resource_project) FROM idempotency_record WHERE key_value = '1'; \
                      BEGIN; UPDATE idempotency_record SET operation_id = '\\x01'; \
                      SELECT sum(num_nonnulls(resource_person, resource_project)) FROM idempotency_record; ROLLBACK";
        assert_eq!(postgres.sql(&name, before), "1\n0");

        // The referenced row is deleted, the operation stays.
        let left = "DELETE FROM tenant.\"Users\"; \
                    SELECT state, resource_person IS NULL FROM idempotency_record WHERE key_value = '1'";
        assert_eq!(postgres.sql(&name, left), "released|t");
    }
}

#[tokio::test]
async fn deleting_a_resource_row_does_not_scan_operations() {
    let postgres = server();
    applied(&postgres.url(), &referring(&[PROJECT, PERSON])).await;
    postgres.sql("postgres", &INSERT.replace("100)", "20000)"));
    let plan = postgres.sql(
        "postgres",
        "ANALYZE idempotency_record; \
         EXPLAIN UPDATE idempotency_record SET resource_person = NULL WHERE resource_person = 7",
    );
    assert!(
        plan.contains("idempotency_record_resource_person"),
        "{plan}"
    );
}

#[tokio::test]
async fn a_reference_takes_the_type_of_what_it_refers_to() {
    let postgres = server();
    // The type in the database is used, not the given one.
    applied(
        &postgres.url(),
        &referring(&["project=tenant.projects(id):text", PERSON]),
    )
    .await;
    let types = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute \
                 WHERE attrelid = 'idempotency_record'::regclass AND attname LIKE 'resource%' ORDER BY 1";
    assert_eq!(
        postgres.sql("postgres", types),
        "resource_person|bigint\nresource_project|uuid"
    );
}

#[tokio::test]
async fn impossible_references_are_refused() {
    let postgres = server();
    applied(&postgres.url(), &referring(&[PROJECT])).await;
    let made = catalog(&postgres, "postgres", "public");
    let cases = [
        (
            "thing=tenant.things(id)",
            "resource thing: there is no table \"tenant\".\"things\" in database postgres",
        ),
        (
            "thing=nowhere.things(id)",
            "resource thing: there is no table \"nowhere\".\"things\" in database postgres",
        ),
        (
            "thing=tenant.projects(key)",
            "resource thing: there is no column key in table \"tenant\".\"projects\" in database postgres",
        ),
        (
            "thing=tenant.\"Users\"(name)",
            "the migration failed: 42830: there is no unique constraint matching given keys for referenced table \"Users\"",
        ),
        (
            "project=tenant.\"Users\"(\"Id\")",
            "resource project refers to another column than \"tenant\".\"Users\"(Id), and cannot be changed; \
             use another name for it",
        ),
    ];
    for (text, want) in cases {
        // The valid resource before it is not created either.
        let error = refused(&postgres.url(), &referring(&[PERSON, text])).await;
        assert_eq!(error.to_string(), want, "{text}");
        assert_eq!(catalog(&postgres, "postgres", "public"), made);
    }
}

#[tokio::test]
async fn rows_are_spread_and_keys_stay_unique() {
    let postgres = server();
    let spread = |count| {
        let mut options = Options::default();
        options.partitions = Some(count);
        options
    };
    applied(&postgres.url(), &spread(4)).await;
    postgres.sql("postgres", INSERT);
    let tables = postgres.sql(
        "postgres",
        "SELECT count(DISTINCT tableoid) FROM idempotency_record",
    );
    assert_eq!(tables, "4");
    postgres.sql("postgres", &format!("{INSERT} ON CONFLICT DO NOTHING"));
    let rows = postgres.sql("postgres", "SELECT count(*) FROM idempotency_record");
    assert_eq!(rows, "100");
    let swept = "UPDATE idempotency_record SET state = 'released', sweep_ms = 1 WHERE fence <= 30; \
                 SELECT idempotency_record_sweep('n', NULL, 20), idempotency_record_sweep('n', NULL, 20)";
    assert_eq!(postgres.sql("postgres", swept), "20|10");

    assert_eq!(
        applied(&postgres.url(), &spread(4)).await.table.to_string(),
        "public.idempotency_record"
    );
    applied(&postgres.url(), &Options::default()).await;
    applied(&postgres.url(), &named("whole")).await;
    let cases = [
        (
            spread(8),
            "public.idempotency_record exists with 4 partitions, not 8",
        ),
        (
            {
                let mut options = named("whole");
                options.partitions = Some(2);
                options
            },
            "public.whole exists with 0 partitions, not 2",
        ),
    ];
    for (options, want) in cases {
        let error = refused(&postgres.url(), &options).await;
        assert_eq!(
            error.to_string(),
            format!(
                "the table {want}; a table can be partitioned only when it is created: \
                 omit --partitions, or use another name (--table)"
            )
        );
    }
}
