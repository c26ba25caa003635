//! Our statements with the table's name filled in, and what each takes.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::driver::Statement;
use super::row::{COLUMNS, GRACE};
use super::table::Table;

/// Everything that is ever said to PostgreSQL about operations.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) grant: Arc<Statement>,
    pub(crate) claim: Arc<Statement>,
    pub(crate) settle: Arc<Statement>,
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
            grant: Arc::new(fill(include_str!("sql/grant.sql"), listed(&claim))),
            claim: Arc::new(fill(include_str!("sql/claim.sql"), claim)),
            finish: fill(
                include_str!("sql/finish.sql"),
                with(&[T::INT8, T::TEXT, T::TEXT, T::INT4, T::BYTEA]),
            ),
            settle: Arc::new(fill(
                include_str!("sql/settle.sql"),
                vec![
                    T::TEXT,
                    T::INT8,
                    T::BYTEA_ARRAY,
                    T::INT8_ARRAY,
                    T::TEXT_ARRAY,
                    T::TEXT_ARRAY,
                    T::INT4_ARRAY,
                    T::BYTEA_ARRAY,
                ],
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

/// The types of `grant.sql`, from those of `claim.sql`.
fn listed(claim: &[Type]) -> Vec<Type> {
    let list = |ty: &Type| match *ty {
        Type::TEXT => Type::TEXT_ARRAY,
        Type::INT8 => Type::INT8_ARRAY,
        _ => Type::BYTEA_ARRAY,
    };
    let (namespace, digest, moment) = (&claim[0], &claim[1], &claim[2]);
    let mut types = vec![namespace.clone(), moment.clone(), list(digest)];
    types.extend(claim[3..22].iter().map(list));
    types
}

/// From when retention is counted, at the moment of completion: what took
/// longer than half of it counts from its end.
const BASIS: &str = "(CASE WHEN r.ttl_basis = 'creation' \
    AND now_ms - r.created_ms <= r.retention_ms / 2 \
    THEN r.created_ms ELSE now_ms END)";

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
        .replace("{basis}", BASIS)
        .replace("{grace_ms}", &GRACE.as_millis().to_string())
        .replace("{channel}", table.name());
    table.fill(&sql)
}

/// Comments are for the reader of the file; the server need not parse them.
fn without_comments(sql: &str) -> String {
    let lines = sql
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}
