//! The statements with the table's name filled in, and the types of their parameters.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::driver::Statement;
use super::row::{COLUMNS, GRACE};
use super::table::Table;

/// All statements about operations.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) grant: Arc<BatchStatement>,
    pub(crate) claim: Arc<Statement>,
    pub(crate) settle: Arc<BatchStatement>,
    pub(crate) finish: Statement,
    pub(crate) free: Statement,
    pub(crate) renew: Statement,
    pub(crate) withdraw: Arc<Statement>,
    pub(crate) get: Statement,
    pub(crate) lock: Statement,
    pub(crate) write: Statement,
    pub(crate) purge: Statement,
    pub(crate) await_: Statement,
    pub(crate) due: Statement,
    pub(crate) next_due: Statement,
    pub(crate) list: Statement,
    pub(crate) stats: Statement,
    pub(crate) sweep: Statement,
    pub(crate) put: Statement,
    pub(crate) add: Statement,
    pub(crate) read: Statement,
    pub(crate) remove: Statement,
    pub(crate) rising: Statement,
    pub(crate) falling: Statement,
}

impl Statements {
    pub(crate) fn new(table: &Table) -> Self {
        use Type as T;
        let fill = |sql: &str, types: Vec<Type>| Statement {
            sql: fill(table, sql),
            types,
        };
        let held = [T::TEXT, T::BYTEA, T::BYTEA, T::BYTEA, T::INT8];
        let with = |more: &[Type]| [held.as_slice(), more].concat();
        let claim = vec![
            T::TEXT,
            T::BYTEA,
            T::INT8,
            T::BYTEA,
            T::TEXT,
            T::TEXT,
            T::TEXT,
            T::TEXT,
            T::TEXT,
            T::TEXT,
            T::BYTEA,
            T::TEXT,
            T::BYTEA,
            T::TEXT,
            T::INT8,
            T::INT8,
            T::INT8,
            T::INT8,
            T::TEXT,
            T::TEXT,
            T::TEXT,
            T::BYTEA,
            T::BYTEA,
            T::INT8,
            T::INT8,
            T::INT8,
        ];
        let document = [T::TEXT, T::TEXT, T::BYTEA];
        let documents = vec![T::TEXT, T::TEXT, T::BYTEA, T::INT8];
        Self {
            grant: Arc::new(steps(
                table,
                include_str!("sql/grant.sql"),
                &[&claim[1..2], &claim[3..22]].concat(),
            )),
            claim: Arc::new(fill(include_str!("sql/claim.sql"), claim)),
            finish: fill(
                include_str!("sql/finish.sql"),
                with(&[T::INT8, T::TEXT, T::TEXT, T::INT4, T::BYTEA]),
            ),
            settle: Arc::new(one_or_many(
                table,
                include_str!("sql/settle.sql"),
                include_str!("sql/settle_many.sql"),
                &[T::BYTEA, T::INT8, T::TEXT, T::TEXT, T::INT4, T::BYTEA],
            )),
            free: fill(include_str!("sql/free.sql"), with(&[T::INT8, T::TEXT])),
            renew: fill(
                include_str!("sql/renew.sql"),
                vec![T::TEXT, T::BYTEA, T::INT8, T::INT8],
            ),
            withdraw: Arc::new(fill(
                include_str!("sql/withdraw.sql"),
                vec![T::TEXT, T::BYTEA, T::INT8, T::BYTEA],
            )),
            get: fill(include_str!("sql/get.sql"), with(&[])),
            lock: fill(include_str!("sql/lock.sql"), with(&[])),
            write: fill(
                include_str!("sql/write.sql"),
                vec![
                    T::TEXT,
                    T::BYTEA,
                    T::TEXT,
                    T::BOOL,
                    T::INT4,
                    T::BOOL,
                    T::INT8,
                    T::INT8,
                    T::INT8,
                    T::TEXT,
                    T::INT4,
                    T::BYTEA,
                    T::INT8,
                    T::INT8,
                    T::INT8,
                    T::INT8,
                ],
            ),
            purge: fill(
                include_str!("sql/purge.sql"),
                vec![T::TEXT, T::BYTEA, T::INT8],
            ),
            await_: fill(
                include_str!("sql/await.sql"),
                vec![T::TEXT, T::BYTEA, T::INT8],
            ),
            due: fill(include_str!("sql/due.sql"), vec![T::TEXT, T::INT8, T::INT8]),
            next_due: fill(include_str!("sql/next_due.sql"), vec![T::TEXT]),
            list: fill(
                include_str!("sql/list.sql"),
                vec![
                    T::TEXT,
                    T::INT8,
                    T::INT8,
                    T::INT8,
                    T::TEXT,
                    T::TEXT,
                    T::TEXT,
                    T::TEXT,
                    T::INT8,
                    T::INT8,
                    T::TEXT,
                ],
            ),
            stats: fill(include_str!("sql/stats.sql"), vec![T::TEXT, T::INT8]),
            sweep: fill(
                include_str!("sql/sweep.sql"),
                vec![T::TEXT, T::INT8, T::INT4],
            ),
            put: fill(
                include_str!("sql/document_put.sql"),
                [&document[..], &[T::BYTEA]].concat(),
            ),
            add: fill(
                include_str!("sql/document_add.sql"),
                [&document[..], &[T::BYTEA]].concat(),
            ),
            read: fill(include_str!("sql/document_read.sql"), document.to_vec()),
            remove: fill(include_str!("sql/document_remove.sql"), document.to_vec()),
            rising: fill(include_str!("sql/documents_rising.sql"), documents.clone()),
            falling: fill(include_str!("sql/documents_falling.sql"), documents),
        }
    }
}

/// A statement for one step and for many. Both select their rows by conditions that
/// the planner always answers with the primary key.
#[derive(Debug)]
pub(crate) struct BatchStatement {
    pub(crate) one: Statement,
    /// Takes a list for each value of a step.
    pub(crate) many: Statement,
}

/// The parameters before those of the steps: the namespace and the time.
const FIRST: [Type; 2] = [Type::TEXT, Type::INT8];

fn steps(table: &Table, sql: &str, each: &[Type]) -> BatchStatement {
    one_or_many(table, sql, sql, each)
}

fn one_or_many(table: &Table, one: &str, many: &str, each: &[Type]) -> BatchStatement {
    let places = (FIRST.len() + 1..).take(each.len());
    let values: Vec<_> = places.map(|place| format!("${place}")).collect();
    let values = values.join(", ");
    let statement = |sql: &str, steps: &str, among: &str, each: Vec<Type>| {
        let sql = sql.replace("{steps}", steps).replace("{among}", among);
        Statement {
            sql: fill(table, &sql),
            types: [FIRST.to_vec(), each].concat(),
        }
    };
    BatchStatement {
        one: statement(
            one,
            &format!("(VALUES ({values}, 1::bigint))"),
            "= $3",
            each.to_vec(),
        ),
        many: statement(
            many,
            &format!("unnest({values}) WITH ORDINALITY"),
            "= ANY ($3)",
            each.iter().map(list_of).collect(),
        ),
    }
}

fn list_of(ty: &Type) -> Type {
    match *ty {
        Type::TEXT => Type::TEXT_ARRAY,
        Type::INT8 => Type::INT8_ARRAY,
        Type::INT4 => Type::INT4_ARRAY,
        _ => Type::BYTEA_ARRAY,
    }
}

/// The time from which retention counts, at completion: an operation that took longer
/// than half of its retention counts from its end.
const BASIS: &str = "(CASE WHEN r.ttl_basis = 'creation' \
    AND now_ms - r.created_ms <= r.retention_ms / 2 \
    THEN r.created_ms ELSE now_ms END)";

/// How long a completed record is kept: the same as [`times`](super::row::times)
/// computes from a record.
const KEPT: &str = "expires_ms = {basis} + r.retention_ms, \
    free_ms = CASE WHEN r.expiry = 'lazy' AND r.keep_expired_ms = 0 THEN NULL \
        ELSE {basis} + r.remember_ms END, \
    due_ms = NULL, \
    sweep_ms = {basis} + CASE \
        WHEN r.remember_ms > r.retention_ms OR r.keep_expired_ms > 0 THEN r.retention_ms \
        ELSE r.remember_ms END";

/// Claims and outcomes are acted on as soon as they are committed, so they must be
/// durable, even if `synchronous_commit` was switched off since the store was opened.
const DURABLE: &str = "CASE WHEN current_setting('synchronous_commit') = 'off' \
    THEN set_config('synchronous_commit', 'on', true) END";

fn fill(table: &Table, sql: &str) -> String {
    let join = |cell: &dyn Fn(&str, &str) -> String| {
        let cells: Vec<_> = COLUMNS.iter().map(|(name, ty)| cell(name, ty)).collect();
        cells.join(", ")
    };
    let granted = |name: &str, ty: &str| match name {
        "operation_id" | "fence" => format!("r.{name}"),
        _ => format!("NULL::{ty}"),
    };
    let light = |name: &str, ty: &str| match name {
        "reply" => format!("NULL::{ty}"),
        _ => format!("r.{name}"),
    };
    let sql = without_comments(sql)
        .replace("{columns}", &join(&|name, _| format!("r.{name}")))
        .replace("{granted_columns}", &join(&granted))
        .replace("{light_columns}", &join(&light))
        .replace("{no_columns}", &join(&|_, ty| format!("NULL::{ty}")))
        .replace("{kept}", KEPT)
        .replace("{durable}", DURABLE)
        .replace("{basis}", BASIS)
        .replace("{grace_ms}", &GRACE.as_millis().to_string())
        .replace("{channel}", table.name());
    table.fill(&sql)
}

/// The SQL without its comments, which the server need not parse.
pub(crate) fn without_comments(sql: &str) -> String {
    let lines = sql
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}
